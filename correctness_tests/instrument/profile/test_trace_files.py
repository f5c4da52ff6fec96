"""Traces as files: what published ones hold, and the one line that each kind of damage gets."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fixtures.errors import ProfileError
from fixtures.profile.classes import backends_of, class_of
from fixtures.profile.figures import profile_of
from fixtures.profile.passes import kernel_count, passes
from fixtures.profile.trace import read_trace

pytestmark = pytest.mark.correctness
TRACES = Path(__file__).parent / "traces"
V100, A100, B200, MI300X = (
    TRACES / f"{name}.json.gz"
    for name in (
        "hta_v100_cuda_graph_nccl",
        "hta_a100_cuda_graph",
        "tracelens_b200_vllm_eager",
        "tracelens_mi300x_sglang_decode",
    )
)


def test_v100_replays_two_graphs_six_times_each():
    trace = read_trace(V100)
    assert (trace.rank, trace.world_size, kernel_count(trace.kernels)) == (1, 2, 9876)
    found = passes(trace)
    assert [(each.kind, each.size) for each in found] == [("graph", 315), ("graph", 429)] * 6
    assert all(kernel_count(each.kernels) == each.size for each in found)
    classes = Counter(class_of(each.name) for each in trace.kernels)
    assert (classes["all-reduce"], classes["other collective"]) == (21, 43), "NCCL, outside of the graphs"


def test_a100_replays_small_graphs():
    found = passes(read_trace(A100))
    assert Counter(kernel_count(each.kernels) for each in found) == {1: 35, 2: 30, 8: 5}


def test_b200_runs_eagerly():
    trace = read_trace(B200)
    assert passes(trace) == ()
    assert kernel_count(trace.kernels) == 768
    classes = Counter(class_of(each.name) for each in trace.kernels)
    assert (classes["all-reduce"], classes["other collective"]) == (73, 1)
    assert (classes["norm"], classes["attention"], classes["MoE"], classes["GEMM"]) == (73, 72, 144, 181)
    assert {backends_of(each.name) for each in trace.kernels} == {(), ("sglang_torch_symmetric",)}
    with pytest.raises(ProfileError, match="no decode or verify pass in it"):
        profile_of([trace])


def test_mi300x_decodes_under_its_annotation():
    trace = read_trace(MI300X)
    (one,) = passes(trace)
    assert (one.annotation, one.kind, one.size) == ("step[DECODE bs=32]", "DECODE", 32)
    assert (len(one.kernels), len(one.beside)) == (544, 7)
    profile = profile_of([trace])
    assert profile.counts == {"attention": 108, "norm": 145, "GEMM": 145, "copy": 73, "other": 73}
    assert (profile.exact, profile.notes) == (True, ())
    assert 9_800 < profile.span_us < 10_000


def event(**changes):
    """A kernel as Kineto writes it; a key of None is left out."""
    one = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {}}
    return {key: value for key, value in (one | changes).items() if value is not None}


def text(*events):
    return json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]})


AGAIN = "take the profile again"
NOTHING = (
    "{} events and no kernel among them, without a GPU no operator: profile with the activities CPU and GPU, while the "
    "server answers a request"
)
BAD = {
    "empty": ("", f"empty: {AGAIN}"),
    "blank": (" \n", f"empty: {AGAIN}"),
    "text": ("hello", f"no trace of PyTorch's profiler: {AGAIN}"),
    "no events": ("{}", f"no trace of PyTorch's profiler (it holds no traceEvents): {AGAIN}"),
    "later format": (
        '{"schemaVersion": 2, "traceEvents": []}',
        f"no trace of PyTorch's profiler (schemaVersion = 2, and 1 is read): {AGAIN}",
    ),
    "events no list": (
        '{"traceEvents": {}}',
        f"not JSON: '{{' instead of [ in its head: {AGAIN}",
    ),
    "cut in a string": (text(event())[:150], f"cut off in traceEvents/1: {AGAIN}"),
    "cut in an event": (text(event())[:-6], f"cut off in traceEvents/1: {AGAIN}"),
    "cut after an event": (text(event())[:-2], f"cut off in traceEvents/1: {AGAIN}"),
    "cut after the events": (text(event())[:-1], f"cut off in what follows its 2 events: {AGAIN}"),
    "not JSON": (
        text(event()).replace('"ts": 1', '"ts": +1'),
        f"not JSON (Expecting value) in traceEvents/1: {AGAIN}",
    ),
    "two in a row": (text(event()).replace('}, {"ph"', '} {"ph"'), "not JSON: '{' instead of , or ] in"),
    "too deep": ('{"traceEvents": [' + "[" * 100_000, "not JSON that can be read (maximum recursion depth exceeded"),
    "no event": (text(7), f"traceEvents/1 = 7: no event: {AGAIN}"),
    "nothing ran": (text(), NOTHING.format(1)),
    "a GPU's operators without its kernels": (
        text(event(cat="cpu_op")).replace("{", '{"deviceProperties": [{"id": 0}], ', 1), NOTHING.format(2)),
    "time as text": (text(event(ts="1")), f"traceEvents/1/ts = '1': no time in µs: {AGAIN}"),
    "length as text": (text(event(dur="2")), f"traceEvents/1/dur = '2': no time in µs: {AGAIN}"),
    "true as a time": (text(event(dur=True)), f"traceEvents/1/dur = True: no time in µs: {AGAIN}"),
    "before time": (text(event(ts=-5)), f"traceEvents/1/ts = -5: no time in µs: {AGAIN}"),
    "negative length": (text(event(dur=-5)), f"traceEvents/1/dur = -5: no time in µs: {AGAIN}"),
    "not finite": (text(event(dur=float("nan"))), f"traceEvents/1/dur = nan: no time in µs: {AGAIN}"),
    "no length": (text(event(dur=None)), f"traceEvents/1/dur is missing: {AGAIN}"),
    "no name": (text(event(name=None)), f"traceEvents/1/name is missing: {AGAIN}"),
    "no stream": (text(event(tid=None)), f"traceEvents/1/tid is missing: {AGAIN}"),
    "arguments no table": (text(event(args=[1])), f"traceEvents/1/args = [1]: no table: {AGAIN}"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(("content", "line"), BAD.values(), ids=BAD)
def test_a_bad_trace_gets_one_line(tmp_path, content, line, packed):
    path = tmp_path / "bad.trace.json.gz"
    raw = content.encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with pytest.raises(ProfileError) as told:
        read_trace(path)
    assert str(told.value).startswith(f"{path}: {line}")
    assert "\n" not in str(told.value)


PACKED = MI300X.read_bytes()
DAMAGED = {
    "cut off: the compressed file ends early: take": PACKED[:20_000],
    "the compressed file is damaged (Error -3 while decompressing": PACKED[:20_000] + b"\xff" * 100 + PACKED[20_100:],
    "not UTF-8 text (byte 18) in its head: take": b'{"traceEvents": [\x22\xff"]}',
}


@pytest.mark.parametrize(("line", "content"), DAMAGED.items())
def test_a_damaged_file_gets_one_line(tmp_path, line, content):
    path = tmp_path / "bad.json.gz"
    path.write_bytes(content)
    with pytest.raises(ProfileError) as told:
        read_trace(path)
    assert str(told.value).startswith(f"{path}: {line}")


def test_what_is_no_file_gets_one_line(tmp_path):
    for gone in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(ProfileError, match=r"cannot be read \(.*\): take the profile again"):
            read_trace(gone)


@pytest.mark.parametrize("packed", [False, True])
def test_more_json_than_is_read_gets_one_line(tmp_path, packed):
    path = tmp_path / "huge.json"
    raw = text(*[event()] * 30_000).encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with pytest.raises(ProfileError) as told:
        read_trace(path, most_bytes=2 << 20)
    fix = "profile fewer passes, with with_stack and record_shapes off"
    assert str(told.value) == f"{path}: over 2 MB of JSON: {fix}"


@pytest.mark.parametrize("form", ["{}", "[]", "spread"])
def test_every_way_to_write_a_trace_reads_the_same(tmp_path, form):
    """A plain list of events, spaces everywhere, keys after the events, names beyond ASCII at the window's edge."""
    events = [event(ts=number, name="gemm µ" * 40) for number in range(9_000)]
    if form == "[]":
        content = json.dumps(events)
    else:
        content = json.dumps({"traceEvents": events, "distributedInfo": {"rank": 5}}, indent=3, ensure_ascii=False)
    path = tmp_path / "1-TP-3.trace.json"
    path.write_text(content, encoding="utf-8")
    trace = read_trace(path)
    assert [each.start for each in trace.kernels] == list(range(9_000))
    assert {each.name for each in trace.kernels} == {"gemm µ" * 40}
    assert trace.rank == (3 if form == "[]" else 5), "the rank's own word counts before the file's name"


