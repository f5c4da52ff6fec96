"""The CPU platform's paged attention against a dense reference, and its chain verify against brute force."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("sglang_cpu")

from sglang_cpu import chain, paged  # noqa: E402

DIM = 8


def paged_case(
    q_lens: list[int], prefixes: list[int], kv_heads: int, group: int, seed: int
) -> dict[str, Any]:
    """A page table with scattered slots, a cache, and the queries of one pass."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [q + prefix for q, prefix in zip(q_lens, prefixes, strict=True)]
    slots = torch.randperm(sum(lengths) + 7, generator=generator)
    table = torch.full((len(lengths) + 2, max(lengths) + 5), 3, dtype=torch.int32)
    indices = torch.randperm(len(lengths) + 2, generator=generator)[: len(lengths)]
    start = 0
    for index, length in zip(indices.tolist(), lengths, strict=True):
        table[index, :length] = slots[start : start + length].to(torch.int32)
        start += length
    shape = (slots.numel(), kv_heads, DIM)
    return {
        "table": table,
        "indices": indices,
        "q_lens": q_lens,
        "kv_lens": torch.tensor(lengths),
        "keys": torch.randn(shape, generator=generator),
        "values": torch.randn(shape, generator=generator),
        "q": torch.randn((sum(q_lens), kv_heads * group, DIM), generator=generator),
    }


def attended(case: dict[str, Any]) -> Any:
    groups = paged.layout(case["table"], case["indices"], case["q_lens"], case["kv_lens"], torch.float32)
    scale = 1 / math.sqrt(DIM)
    parts = [
        paged.attend(case["q"][rows.first : rows.first + rows.count], case["keys"], case["values"], rows, scale)
        for rows in groups
    ]
    return torch.cat(parts)


def dense(case: dict[str, Any]) -> Any:
    """One query row and one head at a time, from the definition."""
    out = torch.empty_like(case["q"])
    group = case["q"].shape[1] // case["keys"].shape[1]
    row = 0
    for index, q_len, kv_len in zip(case["indices"].tolist(), case["q_lens"], case["kv_lens"].tolist(), strict=True):
        slots = case["table"][index, :kv_len].long()
        for i in range(q_len):
            seen = slots[: kv_len - q_len + i + 1]
            for head in range(out.shape[1]):
                scores = case["keys"][seen, head // group] @ case["q"][row, head] / math.sqrt(DIM)
                out[row, head] = scores.softmax(0) @ case["values"][seen, head // group]
            row += 1
    return out


requests = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40)
@given(requests, st.sampled_from([(1, 1), (2, 2), (2, 1)]), st.integers(0, 2**31))
def test_any_mix_of_requests_is_attended_as_by_the_definition(
    mix: list[tuple[int, int]], heads: tuple[int, int], seed: int
) -> None:
    case = paged_case([q for q, _ in mix], [prefix for _, prefix in mix], *heads, seed)
    torch.testing.assert_close(attended(case), dense(case), rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.sampled_from([1, 4]), st.integers(0, 2**31))
def test_decode_and_verify_attend_the_whole_batch_at_once(prefixes: list[int], q_len: int, seed: int) -> None:
    case = paged_case([q_len] * len(prefixes), prefixes, 2, 2, seed)
    groups = paged.layout(case["table"], case["indices"], case["q_lens"], case["kv_lens"], torch.float32)
    assert len(groups) == 1
    torch.testing.assert_close(attended(case), dense(case), rtol=1e-4, atol=1e-5)


def test_a_leaking_mask_is_not_the_definition() -> None:
    case = paged_case([4, 4], [5, 3], 2, 2, 7)
    (rows,) = paged.layout(case["table"], case["indices"], case["q_lens"], case["kv_lens"], torch.float32)
    rows.mask[:, :, :-1] = rows.mask[:, :, 1:].clone()
    wrong = paged.attend(case["q"], case["keys"], case["values"], rows, 1 / math.sqrt(DIM))
    assert (wrong - dense(case)).abs().max() > 0.01


def test_no_requests_make_no_groups() -> None:
    empty = torch.empty(0, dtype=torch.int64)
    assert paged.layout(torch.zeros((2, 4), dtype=torch.int32), empty, [], empty, torch.float32) == []


def brute_force(candidates: list[list[int]], target: list[list[int]]) -> list[list[int]]:
    """The committed tokens of each request, one decision at a time."""
    committed = []
    for drafts, choices in zip(candidates, target, strict=True):
        tokens = []
        for i, choice in enumerate(choices):
            tokens.append(choice)
            if i + 1 == len(choices) or drafts[i + 1] != choice:
                break
        committed.append(tokens)
    return committed


def verify(candidates: list[list[int]], target: list[list[int]]) -> tuple[Any, Any, Any]:
    bs, n = len(candidates), len(candidates[0])
    index = torch.arange(bs * n).view(bs, n)
    return chain.verify_chain(
        predicts=torch.full((bs * n,), 99, dtype=torch.int32),
        accept_index=torch.full((bs, n), -1, dtype=torch.int32),
        accept_token_num=torch.empty(bs, dtype=torch.int32),
        candidates=torch.tensor(candidates),
        retrieve_index=index,
        retrieve_next_token=torch.empty(0),
        retrieve_next_sibling=torch.empty(0),
        target_predict=torch.tensor(target),
    )


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    bs, n = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    table = st.lists(st.lists(st.integers(1, 3), min_size=n, max_size=n), min_size=bs, max_size=bs)
    return draw(table), draw(table)


@settings(deadline=None)
@given(chains())
def test_chain_verify_commits_what_brute_force_commits(case: tuple[list[list[int]], list[list[int]]]) -> None:
    candidates, target = case
    n = len(candidates[0])
    predicts, accept_index, accepted = verify(candidates, target)
    for b, tokens in enumerate(brute_force(candidates, target)):
        assert accepted[b] == len(tokens) - 1
        rows = [int(row) for row in accept_index[b] if row >= 0]
        assert rows == list(range(b * n, b * n + len(tokens)))
        assert [int(predicts[row]) for row in rows] == tokens
        assert not predicts[b * n + len(tokens) : (b + 1) * n].any()


def test_build_chain_lays_out_positions_and_links() -> None:
    bs, n = 2, 3
    positions = torch.empty(bs * n, dtype=torch.int64)
    index, following, sibling = torch.full((3, bs, n), -7)
    chain.build_chain(None, None, torch.tensor([5, 9]), None, positions, index, following, sibling, 1, 2, n, None)
    assert positions.tolist() == [5, 6, 7, 9, 10, 11]
    assert index.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert following.tolist() == [[1, 2, -1], [1, 2, -1]]
    assert sibling.tolist() == [[-1] * n] * bs


def test_a_tree_is_refused() -> None:
    empty = torch.empty(0)
    with pytest.raises(NotImplementedError, match="eagle-topk 1"):
        chain.build_chain(None, None, empty, None, empty, empty, empty, empty, 2, 2, 3, None)


spans = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=5)


