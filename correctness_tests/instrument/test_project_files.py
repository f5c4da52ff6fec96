"""What the project says in two places is the same in both."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

pytestmark = pytest.mark.correctness


def test_pre_commit_and_lint_use_the_same_tools(pytestconfig):
    groups = tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text())["dependency-groups"]
    pinned = {name(each): each for each in groups["lint"]}
    hooks = yaml.safe_load((pytestconfig.rootpath / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    used = {name(each): each for hook in hooks for each in hook["additional_dependencies"]}
    assert used == pinned


def test_every_option_is_in_the_readme(pytestconfig):
    readme = (pytestconfig.rootpath / "README.md").read_text()
    source = (pytestconfig.rootpath / "fixtures" / "session" / "options.py").read_text()
    options = set(re.findall(r'"(--[a-z][a-z-]+)"', source))
    assert len(options) > 10
    docs = "".join(path.read_text() for path in (pytestconfig.rootpath / "docs").glob("*.md"))
    assert [option for option in sorted(options) if option not in readme + docs] == []


def name(requirement: str) -> str:
    return re.split(r"[<>=!~ ]", requirement)[0]
