"""Workload files: the shipped ones are whole and sized for each box, a bad one is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.catalogue import P99_REQUESTS
from fixtures.errors import WorkloadError
from fixtures.serving.workloads import Prompt, Workload, load_workload, workload_names
from fixtures.serving.workloads.workload import take

BOXES = ("cpu", "pcie_blackwell")
CHAT = ("chat_concurrency_8", "chat_single_stream")
SHIPPED = ("concurrency_32", "concurrency_8", "long_prompt", "shared_prefix", "single_stream")

GOOD = """
description = "d"
concurrency = 2
prompts = "p.jsonl"
cache = "cold"
[sampling]
temperature = 0.0
ignore_eos = true
[limits]
stall_s = 1.0
deadline_s = 2.0
[sizes.cpu]
requests = 3
max_new_tokens = 4
warm_up_requests = 1
"""
GOOD_PROMPTS = '{"id": "a", "text": "x"}\n\n{"id": "b", "text": "y"}\n'


def write(folder: Path, text: str = GOOD, prompts: str | None = GOOD_PROMPTS) -> Path:
    if prompts is not None:
        (folder / "p.jsonl").write_text(prompts)
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_the_shipped_workloads() -> None:
    assert workload_names() == (*CHAT, *SHIPPED)


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("name", SHIPPED)
def test_each_shipped_workload_has_a_size_for_each_box(name: str, box: str) -> None:
    workload = load_workload(name, box)
    assert (workload.name, workload.size) == (name, box)
    assert workload.sampling == {"temperature": 0.0, "ignore_eos": True}
    assert workload.requests >= workload.concurrency
    assert workload.warm_up_requests >= 1
    sent = [prompt.text for prompt in workload.warm_up_prompts() + workload.measured_prompts()]
    assert len(set(sent)) == len(sent), "a prompt sent twice is answered by the prefix cache"


def test_single_stream_is_one_at_a_time() -> None:
    assert {load_workload("single_stream", box).concurrency for box in BOXES} == {1}
    assert [load_workload(f"concurrency_{n}", "cpu").concurrency for n in (8, 32)] == [8, 32]


def test_the_gpu_box_has_enough_requests_for_p99() -> None:
    assert load_workload("concurrency_32", "pcie_blackwell").requests >= P99_REQUESTS


def test_shared_prefix_shares_its_beginning_in_each_round() -> None:
    for box in BOXES:
        workload = load_workload("shared_prefix", box)
        texts = [prompt.text for prompt in workload.warm_up_prompts() + workload.measured_prompts()]
        shared = min(len(text) for text in texts) // 2
        assert len({text[:shared] for text in texts}) == 1


def test_the_other_workloads_do_not_share_a_beginning() -> None:
    """What the prefix cache could answer stays below the share that a cold workload allows."""
    for name in ("single_stream", "long_prompt"):
        workload = load_workload(name, "cpu")
        texts = [prompt.text for prompt in workload.measured_prompts()]
        common = 0
        for index, text in enumerate(texts[1:], start=1):
            common += max(_common(text, earlier) for earlier in texts[:index])
        assert common / sum(map(len, texts)) <= workload.cached_share[1]


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_a_workload_from_a_file_of_ones_own(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path), "cpu")
    assert [prompt.id for prompt in workload.measured_prompts()] == ["a", "b", "a#2"]
    assert workload.warm_up_prompts() == [Prompt("b#2", "# 2: b\ny")]
    assert load_workload(str(tmp_path / "mine.toml"), "cpu").fingerprint() == workload.fingerprint()


def test_rounds_differ() -> None:
    prompts = (Prompt("a", "x"), Prompt("b", "y"))
    assert take(prompts, 5)[4] == Prompt("a#3", "# 3: a\nx")
    assert take(prompts, 3, tag_at_end=True)[2] == Prompt("a#2", "x\n# 2: a\n")


CHANGES: dict[str, Any] = {
    "concurrency": 3,
    "requests": 4,
    "max_new_tokens": 5,
    "warm_up_requests": 2,
    "prompts": (Prompt("a", "x"), Prompt("b", "z")),
    "cache": "shared",
    "sampling": {"temperature": 1.0, "ignore_eos": True},
}


@pytest.mark.parametrize("key", CHANGES)
def test_the_fingerprint_changes_with_what_is_sent(tmp_path: Path, key: str) -> None:
    workload = load_workload(write(tmp_path), "cpu")
    assert replace(workload, **{key: CHANGES[key]}).fingerprint() != workload.fingerprint()


def test_the_fingerprint_ignores_deadlines_and_words(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path), "cpu")
    same = replace(workload, stall_s=9.0, deadline_s=9.0, description="other")
    assert same.fingerprint() == workload.fingerprint()


def swap(old: str, new: str) -> Callable[[], str]:
    assert old in GOOD
    return lambda: GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (swap("concurrency = 2", "concurrency = = 2"), ["not valid TOML", "line 3"]),
        (swap("concurrency = 2", 'concurrency = "two"'), ["concurrency", "'two'", "not a whole number"]),
        (swap("concurrency = 2", "concurrency = 0"), ["mine.toml:3: concurrency = 0 must be at least 1"]),
        (swap("concurrency = 2", "concurency = 2"), ["concurency", "did you mean 'concurrency'?"]),
        (swap("max_new_tokens = 4", "max_new_tokens = 1"), ["sizes.cpu.max_new_tokens", "= 1 must be at least 2"]),
        (
            swap("ignore_eos = true", "ignore_eos = true\nbeams = 2"),
            ["sampling", "beams", "known: ignore_eos"],
        ),
        (swap("stall_s = 1.0\n", ""), ["limits", "'stall_s' is a required property"]),
        (swap('"cold"', '"warm"'), ["cache", "'warm'", "known: cold, shared"]),
        (swap('"cold"', '"cold"\ncached_share = [0.9, 0.1]'), ["cached_share", "least share first"]),
        (swap("[sizes.cpu]", "[sizes.gpu]"), ["no [sizes.cpu]", "it has gpu"]),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: Callable[[], str], words: list[str]) -> None:
    path = write(tmp_path, text())
    with pytest.raises(WorkloadError) as caught:
        load_workload(path, "cpu")
    message = str(caught.value)
    assert "\n" not in message
    for word in [str(path), *words]:
        assert word in message


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ("{broken\n", ["p.jsonl:1: ", "not JSON"]),
        ('{"id": "a", "text": "x"}\n[1]\n', ["p.jsonl:2: ", "no object"]),
        ('{"id": "a"}\n', ["p.jsonl:1: ", "text is None"]),
        ('{"id": "", "text": "x"}\n', ["p.jsonl:1: ", "id is ''"]),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', ["p.jsonl:2: ", "'a' is there already"]),
        ("\n", ["has no prompts"]),
    ],
)
def test_a_bad_prompt_file_is_refused_in_one_line(tmp_path: Path, prompts: str, words: list[str]) -> None:
    path = write(tmp_path, prompts=prompts)
    with pytest.raises(WorkloadError) as caught:
        load_workload(path, "cpu")
    for word in ["p.jsonl", *words]:
        assert word in str(caught.value)


def test_a_missing_prompt_file_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"\.toml: prompts = 'p\.jsonl': no such file .*code_openings\.jsonl"):
        load_workload(write(tmp_path, prompts=None), "cpu")


def test_an_unknown_name_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="'nope' is none of chat_concurrency_8, "):
        load_workload("nope", "cpu")
    with pytest.raises(WorkloadError, match=r"cannot be read \(No such file"):
        load_workload(tmp_path / "nope.toml", "cpu")


def test_the_type_is_immutable(tmp_path: Path) -> None:
    workload: Workload = load_workload(write(tmp_path), "cpu")
    with pytest.raises(AttributeError):
        workload.requests = 9  # type: ignore[misc]
