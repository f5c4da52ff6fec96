"""Fault strings, the refusals of the CPU platform, and the hooks that carry both."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

pytest.importorskip("sglang_cpu")

from sglang_cpu import hooks, limits
from sglang_faults.catalog import CATALOG, BadFault, Fault, parse_faults


def test_no_text_is_no_fault() -> None:
    assert parse_faults("") == ()
    assert parse_faults(" , ") == ()


def test_names_arguments_and_defaults() -> None:
    faults = parse_faults("slow_pass:0.2, accept_second,drop_all_reduce:3,draft_dead")
    assert faults == (
        Fault("slow_pass", 0.2), Fault("accept_second", 1), Fault("drop_all_reduce", 3), Fault("draft_dead", None),
    )
    assert [str(fault) for fault in faults] == ["slow_pass:0.2", "accept_second:1", "drop_all_reduce:3", "draft_dead"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slow", "no fault 'slow': use one of slow_pass"),
        ("slow_pass", "write slow_pass:SHARE"),
        ("slow_pass:fast", "SHARE must be a share above 0"),
        ("slow_pass:nan", "SHARE must be"),
        ("accept_second:1.5", "at most 1"),
        ("accept_second:0", "above 0"),
        ("crash_pass:0", "whole number of 1 or more"),
        ("crash_pass:2.5", "whole number"),
        ("drop_all_reduce:-1", "whole number of 0 or more"),
        ("draft_dead:1", "takes no argument"),
        ("wrong_beyond:0", "LENGTH must be a whole number of 1 or more"),
        ("wrong_after_idle:-1", "SECONDS must be a number above 0"),
        ("mask_leak,mask_leak", "given twice"),
    ],
)
def test_a_bad_fault_is_named_in_one_line(text: str, says: str) -> None:
    with pytest.raises(BadFault, match=says) as raised:
        parse_faults(text)
    assert "\n" not in str(raised.value)


def test_every_fault_of_the_catalog_has_an_installer() -> None:
    pytest.importorskip("torch")
    from sglang_faults import installers

    assert set(installers()) == set(CATALOG)


@pytest.mark.parametrize(
    ("fault", "platform", "says"),
    [("nonsense", "sglang_cpu", "no fault 'nonsense'"), ("mask_leak", "", "SGLANG_PLATFORM=sglang_cpu")],
)
def test_a_fault_that_cannot_be_planted_ends_the_process(fault: str, platform: str, says: str) -> None:
    command = "from sglang_faults import active_faults; active_faults()"
    environment = {**os.environ, "SGLANG_CPU_FAULT": fault, "SGLANG_PLATFORM": platform}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_another_release_is_refused() -> None:
    limits.check_release("0.5.23")
    with pytest.raises(limits.Unsupported, match=r"needs sglang==0\.5\.23, found 0\.5\.10\.post1"):
        limits.check_release("0.5.10.post1")


CHAIN = {"algorithm": "EAGLE3", "topk": 1, "num_steps": 3, "num_draft_tokens": 4}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topk": 4}, "speculative-eagle-topk 1"),
        ({"algorithm": "NGRAM"}, "speculative-algorithm EAGLE3"),
        ({"num_draft_tokens": 8}, "speculative-num-draft-tokens 4"),
        ({"num_steps": 0}, "speculative-num-steps"),
        ({"attention_backends": ("triton", None)}, "attention-backend sglang_cpu"),
    ],
)
def test_what_the_platform_cannot_serve_is_refused(change: dict[str, object], says: str) -> None:
    limits.check_arguments(attention_backends=(None, "sglang_cpu"), **CHAIN)
    with pytest.raises(limits.Unsupported, match=says):
        limits.check_arguments(**{"attention_backends": (None,), **CHAIN, **change})


def test_wrappers_of_one_target_nest_in_the_order_of_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("wrapped_for_a_test")
    module.call = lambda *seen: [*seen, "original"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(hooks, "_apply", hooks._replace)
    for name in ("outer", "middle", "inner"):
        hooks.around("wrapped_for_a_test.call")(lambda original, *seen, name=name: original(*seen, name))
    hooks.around("wrapped_for_a_test.missing", optional=True)(lambda original: original())
    hooks.apply()
    assert module.call() == ["outer", "middle", "inner", "original"]


def test_faults_of_text_sit_in_the_process_that_makes_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import sglang_faults as faults

    planted: list[str] = []
    monkeypatch.setattr(
        faults, "installers", lambda: {name: lambda name=name: planted.append(name) for name in CATALOG}
    )
    given = parse_faults("text_short,mask_leak,id_lost,frequency_twice")
    faults.install_faults(given, in_text=True)
    assert planted == ["text_short", "id_lost"]
    planted.clear()
    faults.install_faults(given, in_text=False)
    assert planted == ["mask_leak", "frequency_twice"]


def test_an_idle_time_is_watched_while_its_fault_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched on after a pass, it strikes after the next idle time and not at once."""
    torch = pytest.importorskip("torch")
    from sglang_faults import contexts

    class Runner:
        is_draft_worker = False

        def forward(self) -> types.SimpleNamespace:
            logits = types.SimpleNamespace(next_token_logits=torch.tensor([[3.0, 2.0, 0.0]]))
            return types.SimpleNamespace(logits_output=logits)

    now = [100.0]
    module = types.ModuleType("runner_for_a_test")
    module.Runner = Runner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(hooks, "_apply", hooks._replace)
    monkeypatch.setattr(contexts, "FORWARD", "runner_for_a_test.Runner.forward")
    monkeypatch.setattr(contexts.time, "monotonic", lambda: now[0])
    on = False
    with hooks.only_when(lambda: on):
        contexts.wrong_after_idle(60)
    hooks.apply()

    def best(after: float) -> int:
        now[0] += after
        return int(Runner().forward().logits_output.next_token_logits.argmax())

    assert best(70) == 0
    on = True
    assert [best(seconds) for seconds in (1, 59, 61, 1)] == [0, 0, 1, 0]
