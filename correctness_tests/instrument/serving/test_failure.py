"""Logs of servers that failed, or run without what was asked for, and the cause that each must be given."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.serving.failure import Cause, Phase, diagnose, exceptions, progress, refusals

LOGS = Path(__file__).with_name("server_logs")
"""Logs of real SGLang 0.5.23 servers on the CPU that were made to fail."""

TIME = "[2026-01-01 12:00:00 TP0] "
LOADED = f"{TIME}Load weight begin. avail mem=90.00 GB\n{TIME}Load weight end. elapsed=1.0 s, type=Llama\n"
HEALTHY = (
    "UserWarning: Only CUDA, HIP and XPU support AWQ currently.\n"
    f"{TIME}Failed to import deep_gemm: No module named 'deep_gemm'\n"
    f"{TIME}CustomAllReduceV2 is disabled because it's not supported on more than two PCIe-only GPUs.\n"
)


def scheduler_died_of(error: str, frame: str = "/env/sglang/srt/managers/scheduler.py") -> str:
    """A traceback as SGLang logs it, then what the other processes print because of it."""
    return (
        f"{TIME}Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/env/sglang/srt/managers/scheduler.py", line 10, in run_scheduler_process\n'
        "    scheduler = Scheduler()\n"
        f'  File "{frame}", line 20, in inner\n'
        "    raise\n"
        f"{error}\n\n"
        "Traceback (most recent call last):\n"
        '  File "/env/sglang/srt/entrypoints/engine.py", line 5, in _wait_for_scheduler_ready\n'
        "    data = reader.recv()\n"
        "EOFError\n"
    )


FATAL = [
    # FlashInfer all-reduce fusion, as SGLang refuses it and, with the gate patched, as FlashInfer does.
    (
        "ValueError: FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs.",
        1,
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    (
        "RuntimeError: No supported CUDA architectures found for major versions [9, 10].",
        -9,
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    (
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        -9,
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    (
        "RuntimeError: nvcc fatal   : Unsupported gpu architecture 'compute_120a'",
        -9,
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    ("RuntimeError: Ninja build failed. Ninja output:", -9, Cause.JIT),
    ("RuntimeError: Error building extension 'custom_ar'", -9, Cause.JIT),
    # Expert parallelism with FlashInfer's all-to-all, by release.
    (
        "AssertionError: Flashinfer MoE A2A is only supported with flashinfer_cutlass moe runner backend",
        1,
        Cause.ASSERTION,
    ),
    ("AssertionError: Flashinfer MoE A2A requires --attn-dp-size equal to --tp-size", 1, Cause.ASSERTION),
    ("AssertionError: Flashinfer MoE A2A: dp_size == tp_size and --enable-dp-attention", 1, Cause.ASSERTION),
    ("ValueError: Invalid quantization 'int4' for this MoE backend", 1, Cause.ASSERTION),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).",
        1,
        Cause.DRIVER,
    ),
    (
        "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
        1,
        Cause.DRIVER,
    ),
    ("ModuleNotFoundError: No module named 'mscclpp'", 1, Cause.MISSING_PACKAGE),
    ("ImportError: libnvshmem_host.so.3: cannot open shared object file", 1, Cause.MISSING_PACKAGE),
    ("OSError: [Errno 98] Address already in use", 1, Cause.PORT),
    ("OSError: /m does not appear to have a file named config.json.", 1, Cause.MODEL),
    ("RuntimeError: Cannot find any model weights with `/m`", -9, Cause.MODEL),
    ("RuntimeError: CUDASymmetricMemory: NVLink multicast is not available", -9, Cause.TOPOLOGY),
    ("RuntimeError: something nobody foresaw", -9, Cause.EXCEPTION),
]


@pytest.mark.parametrize(("error", "code", "cause"), FATAL)
def test_the_text_that_ends_a_server_has_its_cause(error: str, code: int, cause: Cause) -> None:
    failure = diagnose(HEALTHY + scheduler_died_of(error), code)
    assert failure.cause == cause
    assert error in failure.message
    assert f"exit code {code}" in failure.message
    assert "\n" not in failure.message
    assert any(error in line for line in failure.lines)


@pytest.mark.parametrize(("error", "code", "cause"), FATAL)
def test_without_its_text_the_cause_is_not_given(error: str, code: int, cause: Cause) -> None:
    """Planted fault: the same log, the telling line replaced."""
    assert diagnose(HEALTHY + scheduler_died_of("KeyError: 'x'"), code).cause == Cause.EXCEPTION


@pytest.mark.parametrize(
    "error",
    [
        "launch_server.py: error: unrecognized arguments: --enable-pcie",
        "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match "
        "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
        "launch_server.py: error: argument --tp-size: invalid int value: 'two'",
        "sglang serve: error: argument --device: invalid choice: 'gpu' (choose from 'cuda', 'cpu')",
    ],
)
def test_an_argument_that_the_release_does_not_know(error: str) -> None:
    failure = diagnose(f"usage: launch_server.py [-h]\n{error}\n", 2)
    assert failure.cause == Cause.UNKNOWN_ARGUMENT
    assert error in failure.message


@pytest.mark.parametrize(
    ("before", "error", "phase"),
    [
        ("", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.", "starting Python"),
        (
            f"{TIME}Load weight begin. avail mem=9 GB\n",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "loading the weights",
        ),
        (
            LOADED,
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "allocating the KV cache",
        ),
        (
            f"{LOADED}{TIME}Memory pool end. avail mem=1 GB\n{TIME}Capture target decode CUDA graph begin.\n",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "capturing CUDA graphs",
        ),
        (
            f"{LOADED}INFO: Uvicorn running on http://h:1\n{TIME}The server is fired up and ready to roll!\n",
            "RuntimeError: Prefill out of memory. Try to lower your batch size.",
            "serving",
        ),
        (LOADED, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", "allocating"),
    ],
)
def test_out_of_memory_names_its_phase(before: str, error: str, phase: str) -> None:
    failure = diagnose(HEALTHY + before + scheduler_died_of(error), -9)
    assert failure.cause == Cause.OUT_OF_MEMORY
    assert f"out of memory while {phase}" in failure.message


def test_a_crash_in_a_hook_names_the_hook() -> None:
    log = scheduler_died_of("RuntimeError: planted").replace(
        '  File "/env/sglang/srt/managers/scheduler.py", line 20, in inner\n',
        '  File "/env/sglang/srt/plugins/hook_registry.py", line 20, in wrapper\n'
        '  File "/env/my_plugin/hooks.py", line 7, in around_forward\n',
    )
    failure = diagnose(log, -9)
    assert failure.cause == Cause.HOOK
    assert "my_plugin/hooks.py:7 in around_forward" in failure.message


def test_a_failure_of_sglang_below_a_hook_is_not_the_hooks() -> None:
    log = scheduler_died_of("RuntimeError: planted").replace(
        '  File "/env/sglang/srt/managers/scheduler.py", line 20, in inner\n',
        '  File "/env/sglang/srt/plugins/hook_registry.py", line 20, in wrapper\n'
        '  File "/env/my_plugin/hooks.py", line 7, in around_forward\n'
        '  File "/env/sglang/srt/model_executor/model_runner.py", line 9, in forward\n'
        '  File "/env/triton/runtime/jit.py", line 9, in run\n',
    )
    assert diagnose(log, -9).cause == Cause.EXCEPTION


def test_a_server_that_runs_and_does_not_answer_hangs_and_its_last_line_is_shown() -> None:
    start = diagnose(f"{HEALTHY}{TIME}Init torch distributed begin.\n", None, Phase.START)
    assert start.cause == Cause.HANG
    assert "Init torch distributed begin." in start.message
    assert "is not ready" in start.message
    assert "stopped answering" in diagnose(HEALTHY, None, Phase.WORKLOAD).message


def test_a_hang_after_an_exception_shows_the_exception() -> None:
    failure = diagnose(scheduler_died_of("RuntimeError: NCCL error: unhandled system error"), None)
    assert failure.cause == Cause.HANG
    assert "NCCL error" in failure.message


def test_a_dead_server_of_which_nobody_knows_how_it_ended_is_no_hang() -> None:
    failure = diagnose(HEALTHY, None, Phase.START, running=False)
    assert failure.cause == Cause.KILLED
    assert "could not tell how" in failure.message
    raised = diagnose(scheduler_died_of("RuntimeError: NCCL error"), None, Phase.WORKLOAD, running=False)
    assert raised.cause == Cause.EXCEPTION
    assert "exit code not known" in raised.message
    short = diagnose(scheduler_died_of("torch.OutOfMemoryError: CUDA out of memory."), None, running=False)
    assert short.cause == Cause.OUT_OF_MEMORY


def test_a_kill_without_a_word_is_a_kill() -> None:
    failure = diagnose(HEALTHY, -9, Phase.WORKLOAD)
    assert failure.cause == Cause.KILLED
    assert "SIGKILL during workload" in failure.message
    assert "SIGSEGV" in diagnose(HEALTHY, -11).message


def test_a_kill_of_one_of_its_processes_names_it() -> None:
    line = f"{TIME}Subprocess scheduler_1 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    failure = diagnose(f"{HEALTHY}{line}\n", -9, Phase.WORKLOAD)
    assert failure.cause == Cause.KILLED
    assert "its scheduler_1 was killed by SIGKILL during workload" in failure.message


def test_a_refusal_by_the_cpu_platform_is_one_of_configuration() -> None:
    line = "sglang_cpu: attention backend 'triton' is not supported on this platform: use another"
    failure = diagnose(f"{HEALTHY}{TIME}{line}\n{TIME}kill_process_tree called: pid=1\n", 2)
    assert failure.cause == Cause.CONFIGURATION
    assert line in failure.message


def test_an_end_without_a_reason_is_unknown() -> None:
    failure = diagnose("one\nlast words\n\n", 7)
    assert failure.cause == Cause.UNKNOWN
    assert "last words" in failure.message
    assert diagnose("", 1).cause == Cause.UNKNOWN


def test_warnings_of_a_server_that_runs_well_are_not_the_cause_of_its_end() -> None:
    assert diagnose(HEALTHY, 1).cause == Cause.UNKNOWN


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "CustomAllReduceV2 is disabled because it's not supported on more than two PCIe-only GPUs.",
            Cause.TOPOLOGY,
        ),
        (
            "CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs.",
            Cause.TOPOLOGY,
        ),
        (
            "CustomAllreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.",
            Cause.TOPOLOGY,
        ),
        ("Setup Custom allreduce failed with CUDA error: invalid argument.", Cause.EXCEPTION),
        (
            "TorchSymmMemCommunicator: Device capability 12 not supported, communicator is not available.",
            Cause.UNSUPPORTED_ARCHITECTURE,
        ),
        (
            "TorchSymmMemCommunicator: torch symmetric memory multicast operations are not supported.",
            Cause.TOPOLOGY,
        ),
        (
            "PyMscclpp is unavailable because its dependencies failed to import: no mscclpp",
            Cause.MISSING_PACKAGE,
        ),
        ("flashinfer.comm has no pcie_ipc_comm; reductions stay on NCCL", Cause.MISSING_PACKAGE),
        (
            "FlashInfer PCIe-IPC workspace (max_numel=65536) failed: no P2P; reductions stay on NCCL",
            Cause.EXCEPTION,
        ),
        ("Failed to execute general plugin: sglang_cpu", Cause.HOOK),
        ("FlashInfer PCIe-IPC autotune covered no shapes for hidden=7168", Cause.EXCEPTION),
        ("Deterministic inference is on; leaving PCIe-IPC all-reduce off.", Cause.CONFIGURATION),
    ],
)
def test_a_path_that_a_running_server_refused_is_seen_once(line: str, cause: Cause) -> None:
    log = f"{TIME}{line}\n[2026-01-01 12:00:00 TP1] {line}\n{TIME}The server is fired up and ready to roll!\n"
    (failure,) = refusals(log)
    assert failure.cause == cause
    assert failure.message == line
    assert failure.lines == (TIME + line,)


def test_a_server_that_refused_nothing() -> None:
    assert refusals(f"{TIME}FlashInfer PCIe-IPC workspace built\n{TIME}sglang is using nccl==2.30.7\n") == ()


def test_progress_follows_the_log() -> None:
    assert progress("") == "starting Python"
    assert progress(LOADED) == "allocating the KV cache"


def test_a_traceback_that_is_cut_off_is_no_exception() -> None:
    cut = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()'
    assert exceptions(cut.splitlines()) == []


RECORDED = {
    "unknown_argument": (2, Cause.UNKNOWN_ARGUMENT, "--no-such-flag"),
    "crash_in_a_hook": (-9, Cause.HOOK, "planted crash (crash_pass)"),
    "scheduler_exits": (-9, Cause.UNKNOWN, "its scheduler_0 exited with 77"),
    "weights_missing": (-9, Cause.MODEL, "Cannot find any model weights"),
    "model_missing": (1, Cause.MODEL, "/no/such/model"),
    "no_memory_for_kv": (-9, Cause.OUT_OF_MEMORY, "leave no GPU memory for the KV cache"),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_log_has_its_cause(name: str) -> None:
    code, cause, said = RECORDED[name]
    failure = diagnose((LOGS / f"{name}.log").read_text(), code)
    assert failure.cause == cause
    assert said in failure.message


def test_every_recorded_log_is_tested() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(RECORDED)
