"""Bytes of a stream to tokens: any packet boundaries, both forms of output_ids, both releases' names, each
broken stream."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import DONE, events, sse

from fixtures.errors import MeasurementFailed
from fixtures.serving.client_stream import EventSplitter, TokenLedger, accept_figures, retractions


def read(pieces: list[bytes], tokens: int, *, ignore_eos: bool = True) -> TokenLedger:
    ledger, splitter = TokenLedger("w: prompt p"), EventSplitter()
    for number, piece in enumerate(pieces):
        for payload in splitter.feed(piece):
            ledger.accept(payload, float(number))
    ledger.check(tokens, ignore_eos)
    return ledger


@given(cuts=st.lists(st.integers(0, 3000), max_size=30), per_chunk=st.integers(1, 5), cumulative=st.booleans())
def test_packet_boundaries_do_not_matter(cuts: list[int], per_chunk: int, cumulative: bool) -> None:
    stream = b": comment\n\n" + b"".join(events(17, per_chunk=per_chunk, cumulative=cumulative)) + DONE
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    ledger = read(pieces, 17)
    assert ledger.ids == read([stream], 17).ids
    assert len(ledger.ids) == len(ledger.times) == 17
    assert ledger.done


@pytest.mark.parametrize("line_end", [b"\n\n", b"\r\n\r\n"])
def test_line_ends(line_end: bytes) -> None:
    assert EventSplitter().feed(b"data: 1" + line_end + b"data:2" + line_end) == [b"1", b"2"]


@pytest.mark.parametrize("cumulative", [True, False])
@pytest.mark.parametrize("per_chunk", [1, 3, 4, 99])
def test_tokens_of_a_chunk_share_its_time(per_chunk: int, cumulative: bool) -> None:
    ledger = read(events(10, per_chunk=per_chunk, cumulative=cumulative), 10)
    assert ledger.times == [float(index // per_chunk) for index in range(10)]


def test_cumulative_ids_may_run_ahead_of_the_count() -> None:
    """0.5.23 sends a reference to the list, which later tokens may have joined before it is written out."""
    pieces = events(6)
    for index, ahead in ((1, 3), (2, 5)):
        event = json.loads(pieces[index][6:])
        event["output_ids"] = json.loads(pieces[ahead][6:])["output_ids"]
        pieces[index] = sse(event)
    del pieces[3:5]
    ledger = read(pieces, 6)
    assert ledger.times == [0.0, 1.0, 1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (
            {
                "spec_verify_ct": 4,
                "spec_accept_token_num": 9,
                "spec_draft_token_num": 12,
                "total_retractions": 1,
            },
            (4, 3.0, 9, 12, 1),
        ),
        (
            {
                "spec_verify_ct": 4,
                "spec_num_correct_drafts": 9,
                "spec_num_proposed_drafts": 12,
                "num_retractions": 2,
            },
            (4, 3.0, 9, 12, 2),
        ),
        ({"spec_verify_ct": 0}, (None, None, None, None, 0)),
        ({}, (None, None, None, None, 0)),
    ],
    ids=["0.5.10", "0.5.23", "no pass", "no speculation"],
)
def test_accept_figures_of_both_releases(meta: dict[str, int], expected: tuple[object, ...]) -> None:
    meta = {"completion_tokens": 12, **meta}
    figures = accept_figures(meta)
    got = (figures.verify_passes, figures.accept_length, figures.correct_drafts, figures.proposed_drafts)
    assert (*got, retractions(meta)) == expected


ABORT = {
    "text": "",
    "output_ids": [],
    "meta_info": {"finish_reason": {"type": "abort", "message": "too long", "status_code": 400}},
}


@pytest.mark.parametrize(
    ("pieces", "cause", "words"),
    [
        (events(8)[:5], "truncated", "after 5 tokens without a finish_reason"),
        ([], "truncated", "after 0 tokens"),
        (events(8, claim=9), "wrong_count", "8 token ids arrived, the server counts 9"),
        (events(8, claim=7, cumulative=False), "wrong_count", "8 token ids arrived, the server counts 7"),
        (events(5), "too_few_tokens", "5 of 8 tokens"),
        (events(9), "wrong_count", "9 of 8 tokens"),
        ([b"data: {not json\n\n"], "bad_stream", "no JSON"),
        ([b"data: [1]\n\n"], "bad_stream", "where an object belongs"),
        ([sse({"text": "x"})], "bad_stream", "without meta_info"),
        ([sse({"text": "x", "meta_info": {"completion_tokens": 1}})], "bad_stream", "no output_ids"),
        ([sse({"error": {"message": "input is too long"}})], "refused", "input is too long"),
        ([sse(ABORT)], "refused", "too long"),
        ([*events(8)[:4], events(8, ids=[7] * 8)[4]], "bad_stream", "changed tokens"),
    ],
)
def test_broken_streams(pieces: list[bytes], cause: str, words: str) -> None:
    with pytest.raises(MeasurementFailed, match=words) as caught:
        read(pieces, 8)
    assert caught.value.cause == cause
    assert str(caught.value).startswith("w: prompt p: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cumulative", [True, False])
@pytest.mark.parametrize("per_chunk", [1, 3])
@pytest.mark.parametrize(("length", "lost"), [(length, lost) for length in (3, 9) for lost in range(length)])
def test_one_lost_token_is_counted_as_one_in_either_form(
    per_chunk: int, cumulative: bool, length: int, lost: int
) -> None:
    """Wherever it was lost, the form of the stream is still told: the line has the right number of tokens."""
    whole = [100 + index for index in range(length)]
    pieces = events(length, per_chunk=per_chunk, cumulative=cumulative, ids=whole)
    for index, piece in enumerate(pieces):
        event = json.loads(piece[6:])
        event["output_ids"] = [token for token in event["output_ids"] if token != whole[lost]]
        pieces[index] = sse(event)
    with pytest.raises(MeasurementFailed, match=f"{length - 1} token ids arrived, the server counts {length}"):
        read(pieces, length)


def test_an_answer_may_stop_early_when_the_workload_lets_it() -> None:
    pieces = events(5)
    last = json.loads(pieces[-1][6:])
    last["meta_info"]["finish_reason"] = {"type": "stop", "matched": 2}
    pieces[-1] = sse(last)
    assert read(pieces, 8, ignore_eos=False).finish_reason == "stop"
    with pytest.raises(MeasurementFailed, match="5 of 8"):
        read(pieces, 8, ignore_eos=True)
