"""A start in which something was compiled is told by its caches and its log, never by its figures."""

from __future__ import annotations

import pytest

from fixtures.records.compiled import READY, cache_folders, cache_sizes, compiled


@pytest.fixture
def folders(tmp_path):
    return cache_folders({"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}, home=tmp_path)


def write(folder, name, text="kernel"):
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "deep" / name).write_text(text)


def test_warm_caches_tell_nothing(folders):
    write(folders["FlashInfer"], "sampling.so")
    before = cache_sizes(folders)
    for name in ("build.ninja", ".ninja_log", "lock", "tactics.json", "kernel.json"):
        write(folders["FlashInfer"], name)
    assert compiled(before, cache_sizes(folders), ["server starts", READY, "Decode batch"]) is None


@pytest.mark.parametrize("cache", ["torch.inductor", "Triton", "FlashInfer", "DeepGEMM", "tvm-ffi", "SGLang"])
def test_a_kernel_that_was_not_there_before(folders, cache):
    before = cache_sizes(folders)
    write(folders[cache], "kernel.cubin")
    assert compiled(before, cache_sizes(folders)) == f"{cache}'s cache grew by 1 files, 0.0 MiB"


def test_a_kernel_that_was_compiled_again(folders):
    write(folders["Triton"], "kernel.cubin")
    before = cache_sizes(folders)
    write(folders["Triton"], "kernel.cubin", "a kernel for more")
    assert "Triton's cache grew by 0 files" in (compiled(before, cache_sizes(folders)) or "")


def test_a_cache_that_was_emptied_is_no_compilation(folders):
    write(folders["Triton"], "kernel.cubin")
    before = cache_sizes(folders)
    (folders["Triton"] / "deep" / "kernel.cubin").unlink()
    assert compiled(before, cache_sizes(folders)) is None


@pytest.mark.parametrize(
    "line",
    [
        "INFO Building JIT module batch_prefill; this can take several minutes on first use.",
        "[2026-01-01 00:00:00 TP0] Compiling a graph for dynamic shape takes 3.00 s",
        "[1/3] /usr/local/cuda/bin/nvcc -c kernel.cu",
    ],
)
def test_a_log_that_compiles_counts_once_the_server_is_ready(line):
    assert compiled({}, {}, [line, READY]) is None, "what is compiled while it loads is in the caches"
    assert (compiled({}, {}, [READY, line]) or "").startswith("its log compiles after it was ready: ")


def test_the_environment_says_where_the_caches_are(tmp_path):
    found = cache_folders({"FLASHINFER_WORKSPACE_BASE": "/a", "TRITON_CACHE_DIR": "/b"}, home=tmp_path)
    assert str(found["FlashInfer"]) == "/a/.cache/flashinfer"
    assert str(found["Triton"]) == "/b"
