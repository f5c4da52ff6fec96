"""Planted faults switched by a file while a process runs."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("sglang_cpu")

from sglang_cpu import hooks
from sglang_faults import BadFault, Fault, Switch, parse_faults


def write(path: Path, text: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


def test_only_the_faults_that_the_file_names_are_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "switch"
    switch = Switch(str(path))
    often, seldom = (switch.condition(Fault("accept_second", share)) for share in (1.0, 0.02))
    assert not often()
    write(path, "accept_second:0.02,mask_leak\n")
    assert seldom()
    assert not often()
    assert "FAULT ACTIVE accept_second:0.02" in caplog.text
    write(path, "accept_second")
    assert often()
    assert not seldom()
    write(path, "")
    assert not often()
    write(path, "nonsense")
    assert not often()
    assert "no fault 'nonsense'" in caplog.text
    path.unlink()
    assert not often()


def test_a_switched_wrapper_steps_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("switched_for_a_test")
    module.call = lambda *seen: [*seen, "original"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(hooks, "_apply", hooks._replace)
    on = False
    with hooks.only_when(lambda: on):
        hooks.around("switched_for_a_test.call")(lambda original, *seen: original(*seen, "fault"))
    hooks.around("switched_for_a_test.call")(lambda original, *seen: original(*seen, "always"))
    hooks.apply()
    assert module.call() == ["always", "original"]  # type: ignore[attr-defined]
    on = True
    assert module.call() == ["fault", "always", "original"]  # type: ignore[attr-defined]


def test_a_switched_menu_may_repeat_a_name_and_not_hold_what_acts_at_start() -> None:
    assert len(parse_faults("accept_second:1,accept_second:0.02", switched=True)) == 2
    with pytest.raises(BadFault, match="accept_second:1 is given twice"):
        parse_faults("accept_second,accept_second:1", switched=True)
    with pytest.raises(BadFault, match="aux_layers_off_by_one acts at start"):
        parse_faults("aux_layers_off_by_one", switched=True)
