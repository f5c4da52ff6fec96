"""What the project says in two places is the same in both."""

from __future__ import annotations

import configparser
import re
import tomllib
from fnmatch import fnmatch

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


def test_tox_hands_on_what_the_readme_sets_on_the_gpu_box(pytestconfig):
    """tox drops every variable that it is not told to pass."""
    readme = (pytestconfig.rootpath / "README.md").read_text()
    section = readme.split("## On the GPU box")[1].split("\n## ")[0]
    named = {"LIBRARY_PATH", "CUDA_HOME", *re.findall(r"\b(KIMI_[A-Z0-9_]+)=", section)}
    assert all(each in section for each in named)
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(pytestconfig.rootpath / "tox.ini")
    passed = tox["testenv:cu128"]["pass_env"].split()
    assert [each for each in sorted(named) if not any(fnmatch(each, pattern) for pattern in passed)] == []


def name(requirement: str) -> str:
    return re.split(r"[<>=!~ ]", requirement)[0]
