"""Whatever a run holds: every figure and verdict stands whole on the terminal, and no line is wider than it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from fixtures.deployments import load_box
from fixtures.gate.spec import VERDICTS, Judgement
from fixtures.report import terminal
from fixtures.report.files import markdown_summary
from fixtures.report.next_steps import Repeat
from fixtures.report.row import UNKNOWN
from fixtures.report.view import view_of

CPU = load_box("cpu")
NAMES = st.one_of(
    st.sampled_from(["eagle3", "baseline", "all_reduce_nccl_cuda_8", "d" * 90, "déploiement", "展開" * 20]),
    st.text(
        st.characters(codec="utf-8", categories=["L", "N", "P", "S"], exclude_characters="/"), min_size=1, max_size=80
    ),
)
VALUES = st.one_of(st.just(math.nan), st.floats(1e-9, 1e12), st.integers(1, 10**12).map(float))
UNITS = st.sampled_from(["tok/s", "ms", "tokens/pass", "all-reduces", "bytes", "µs", ""])


@st.composite
def judgements(draw: st.DrawFn, key: str) -> Judgement:
    low, ratio, high = sorted(draw(st.tuples(*[st.floats(1e-4, 1e4)] * 3)))
    ends = draw(st.sampled_from([(low, high), (math.nan, math.nan)]))
    reason = draw(st.sampled_from(["because", "a reason of many words " * 9, "x" * 99]))
    return Judgement(
        key, draw(st.sampled_from(VERDICTS)), reason,
        kind=draw(st.sampled_from(["timing", "counted", "exact", "reported"])),
        better=draw(st.sampled_from(["higher", "lower", "same"])), unit=draw(UNITS),
        ratio=draw(st.sampled_from([ratio, math.nan])), interval=ends,
        baseline_value=draw(VALUES), candidate_value=draw(VALUES),
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> dict[tuple[str, str], Judgement]:
    """Few of the deployments have metrics of their own; the others repeat them, so that sixty cost no more."""
    keys = draw(
        st.lists(st.builds("{}/{}".format, st.sampled_from(["single_stream", "w" * 70, "c8"]), NAMES), max_size=20)
    )
    kinds = [{key: draw(judgements(key)) for key in dict.fromkeys(keys)} for _ in range(draw(st.integers(1, 2)))]
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    names += [f"deployment_{n}" for n in range(draw(st.sampled_from([0, 1, 57])))]
    return {(name, key): found for n, name in enumerate(names) for key, found in kinds[n % len(kinds)].items()}


def squeezed(text: str) -> str:
    """Without what a fold adds."""
    return re.sub(r"\s+", "", text)


def faults(rows: dict[tuple[str, str], Judgement], width: int, colour: bool, encoding: str) -> list[str]:
    """What is not whole, or too wide."""
    view = view_of(
        box=CPU, box_line="", stack="cpu", results=Path("/r"), repeat=Repeat("cpu", 1), rows=rows, records=[],
        baselines={},
    )  # fmt: skip
    painted = terminal.render(view, width, colour, encoding=encoding)
    text = re.sub(r"\x1b\[[\d;]*m", "", painted)
    text.encode(encoding)
    lines, whole = text.splitlines(), squeezed(text)
    found = [line for line in lines if cell_len(line) > width and not line.lstrip().startswith(terminal.COMMAND)]
    figures, names = set(), set()
    for deployment in view.deployments:
        names |= {deployment.name} if deployment.judged else set()
        names |= {deployment.save[1]} if deployment.save else set()
        for row in deployment.judged:
            figures |= {row.before, row.now, row.change_text.partition(" (")[0]}
            figures.add(row.verdict if row.verdict == UNKNOWN else f"{row.look.sign} {row.verdict}")
    found += [each for each in figures if not any(terminal.spelled(each, encoding) in line for line in lines) and each]
    found += [name for name in names if squeezed(terminal.spelled(name, encoding)) not in whole]
    markdown = markdown_summary(view)
    return found + [row.change_text for row in view.judged if row.change_text not in markdown]


@settings(max_examples=80, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=[*HealthCheck])
@given(runs(), st.integers(60, 200), st.booleans(), st.sampled_from(["utf-8", "ascii"]))
def test_every_figure_and_verdict_is_whole_and_no_line_too_wide(
    rows: dict[tuple[str, str], Judgement], width: int, colour: bool, encoding: str
) -> None:
    assert faults(rows, width, colour, encoding)[:3] == []


def test_planted_a_cut_figure_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {("d", "w/m"): Judgement("w/m", "regression", "slower", unit="tok/s", candidate_value=123.4)}
    assert faults(rows, 60, False, "utf-8") == []
    cells = terminal._cells
    monkeypatch.setattr(terminal, "_cells", lambda row: [text[:-1] for text in cells(row)])
    assert faults(rows, 60, False, "utf-8") != []
