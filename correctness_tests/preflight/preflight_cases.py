"""What the preflight asks about: the installed SGLang release and the deployments meant for it."""

from __future__ import annotations

from fixtures.deployments import Box, Deployment, load_boxes, not_expressible
from fixtures.deployments.stacks import Stack, detect_stack, installed, sglang_release, stack

RELEASE = sglang_release()
BOXES: tuple[Box, ...] = tuple(
    box for box in load_boxes() if any(stack(name).release == RELEASE for name in box.stacks)
)
DEPLOYMENTS: tuple[Deployment, ...] = tuple(
    deployment for box in BOXES for deployment in box.deployments.values()
)
EXPRESSIBLE: tuple[Deployment, ...] = tuple(
    deployment for deployment in DEPLOYMENTS if not not_expressible(deployment.options, RELEASE)
)


def name(deployment: Deployment) -> str:
    return f"{deployment.box}-{deployment.name}"


def matching_stack(box: Box) -> Stack:
    """The box's stack that this environment is nearest to."""
    return detect_stack(box.stacks, installed())[0]