@settings(deadline=None)
@given(spans)
def test_slots_are_written_and_read_back_by_position(mix: list[tuple[int, int]]) -> None:
    indices = torch.arange(len(mix)).flip(0)
    start = torch.tensor([first for first, _ in mix])
    end = start + torch.tensor([length for _, length in mix])
    total = sum(length for _, length in mix)
    table = torch.zeros((len(mix), 16), dtype=torch.int32)
    slots = torch.arange(100, 100 + total)
    paged.assign_slots(indices, table, start, end, slots, len(mix))
    expected, at = torch.zeros_like(table), 100
    for index, (first, length) in zip(indices.tolist(), mix, strict=True):
        for position in range(first, first + length):
            expected[index, position] = at
            at += 1
    assert torch.equal(table, expected)
    back = paged.extend_slots(
        req_pool_indices=indices, req_to_token=table, start_offset=start, end_offset=end, batch_size=len(mix),
        draft_token_num=0, device="cpu",
    )
    assert back.tolist() == slots.tolist()


def test_draft_and_verify_slots_follow_the_page_table() -> None:
    table = torch.arange(40, dtype=torch.int32).view(4, 10)
    indices, lengths = torch.tensor([2, 0]), torch.tensor([3, 7])
    out = torch.empty(4, dtype=torch.int64)
    paged.draft_slots(indices, table, lengths, out, 1, 2)
    assert out.tolist() == [23, 24, 7, 8]
    assert paged.uniform_slots(indices, table, lengths, 2, 3, "cpu").tolist() == [23, 24, 25, 7, 8, 9]
    with pytest.raises(NotImplementedError, match="full_v2p"):
        paged.uniform_slots(indices, table, lengths, 2, 3, "cpu", full_v2p=out)


def test_the_bonus_token_is_the_last_accepted_one() -> None:
    out = torch.empty(2, dtype=torch.int32)
    accepted = torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23]], dtype=torch.int32)
    paged.bonus_tokens(accepted, torch.tensor([3, 1], dtype=torch.int32), out, 4, 2)
    assert out.tolist() == [12, 20]
