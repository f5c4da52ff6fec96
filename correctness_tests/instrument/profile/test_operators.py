"""A processor's passes, from PyTorch's profiler itself: operators and a collective of gloo, counted exactly, and four
plants in one of three layers, each seen in one profile with its class named."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from fixtures.profile.changed import counts_line
from fixtures.profile.figures import profile_of
from fixtures.profile.trace import read_trace

pytestmark = pytest.mark.correctness
PASSES, LAYERS, WIDTH = 20, 3, 64
PLANTS = {
    "an extra copy": r"\+1 copy, \+\d other, 3 all-reduces as before",
    "a dropped norm": r"(-\d copies, )?-1 norm, -\d+ other, 3 all-reduces as before",
    "an all-reduce in two": r"\+1 all-reduce, \+\d other, 3 attention kernels as before",
    "casts that were not there": r"\+2 copies, \+\d other, 3 all-reduces as before",
}


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def layer(x, weight, plant):
    x = functional.linear(x, weight)
    if plant == "an all-reduce in two":
        for half in x.chunk(2):
            dist.all_reduce(half)
    else:
        dist.all_reduce(x)
    if plant == "an extra copy":
        x = x.clone()
    if plant == "casts that were not there":
        x = x.to(torch.bfloat16).to(torch.float32)
    if plant != "a dropped norm":
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)  # as SGLang's RMSNorm without a kernel of its own
    heads = x.view(1, -1, 4, WIDTH // 4).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(-1, WIDTH)


def taken(folder, plant=None):
    weight, x = torch.randn(WIDTH, WIDTH), torch.randn(2, WIDTH)
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for number in range(PASSES + 2):
            stage = "EXTEND bs=1 toks=2" if number < 2 else "DECODE bs=1"
            with record_function(f"step[{stage}]"):
                out = x
                for index in range(LAYERS):
                    out = layer(out, weight, plant if index == 1 else None)
                functional.softmax(out, -1).argmax(-1)
            out.clone()  # between the steps: in no pass
    path = folder / f"{plant}-TP-0.trace.json.gz"
    profiler.export_chrome_trace(str(path))
    return profile_of([read_trace(path)])


@pytest.fixture(scope="module")
def unplanted(group, tmp_path_factory):
    return taken(tmp_path_factory.mktemp("profile"))


def test_operators_are_the_same_in_each_pass(unplanted):
    assert (unplanted.kind, unplanted.size, unplanted.passes) == ("DECODE", 1, PASSES)
    assert (unplanted.exact, unplanted.notes) == (True, ())
    classes = {kind: count for kind, count in unplanted.counts.items() if kind not in ("other", "copy")}
    assert classes == {"all-reduce": LAYERS, "attention": LAYERS, "sampling": 2, "norm": LAYERS, "GEMM": LAYERS}
    by_name = {each.name: each.count for each in unplanted.kernels}
    assert by_name["gloo:all_reduce"] == by_name["aten::linear"] == by_name["aten::rsqrt"] == LAYERS
    assert "c10d::allreduce_" not in by_name, "it only begins what gloo's own span shows"
    assert unplanted.backends == {"gloo": LAYERS, "sglang_coordinator": LAYERS}


def test_a_second_profile_differs_in_no_number(unplanted, tmp_path):
    assert counts_line(unplanted, taken(tmp_path)) is None


@pytest.mark.parametrize(("plant", "line"), PLANTS.items(), ids=PLANTS)
def test_a_planted_change_is_a_count(unplanted, tmp_path, plant, line):
    planted = taken(tmp_path, plant)
    assert planted.exact
    assert re.fullmatch(line, str(counts_line(unplanted, planted)))


def test_times_of_a_pass_add_up(unplanted):
    (rank,) = unplanted.ranks
    assert 0 < rank.exposed_us <= rank.communication_us < rank.span_us
    assert rank.span_us == pytest.approx(sum(rank.classes_us.values()) + rank.gaps_us, rel=0.2), "they hardly overlap"
