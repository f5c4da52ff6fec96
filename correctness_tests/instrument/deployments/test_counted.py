"""Do the pass counters refute a path that a server only claims, and never one that works?"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fixtures.deployments import load_box
from fixtures.deployments.counted import refuted

CPU, GPU = load_box("cpu"), load_box("pcie_blackwell")


class Counted:
    """Passes of the target by mode, and how many all-reduces each of them makes."""

    def __init__(self, modes: Mapping[str, int], all_reduces: int = 122) -> None:
        self._modes, self._all_reduces = modes, all_reduces

    def count(self, role: str, mode: str | None = None, /) -> int:
        return sum(count for name, count in self._modes.items() if mode in (None, name)) if role == "target" else 0

    def all_reduces_per_pass(self, role: str, mode: str | None = None, /) -> dict[int, int]:
        total = self.count(role, mode)
        return {self._all_reduces: total} if total else {}


VERIFYING, PLAIN = {"extend": 12, "target_verify": 400}, {"extend": 12, "decode": 1000}


@pytest.mark.parametrize(
    ("deployment", "passes", "said"),
    [
        (CPU.deployment("eagle3"), Counted(VERIFYING, 0), None),
        (CPU.deployment("baseline"), Counted(PLAIN, 0), None),
        (CPU.deployment("eagle3"), Counted(PLAIN, 0), "speculation is not active: no verify pass, 1000 plain decode"),
        (CPU.deployment("tp2_eagle3"), Counted(PLAIN), "speculation is not active"),
        (CPU.deployment("tp2"), Counted(PLAIN, 12), None),
        (CPU.deployment("tp2"), Counted(PLAIN, 0), "tensor parallelism is not active: no all-reduce in 1012 passes"),
        (GPU.deployment("pcie_ipc_eagle3"), Counted(VERIFYING), None),
        # With data-parallel attention an all-to-all takes the place of the all-reduces.
        (GPU.deployment("expert_parallel"), Counted(PLAIN, 0), None),
    ],
)
def test_what_a_server_did_not_do_is_refuted(deployment: object, passes: Counted, said: str | None) -> None:
    found = refuted(deployment, passes)  # type: ignore[arg-type]
    assert (found is None) is (said is None)
    assert said is None or said in str(found)
