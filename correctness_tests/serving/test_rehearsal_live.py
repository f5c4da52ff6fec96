"""A rehearsal on real servers: some deployments of the GPU box by the tiny pair, refusals by their own lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.night.bill import LOADING
from fixtures.records.store import read_records
from fixtures.session.outcome import EXIT_MEASUREMENT_FAILED

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.alone, pytest.mark.xdist_group("night")]

NAMES = ("baseline_bs128", "eagle3", "flashinfer_fusion", "torch_symmetric_memory")
LIMIT_S = 1500


@pytest.mark.timeout(LIMIT_S + 120)
def test_a_part_of_the_gpu_box_is_rehearsed(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    results, page = tmp_path / "results", tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "perf", "-p", "no:cacheprovider", "--box=pcie_blackwell", "--rehearse",
         f"--deployment={','.join(NAMES)}", "--seed=1", "--budget=3h", f"--results={results}", f"--html={page}"],
        cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, EXIT_MEASUREMENT_FAILED), said  # what the hardware refuses is no measurement
    assert "REHEARSAL of box pcie_blackwell" in said
    assert "REHEARSAL" in page.read_text(encoding="utf-8").partition("<nav")[0]
    assert (results / "plan.md").read_text(encoding="utf-8").startswith("> REHEARSAL")
    records = read_records(results)
    assert all(each.rehearsal_hour_s == 180.0 for each in records)
    failures = {each.deployment: each.failure or {} for each in records if each.status != "ok"}
    for name in ("flashinfer_fusion", "torch_symmetric_memory"):
        (refused,) = [each for each in records if each.deployment == name]  # once, and never again
        assert failures[name]["cause"] == "unsupported architecture", said
        assert LOADING not in refused.seconds  # before a weight was read
    assert "SM90 or SM10X" in str(failures["flashinfer_fusion"]["lines"])
    assert "Device capability 12 not supported" in str(failures["torch_symmetric_memory"]["lines"])
    for name in ("baseline_bs128", "eagle3"):
        assert any(each.usable for each in records if each.deployment == name), said
    assert "eagle3 single_stream/decode_tok_s: " in said
