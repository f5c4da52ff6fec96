"""What penalties, biases, minimum lengths and grammars do to replayed scores, and the checker that judges by it.

SGLang's order, in its sampler and in its verify step alike: additive penalties (frequency, presence, stop tokens held
back by min_new_tokens), then the repetition penalty (a positive logit is divided, a negative one multiplied), then
logit_bias. The penalties count output tokens, not the prompt's. min_p and top_p remove tokens that are less likely
than the best one and never change a greedy choice.

Which output tokens are counted is a policy; `every_token` is what the parameters mean.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

from fixtures.errors import MeasurementFailed
from fixtures.serving.readiness import fetch_info
from fixtures.speculation.answers import GRAMMARS, Answer, Ask
from fixtures.speculation.reference import TOGETHER, TOP, Checked, Checker, Passage, Reference
from fixtures.speculation.replay import Row
from fixtures.speculation.serve import ask_all

PROBE_PENALTIES = (0.01, 0.02)
PROBE_BIAS = 60.0
"""More than logits differ by, and small enough for float32 logprobs to keep the other tokens' digits."""
DECISIVE = 0.5
"""Nats: more than a logit that no penalty touched seems to fall by noise."""
TRIES = 3
"""Requests of others may come between two that are sent alone."""
DENSE = 1024
"""Alternatives to replay where scores are processed: more than any request here can penalise or forbid, and the whole
vocabulary of a small model."""

Counted = Sequence[int]
"""The tokens that count at one position."""

PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens")


def every_token(tokens: Sequence[int]) -> list[Counted]:
    """Position i counts tokens 0 … i - 1."""
    return [tokens[:index] for index in range(len(tokens))]


def processed(
    rows: Sequence[Row],
    sampling: Mapping[str, Any],
    counted: Sequence[Counted],
    *,
    stop_tokens: Collection[int] = (),
    normalisers: Sequence[float] | None = None,
    allowed: Sequence[Collection[int] | None] | None = None,
) -> list[Row]:
    """The scores that the sampling parameters make of replayed logprobs, one row per position.

    stop_tokens: what min_new_tokens holds back: stop_token_ids and the end-of-sequence tokens. normalisers: the log
    of the sum of exponentials of each position's logits, needed for repetition_penalty alone, which is not
    invariant under shifts. allowed: the tokens that a grammar leaves, None for all. Raises ValueError without
    normalisers where they are needed.
    """
    frequency = float(sampling.get("frequency_penalty", 0))
    presence = float(sampling.get("presence_penalty", 0))
    repetition = float(sampling.get("repetition_penalty", 1))
    least = int(sampling.get("min_new_tokens", 0))
    bias = {int(token): float(value) for token, value in (sampling.get("logit_bias") or {}).items()}
    if repetition != 1 and normalisers is None:
        raise ValueError("repetition_penalty needs the normalisers of the replayed logits")
    result: list[Row] = []
    for index, row in enumerate(rows):
        counts = Counter(counted[index])
        shift = normalisers[index] if normalisers is not None else 0.0
        scores = {token: score + shift for token, score in row.items()}
        for token in counts.keys() & scores:
            scores[token] -= frequency * counts[token] + presence
        if len(counted[index]) < least:
            scores.update((token, -math.inf) for token in stop_tokens if token in scores)
        if repetition != 1:
            for token in counts.keys() & scores:
                scores[token] = scores[token] / repetition if scores[token] > 0 else scores[token] * repetition
        for token in bias.keys() & scores:
            scores[token] += bias[token]
        left = None if allowed is None else allowed[index]
        if left is not None:
            scores = {token: score if token in left else -math.inf for token, score in scores.items()}
        result.append(scores)
    return result


MISTAKES: Mapping[str, Mapping[str, Callable[[float], float]]] = {
    "frequency_penalty": {"counted twice": lambda value: 2 * value, "ignored": lambda value: 0.0},
    "presence_penalty": {"counted twice": lambda value: 2 * value, "ignored": lambda value: 0.0},
    "repetition_penalty": {"counted twice": lambda value: value**2, "ignored": lambda value: 1.0},
    "min_new_tokens": {"one too low": lambda value: value - 1},
}
"""What a server may make of a parameter, for `shown_by`."""


def shown_by(rows: Sequence[Row], wrong: Sequence[Row]) -> float:
    """The regret by which the first token that a server with scores `wrong` chooses differently would show under the
    right `rows`; 0 when it chooses the same all along."""
    for right, other in zip(rows, wrong, strict=True):
        best, chosen = max(right, key=right.__getitem__), max(other, key=other.__getitem__)
        if best != chosen:
            return right[best] - right[chosen]
    return 0.0


