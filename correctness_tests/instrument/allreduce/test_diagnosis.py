"""Does a failure say what, where and why? Checks and diagnosis on outputs made wrong by hand, without any process."""

from __future__ import annotations

import math
from itertools import pairwise
from pkgutil import resolve_name

import pytest
import torch

from fixtures.allreduce.adapters import Communicator, FusedCommunicator
from fixtures.allreduce.backends import BACKENDS, Backend
from fixtures.allreduce.bounds import Claim, Zeros
from fixtures.allreduce.cases import DIGEST_ELEMENTS, Case, CaseResult, RankReport, complaint
from fixtures.allreduce.checks import GUARD_BYTES, WHOLE, WORD, as_bits, check_output, guarded
from fixtures.allreduce.patterns import TORCH_DTYPES, reference, values

pytestmark = pytest.mark.correctness

P = 4
CLAIM = Claim("fp32", P - 1, P)
CASE = Case("exact", "bf16", 5000, 2)
BEFORE = Case("exact", "bf16", 5000, 1)
POISON_BITS = {"bf16": 0x7FA5, "fp16": 0x7DA5, "fp32": 0x7FA5A5A5}  # NaN of other payloads than the usual one


def rows(case: Case) -> list[torch.Tensor]:
    return [values(case, P, rank) for rank in range(P)]


def right(case: Case) -> torch.Tensor:
    return torch.from_numpy(reference(case, P)[0]).to(TORCH_DTYPES[case.dtype])


def checked(output: object, case: Case = CASE, rank: int = 0, claim: Claim = CLAIM) -> RankReport:
    report = RankReport(rank)
    check_output(report, case, output, claim, BEFORE)
    return report


def fault_of(report: RankReport) -> str:
    return report.failures["values"].partition("likeliest fault: ")[2]


def result(*outputs: torch.Tensor, case: Case = CASE) -> CaseResult:
    return CaseResult("one_shot", P, case, [checked(o, case, rank) for rank, o in enumerate(outputs)])


