"""Does the cost model give the campaign's figures, and is each of its inverses the inverse?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.campaign.model.cost_model import (
    Bus,
    Pass,
    Speculation,
    SwitchedRing,
    break_even_accept_length,
    break_even_all_reduce_s,
    break_even_verify_s,
    constant,
    plain_all_reduce_s,
    plain_tok_s,
    predicted_ratio,
    speculative_tok_s,
)
from fixtures.campaign.model.figures import ASSUMED, GIVEN, TARGETS, target, value
from fixtures.campaign.model.hypotheses import (
    DECODE,
    VERIFY,
    fixed_cost,
    reproduce,
    requirement,
    shared_bus,
    two_regimes,
)
from fixtures.campaign.plan import written

seconds = st.floats(1e-6, 1.0)
latencies = st.floats(1e-6, 1e-2)
accept_lengths = st.floats(1.0, 16.0)
sizes = st.floats(1.0, 1e8)
factors = st.floats(1.05, 100.0)
counts = st.integers(1, 500)


@st.composite
def buses(draw: st.DrawFn) -> Bus:
    return Bus(
        ranks=draw(st.integers(2, 16)),
        step_s=draw(st.floats(1e-7, 1e-3)),
        link_bytes_s=draw(st.floats(1e7, 1e12)),
        contention=draw(st.floats(0, 50)),
    )


@st.composite
def speculations(draw: st.DrawFn) -> Speculation:
    verify = Pass(draw(counts), 43008, draw(seconds))
    draft = Pass(draw(st.integers(0, 8)), 14336, draw(seconds))
    return Speculation(verify, draft, draw(st.integers(1, 8)), draw(accept_lengths), draw(seconds))


def test_reproduction_of_the_campaign_within_ten_percent(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(written().split("## What a gain takes")[1].split("The plan uses")[0])
    lines = reproduce(two_regimes())
    assert [line.target for line in lines] == list(TARGETS)
    for line in lines:
        assert abs(line.deviation) < 0.10, f"{line.target.says}: {line.model:g}"
    unfitted = {line.target.name for line in lines if not line.fitted}
    assert unfitted == {"verify_s", "communication_share"}


def test_reported_range_brackets_the_verify_pass() -> None:
    low, high = (VERIFY.time_s(constant(value(name))) for name in ("nccl_low_s", "nccl_high_s"))
    assert low < target("verify_s") < high


def test_one_fixed_cost_is_refuted_by_the_reported_figures() -> None:
    """The check that a wrong model is seen: the cost that gives 30 ms cannot give 82 tok/s."""
    plain = next(line for line in reproduce(fixed_cost()) if line.target.name == "plain_tok_s")
    assert plain.deviation < -0.5
    assert plain_tok_s(DECODE, constant(value("nccl_low_s"))) < 0.7 * target("plain_tok_s")


def test_a_slow_bus_alone_misses_the_custom_all_reduce() -> None:
    custom = next(line for line in reproduce(shared_bus()) if line.target.name == "custom_tok_s")
    assert custom.deviation < -0.10
    assert not custom.fitted


def test_every_input_has_a_name_a_provenance_and_a_basis() -> None:
    for item in (*GIVEN, *ASSUMED, *fixed_cost().fitted, *shared_bus().fitted, *two_regimes().fitted):
        assert item.name
        assert item.basis
        assert (item.provenance == "fitted") == bool(item.meets), item.name
    names = [item.name for item in (*GIVEN, *ASSUMED)]
    assert len(names) == len(set(names))


def test_tensions_state_figures() -> None:
    said = written().split("What does not fit")[1].split("###")[0]
    assert "93 us" in said
    assert "239 us" in said
    per_token = 1 / target("plain_tok_s") - DECODE.compute_s
    assert per_token / DECODE.all_reduces * 1e6 == pytest.approx(93, abs=0.5)
    verify = target("verify_s") * target("communication_share") / VERIFY.all_reduces
    assert verify * 1e6 == pytest.approx(239, abs=0.5)


@pytest.mark.parametrize("rate", [82.0, 89.5, 167.0])
def test_requirement_is_the_inverse_of_the_model(rate: float) -> None:
    model = two_regimes()
    need = requirement(rate, model)
    assert need.plain_all_reduce_s is not None
    assert need.eagle3_all_reduce_s is not None
    assert plain_tok_s(DECODE, constant(need.plain_all_reduce_s)) == pytest.approx(rate)
    assert speculative_tok_s(model.speculation, constant(need.eagle3_all_reduce_s)) == pytest.approx(rate)


def test_requirement_out_of_reach_is_none() -> None:
    need = requirement(2000.0, two_regimes())
    assert need.plain_all_reduce_s is None
    assert need.eagle3_all_reduce_s is None
    assert need.verify_s is None


@settings(deadline=None)
@given(speculations(), latencies, factors)
def test_more_latency_is_fewer_tokens(speculation: Speculation, latency: float, factor: float) -> None:
    quick, slow = constant(latency), constant(latency * factor)
    assert speculative_tok_s(speculation, slow) < speculative_tok_s(speculation, quick)
    assert plain_tok_s(speculation.verify, slow) < plain_tok_s(speculation.verify, quick)
    shares = [speculation.verify.communication_share(each) for each in (quick, slow)]
    assert 0 < shares[0] < shares[1] <= 1


@settings(deadline=None)
@given(speculations(), latencies, factors)
def test_longer_accepts_are_more_tokens(speculation: Speculation, latency: float, factor: float) -> None:
    longer = Speculation(
        speculation.verify,
        speculation.draft,
        speculation.draft_passes,
        speculation.accept_length * factor,
        speculation.overhead_s,
    )
    one, other = (speculative_tok_s(each, constant(latency)) for each in (speculation, longer))
    assert other == pytest.approx(one * factor)


@settings(deadline=None)
@given(speculations(), latencies, st.floats(0.01, 100.0))
def test_units_scale(speculation: Speculation, latency: float, unit: float) -> None:
    """All times in another unit: the rate changes by that unit and by nothing else."""

    def scaled(each: Pass) -> Pass:
        return Pass(each.all_reduces, each.bytes_per_all_reduce, each.compute_s * unit)

    other = Speculation(
        scaled(speculation.verify),
        scaled(speculation.draft),
        speculation.draft_passes,
        speculation.accept_length,
        speculation.overhead_s * unit,
    )
    expected = speculative_tok_s(speculation, constant(latency)) / unit
    assert speculative_tok_s(other, constant(latency * unit)) == pytest.approx(expected)


@settings(deadline=None)
@given(speculations(), st.floats(0.1, 1e4))
def test_break_even_latency_is_a_fixed_point(speculation: Speculation, rate: float) -> None:
    latency = break_even_all_reduce_s(rate, speculation)
    if latency > 1e-9:
        assert speculative_tok_s(speculation, constant(latency)) == pytest.approx(rate, rel=1e-6)
    else:
        assert speculative_tok_s(speculation, constant(0.0)) <= rate * (1 + 1e-6)


@settings(deadline=None)
@given(speculations(), latencies, st.floats(0.1, 1e4))
def test_break_even_verify_and_accept_length_are_fixed_points(
    speculation: Speculation, latency: float, rate: float
) -> None:
    draft = speculation.draft_s(constant(latency))
    verify = break_even_verify_s(rate, speculation.accept_length, draft, speculation.overhead_s)
    step = verify + draft + speculation.overhead_s
    assert speculation.accept_length / step == pytest.approx(rate)
    step = speculation.step_s(constant(latency))
    assert break_even_accept_length(rate, step) / step == pytest.approx(rate)


@settings(deadline=None)
@given(counts, seconds, latencies)
def test_plain_latency_is_the_inverse(all_reduces: int, compute: float, latency: float) -> None:
    decode = Pass(all_reduces, 14336, compute)
    rate = plain_tok_s(decode, constant(latency))
    assert plain_all_reduce_s(rate, decode) == pytest.approx(latency, rel=1e-3)


@settings(deadline=None)
@given(buses(), sizes, factors)
def test_bus_more_bytes_take_longer(bus: Bus, size: float, factor: float) -> None:
    for schedule in (bus.ring, bus.one_shot):
        assert schedule(size * factor) > schedule(size) > 0


@settings(deadline=None)
@given(buses(), sizes, st.floats(0.1, 50))
def test_contention_slows_all_to_all_and_not_the_ring(bus: Bus, size: float, more: float) -> None:
    worse = Bus(bus.ranks, bus.step_s, bus.link_bytes_s, bus.contention + more)
    assert worse.ring(size) == bus.ring(size)
    if bus.ranks > 2:
        assert worse.one_shot(size) > bus.one_shot(size)


@settings(deadline=None)
@given(buses())
def test_one_byte_costs_the_steps(bus: Bus) -> None:
    """Without bytes a ring is 2(p-1) steps, a one-shot a barrier and a step."""
    assert bus.ring(0) == pytest.approx(2 * (bus.ranks - 1) * bus.step_s)
    assert bus.one_shot(0) == pytest.approx(2 * bus.step_s)


def test_large_messages_reach_the_ring_bound() -> None:
    """A ring moves 2(p-1)/p of the bytes over each link (Patarasuk and Yuan, 2009); a one-shot p-1 times."""
    bus = Bus(8, 0.0, 1e9)
    assert bus.ring(1e9) == pytest.approx(2 * 7 / 8)
    assert bus.one_shot(1e9) == pytest.approx(7)


def test_switched_ring_changes_at_its_size() -> None:
    ring = SwitchedRing(Bus(8, 1e-6, 1e12), switch_bytes=28672, large_step_s=1e-5)
    assert ring(28672) == pytest.approx(14e-6, rel=0.01)
    assert ring(28673) == pytest.approx(140e-6, rel=0.01)


@pytest.mark.parametrize(("ranks", "step", "link"), [(1, 1e-6, 1e9), (8, -1e-6, 1e9), (8, 1e-6, 0.0)])
def test_impossible_bus_is_refused(ranks: int, step: float, link: float) -> None:
    with pytest.raises(ValueError, match=r"ranks|step_s"):
        Bus(ranks, step, link)


def test_accept_length_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="bonus token"):
        Speculation(VERIFY, DECODE, 1, 0.9)


@settings(deadline=None)
@given(seconds, st.floats(1.0, 3.0), accept_lengths)
def test_ratio_from_measured_parts(plain: float, verify_ratio: float, accept: float) -> None:
    """With a free draft the ratio is the accept length over how much dearer a verify pass is."""
    assert predicted_ratio(plain, plain * verify_ratio, 0.0, accept) == pytest.approx(accept / verify_ratio)
    slower = predicted_ratio(plain, plain * verify_ratio, 2 * plain, accept, rest_s=3 * plain)
    assert slower == pytest.approx(4 * accept / (verify_ratio + 5))
