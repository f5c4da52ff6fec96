"""report shows what the rooms below it found: it imports no room above it, and nothing below imports it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FIXTURES = Path(__file__).parents[3] / "fixtures"
BELOW = {"errors", "allreduce", "campaign", "deployments", "gate", "records"}


def imported(path: Path) -> Iterator[str]:
    """The rooms of `fixtures` that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("fixtures."))


def test_report_imports_only_rooms_below_it() -> None:
    rooms = {room for path in (FIXTURES / "report").rglob("*.py") for room in imported(path)}
    assert rooms - {"report"} <= BELOW
    assert "gate" in rooms, "the control: imports are seen"


def test_only_the_plugin_imports_report() -> None:
    users = {path.name for path in FIXTURES.rglob("*.py") if "report" in imported(path)}
    own = {path.name for path in (FIXTURES / "report").rglob("*.py")}
    assert users - own == {"plugin.py"}
