"""Is the data exact in any order, new at every call, and the same whoever works it out?"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.allreduce.bounds import FORMATS
from fixtures.allreduce.cases import ITEM_BYTES, ONE_TOKEN_BYTES, VERIFY_BYTES, Case
from fixtures.allreduce.checks import as_bits
from fixtures.allreduce.patterns import BLOCK, MAX_FP32_DIGITS, PATTERNS, TORCH_DTYPES, hashed, reference, values
from fixtures.allreduce.series import odd_sizes

pytestmark = pytest.mark.correctness

dtypes = st.sampled_from(sorted(FORMATS))
sizes = st.integers(2, MAX_FP32_DIGITS)
calls = st.integers(0, 10_000)


def exact(dtype: str, size: int, rank: int, call: int) -> torch.Tensor:
    return values(Case("exact", dtype, 512, call), size, rank)


@settings(max_examples=60, deadline=None)
@given(dtypes, sizes, calls, st.randoms())
def test_exact_sums_are_exact_in_any_order(dtype: str, size: int, call: int, random) -> None:
    rows = [exact(dtype, size, rank, call) for rank in range(size)]
    total, _ = reference(Case("exact", dtype, 512, call), size)
    for _ in range(4):
        pending = list(rows)
        while len(pending) > 1:
            random.shuffle(pending)
            pending.append(pending.pop() + pending.pop())
        assert pending[0].dtype is TORCH_DTYPES[dtype]
        assert np.array_equal(pending[0].double().numpy(), total)


@settings(max_examples=60, deadline=None)
@given(dtypes, sizes, calls)
def test_exact_values_show_a_missing_rank_and_a_call_before(dtype: str, size: int, call: int) -> None:
    now, before = exact(dtype, size, 1, call), exact(dtype, size, 1, call + 1)
    assert bool((now > 0).all()), "a zero would hide that its rank is missing"
    assert float((now != before).double().mean()) > 0.8, "stale data must differ nearly everywhere"
    assert float((now[1:] != now[:-1]).double().mean()) > 0.8, "so must the neighbour"


def counts_by_rank(total: float, world_size: int) -> list[int]:
    """How often each rank was added: the base-4 digits of the sum, 0 to 3 each."""
    low = int(total) % 4**world_size
    return [low // 4**rank % 4 for rank in range(world_size)]


@pytest.mark.parametrize("size", range(2, MAX_FP32_DIGITS + 1))
def test_fp32_sum_counts_each_rank(size: int) -> None:
    rows = [exact("fp32", size, rank, 7).double() for rank in range(size)]
    assert counts_by_rank(float(sum(rows)[3]), size) == [1] * size
    missing = counts_by_rank(float((sum(rows) - rows[1])[3]), size)
    doubled = counts_by_rank(float((sum(rows) + rows[0])[3]), size)
    assert missing == [1, 0] + [1] * (size - 2)
    assert doubled == [2] + [1] * (size - 1)


def test_too_many_ranks_for_the_digits_is_an_error() -> None:
    with pytest.raises(ValueError, match="9 ranks need more than 24 bits, at most 8 fit"):
        exact("fp32", 9, 0, 0)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PATTERNS)), dtypes, calls, st.integers(0, 3 * BLOCK), st.integers(0, 300))
def test_any_part_is_the_same_as_from_the_whole(name: str, dtype: str, call: int, start: int, length: int) -> None:
    def part(a: int, b: int) -> torch.Tensor:
        return values(Case(name, dtype, b, call), 4, 2, a)

    whole = part(max(start - 100, 0), start + length + 100)
    offset = start - max(start - 100, 0)
    assert torch.equal(as_bits(part(start, start + length)), as_bits(whole[offset : offset + length]))


@pytest.mark.parametrize("dtype", sorted(FORMATS))
@pytest.mark.parametrize("size", [2, 4, 8])
def test_special_sums_are_of_every_kind_and_the_same_in_any_order(dtype: str, size: int) -> None:
    case = Case("special", dtype, 2048, 3)
    rows = [values(case, size, rank) for rank in range(size)]
    total = torch.from_numpy(reference(case, size)[0]).to(TORCH_DTYPES[dtype])
    kinds = (
        total.isnan(),
        total == torch.inf,
        total == -torch.inf,
        (total == 0) & total.signbit(),
        (total == 0) & ~total.signbit(),
        total == torch.finfo(total.dtype).max,
        (total > 0) & (total <= FORMATS[dtype].largest_exact_integer),
    )
    assert all(int(kind.sum()) > 20 for kind in kinds)
    finite = torch.stack(rows).isfinite().all(0)
    assert bool((total.isinf() & finite).any()), "overflow without an infinity"
    for order in (rows, rows[::-1], rows[1:] + rows[:1]):
        added = order[0].clone()
        for row in order[1:]:
            added = added + row
        assert torch.equal(added.isnan(), total.isnan())
        known = ~total.isnan()
        assert torch.equal(as_bits(added[known]), as_bits(total[known]))


@pytest.mark.parametrize("dtype", sorted(FORMATS))
@pytest.mark.parametrize("size", [2, 4, 8])
def test_wide_values_span_the_type_without_overflow(dtype: str, size: int) -> None:
    case = Case("wide", dtype, 1 << 14, 3)
    kind = FORMATS[dtype]
    rows = [values(case, size, rank).double().abs() for rank in range(size)]
    total, magnitude = reference(case, size)
    assert float(magnitude.max()) <= kind.largest
    assert float(magnitude.max()) > kind.largest / 8
    assert float(torch.stack(rows).min()) > 0, "a zero would hide that its rank is missing"
    assert float((np.abs(total) < kind.smallest_normal).mean()) > (0.2 if dtype == "fp16" else 0.01)


@pytest.mark.parametrize(("name", "sigma"), [("normal", 1.0), ("normal-0.02", 0.02)])
def test_normal_data_is_normal_and_its_ranks_are_independent(name: str, sigma: float) -> None:
    a, b = (values(Case(name, "fp32", 1 << 17, 5), 8, rank).double().numpy() for rank in (0, 1))
    assert np.std(a) == pytest.approx(sigma, rel=0.02)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.02


@pytest.mark.parametrize("name", ["absorb-chain", "absorb-tree"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_rank_owns_elements_in_the_worst_case(name: str, size: int) -> None:
    for rank in range(size):
        x = values(Case(name, "bf16", 4096, 1), size, rank)
        assert int((x.abs() == 1).sum()) == pytest.approx(4096 / size, rel=0.25)


def test_hash_of_an_index_is_one_to_one_and_spreads() -> None:
    h = hashed(3, 9, 0, 1 << 18)
    assert len(np.unique(h)) == len(h)
    counts = np.bincount(h % np.uint32(32), minlength=32)
    assert counts.min() > 0.9 * counts.mean()
    assert not np.array_equal(h, hashed(3, 10, 0, 1 << 18))


def test_sizes_are_those_of_serving() -> None:
    assert ONE_TOKEN_BYTES == 14 * 1024
    assert VERIFY_BYTES == (42 * 1024, 56 * 1024)
    for dtype, item in ITEM_BYTES.items():
        found = odd_sizes(dtype, 4)
        assert {0, 1} <= set(found)
        assert any(n * item % 16 for n in found)
        assert any(0 < n < 4 for n in found)
