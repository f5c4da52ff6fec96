"""GPUs read through NVIDIA's real binding: its signatures, with a scripted driver library below them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pynvml
import pytest
from weather_cases import Card, ScriptedDriver

from fixtures.weather.gpu import Gpus

Open = Callable[..., tuple[Gpus, list[Card]]]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Open:
    """`cards(Card(), ...)`: the GPUs of a machine, and its cards to change."""

    def opened(
        *given: Card, missing: frozenset[str] = frozenset(), visible: str | None = None
    ) -> tuple[Gpus, list[Card]]:
        found = list(given)
        monkeypatch.setattr(pynvml, "nvmlLib", ScriptedDriver(found, missing))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return Gpus(), found

    return opened


def test_every_reading_has_the_drivers_value_in_the_stated_unit(cards: Open) -> None:
    gpus, _ = cards(Card(), Card(celsius=70, replays=9))
    readings, foreign = gpus.sample(ours=())
    assert {key.removeprefix("gpu0/"): value for key, value in readings.items() if key.startswith("gpu0")} == {
        "sm_mhz": 2430, "memory_mhz": 12001, "watts": 580, "limit_watts": 600, "enforced_watts": 600, "celsius": 61,
        "reasons": 0, "busy_percent": 98, "link_generation": 5, "link_width": 16, "replays": 3, "ecc_uncorrected": 0,
        "memory_mib": 500, "foreign_percent": 0,
    }  # fmt: skip
    assert (readings["gpu1/celsius"], readings["gpu1/replays"]) == (70, 9)
    assert gpus.absent == {}
    assert foreign == {}
    assert gpus.widths == {"gpu0": 16, "gpu1": 16}


def test_only_the_gpus_that_a_server_would_see(cards: Open) -> None:
    gpus, _ = cards(Card(), Card(), Card(), visible="0,2")
    assert {key.partition("/")[0] for key in gpus.sample(())[0]} == {"gpu0", "gpu2"}


@pytest.mark.parametrize(
    "name",
    sorted(name for name in dir(pynvml) if name.startswith("nvmlClocksEventReason") and not name.endswith("All")),
)
def test_each_throttle_reason_of_the_binding_is_read(cards: Open, name: str) -> None:
    gpus, _ = cards(Card(reasons=getattr(pynvml, name)))
    assert gpus.sample(())[0]["gpu0/reasons"] == getattr(pynvml, name)


def test_a_card_that_vanishes_is_gone_and_the_others_are_read_on(cards: Open) -> None:
    gpus, found = cards(Card(), Card())
    gpus.sample(())
    found[1].lost = True
    readings, _ = gpus.sample(())
    assert gpus.gone == ["GPU 1"]
    assert "gpu0/sm_mhz" in readings
    assert not any(key.startswith("gpu1") for key in readings)
    gpus.sample(())
    assert gpus.gone == ["GPU 1"], "told once"


def test_a_driver_without_a_call_says_so_once_and_is_not_asked_again(cards: Open) -> None:
    gpus, _ = cards(Card(), Card(), missing=frozenset({"nvmlDeviceGetPcieReplayCounter"}))
    readings, _ = gpus.sample(())
    assert gpus.absent == {"replays": "Function Not Found"}
    assert "gpu0/replays" not in readings
    assert "gpu1/width" not in readings
    assert readings["gpu1/link_width"] == 16


def test_a_machine_without_a_driver_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    gpus = Gpus()
    assert gpus.absent == {"GPU": "NVML Shared Library Not Found"}
    assert gpus.sample(()) == ({}, {})


def test_a_process_that_is_not_ours_is_named_with_what_it_holds(cards: Open) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as other:
        gpus, _ = cards(Card(processes=[(os.getpid(), 90 << 30), (other.pid, 3 << 30)]))
        _, foreign = gpus.sample(ours={os.getpid()})
        other.communicate(b"\n")
    assert list(foreign.values()) == [3072]
    assert f"({other.pid})" in next(iter(foreign))


def test_a_pid_of_another_namespace_is_foreign_only_where_it_was_there_first(cards: Open) -> None:
    """In a container NVML tells the host's pids: our own server's is one that is not seen from here."""
    never = 1 << 30
    gpus, found = cards(Card(processes=[(never, 1 << 30)]))
    assert list(gpus.sample(())[1]) == [f"gpu0/a process not seen from here ({never})"]
    found[0].processes.append((never + 1, 90 << 30))
    assert list(gpus.sample(())[1]) == [f"gpu0/a process not seen from here ({never})"]
