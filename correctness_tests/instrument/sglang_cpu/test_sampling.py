"""The CPU platform's verify above temperature 0: exact by enumeration, and where it sits in SGLang."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("sglang_cpu")

from sglang_cpu import chain as sampling  # noqa: E402

VOCABULARY, WIDTH = 5, 3
GRID = 400


def verified(candidates: list[int], probs: Any, accept: Any, final: Any, **thresholds: float) -> tuple[Any, Any]:
    """Committed tokens (cases, WIDTH), -1 after the accepted run, and accepted drafts, for coins (cases, …)."""
    cases = accept.shape[0]
    predicts = torch.zeros(cases * WIDTH, dtype=torch.int32)
    index = torch.full((cases, WIDTH), -1, dtype=torch.int32)
    count = torch.empty(cases, dtype=torch.int32)
    rows = torch.arange(cases * WIDTH).view(cases, WIDTH)
    sampling.sample_chain(
        predicts=predicts, accept_index=index, accept_token_num=count,
        candidates=torch.tensor(candidates).expand(cases, WIDTH), retrive_index=rows, retrive_next_token=rows,
        retrive_next_sibling=rows, uniform_samples=accept, uniform_samples_for_final_sampling=final,
        target_probs=probs.expand(cases, WIDTH, VOCABULARY), draft_probs=torch.zeros(1), **thresholds,
    )
    kept = torch.arange(WIDTH) <= count.unsqueeze(1)
    assert torch.equal(index, torch.where(kept, rows, -1).to(torch.int32))
    return torch.where(kept, predicts.view(cases, WIDTH), -1), count


def rows_of(seed: int, zeros: bool) -> Any:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand((WIDTH, VOCABULARY), generator=generator)
    if zeros:
        probs[probs < 0.3] = 0
        probs[:, 0] += 0.1
    return probs / probs.sum(-1, keepdim=True)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, VOCABULARY - 1), min_size=WIDTH, max_size=WIDTH), st.booleans())
def test_each_token_has_the_targets_own_probability(seed: int, candidates: list[int], zeros: bool) -> None:
    """Coins on a grid in place of random ones: the shares are the probabilities, to the width of a cell."""
    probs = rows_of(seed, zeros)
    ticks = (torch.arange(GRID) + 0.5) / GRID
    first, final = (each.flatten() for each in torch.meshgrid(ticks, ticks, indexing="ij"))
    never = torch.ones_like(first) * 0.999999
    committed, count = verified(candidates, probs, torch.stack([first, never, never], 1), final)
    shares = torch.bincount(committed[:, 0].long(), minlength=VOCABULARY) / committed.shape[0]
    assert torch.allclose(shares, probs[0], atol=3 / GRID)
    assert torch.equal(count > 0, committed[:, 0] == candidates[1])
    # Where the first draft was accepted the next token comes from the row after it.
    second = committed[count == 1][:, 1].long()
    if len(second) > GRID:
        left = probs[1].clone()
        left[candidates[2]] = 0
        if left.sum() > 0.05:
            shares = torch.bincount(second, minlength=VOCABULARY) / len(second)
            assert torch.allclose(shares, left / left.sum(), atol=0.05)


def test_a_token_without_probability_never_comes() -> None:
    probs = torch.zeros((WIDTH, VOCABULARY))
    probs[:, 3] = 1
    edge = torch.tensor([0.0, 0.5, 1 - 2**-24])
    committed, count = verified([0, 0, 0], probs, torch.stack([edge] * 3, 1), edge)
    assert committed[:, 0].tolist() == [3, 3, 3]
    assert count.tolist() == [0, 0, 0]
    committed, count = verified([0, 3, 3], probs, torch.stack([edge] * 3, 1), edge)
    assert committed.tolist() == [[3, 3, 3]] * 3
    assert count.tolist() == [2, 2, 2]


def test_thresholds_accept_more() -> None:
    probs = torch.full((WIDTH, VOCABULARY), 0.2)
    coins = torch.full((1, WIDTH), 0.5)
    final = torch.tensor([0.5])
    assert verified([0, 1, 1], probs, coins, final)[1].tolist() == [0]
    assert verified([0, 1, 1], probs, coins, final, threshold_single=0.2)[1].tolist() == [2]
    assert verified([0, 1, 1], probs, coins, final, threshold_acc=0.4)[1].tolist() == [2]


def test_renormalisation_cuts_the_tail() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]])
    cut = sampling.top_k_renorm(probs, torch.tensor([2, 1], dtype=torch.int32))
    assert torch.allclose(cut, torch.tensor([[0, 4 / 7, 0, 3 / 7], [1, 0, 0, 0]]))
    cut = sampling.top_p_renorm(probs, torch.tensor([0.6, 1.0]))
    assert torch.allclose(cut, torch.tensor([[0, 4 / 7, 0, 3 / 7], [0.25] * 4]))
    assert torch.allclose(sampling.top_k_renorm(probs, torch.tensor([1 << 30] * 2)), probs)


def test_it_stands_where_sglang_has_no_kernel_of_its_own() -> None:
    utils = pytest.importorskip("sglang.srt.speculative.eagle_utils")
    from sglang.kernels.ops.speculative.sampling import tree_speculative_sampling_target_only as kernel

    assert list(inspect.signature(kernel).parameters) == list(inspect.signature(sampling.sample_chain).parameters)
    predicate = inspect.signature(utils._verify_uses_greedy).parameters
    assert "is_all_greedy" in predicate
    others = {name: True for name in predicate if name != "is_all_greedy"}
    assert sampling.verify_is_greedy(is_all_greedy=True, **others)
    assert not sampling.verify_is_greedy(is_all_greedy=False, **others)
    for name, own in sampling.KERNELS.items():
        assert getattr(utils, name) is own
