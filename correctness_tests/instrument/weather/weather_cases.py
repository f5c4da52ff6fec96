"""A scripted driver library below NVIDIA's real binding, and weather made by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from fixtures.records.start import StartRecord
from fixtures.weather.series import Spread, Weather, WorkloadWeather

QUIET = {
    "busy_cores": 1.6, "own_cores": 1.59, "foreign_cores": 0.01, "steal_cores": 0.0, "load": 1.5,
    "psi_cpu": 0.3, "psi_memory": 0.0, "psi_io": 0.01, "swap_pages_s": 0.0, "clock_back_s": 0.0, "clock_ahead_s": 0.0,
    "gpu0/sm_mhz": 2430.0, "gpu0/limit_watts": 600.0, "gpu0/enforced_watts": 600.0, "gpu0/link_width": 16.0,
    "gpu0/celsius": 61.0, "gpu0/foreign_percent": 0.0,
}  # fmt: skip


@dataclass
class Card:
    """One GPU of the scripted library, in NVML's units."""

    clocks: dict[int, int] = field(default_factory=lambda: {pynvml.NVML_CLOCK_SM: 2430, pynvml.NVML_CLOCK_MEM: 12001})
    milliwatts: int = 580_000
    limit: int = 600_000
    celsius: int = 61
    reasons: int = 0
    busy: int = 98
    generation: int = 5
    width: int = 16
    replays: int = 3
    ecc: int = 0
    used: int = 500 << 20
    processes: list[tuple[int, int]] = field(default_factory=list)
    lost: bool = False


class ScriptedDriver:
    """`libnvidia-ml.so` as the binding calls it: C functions by name, results through pointers. Functions named in
    `missing` are not in this driver."""

    def __init__(self, cards: list[Card], missing: frozenset[str] = frozenset()) -> None:
        self.cards, self.missing = cards, missing

    def __getattr__(self, name: str) -> Callable[..., int]:
        found = {} if name in self.missing else _FUNCTIONS
        if name not in found:
            raise AttributeError(name)
        what = found[name]

        def call(*given: Any) -> int:
            if not given or not isinstance(given[0], ctypes.c_void_p | pynvml.c_nvmlDevice_t):
                return int(what(self, *given) or 0)
            card = self.cards[(given[0].value or 1) - 1] if isinstance(given[0], ctypes.c_void_p) else None
            card = card or self.cards[ctypes.cast(given[0], ctypes.c_void_p).value - 1]  # type: ignore[operator]
            if card.lost:
                return int(pynvml.NVML_ERROR_GPU_IS_LOST)
            return int(what(card, *given[1:]) or 0)

        return call


def _count(driver: ScriptedDriver, out: Any) -> None:
    out._obj.value = len(driver.cards)


def _handle(driver: ScriptedDriver, index: Any, out: Any) -> None:
    ctypes.cast(ctypes.pointer(out._obj), ctypes.POINTER(ctypes.c_void_p))[0] = int(index.value) + 1


def _told(read: Callable[[Card], int]) -> Callable[..., None]:
    def put(card: Card, *rest: Any) -> None:
        rest[-1]._obj.value = read(card)

    return put


def _clock(card: Card, kind: Any, out: Any) -> None:
    out._obj.value = card.clocks[getattr(kind, "value", kind)]


def _use(card: Card, out: Any) -> None:
    out._obj.gpu = card.busy


def _memory(card: Card, out: Any) -> None:
    out._obj.used = card.used


def _processes(card: Card, count: Any, array: Any) -> int:
    if array is None:
        count._obj.value = len(card.processes)
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) if card.processes else 0
    for at, (pid, used) in enumerate(card.processes):
        array[at].pid, array[at].usedGpuMemory = pid, used
    count._obj.value = len(card.processes)
    return 0


def _uuid(card: Card, text: Any, size: Any) -> None:
    text.value = b"GPU-scripted"


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nvmlInitWithFlags": lambda driver, flags: 0,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _handle,
    "nvmlDeviceGetUUID": _uuid,
    "nvmlDeviceGetMaxPcieLinkWidth": _told(lambda card: 16),
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetPowerUsage": _told(lambda card: card.milliwatts),
    "nvmlDeviceGetPowerManagementLimit": _told(lambda card: card.limit),
    "nvmlDeviceGetEnforcedPowerLimit": _told(lambda card: card.limit),
    "nvmlDeviceGetTemperature": _told(lambda card: card.celsius),
    "nvmlDeviceGetCurrentClocksEventReasons": _told(lambda card: card.reasons),
    "nvmlDeviceGetUtilizationRates": _use,
    "nvmlDeviceGetCurrPcieLinkGeneration": _told(lambda card: card.generation),
    "nvmlDeviceGetCurrPcieLinkWidth": _told(lambda card: card.width),
    "nvmlDeviceGetPcieReplayCounter": _told(lambda card: card.replays),
    "nvmlDeviceGetTotalEccErrors": _told(lambda card: card.ecc),
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetProcessUtilization": lambda card, *rest: int(pynvml.NVML_ERROR_NOT_FOUND),
}


def here(**changes: float) -> WorkloadWeather:
    """A quiet minute of one workload, but for `changes` (a reading's name with `__` for `/`)."""
    readings = QUIET | {key.replace("__", "/"): value for key, value in changes.items()}
    return WorkloadWeather(60, {key: Spread(value, value, value, value) for key, value in readings.items()})


def weather(found: WorkloadWeather | None = None, **changes: Any) -> Weather:
    """A start's on a quiet machine of two cores and one GPU, but for `changes`."""
    given: dict[str, Any] = {
        "cores": 2, "workloads": {"single_stream": found or here()}, "link_widths": {"gpu0": 16},
        "memory_before": {"gpu0": 500.0}, "limits_before": {"gpu0": 600.0}
    }  # fmt: skip
    return Weather(**(given | changes))


def start(index: int, found: Weather | None = None, **changes: Any) -> StartRecord:
    moment = f"2026-01-01T00:{index:02d}:00.000Z"
    values: dict[str, Any] = {"deployment": "baseline", "environment": {"machine": "a"}} | changes
    return StartRecord(
        id=f"{values['deployment']}{index}", run="r", box="cpu", stack="cpu", role="stage1", index=index,
        started_at=moment, finished_at=moment, weather=found, **values,
    )  # fmt: skip