def normaliser(gains: Sequence[float], penalties: Sequence[float], logprob: float) -> float:
    """The normaliser of a position from the repetition penalties of one of its tokens.

    gains: logit less penalised logit under each of two penalties; logprob: the token's own. A positive logit l loses
    l (1 - 1/r), a negative one l (1 - r). A first penalty near 0 makes positive logits large, so that the first gain
    gives l almost without noise; its sign is the one under which the second gain fits.
    """
    (first, second), (r, other) = gains, penalties
    positive, negative = first / (1 - 1 / r), first / (1 - r)
    misfit_positive = abs(positive * (1 - 1 / other) - second)
    misfit_negative = abs(negative * (1 - other) - second)
    return (positive if misfit_positive < misfit_negative else negative) - logprob


def allowed_tokens(
    tokenizer: Any, vocab_size: int, sampling: Mapping[str, Any], tokens: Sequence[int]
) -> list[Collection[int] | None]:
    """For each output token the set of tokens that the request's grammar allows in its place; None for all.

    By xgrammar, the library that SGLang uses itself, and independent of the server's own bookkeeping: the matcher here
    sees one token after the other and never rolls back. tokenizer: of transformers. Positions after a token that the
    grammar forbids allow nothing: the output is wrong from there. Raises ValueError for a request without a grammar.
    """
    import torch
    import xgrammar

    kind = next((key for key in GRAMMARS if sampling.get(key)), None)
    if kind is None:
        raise ValueError("the request has no grammar")
    text = sampling[kind]
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    compiler = xgrammar.GrammarCompiler(info)
    if kind == "json_schema":
        compiled = compiler.compile_json_schema(text if isinstance(text, str) else json.dumps(text))
    elif kind == "regex":
        compiled = compiler.compile_regex(text)
    else:
        compiled = compiler.compile_grammar(text)
    matcher = xgrammar.GrammarMatcher(compiled)
    words = xgrammar.allocate_token_bitmask(1, vocab_size)
    result: list[Collection[int] | None] = []
    broken = False
    for token in tokens:
        if broken or matcher.is_terminated():
            result.append(frozenset())
            continue
        matcher.fill_next_token_bitmask(words)
        bits = words[0].to(torch.int64).unsqueeze(1) >> torch.arange(32)
        result.append(frozenset((bits & 1).flatten()[:vocab_size].nonzero().flatten().tolist()))
        broken = not matcher.accept_token(token)
    return result


Policy = Callable[[Ask, Answer], Sequence[Counted]]
"""Which tokens the penalties count at each position of an answer."""


def as_decoded_one_by_one(ask: Ask, answer: Answer) -> Sequence[Counted]:
    return every_token(answer.tokens)


@dataclass(frozen=True)
class ProcessedChecker(Checker):
    """Judges also answers to requests that change the scores. policy: how this server counts tokens for penalties;
    shows: what mistakes with a parameter would show by in these answers goes here."""

    policy: Policy = as_decoded_one_by_one
    shows: dict[str, float] = field(default_factory=dict)

    def check(
        self, asks: Sequence[Ask], answers: Sequence[Answer], policy: Policy = as_decoded_one_by_one
    ) -> Checked:
        one = replace(self, policy=policy, shows={})
        return replace(super(ProcessedChecker, one).check(asks, answers), shows=one.shows)

    def passage(self, ask: Ask, answer: Answer) -> Passage:
        if not is_processed(ask):
            return super().passage(ask, answer)
        top = min(DENSE, self.vocabulary.size)
        extra = {int(token) for token in ask.sampling.get("logit_bias") or ()}
        if penalised(ask):
            extra |= {*answer.tokens, ask.prompt[-1]}
        return Passage(ask.prompt, answer.tokens, top, tuple(sorted(extra)))

    def scores(self, ask: Ask, answer: Answer, rows: list[Row]) -> Sequence[Row]:
        if not is_processed(ask):
            return rows
        normalisers = None
        if ask.sampling.get("repetition_penalty", 1) != 1:
            normalisers = normalisers_of(self.reference, ask.prompt, answer.tokens, rows)
        allowed = None
        if any(ask.sampling.get(key) for key in GRAMMARS):
            tokens = answer.tokens
            allowed = allowed_tokens(self.vocabulary.tokenizer, self.vocabulary.size, ask.sampling, tokens)
        stops = self.vocabulary.eos | set(ask.sampling.get("stop_token_ids") or ())
        counted = (self.policy if penalised(ask) else as_decoded_one_by_one)(ask, answer)
        scores = partial(
            processed, rows, counted=counted, stop_tokens=stops, normalisers=normalisers, allowed=allowed
        )
        right = scores(ask.sampling)
        for key, mistakes in MISTAKES.items():
            for name, wrong in mistakes.items() if key in ask.sampling else ():
                seen = shown_by(right, scores({**ask.sampling, key: wrong(ask.sampling[key])}))
                self.shows[f"{key} {name}"] = max(self.shows.get(f"{key} {name}", 0.0), seen)
        return right


