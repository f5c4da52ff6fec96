"""One good file of every kind that is read back."""

from __future__ import annotations

import os
from typing import Any

from fixtures.gate.baselines import Baseline, BaselineMetric
from fixtures.gate.paired import balanced_order
from fixtures.gate.saving import baseline_from_records
from fixtures.records.correctness import AllReduceChecked, Correctness, ReplayChecked
from fixtures.records.metric import Metric
from fixtures.records.passes import PassSummary
from fixtures.records.start import Block, PairSide, StartRecord
from fixtures.serving.client_results import RequestResult, WorkloadResult
from fixtures.serving.processes import ProcessId
from fixtures.shape import made
from fixtures.weather.series import Spread, Weather, WorkloadWeather

ENVIRONMENT = {"machine": "a", "torch": "2.14.1", "server.max_total_tokens": 20000, "workload single_stream": "w"}
MOMENT = "2026-01-01T00:{:02d}:00.000Z"


def served_record(index: int, **changes: Any) -> StartRecord:
    """A start of a server under speculation."""
    requests = [
        RequestResult(f"p{n}", 9, 6, 3, 0.1 * n, times, "length", 4, 1.5, 2, 8, 0, (2, 1, 1), (5,) * 6)
        for n, times in enumerate([(0.5, 0.6, 0.6, 0.7, 0.8, 0.9)] * 2)
    ]
    row = {
        "role": "target", "mode": "target_verify", "count": 10, "tokens": 40, "median_s": 0.02, "total_s": 0.2,
        "all_reduces": {"0": 10}, "bytes": [], "all_reduce_share": 0.0,
    }  # fmt: skip
    rate = 100.0 + index / 10
    fields: dict[str, Any] = {
        "id": f"eagle3-20260101T00{index:02}00-0a0b0c", "run": "r", "box": "cpu", "stack": "cpu",
        "deployment": "eagle3",
        "role": "stage1", "index": index, "started_at": MOMENT.format(index), "finished_at": MOMENT.format(index),
        "environment": dict(ENVIRONMENT),
        "configuration": {"requested": {"options": {"max_total_tokens": 20000}}},
        "ready_s": 3.5, "log": "eagle3/server.log",
        "workloads": {"single_stream": WorkloadResult("single_stream", 1, tuple(requests), 0.9, 1).to_json()},
        "passes": {
            "single_stream": made(PassSummary, {
                "passes": [row, {**row, "role": "draft", "mode": "decode"}],
                "sites": {"tp all_reduce f": 3}, "faults": [],
            })
        },
        "metrics": [
            Metric.of("kv_tokens", 20000),
            Metric.of("decode_tok_s", rate, "single_stream", 2),
            Metric.of("ttft_ms", 2000 / rate, "single_stream", 2),
            Metric.of("accept_length", 1.5, "single_stream", 2),
        ],
        "seconds": {"starting": 3.5, "total": 9.0},
        "weather": Weather(
            2, {"single_stream": WorkloadWeather(
                9, {"load": Spread(1.5, 1.0, 2.0, 1.6), "gpu0/link_width": Spread(16.0, 16.0, 16.0, 16.0)},
                {"load": [1.0, 2.0]}, {"GPU 0": {"0x4": 0.5}}, {"cron": 0.02},
            )}, "performance", {"gpu0": 16}, {"gpu0": 500.0}, {"gpu0": 600.0}, {"replays": "Not Supported"},
        ),
    }  # fmt: skip
    return StartRecord(**(fields | changes))


def ranks_record() -> StartRecord:
    """A start of ranks without a server."""
    workload = "all-reduce-gloo-2-ranks-1024-bytes-eager"
    return StartRecord(
        id="all_reduce_gloo-20260101T000000-0a0b0c", run="r", box="cpu", stack="cpu", deployment="all_reduce_gloo",
        role="stage1", index=0, started_at=MOMENT.format(0), finished_at=MOMENT.format(0),
        environment={"machine": "a", f"workload {workload}": "bfloat16"},
        configuration={
            "requested": {"all_reduce": "gloo", "device": "cpu", "world_size": 2, "timed": [["eager", 1024]]}
        },
        all_reduces={
            workload: {"backend": "gloo", "world_size": 2, "bytes": 1024, "mode": "eager", "seconds": [8.5e-05, 9e-05]}
        },
        metrics=[Metric.of("all_reduce_us", 87.5, workload, 2), Metric.of("all_reduce_bytes", 1024, workload)],
    )  # fmt: skip


def paired_records() -> list[StartRecord]:
    """Two start pairs."""
    order = balanced_order(4)
    made = []
    for index in range(2):
        for arm in (0, 1):
            metrics = [Metric.of("decode_tok_s", 100.0 + arm, "single_stream", 2)]
            blocks = [Block("single_stream", tuple(metrics)) for _ in order]
            made.append(
                served_record(
                    index, id=f"eagle3-20260101T00{index:02}0{arm}-0a0b0c", role="paired", workloads={}, passes={},
                    pair=PairSide("eagle3", index, order, 2, blocks), against="" if arm else "HEAD", metrics=metrics,
                )
            )  # fmt: skip
    return made


def baseline() -> Baseline:
    records = [served_record(index) for index in range(10)]
    return baseline_from_records(records, "first", saved_at="2026-01-01T12:00:00Z")


