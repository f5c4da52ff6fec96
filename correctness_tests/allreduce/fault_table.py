"""Which check saw which fault, in what share of the calls; and how tight each backend's bound was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fixtures.allreduce.cases import CaseResult

PATTERNS = ("exact", "special", "normal", "normal-0.02", "wide", "absorb-chain")
OTHERS = ("ranks agree", "input unchanged", "memory outside")
SERIES = ("odd", "in turn", "decoding", "largest")
JOIN = "bounded join"
COLUMNS = (*PATTERNS, *OTHERS, *SERIES, JOIN)
NORM_COLUMNS = ("norm", "residual sum", "bias", "type", "ranks agree")
FAULT, NORM_FAULT, TIGHTNESS = "all-reduce fault", "fused norm fault", "all-reduce tightness"
Shares = Mapping[str, float]


def shares(results: Iterable[CaseResult]) -> dict[str, float]:
    """For each check the share of calls in which it failed, 0 to 1: the values by data pattern, the other checks over
    all calls."""
    calls: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for result in results:
        failures = result.failures()
        for column, failed in (
            (result.case.pattern, "values" in failures),
            *((check, check in failures) for check in OTHERS),
        ):
            calls[column] += 1
            seen[column] += failed
    return {column: seen[column] / n for column, n in calls.items()}


def fault_table(rows: Sequence[tuple[str, Shares]], title: str, columns: Sequence[str]) -> list[str]:
    """Lines of the table: a row has a label and its shares; a dot is a check that saw nothing, a blank one that was not
    asked."""

    def cell(share: float) -> str:
        return "·" if not share else "<1%" if share < 0.01 else f"{share:.0%}"

    cells = [{column: cell(share) for column, share in row.items()} for _, row in rows]
    return _lines([label for label, _ in rows], cells, title, columns)


def tightness_table(rows: Sequence[tuple[str, Shares]]) -> list[str]:
    """Lines: greatest error / bound for each backend and data pattern."""
    columns = list(dict.fromkeys(c for _, row in rows for c in row))
    cells = [{column: f"{error:.3f}" for column, error in row.items()} for _, row in rows]
    return _lines([label for label, _ in rows], cells, "error / bound", columns)


def _lines(labels: Sequence[str], rows: Sequence[Mapping[str, str]], title: str, columns: Sequence[str]) -> list[str]:
    width = max(map(len, [title, *labels]))
    lines = [f"{title:{width}}  " + "  ".join(columns)]
    for label, row in zip(labels, rows, strict=True):
        cells = (row.get(column, "").rjust(len(column)) for column in columns)
        lines.append(f"{label:{width}}  {'  '.join(cells)}".rstrip())
    return lines


def summary(properties: Iterable[tuple[str, object]]) -> list[str]:
    """The tables from the user properties that the tests in correctness_tests/allreduce record, in any order."""
    rows: dict[str, list[tuple[str, Shares]]] = {FAULT: [], NORM_FAULT: [], TIGHTNESS: []}
    for name, value in properties:
        if name in rows and isinstance(value, list):
            rows[name].append((str(value[0]), dict(value[1])))
    lines: list[str] = []
    for name, title, columns in (
        (FAULT, "fault, share of calls in which it was seen", COLUMNS),
        (NORM_FAULT, "fault of a fused norm, share of cases in which it was seen", NORM_COLUMNS),
    ):
        lines += [*fault_table(rows[name], title, columns), ""] if rows[name] else []
    return lines + tightness_table(rows[TIGHTNESS]) if rows[TIGHTNESS] else lines[:-1]
