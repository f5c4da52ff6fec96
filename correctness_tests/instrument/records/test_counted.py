"""Do the pass counters refute a path that a server only claims, and never one that works?"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fixtures.deployments import Deployment, load_box
from fixtures.records.passes import Passes, PassKind, RankPasses, refuted

CPU, GPU = load_box("cpu"), load_box("pcie_blackwell")


def counted(modes: Mapping[str, int], all_reduces: int = 122) -> Passes:
    """Passes of the target by mode, and how many all-reduces each of them makes."""
    kinds = (
        PassKind("target", mode, 1, count, all_reduces={all_reduces: count})
        for mode, count in modes.items()
    )
    return Passes((RankPasses(0, 1, 1, "0.5.23", "cpu", (), tuple(kinds)),))


VERIFYING, PLAIN = {"extend": 12, "target_verify": 400}, {"extend": 12, "decode": 1000}


@pytest.mark.parametrize(
    ("deployment", "passes", "said"),
    [
        (CPU.deployment("eagle3"), counted(VERIFYING, 0), None),
        (CPU.deployment("baseline"), counted(PLAIN, 0), None),
        (CPU.deployment("eagle3"), counted(PLAIN, 0), "speculation is not active: no verify pass, 1000 plain decode"),
        (CPU.deployment("tp2_eagle3"), counted(PLAIN), "speculation is not active"),
        (CPU.deployment("tp2"), counted(PLAIN, 12), None),
        (CPU.deployment("tp2"), counted(PLAIN, 0), "tensor parallelism is not active: no all-reduce in 1012 passes"),
        (GPU.deployment("pcie_ipc_eagle3"), counted(VERIFYING), None),
        # With data-parallel attention an all-to-all takes the place of the all-reduces.
        (GPU.deployment("expert_parallel"), counted(PLAIN, 0), None),
    ],
)
def test_what_a_server_did_not_do_is_refuted(deployment: Deployment, passes: Passes, said: str | None) -> None:
    found = refuted(deployment, passes)
    assert (found is None) is (said is None)
    assert said is None or said in str(found)
