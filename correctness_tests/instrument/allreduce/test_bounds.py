"""Do the derived bounds hold for every order of additions, and are they reached?"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.allreduce.bounds import FORMATS, Claim, depth, error_bound, growth, tightness
from fixtures.allreduce.cases import Case
from fixtures.allreduce.patterns import TORCH_DTYPES, reference, values

pytestmark = pytest.mark.correctness

N = 1 << 14


def chain(rows: list[torch.Tensor]) -> torch.Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def tree(rows: list[torch.Tensor]) -> torch.Tensor:
    while len(rows) > 1:
        joined = [a + b for a, b in zip(rows[::2], rows[1::2], strict=False)]
        rows = joined + ([rows[-1]] if len(rows) % 2 else [])
    return rows[0]


def in_fp32(rows: list[torch.Tensor]) -> torch.Tensor:
    return chain([row.float() for row in rows]).to(rows[0].dtype)


SUMS = {("wire", "chain"): chain, ("wire", "tree"): tree, ("fp32", "chain"): in_fp32}


def measured(sums: tuple[str, str], rows: list[torch.Tensor], dtype: str) -> float:
    """Greatest error / bound of one way to sum."""
    exact = torch.stack([row.double() for row in rows])
    total, magnitude = exact.sum(0).numpy(), exact.abs().sum(0).numpy()
    claim = Claim(sums[0], depth(sums[1], len(rows)), len(rows))  # type: ignore[arg-type]
    bound = error_bound(total, magnitude, dtype, claim)
    return tightness(np.abs(SUMS[sums](rows).double().numpy() - total), bound)


@st.composite
def ranks_data(draw: st.DrawFn) -> tuple[str, list[torch.Tensor]]:
    """Values of very different sizes and signs, near powers of two, subnormal and zero, without overflow."""
    dtype = draw(st.sampled_from(sorted(FORMATS)))
    size = draw(st.integers(2, 16))
    span = draw(st.integers(1, 30))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    low = FORMATS[dtype].min_exponent - FORMATS[dtype].significand
    high = FORMATS[dtype].max_exponent - 5
    top = draw(st.integers(low + 1, high))
    exponents = rng.integers(max(low, top - span), top + 1, (size, 256)).astype(np.float64)
    mantissas = rng.choice([1.0, 1 + 2.0**-7, 1.5, 2 - 2.0**-7, 0.0], (size, 256)) * rng.choice(
        [-1.0, 1.0], (size, 256)
    )
    noise = 1 + rng.random((size, 256)) * draw(st.sampled_from([0.0, 2.0**-6, 0.9]))
    values = torch.from_numpy(np.ldexp(mantissas * noise, exponents.astype(int)))
    return dtype, list(values.to(TORCH_DTYPES[dtype]))


@settings(max_examples=200, deadline=None)
@given(ranks_data())
def test_no_order_of_additions_leaves_its_bound(data: tuple[str, list[torch.Tensor]]) -> None:
    dtype, rows = data
    for sums in SUMS:
        assert measured(sums, rows, dtype) <= 1, f"{sums} in {dtype} over {len(rows)} ranks"


@settings(max_examples=100, deadline=None)
@given(ranks_data(), st.integers(0, 2**32 - 1))
def test_any_order_keeps_the_chain_bound(data: tuple[str, list[torch.Tensor]], seed: int) -> None:
    """Random pairings, as Jeannerod and Rump prove."""
    dtype, rows = data
    exact = torch.stack([row.double() for row in rows])
    rng = np.random.default_rng(seed)
    pending = list(rows)
    while len(pending) > 1:
        a = pending.pop(int(rng.integers(len(pending))))
        b = pending.pop(int(rng.integers(len(pending))))
        pending.append(a + b)
    claim = Claim("wire", len(rows) - 1, len(rows))
    bound = error_bound(exact.sum(0).numpy(), exact.abs().sum(0).numpy(), dtype, claim)
    assert tightness(np.abs(pending[0].double().numpy() - exact.sum(0).numpy()), bound) <= 1


def rows_of(pattern: str, size: int, dtype: str) -> list[torch.Tensor]:
    return [values(Case(pattern, dtype, N, 1), size, rank) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_every_bound_is_reached(dtype: str, size: int) -> None:
    """A bound that nothing comes near would let faults through. `absorb` is the worst case of each proof."""
    assert measured(("wire", "chain"), rows_of("absorb-chain", size, dtype), dtype) >= 0.95
    assert measured(("wire", "tree"), rows_of("absorb-tree", size, dtype), dtype) >= 0.95
    if dtype != "fp32":
        assert measured(("fp32", "chain"), rows_of("normal", size, dtype), dtype) >= 0.9


@pytest.mark.parametrize("size", [4, 8, 16])
def test_bound_tells_accumulation_types_apart(size: int) -> None:
    """A sum in bf16 leaves the bound of a sum in fp32 by far: the declaration is checked, not believed."""
    rows = rows_of("normal", size, "bf16")
    total, magnitude = reference(Case("normal", "bf16", N, 1), size)
    bound = error_bound(total, magnitude, "bf16", Claim("fp32", depth("chain", size), size))
    assert tightness(np.abs(chain(rows).double().numpy() - total), bound) > 10


def test_chain_bound_is_wrong_for_nobody_but_tree_bound_is_for_a_chain() -> None:
    """Depth matters: a chain over 8 ranks exceeds what a tree may err."""
    rows = rows_of("absorb-chain", 8, "bf16")
    total, magnitude = reference(Case("absorb-chain", "bf16", N, 1), 8)
    bound = error_bound(total, magnitude, "bf16", Claim("wire", 3, 8))
    assert tightness(np.abs(chain(rows).double().numpy() - total), bound) > 2


@pytest.mark.parametrize(("size", "expected"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4)])
def test_depth_of_a_balanced_tree(size: int, expected: int) -> None:
    assert depth("tree", size) == expected == math.ceil(math.log2(size))
    assert depth("chain", size) == size - 1


def test_growth_of_deep_trees_is_the_exact_product() -> None:
    u = 2.0**-8
    v = u / (1 + u)
    assert growth(4, 16, u) == pytest.approx((1 + v) ** 4 - 1)
    assert growth(4, 16, u) > 4 * u > growth(3, 8, u)
    assert growth(15, 16, u) == 15 * u
    assert growth(9, 3, u) == 2 * u, "never more than one rounding for each addition"


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_are_those_of_torch(name: str) -> None:
    info = torch.finfo(TORCH_DTYPES[name])
    kind = FORMATS[name]
    assert kind.unit_roundoff == info.eps / 2
    assert kind.smallest_normal == info.smallest_normal
    assert kind.largest == info.max
    one = torch.tensor(kind.smallest_subnormal, dtype=torch.float64).to(TORCH_DTYPES[name])
    assert float(one) == kind.smallest_subnormal
    assert float((one.double() / 2).to(one.dtype)) == 0
    assert float(torch.tensor(kind.largest_exact_integer + 1.0).to(one.dtype)) == kind.largest_exact_integer


@pytest.mark.parametrize("dtype", sorted(FORMATS))
@pytest.mark.parametrize("accumulation", ["wire", "fp32"])
def test_flushed_subnormals_are_within_the_bound_of_who_flushes_alone(dtype: str, accumulation: str) -> None:
    """Inputs, partial sums and output."""
    rows = rows_of("wide", 8, dtype)
    total, magnitude = reference(Case("wide", dtype, N, 1), 8)

    def flushed(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() < FORMATS[dtype].smallest_normal, x * 0, x)

    added = flushed(rows[0])
    for row in rows[1:]:
        added = flushed(added + flushed(row))
    error = np.abs(added.double().numpy() - total)
    for flushes, most in ((False, math.inf), (True, 1.0)):
        bound = error_bound(total, magnitude, dtype, Claim(accumulation, 7, 8, flushes_subnormals=flushes))  # type: ignore[arg-type]
        subnormal = magnitude < 8 * FORMATS[dtype].smallest_normal
        worst = tightness(error[subnormal], bound[subnormal])
        assert worst <= most
        assert flushes or worst > 1


def test_a_nan_is_outside_every_bound() -> None:
    assert tightness([np.nan, 0.0], [1.0, 1.0]) == math.inf
    assert tightness([], []) == 0
