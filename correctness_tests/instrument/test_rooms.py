"""The rooms of `fixtures`: arrows go one way, each name means one thing, and report only shows what lies below it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"
BELOW_REPORT = {"errors", "catalogue", "reading", "allreduce", "campaign", "deployments", "gate", "night", "records"}


def trees(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def room_of(path: Path, folder: Path) -> str:
    return path.relative_to(folder).parts[0].removesuffix(".py")


def arrows(folder: Path) -> dict[str, set[str]]:
    """By room: the other rooms that its files import, wherever in a file."""
    found: dict[str, set[str]] = {}
    for path, tree in trees(folder):
        room = room_of(path, folder)
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            rooms = {name.split(".")[1] for name in names if name.startswith("fixtures.")}
            found.setdefault(room, set()).update(rooms - {room})
    return found


def doubles(folder: Path) -> list[str]:
    """Names that two classes have."""
    names = Counter(node.name for _, tree in trees(folder) for node in tree.body if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def test_no_room_imports_one_above_it() -> None:
    order = list(TopologicalSorter(arrows(FIXTURES)).static_order())
    assert order[-1] == "plugin", "the glue is on top of all"
    assert order.index("session") > order.index("gate") > order.index("records")


def test_report_shows_and_nothing_but_the_plugin_shows_it() -> None:
    found = arrows(FIXTURES)
    assert found["report"] <= BELOW_REPORT
    assert {room for room, others in found.items() if "report" in others} == {"plugin"}


def test_no_two_classes_have_one_name() -> None:
    assert doubles(FIXTURES) == []


def test_a_cycle_and_a_name_used_twice_are_seen(tmp_path: Path) -> None:
    for room, other in (("gate", "records"), ("records", "gate")):
        (tmp_path / room).mkdir()
        (tmp_path / room / "one.py").write_text(f"def ask():\n    import fixtures.{other}.one\n\nclass Same: ...\n")
    with pytest.raises(CycleError):
        TopologicalSorter(arrows(tmp_path)).prepare()
    assert doubles(tmp_path) == ["Same"]
