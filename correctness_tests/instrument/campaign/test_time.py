"""Where a step's time goes and what the model makes of it, from records; and the table of the causal test."""

from __future__ import annotations

import pytest
from campaign_cases import write_starts
from test_measured import plain, speculative

from fixtures.campaign.causal import causal_lines
from fixtures.campaign.steps import predictions, step_times
from fixtures.deployments import load_box
from fixtures.records.start import StartRecord
from fixtures.records.store import read_records

CPU = load_box("cpu")
REDUCES = {"all_reduces": {12: 400}, "all_reduce_share": 0.25}


def times(records):
    return step_times(records)[0]


def named(record: StartRecord, deployment: str, index: int = 0) -> StartRecord:
    record.deployment, record.id, record.index = deployment, f"{deployment}-{index}", index
    return record


def test_the_shares_of_a_step_are_those_of_the_records() -> None:
    (line,) = map(str, times([named(speculative(4e-3, 0.5e-3, 0.5e-3, **REDUCES), "eagle3")]))
    assert line == "eagle3: step 6.00 ms: communication 17%, compute 50%, draft 25%, rest 8% (1 start)"


def test_medians_over_starts_and_one_line_a_deployment() -> None:
    starts = [named(plain(seconds), "baseline", index) for index, seconds in enumerate((3e-3, 3e-3, 9e-3))]
    (line,) = map(str, times(starts))
    assert line.startswith("baseline: step 4.00 ms")
    assert "(3 starts)" in line


def test_communication_that_was_not_timed_is_not_called_nothing() -> None:
    (line,) = map(str, times([named(plain(all_reduces={122: 1000}), "baseline")]))
    assert "target pass 75%, rest 25%" in line
    assert "not known" in line


def test_passes_that_do_not_fit_their_step_are_no_attribution() -> None:
    record = named(plain(3e-3, 1e-3), "baseline")
    record.metrics = plain(1e-3, 0.0).metrics
    (line,) = map(str, times([record]))
    assert line.startswith("baseline: not known: attribution: passes of")


@pytest.mark.parametrize("change", ["failed", "discarded", "paired", "uncounted"])
def test_what_is_no_evidence_gives_no_line(change: str) -> None:
    record = named(plain(), "baseline")
    match change:
        case "failed":
            record.status = "measurement failed"
        case "discarded":
            record.discarded = "the first start"
        case "paired":
            record.role = "paired"
        case _:
            record.passes = {}
    assert not times([record])


def test_the_ratio_is_predicted_from_a_plain_server_with_as_many_ranks() -> None:
    records = [named(plain(), "baseline"), named(plain(8e-3), "tp2"), named(speculative(), "eagle3")]
    (found,) = predictions(records, CPU)
    assert found.plain == "baseline"
    assert found.predicted == pytest.approx(3.0 * 4e-3 / 6.5e-3)
    assert found.measured == pytest.approx(found.predicted)
    assert abs(found.error) <= 0.15
    assert not predictions(records[1:], CPU), "two ranks are no yardstick for one"


def test_a_step_with_time_that_no_part_explains_is_not_near() -> None:
    """The control: half of the speculative server's step lies outside its passes."""
    (found,) = predictions([named(plain(), "baseline"), named(speculative(rest_s=6e-3), "eagle3")], CPU)
    assert found.error > 0.15


def test_the_causal_table_says_what_is_missing(tmp_path) -> None:
    assert causal_lines({"baseline": [1.0]}) == []
    write_starts(tmp_path, "causal_bs512_small_kv", 82.0, count=3)
    rates = [record.metric("single_stream/decode_tok_s").value for record in read_records(tmp_path)]
    text = "\n".join(causal_lines({"causal_bs512_small_kv": rates}))
    assert text.count("not measured") == 3
    assert "no explanation yet: graph max batch 512, large max total tokens: 0 starts" in text
