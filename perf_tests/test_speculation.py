"""Does EAGLE-3 still draft well and verify fast, and does it pay?"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.perf, pytest.mark.only("speculative")]


def test_accept_length(judge, deployment, workload):
    """Tokens per verify pass, bonus token included; near-ties may flip between processors: a small tolerance."""
    judge("accept_length")


@pytest.mark.only("single stream")
def test_verify_time(judge, deployment, workload):
    """The median time of one verify pass of the target, milliseconds."""
    judge("verify_ms")


@pytest.mark.only("single stream")
def test_pays_for_itself(target, deployment, workload):
    """Break-even: tok/s at least those of the best plain deployment measured in this run. Shown, not failed."""
    target.break_even("decode_tok_s")


@pytest.mark.only("single stream")
def test_campaign_target(target, deployment, workload):
    """The box's target for EAGLE-3, tok/s. Shown with its distance; reached for the first time, asks to be recorded."""
    target.goal("decode_tok_s")