@pytest.mark.parametrize("pattern", ["exact", "normal", "normal-0.02", "absorb-chain", "absorb-tree"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("numel", [0, 1, 5000])
def test_right_output_passes(pattern: str, dtype: str, numel: int) -> None:
    case = Case(pattern, dtype, numel, 3)
    found = result(*[right(case)] * P, case=case)
    assert found.failures() == {}
    assert complaint([found]) == ""


@pytest.mark.parametrize(
    ("spoil", "diagnosis"),
    [
        (lambda s, x, old: s - x[2], "rank 2 is missing from the sum"),
        (lambda s, x, old: s + x[3], "rank 3 is counted twice"),
        (lambda s, x, old: x[1], "no reduction: the output is rank 1's input"),
        (lambda s, x, old: s - x[1] + old[1], "stale buffer: rank 1's data is that of the call before"),
        (lambda s, x, old: sum(old), "stale output: these are the sums of the call before"),
        (lambda s, x, old: torch.cat([s[1:], s[-1:]]), "each wrong element is its neighbour's (index +1)"),
        (lambda s, x, old: s.roll(1250), "elements are in the wrong places: chunks swapped"),
        (lambda s, x, old: torch.full_like(s, torch.nan), "uninitialised output"),
        (lambda s, x, old: s * 1.5, "unknown"),
    ],
)
def test_likeliest_fault_is_named(spoil, diagnosis: str) -> None:
    total = right(CASE).double()
    output = spoil(total, [r.double() for r in rows(CASE)], [r.double() for r in rows(BEFORE)]).to(torch.bfloat16)
    assert fault_of(checked(output)).startswith(diagnosis)


def test_one_wrong_element_is_placed() -> None:
    output = right(CASE)
    output[4321] -= rows(CASE)[1][4321]
    found = result(right(CASE), output, right(CASE), right(CASE))
    found.disagreeing, found.disagreement_start = [[1.0, 1.0], [1.0, 2.0], [1.0, 1.0], [1.0, 1.0]], DIGEST_ELEMENTS
    text = found.describe()
    expected = float(right(CASE)[4321])
    assert [report.mismatches for report in found.reports] == [0, 1, 0, 0]
    assert found.first_disagreement() == (DIGEST_ELEMENTS, 5000)
    assert "one_shot, world size 4: exact, bf16, 5000 elements (10000 bytes), call 2" in text
    assert f"rank 1: 1 of 5000 elements wrong, first index 4321: expected {expected:g} exactly, got" in text
    assert "likeliest fault: rank 1 is missing from the sum" in text
    assert f"ranks agree: index {DIGEST_ELEMENTS + 1}: rank 0 1, rank 1 2" in text


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_ranks_that_differ_in_the_sign_of_a_zero_agree_where_the_backend_says_so(dtype: str) -> None:
    """The rank that sums keeps +0 and its peers get -0, which PCIe-IPC kernels do."""
    case = Case("normal", dtype, 5000, 3)
    total = right(case)
    for index in (0, 4999):
        total[index] = 0
    peer = total.clone()
    peer[total == 0] = -0.0
    assert not torch.equal(total.view(torch.uint8), peer.view(torch.uint8))

    def disagreement(zeros: Zeros, *outputs: torch.Tensor) -> tuple[int, int] | None:
        claim = Claim("wire", P - 1, P, zeros)
        return CaseResult(
            "x", P, case, [checked(o, case, r, claim) for r, o in enumerate(outputs)]
        ).first_disagreement()

    assert disagreement("negative", total, peer, peer, peer) is None
    assert disagreement("positive", peer, peer, total, peer) is None
    assert disagreement("signed", total, peer, peer, peer) == (0, DIGEST_ELEMENTS)

    least = torch.finfo(TORCH_DTYPES[dtype]).smallest_normal / 4
    for index, value in ((0, least), (4999, -least)):  # a subnormal is no zero
        other = peer.clone()
        other[index] = value
        start = index // DIGEST_ELEMENTS * DIGEST_ELEMENTS
        assert disagreement("negative", total, other, peer, peer) == (start, min(start + DIGEST_ELEMENTS, 5000))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    ("zeros", "given", "wrong"),
    [
        ("signed", "+0 for -0", True),
        ("signed", "-0 for +0", True),
        ("negative", "+0 for -0", True),
        ("negative", "-0 for +0", False),
        ("positive", "+0 for -0", False),
        ("positive", "-0 for +0", True),
    ],
)
def test_a_lost_sign_is_wrong_but_where_the_backend_says_so(zeros: Zeros, given: str, wrong: bool, dtype: str) -> None:
    case = Case("special", dtype, 2048, 3)
    total = right(case)
    lost, got = (-0.0, 0.0) if given == "+0 for -0" else (0.0, -0.0)
    places = (total == 0) & (total.signbit() == (math.copysign(1, lost) < 0))
    output = torch.where(places, torch.full_like(total, got), total)
    assert int(places.sum()) > 20
    report = checked(output, case, claim=Claim("fp32", P - 1, P, zeros))
    assert report.mismatches == (int(places.sum()) if wrong else 0)
    if wrong:
        assert fault_of(report) == "the sign of a zero is lost"
    assert checked(total, case, claim=Claim("fp32", P - 1, P, zeros)).mismatches == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_nan_is_right_whatever_its_payload_and_nowhere_else(dtype: str) -> None:
    case = Case("special", dtype, 2048, 3)
    total = right(case)
    other = total.clone()
    as_bits(other)[total.isnan()] = POISON_BITS[dtype]
    assert result(total, other, total, other, case=case).failures() == {}
    leaked = total.clone()
    leaked[int(torch.nonzero(total.isnan())[0]) + 1] = torch.nan
    assert "values" in result(leaked, total, total, total, case=case).failures()


def test_an_output_of_another_type_is_wrong() -> None:
    report = checked(right(CASE).float())
    assert report.failures["values"] == "output is in torch.float32, not in bf16"


def test_an_input_that_is_written_to_later_is_seen() -> None:
    case = Case("exact", "bf16", 100, 1, "offset")
    for write in (lambda x: x.fill_(1), lambda x: x[50:51].add_(1), lambda x: x[99:].zero_()):
        given = guarded(case, rows(case)[0])
        given.surrender()
        assert not given.changed()
        assert not given.changed_late()
        assert given.trespass() is None
        write(given.tensor)
        assert given.changed_late()
        assert not given.changed(), "it was whole when the call was over"
        assert given.trespass() is None
    given = guarded(case, rows(case)[0])
    given.tensor[3] = 0
    given.surrender()
    assert given.changed()
    assert not given.changed_late()


def test_a_disagreement_is_placed() -> None:
    found = result(*[right(CASE)] * P)
    found.reports[1].digests[0] = b"other"
    found.disagreeing = [[0.0, 1.0], [0.0, 2.0], [0.0, 1.0], [0.0, 1.0]]
    assert "ranks agree: index 1: rank 0 1, rank 1 2" in found.describe()


def test_rounding_faults_are_told_from_each_other() -> None:
    case = Case("normal", "bf16", 4096, 2)
    x = rows(case)
    wire = x[0].clone()
    for row in x[1:]:
        wire += row
    total = sum(row.float() for row in x)
    nearest = total.bfloat16()
    cut = torch.where(nearest.float().abs() > total.abs(), torch.nextafter(nearest, nearest * 0), nearest)
    assert fault_of(checked(cut, case)) == "rounding: truncated, not rounded to nearest"
    assert "values" in checked(wire, case).failures
    assert not checked(wire, case, claim=Claim("wire", P - 1, P)).failures, "what it is, had it been declared"


@pytest.mark.parametrize("output", [None, torch.zeros(4999, dtype=torch.bfloat16)])
def test_no_output_or_one_of_another_size_is_wrong(output: object) -> None:
    report = checked(output)
    assert "not 5000 elements" in report.failures["values"]
    assert "values" in CaseResult("x", 1, CASE, [report]).failures()


def test_large_cases_are_shared_between_ranks_and_no_element_is_left_out() -> None:
    case = Case("exact", "bf16", WHOLE + 3, 1)
    parts = [checked(right(case), case, rank).checked for rank in range(P)]
    assert parts[0][0] == 0
    assert parts[-1][1] == case.numel
    assert all(a[1] == b[0] for a, b in pairwise(parts))


@pytest.mark.parametrize("layout", ["contiguous", "offset", "strided"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_writing_beside_the_input_is_seen(layout, dtype: str) -> None:
    case = Case("exact", dtype, 100, 1, layout)
    item = {"bf16": 2, "fp16": 2, "fp32": 4}[dtype]
    own = rows(case)[0]

    given = guarded(case, own)
    assert torch.equal(given.tensor, own)
    assert (given.tensor.data_ptr() % 16 != 0) == (layout == "offset")
    assert not given.changed()
    assert given.trespass() is None
    given.tensor += 1
    assert given.changed()
    assert given.trespass() is None

    for place in (-WORD, given.span, GUARD_BYTES + given.span - WORD):
        given = guarded(case, own)
        given.memory[(given.first + place) // WORD] = 0
        assert given.trespass() == place
    if layout == "strided":
        given = guarded(case, own)
        given.memory[(given.first + item) // WORD] = 0
        assert given.trespass() == item, "between the elements"


def test_poison_is_a_nan_in_every_type() -> None:
    for name, dtype in TORCH_DTYPES.items():
        given = guarded(Case("exact", name, 8, 1, "strided"), torch.ones(8, dtype=dtype))
        assert bool(torch.isnan(given.memory[:64].view(dtype)).all())
        everything = given.memory.view(dtype)
        everything += everything
        assert given.trespass() in (-GUARD_BYTES, WORD - GUARD_BYTES), "memory that was added to itself shows"


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=lambda b: b.name)
def test_a_backend_declares_what_its_adapter_is(backend: Backend) -> None:
    """And an adapter of a path that its package may leave in silence says whether it is the one that runs."""
    kind = resolve_name(backend.adapter)
    assert issubclass(kind, Communicator)
    assert issubclass(kind, FusedCommunicator) == backend.fused_norm
    may_fall_back = any(name in vars(kind) for name in ("SHOULD", "SUPPORTS"))
    assert not may_fall_back or kind.inactive is not Communicator.inactive
    assert set(backend.dtypes) <= set(TORCH_DTYPES)
    assert not backend.captured or "cuda" in backend.devices
    expected = {"chain": {2: 1, 4: 3, 8: 7}, "tree": {2: 1, 4: 2, 8: 3}}[backend.shape]
    assert {size: backend.claim(size).additions for size in (2, 4, 8)} == expected
    assert backend.claim(8).zeros == backend.zeros