def reported_baseline() -> Baseline:
    rate = BaselineMetric(
        "single_stream/decode_tok_s", "decode_tok_s", "single_stream", "tok/s", "reported", "higher", reported=(82.0,)
    )
    latency = BaselineMetric(
        "single_stream/all_reduce_us", "all_reduce_us", "single_stream", "µs", "reported", "lower",
        reported=(150.0, 300.0),
    )  # fmt: skip
    metrics = {each.key: each for each in (rate, latency)}
    return Baseline("cpu", "cpu", "told", "reported", "told", "2026-01-01T12:00:00Z", metrics=metrics)


def correctness() -> Correctness:
    sums = (AllReduceChecked("nccl", 8, 400), AllReduceChecked("mscclpp", 8, unavailable="not built"))
    replay = ReplayChecked(500, 0.01, 0.02, ("regret 0.5 at 3",))
    return Correctness("cpu", "cpu", "eagle3", "baseline", "2026-01-01T12:00:00Z", sums, replay)


def pool_state() -> dict[str, Any]:
    own = str(ProcessId.own())
    gone = f"{2**22 + 7}:1"
    server = {
        "name": "baseline", "port": 30000, "release": "0.5.23", "process": gone, "guard": gone, "mark": f"{own}:0a0b0c",
        "status": "/nowhere/status.json", "log": "/nowhere/server.log", "ready_s": 3.5, "passes_dir": "/nowhere",
        "argv": ["python"], "environment": {"A": "b"}, "info": {"tp_size": 1},
    }  # fmt: skip
    common = {"users": [own, gone], "used_at": 5.0, "starts": 1}
    failed = {"kind": "ServerError", "message": "m", "cause": "hang", "lines": ["l"]}
    return {
        "entries": {
            "baseline": {"starter": None, "server": server, "error": None, **common},
            "eagle3": {"starter": own, "server": None, "error": failed, **common},
        },
        "closed": False,
    }


_PASS = {
    "role": "target", "mode": "decode", "tokens": 4, "count": 4, "replays": 0,
    "seconds": {"count": 4, "total": 0.21, "recent": [0.05, 0.05, 0.06, 0.05]}, "all_reduces": {"12": 4},
    "bytes": {"1024": 48}, "sites": {"tp all_reduce f": 48},
    "all_reduce_seconds": {"passes": 4, "pass_total": 0.21, "total": 0.03},
}  # fmt: skip
COUNTERS: dict[str, Any] = {
    "schema": "sglang-passes/1", "rank": 0, "world_size": 1, "pid": os.getpid(), "sglang": "0.5.23", "device": "cpu",
    "faults": ["slow_pass:0.2"], "passes": [_PASS, {**_PASS, "tokens": 1}],
}  # fmt: skip

BOX = """
description = "a box"
stacks = ["cpu"]
servers_at_once = 2

[paths.nccl]
active = ["sglang is using nccl=="]

[deployments.plain]
description = "no speculation"
paths = ["nccl"]
model = "tiny_pair:target"
deadline_s = 60
workloads = ["single_stream"]
goals = { "single_stream/decode_tok_s" = 167 }

[deployments.plain.environment]
OMP_NUM_THREADS = "1"

[deployments.plain.options]
tensor_parallel = 1
max_running_requests = 48
memory_fraction = 0.4
overlap_schedule = true
log_level = "info"

[deployments.two]
description = "two ranks"
extends = "plain"

[deployments.two.options]
tensor_parallel = 2
"""

APPROACHES = """
box = "pcie_blackwell"

[approaches.cuda_13]
title = "CUDA 13"
idea = "a newer toolkit"
deployments = []
needs = []
active_when = "the version says so"
likelihood = { cu128 = 0.0, cu130 = 0.5 }
likelihood_basis = "a guess"

[approaches.cuda_13.outcomes.cu128]
outcome = "unsupported"
provenance = "reported"
versions = { cuda = "12.8" }
date = "2026-01-31"

[approaches.cuda_13.outcomes.cu130]
outcome = "not tried"

[approaches.pcie_ipc]
title = "all-reduce over PCIe"
idea = "one kernel"
expected = { all_reduce_us = [35, 5], provenance = "reported", basis = "a comparable host" }
deployments = ["pcie_ipc"]
all_reduce = ["pcie_ipc"]
needs = ["a release"]
active_when = "its line is in the log"
likelihood = { cu128 = 0.1, cu130 = 0.6 }
likelihood_basis = "it is made for this"
blocked_by = ["cuda_13"]
blocked_because = { cu128 = "the release" }

[approaches.pcie_ipc.outcomes.cu128]
outcome = "not tried"

[approaches.pcie_ipc.outcomes.cu130]
outcome = "slower"
provenance = "measured"
record = "eagle3-20260101T000000-0a0b0c"
date = "2026-01-31"
versions = { cuda = "13.0" }
log = ["a line"]
figure = "54 tok/s"
note = "n"
"""

WORKLOAD = """
description = "d"
concurrency = 2
prompts = "p.jsonl"
cache = "cold"
cached_share = [0.0, 0.5]
[sampling]
temperature = 0.0
top_p = 0.9
ignore_eos = true
[limits]
stall_s = 1.0
deadline_s = 2.0
[sizes.cpu]
requests = 3
max_new_tokens = 4
warm_up_requests = 1
"""
PROMPTS = '{"id": "a", "text": "x"}\n\n{"id": "b", "text": "y\u2028z"}\n'
