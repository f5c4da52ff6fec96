"""docs/extending.md, followed to the letter in a copy of the project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREE = ("baselines", "correctness_tests", "docs", "fixtures", "perf_tests", "conftest.py", "pyproject.toml", "tox.ini")
PLACES = {"options.py": "_TABLE = (\n", "backends.py": "_ANYWHERE = (\n", "pyproject.toml": "[dependency-groups]\n"}
"""The line after which a block goes in some files."""


def parts_of(title: str) -> list[tuple[str, str]]:
    """The indented blocks of a section of the document, each after the file that was named last."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", text.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]
    named, parts, block = "", [], ""
    for line in [*section.splitlines(), "end"]:
        if line.startswith("    ") or (block and not line):
            block += f"{line}\n"
            continue
        if block:
            parts.append((named, textwrap.dedent(block).strip()))
            block = ""
        named = next((word for word in re.findall(r"`([\w/.]+\.\w+)`", line) if (ROOT / word).parent.is_dir()), named)
    return parts


def change(path: Path, block: str) -> None:
    """The block where the document says that it belongs: after a line, in a key's place, else at the end."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    key = re.match(r"\w+ = ", block)
    if path.name in PLACES:
        place = PLACES[path.name]
        indent = "    " if place.endswith("(\n") else ""
        text = text.replace(place, f"{place}{textwrap.indent(block, indent)}\n")
    elif key:
        text = re.sub(rf"^{key[0]}.*$", block, text, flags=re.MULTILINE)
    else:
        text = f"{text}\n{block}\n".lstrip()
    path.write_text(text, encoding="utf-8")


def copied(there: Path) -> Path:
    """A copy of the project in the folder."""
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, there / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(ROOT / name, there / name)
    return there


def follow(title: str, copy: Path) -> set[str]:
    """The files that following a section changes or makes."""
    parts = parts_of(title)
    for name, block in parts:
        change(copy / name, block)
    changed = {name for name, _ in parts}
    assert not [n for n in changed if (ROOT / n).exists() and (ROOT / n).read_text() == (copy / n).read_text()]
    return changed


def run(copy: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of this Python, run in the copy."""
    command = [sys.executable, "-B", *arguments]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr
