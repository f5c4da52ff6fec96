"""Does what is started for its outputs, or for what it costs to load, answer rightly?"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.perf, pytest.mark.only("not timed")]


def test_outputs(check_outputs, deployment):
    """By the replay rule, which the plain deployment that it extends judges; of the start that is made anyway."""
    check_outputs(deployment)
