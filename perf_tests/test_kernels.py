"""What is in a forward pass, and is it still that?"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.perf


def test_pass_kernels(judge_kernels, deployment):
    """Exact: kernels of a decode or verify pass by class, on a processor operators, from one profile. Any change is a
    verdict after one start, and its reason says which class changed and by how many."""
    judge_kernels()