def is_processed(ask: Ask) -> bool:
    """Whether the request changes the scores that the greedy choice is made from."""
    return any(ask.sampling.get(key) for key in ("logit_bias", *PENALTIES, *GRAMMARS))


def penalised(ask: Ask) -> bool:
    """Whether the scores depend on the tokens before."""
    return any(ask.sampling.get(key) for key in PENALTIES)


def normalisers_of(
    reference: Reference, prompt: tuple[int, ...], output: Sequence[int], rows: Sequence[Row]
) -> list[float]:
    """The log of the summed exponentials of the logits at each position of `output`, which logprobs do not tell.

    Measured by two repetition penalties: the token before is generated, forced by a bias, and the logprobs after
    it show what each penalty took away, and from which token: that one, or, where the server counts one late, the
    last of its prompt. 0 at position 0, where no token is penalised yet. `rows` is the replay of the same output,
    and holds its tokens and the prompt's last. Raises MeasurementFailed.
    """
    top = min(map(len, rows), default=TOP)
    asks = []
    for index in range(1, len(output)):
        forced = output[index - 1]
        for penalty in PROBE_PENALTIES:
            sampling = {
                "max_new_tokens": 2, "ignore_eos": True, "repetition_penalty": penalty,
                "logit_bias": {str(forced): PROBE_BIAS},
            }
            before = (*prompt, *output[: index - 1])
            asks.append(Ask(f"normaliser-{index}-{penalty:g}", before, sampling, top_logprobs=top))
    answers = ask_all(reference.url, asks, together=2 * TOGETHER)
    late = counts_late(reference)
    found = [0.0]
    for index in range(1, len(output)):
        pair = slice(2 * index - 2, 2 * index)
        forced, last, row = output[index - 1], (*prompt, *output)[len(prompt) + index - 2], rows[index]
        falls = [_falls(answer, row, forced, last) for answer in answers[pair]]
        token = _struck(falls)
        for _ in range(TRIES):
            if token is not None:
                break
            # Beside others the one may be counted late and the other not; alone they are counted alike.
            falls = [_falls(answer, row, forced, last) for answer in ask_all(reference.url, asks[pair], together=1)]
            token = _struck(falls)
        token = token if token is not None else last if late else forced
        found.append(normaliser([fall[token] for fall in falls], PROBE_PENALTIES, row[token]))
    return found


def counts_late(reference: Reference) -> bool:
    """Whether a request that runs alone has the token before its last one penalised, not the last: SGLang's
    overlapped schedule prepares a pass before it knows the last token."""
    info = fetch_info("the reference", int(reference.url.rpartition(":")[2]))
    return not info.get("disable_overlap_schedule", True)


def _struck(falls: Sequence[Mapping[int, float]]) -> int | None:
    """The token whose logit both penalties took from; None where they do not agree, or hardly took anything."""
    tokens = {max(fall, key=lambda t: abs(fall[t])) for fall in falls}
    decisive = len(tokens) == 1 and all(max(map(abs, fall.values())) >= DECISIVE for fall in falls)
    return tokens.pop() if decisive else None


def _falls(answer: Answer, row: Row, forced: int, last: int) -> dict[int, float]:
    """How much the logits of two tokens fell at the second position of an answer, whose first token, `forced`, carries
    `PROBE_BIAS` and follows `last`. Raises MeasurementFailed when it is not that token."""
    if len(answer.top) < 2 or answer.tokens[0] != forced:
        raise MeasurementFailed(f"the reference did not follow a bias of {PROBE_BIAS:g}: {answer.refusal}")
    seen = answer.top[1]
    best = sorted((t for t in row if t in seen and t not in (forced, last)), key=row.__getitem__)[-TOP:]
    shift = median(seen[t] - row[t] for t in best)
    bias = {forced: PROBE_BIAS}
    return {t: bias.get(t, 0.0) + shift - (seen[t] - row[t]) for t in (forced, last)}