def test_the_window_may_end_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr("fixtures.profile.trace._CHUNK", 1)
    path = tmp_path / "trace.json"
    events = [event(ts=12.5, dur=34, args={"correlation": 56, "note": 'quotes " and \\ µ'})] * 2
    content = {"later": 78, "traceEvents": events, "distributedInfo": {"rank": 11}}
    path.write_text(json.dumps(content, ensure_ascii=False))
    trace = read_trace(path)
    assert trace.rank == 11
    assert [tuple(each) for each in trace.kernels] == [("gemm", 12.5, 34, 0, 7, 56)] * 2


# The kernel's own mark: that of getrusage begins with the size of the process that started this one.
READ = """
import re, sys
from pathlib import Path
from fixtures.profile.trace import read_trace
trace = read_trace(Path(sys.argv[1]))
most = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(len(trace.kernels) + len(trace.operators), most[1])
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["kernel", "cpu_op"])
def test_two_hundred_megabytes_take_less_than_one_gibibyte(tmp_path, pytestconfig, kind):
    path = tmp_path / "large.json.gz"
    size, count = 0, 0
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write('{"schemaVersion": 1, "traceEvents": [')
        while size < 200_000_000:
            args = {"correlation": count, "stream": 7, "device": 0}
            one = json.dumps(event(cat=kind, ts=1e9 + count / 8, dur=1 + count / 8, name=f"k{count % 999}", args=args))
            file.write(f"{', ' if count else ''}{one}")
            size, count = size + len(one) + 2, count + 1
        file.write("]}")
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    read, kib = map(int, done.stdout.split())
    assert read == count
    assert kib < 1 << 20, f"{kib >> 10} MiB for {size >> 20} MiB of JSON"
    print(f"{kind}: {count} events of {size >> 20} MiB of JSON: {kib >> 10} MiB of memory")
