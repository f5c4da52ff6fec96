"""With deterministic inference, exact equality: no ties to allow for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from speculative_pair import patient

from fixtures.serving.server import Server
from fixtures.session.run import Run
from fixtures.speculation.answers import Ask
from fixtures.speculation.serve import ask_all

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]

SWITCHED_OFF = (
    "deterministic inference switches off custom, symmetric-memory, PCIe-IPC and fused all-reduces and pins NCCL to "
    "the tree algorithm: it proves the speculation logic, not the all-reduce backends under it"
)


def test_outputs_are_exactly_equal(
    run: Run, serve: Callable[..., Server], request: pytest.FixtureRequest
) -> None:
    names = ("deterministic", "deterministic_eagle3")
    missing = [name for name in names if name not in run.box.deployments]
    if missing:
        pytest.skip(f"box {run.box.name} has no deployment {missing[0]}: SGLang's deterministic mode needs its kernels")
    plain, speculative = (patient(run.box.deployment(name)) for name in names)
    prompts = request.getfixturevalue("prompts")
    asks = [
        Ask(f"prompt-{number}", prompt, {"max_new_tokens": 128, "ignore_eos": True})
        for number, prompt in enumerate(prompts)
    ]
    expected = ask_all(serve(plain).url, asks, together=8)
    answers = ask_all(serve(speculative).url, asks, together=8)
    print(f"\n{SWITCHED_OFF}")
    different = [a.name for a, one, other in zip(asks, answers, expected, strict=True) if one.tokens != other.tokens]
    assert not different, f"{len(different)} of {len(asks)} outputs differ, first {different[0]}"
