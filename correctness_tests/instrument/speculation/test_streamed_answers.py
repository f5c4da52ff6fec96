"""Events of both forms of a stream, with the logprobs of both releases, make the answer that they are pieces of."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.speculation.answers import Answer, StreamedAnswer, parse_answer

FORMS = ["all so far", "new tokens (0.5.10)", "new tokens (0.5.23)"]
"""0.5.10 slices ids and text, and not the logprobs."""


def event(ids: list[int], start: int, end: int, form: str) -> dict[str, Any]:
    first = 0 if form == "all so far" else start
    listed = start if "0.5.23" in form else 0
    return {
        "text": "".join(f"<{token}>" for token in ids[first:end]),
        "output_ids": ids[first:end],
        "meta_info": {
            "completion_tokens": end,
            "finish_reason": {"type": "length", "length": end} if end == len(ids) else None,
            "output_token_logprobs": [[-float(n), ids[n], None] for n in range(listed, end)],
            "output_top_logprobs": [[[-float(n), ids[n], None], [-9.0, 1000, None]] for n in range(listed, end)],
        },
    }


def streamed(ids: list[int], edges: list[int], form: str) -> Answer:
    answer = StreamedAnswer()
    for start, end in pairwise(edges):
        assert answer.add(event(ids, start, end, form))
    return answer.whole()


@pytest.mark.parametrize("form", FORMS)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=30), cuts=st.sets(st.integers(1, 29)))
def test_the_pieces_make_the_whole(form: str, ids: list[int], cuts: set[int]) -> None:
    """Also where tokens repeat, so that new ones look like those that were there."""
    edges = sorted({0, len(ids)} | {cut for cut in cuts if cut < len(ids)})
    answer = streamed(ids, edges, form)
    whole = parse_answer(event(ids, 0, len(ids), "all so far"))
    assert answer.runs == tuple(end - start for start, end in pairwise(edges))
    assert (answer.tokens, answer.text, answer.finish) == (whole.tokens, whole.text, whole.finish)
    assert (answer.logprobs, answer.top) == (whole.logprobs, whole.top)


def test_a_dropped_token_is_one_token_less() -> None:
    """The server counts it, and the rest of the stream is read as before."""
    ids = [5, 6, 7, 8, 9, 10]
    answer = StreamedAnswer()
    for start, end in ((0, 1), (1, 4), (4, 6)):
        piece = event(ids, start, end, FORMS[2])
        if start == 1:
            del piece["output_ids"][1]
        assert answer.add(piece)
    assert (answer.whole().tokens, answer.whole().completion_tokens) == ((5, 6, 8, 9, 10), 6)


def test_tokens_that_change_after_they_were_sent() -> None:
    answer = StreamedAnswer()
    assert answer.add(event([5, 6, 7], 0, 2, FORMS[0]))
    assert not answer.add(event([5, 9, 7], 0, 3, FORMS[0]))
