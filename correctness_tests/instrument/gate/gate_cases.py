"""What the tests of the gate share: two metrics and starts of them."""

from __future__ import annotations

import numpy as np

from fixtures.gate.spec import MetricSpec

TOK_S = MetricSpec("single_stream/decode_tok_s", "timing", "higher", "tok/s")
TTFT = MetricSpec("single_stream/ttft_ms", "timing", "lower", "ms")


def starts(centre: float, count: int, seed: int, cv: float = 0.01) -> list[float]:
    """`count` values around `centre`; the same for the same seed."""
    return list(centre * np.exp(np.random.default_rng(seed).normal(0, cv, count)))


BASE = starts(100, 10, 1)
