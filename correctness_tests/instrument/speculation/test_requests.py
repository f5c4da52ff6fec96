"""The requests of the matrix: what each is made to show, and that it shows it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from long_requests import SPARE, TOKENS, long_answers, long_prompts
from planted import PLANTED, PLANTED_CONTEXTS, PLANTED_SAMPLING, PLANTED_TIGHT
from request_matrix import BUILDERS, Group, Probe, inside_a_run
from situations import ending_model
from trial import as_counted_by, counted_by_pass, counted_late, judge_power

from fixtures.speculation.answers import Ask
from fixtures.speculation.reference import Checked
from fixtures.speculation.replay import Symptom
from fixtures.speculation.vocabulary import Vocabulary

WORDS = tuple(range(10, 50))
PROBE = Probe(tuple(range(150)), WORDS, (4, 8), 4, (1, 3, 4, 4, *[4] * 7))


@pytest.mark.parametrize("end", [2042, 32768])
def test_contexts_are_reached_to_their_end(end: int) -> None:
    prompts = long_prompts([tuple(range(1200)), tuple(range(900))], end)
    spans = [(len(ask.prompt), len(ask.prompt) + ask.cap) for ask in prompts.asks]
    assert all(any(first < 1024 << k <= last for first, last in spans) for k in range(6) if 1024 << k < end)
    assert max(last for _, last in spans) == end - SPARE
    assert all(last <= end for _, last in spans)
    answers = long_answers([PROBE] * 3, end)
    longest = max(len(ask.prompt) + ask.cap for ask in answers.asks)
    assert longest == min(end - SPARE, len(PROBE.prompt) + 4096)
    assert TOKENS < 1024


def test_an_end_of_sequence_token_inside_a_run_is_asked_for_at_each_offset_but_the_last() -> None:
    def at(position: int) -> Probe:
        return Probe((1, position), tuple(7 if i == position else 100 + i for i in range(40)), (4, 8), 4)

    asks = inside_a_run([at(position) for position in range(40)], frozenset({7}))
    assert {ask.name.split("-")[2] for ask in asks} == {"0", "1", "2"}
    assert not inside_a_run([at(11)], frozenset({7})), "the last of a run is no draft that others follow"


def test_a_model_that_ends_answers_at_a_token_that_it_drafts(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"eos_token_id": 2, "vocab_size": 320}))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    (model / "model.safetensors").write_text("weights")
    made = ending_model(model, tmp_path / "made", 75)
    assert Vocabulary(made).eos == {2, 3, 75}
    assert Vocabulary(model).eos == {2, 3}
    assert (made / "model.safetensors").resolve() == (model / "model.safetensors").resolve()
    assert ending_model(model, tmp_path / "made", 75) == made


def test_requests_that_could_not_show_a_mistake_are_no_check() -> None:
    group = Group("penalties", (Ask("a", (1,)),), shows_mistakes=True)
    seen = {"frequency_penalty counted twice": 0.21, "presence_penalty ignored": math.inf}
    (found,) = judge_power(group, Checked(shows=seen), epsilon=0.5)
    assert found.symptom == Symptom.POWER
    assert "counted twice: these answers would show it by a regret of 0.21" in found.line
    assert not judge_power(group, Checked(shows={"frequency_penalty counted twice": 10.1}), epsilon=0.5)
    assert not judge_power(Group("plain", ()), Checked(shows=seen), epsilon=0.5)


def test_how_a_server_counts_follows_from_what_it_is() -> None:
    assert as_counted_by({"speculative_algorithm": "EAGLE3", "disable_overlap_schedule": True}) is counted_by_pass
    assert as_counted_by({"speculative_algorithm": None, "disable_overlap_schedule": False}) is counted_late
    plain = as_counted_by({"disable_overlap_schedule": True})
    assert plain not in (counted_late, counted_by_pass)


def test_every_planted_fault_is_in_the_catalogue_and_has_requests_of_its_own() -> None:
    catalog = pytest.importorskip("sglang_faults.catalog")
    every = (*PLANTED, *PLANTED_CONTEXTS, *PLANTED_TIGHT, *PLANTED_SAMPLING)
    for planted in every:
        (fault,) = catalog.parse_faults(planted.fault)
        assert catalog.CATALOG[fault.name].at_start == planted.at_start
    groups = {planted.group for planted in PLANTED}
    assert groups <= BUILDERS.keys()
