"""The committed pair loads, writes, and drafts well enough to be served, and a broken draft is noticed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the pair is read with torch")
pytest.importorskip("transformers", reason="the pair is decoded with transformers")

from fixtures.serving.workloads.degeneracy import degenerate  # noqa: E402
from fixtures.serving.workloads.workload import PROMPTS, read_prompts  # noqa: E402
from fixtures.tiny_pair import measure, training  # noqa: E402
from fixtures.tiny_pair.checkpoint import (  # noqa: E402
    continue_ids,
    load_draft,
    load_reference,
    load_target,
    load_tokenizer,
    save_draft,
    save_target,
)
from fixtures.tiny_pair.network import AUX_LAYERS, Draft, TargetModel  # noqa: E402

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("tiny pair")]

PAIR = Path(measure.__file__).parent
LARGEST_PAIR = 4_000_000  # bytes
LEAST_ACCEPT_LENGTH = 2.5  # tokens per verify pass, of at most 4
LEAST_MARGIN_SHARE = 0.6  # of positions whose first choice leads by more than 0.5 nats
GREATEST_LOOP_SHARE = 0.25
LEAST_AGREEMENT = 0.99  # float32 on both sides: only exact ties may differ
PROMPT_COUNT, ANSWER = 16, 96


@dataclass(frozen=True)
class Decoded:
    target: TargetModel
    draft: Draft
    pairs: list[tuple[list[int], list[int]]]
    answers: list[measure.Examined]

    def accept_length(self, draft: Draft, aux_layers: tuple[int, ...] = AUX_LAYERS) -> float:
        answers = [measure.examine(self.target, draft, *pair, aux_layers=aux_layers) for pair in self.pairs]
        return measure.pooled_accept_length(answers)


@pytest.fixture(scope="module")
def decoded() -> Decoded:
    """Greedy answers to prompts that are not in the training text, decoded by transformers."""
    torch.set_num_threads(1)  # two threads on two busy cores wait for one another
    tokenizer = load_tokenizer(PAIR / "target")
    prompts = read_prompts(PROMPTS / "code_openings.jsonl")[::3][:PROMPT_COUNT]
    ids = [tokenizer(prompt.text)["input_ids"] for prompt in prompts]
    texts = continue_ids(load_reference(PAIR / "target"), ids, ANSWER).tolist()
    pairs = list(zip(ids, texts, strict=True))
    target, draft = load_target(PAIR / "target"), load_draft(PAIR / "eagle3")
    return Decoded(target, draft, pairs, [measure.examine(target, draft, *pair) for pair in pairs])


def config(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((PAIR / name / "config.json").read_text())
    return values


def test_the_pair_is_small() -> None:
    files = [path for name in ("target", "eagle3") for path in (PAIR / name).iterdir()]
    assert sum(path.stat().st_size for path in files) <= LARGEST_PAIR


def test_the_pair_is_written_as_it_was_read(tmp_path: Path) -> None:
    """Byte for byte: what writes a pair is what wrote this one."""
    save_target(load_target(PAIR / "target"), tmp_path / "target")
    save_draft(load_draft(PAIR / "eagle3"), tmp_path / "eagle3")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 4
    for path in written:
        assert path.read_bytes() == (PAIR / path.relative_to(tmp_path)).read_bytes(), path.name


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_shapes_divide_over_the_ranks(ranks: int) -> None:
    for name in ("target", "eagle3"):
        values = config(name)
        keys = (
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "vocab_size",
            "hidden_size",
        )
        assert all(values[key] % ranks == 0 for key in keys)


def test_the_draft_reads_layers_that_sglang_can_capture() -> None:
    """SGLang captures the input of layer id + 1, which the last layer has no successor for."""
    target, draft = config("target"), config("eagle3")
    layers = draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert tuple(layers) == AUX_LAYERS
    assert len(set(layers)) == 3
    assert all(0 <= layer < target["num_hidden_layers"] - 1 for layer in layers)
    assert draft["architectures"] == ["LlamaForCausalLMEagle3"]
    assert draft["num_hidden_layers"] == 1
    assert draft["vocab_size"] == draft["draft_vocab_size"] == target["vocab_size"]
    assert draft["hidden_size"] == target["hidden_size"]
    assert target["max_position_embeddings"] >= 2048


def test_the_tokenizer_gives_every_prompt_back() -> None:
    tokenizer = load_tokenizer(PAIR / "target")
    for name in ("code_openings", "long_openings", "shared_prefix"):
        for prompt in read_prompts(PROMPTS / f"{name}.jsonl"):
            assert tokenizer.decode(tokenizer(prompt.text)["input_ids"]) == prompt.text
    assert tokenizer.decode(tokenizer("ünïcode → \x00\t")["input_ids"]) == "ünïcode → \x00\t"


def test_no_prompt_is_in_the_training_text() -> None:
    """The first 80 characters of each prompt are nowhere in the corpus."""
    texts = training.read_corpus().train.values()
    for prompt in read_prompts(PROMPTS / "code_openings.jsonl"):
        assert not any(prompt.text[:80] in text for text in texts), prompt.id


def test_both_implementations_choose_the_same_tokens(decoded: Decoded) -> None:
    agreements = [answer.agreement for answer in decoded.answers]
    assert sum(agreements) / len(agreements) >= LEAST_AGREEMENT


def test_the_target_writes_without_loops(decoded: Decoded) -> None:
    loops = sum(degenerate(text) for _, text in decoded.pairs)
    assert loops / len(decoded.pairs) <= GREATEST_LOOP_SHARE


def test_the_target_is_mostly_sure(decoded: Decoded) -> None:
    assert measure.margin_share(decoded.answers) >= LEAST_MARGIN_SHARE


def test_the_draft_is_mostly_right(decoded: Decoded) -> None:
    assert measure.pooled_accept_length(decoded.answers) >= LEAST_ACCEPT_LENGTH


def test_planted_wrong_layers_are_noticed(decoded: Decoded) -> None:
    """The first three layers instead of those trained on. (Neighbours, one off, are too alike in this target.)"""
    assert decoded.accept_length(decoded.draft, (0, 1, 2)) < LEAST_ACCEPT_LENGTH


def test_planted_dead_features_are_noticed(decoded: Decoded) -> None:
    """A server that hands the draft no hidden states at all."""
    deaf = load_draft(PAIR / "eagle3")
    deaf.fc.weight.data.zero_()
    assert decoded.accept_length(deaf) < LEAST_ACCEPT_LENGTH - 0.5


def test_planted_shuffled_weights_are_noticed(decoded: Decoded) -> None:
    shuffled = load_draft(PAIR / "eagle3")
    generator = torch.Generator().manual_seed(0)
    for parameter in shuffled.parameters():
        flat = parameter.data.flatten()
        parameter.data = flat[torch.randperm(len(flat), generator=generator)].view_as(parameter)
    assert decoded.accept_length(shuffled) < 1.2


def test_the_stored_figures_are_those_of_this_pair(decoded: Decoded) -> None:
    """figures.json belongs to the weights beside it: accept length over all openings is near that of some."""
    stored = json.loads((PAIR / "figures.json").read_text())["code_openings"]["accept_length"]
    assert abs(measure.pooled_accept_length(decoded.answers) - stored) < 0.35
