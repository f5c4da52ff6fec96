"""Has this machine room for what a run of its boxes needs? Where it has no GPU, there is nothing to ask of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from preflight_cases import BOXES

from fixtures.deployments import Box
from fixtures.records.store import check_room
from fixtures.serving.freed import IDLE_BYTES, gpu_use
from fixtures.serving.launch import serving

pytestmark = [pytest.mark.preflight, pytest.mark.xdist_group("preflight")]


@pytest.mark.parametrize("box", BOXES, ids=lambda box: box.name)
def test_the_results_have_room(box: Box, pytestconfig: pytest.Config) -> None:
    """Of every deployment all rounds."""
    given = pytestconfig.getoption("--results")
    check_room(Path(given or pytestconfig.rootpath / "results").absolute(), len(box.deployments) * box.night.rounds)


def test_nobody_uses_the_gpus() -> None:
    if not (uses := gpu_use()):
        pytest.skip("this machine has no GPU")
    if serving():
        pytest.skip("servers of other tests run")
    assert [str(use) for use in uses if use.used > IDLE_BYTES] == []
