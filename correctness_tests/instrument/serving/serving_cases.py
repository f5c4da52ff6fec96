"""What the tests of serving share: a deployment of the scripted process, and a look for processes left
behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixtures.deployments.deployment import Deployment, Evidence
from fixtures.serving.launch import MARK, Mark
from fixtures.serving.processes import ProcessId, mark_of, pids

SCRIPTED = Path(__file__).with_name("scripted_process.py")
ENTRY = (sys.executable, "-S", str(SCRIPTED))
RELEASE = "0.5.23"


def deployment(
    tmp_path: Path,
    script: str,
    *,
    name: str = "scripted",
    deadline_s: float = 30.0,
    options: Mapping[str, Any] | None = None,
    evidence: Mapping[str, Evidence] | None = None,
    **environment: str,
) -> Deployment:
    """A deployment whose server is `scripted_process.py` in the named behaviour."""
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    return Deployment(
        name=name,
        box="test",
        description="",
        model=str(model),
        draft_model=None,
        options=options or {},
        environment={"SCRIPT": script, **environment},
        deadline_s=deadline_s,
        workloads=(),
        evidence=evidence or {},
    )


def marked(owner: ProcessId | None = None) -> set[int]:
    """Pids of servers and their families (guards too) that belong to `owner`, by default to this process."""
    wanted = owner or ProcessId.own()
    found = set()
    for pid in pids():
        text = mark_of(pid, MARK)
        if text is not None and Mark.parse(text).owner == wanted:
            process = ProcessId.of(pid)
            if process is not None and process.alive:
                found.add(pid)
    return found


def gone(processes: set[ProcessId], within_s: float) -> bool:
    """Whether all of them end within the time."""
    end = time.monotonic() + within_s
    while any(process.alive for process in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
