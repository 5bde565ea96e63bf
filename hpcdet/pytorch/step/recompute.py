"""Activation checkpointing: what forward computed is computed again in backward, not kept.

The second run sees the buffers (running means) that the first one saw, and leaves them as they
are, so that results are those of a model that keeps everything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hpcdet.pytorch.gradients import blocks

_WHERE = "optimizations.activation_checkpointing"


Around = Callable[[], contextlib.AbstractContextManager[None]]


def recompute(
    model: nn.Module,
    what: Literal["none", "full"] | list[str],
    remembering: Callable[[], Around] | None = None,
) -> None:
    """Make modules of a model compute their forward again; names of parameters stay.

    Args:
        what: ``none``, ``full`` (every layer, the model as a whole where it has none) or names of
            classes.
        remembering: called in each forward pass; returns what is put around its second run.

    Raises:
        ConfigError: there is no module of such a class.
    """
    if what == "none":
        return
    found = (
        blocks.layers(model) or [model]
        if isinstance(what, str)
        else blocks.of_classes(model, what, _WHERE)
    )
    for module in found:
        _recompute(module, remembering)


def _recompute(module: nn.Module, remembering: Callable[[], Around] | None) -> None:
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*args, **kwargs)
        buffers = list(module.buffers())  # moved to a device, they are others than before
        if not buffers and remembering is None:
            return checkpoint(original, *args, use_reentrant=False, **kwargs)
        before = [buffer.detach().clone() for buffer in buffers]
        around = remembering() if remembering else contextlib.nullcontext
        return checkpoint(
            original,
            *args,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), _AsBefore(buffers, before, around)),
            **kwargs,
        )

    if remembering is None and not any(True for _ in module.buffers()):
        module.forward = forward
    else:  # what is compiled cannot take a context along to its second run
        module.forward = torch.compiler.disable(forward)  # type: ignore[no-untyped-call]


class _AsBefore:
    """Around a second run: buffers are as before the first, and afterwards as they were.

    It may be entered again: a backward pass inside the backward pass has a second run of its own.
    """

    def __init__(
        self, buffers: list[torch.Tensor], before: list[torch.Tensor], around: Around
    ) -> None:
        self._buffers, self._before, self._around = buffers, before, around
        self._now: list[torch.Tensor] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._now = [buffer.detach().clone() for buffer in self._buffers]
        _put(self._buffers, self._before)
        self._stack.enter_context(self._around())

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)
        _put(self._buffers, self._now)


def _put(buffers: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Set buffers behind autograd's back: it would refuse values that backward no longer needs."""
    for buffer, value in zip(buffers, values, strict=True):
        buffer.data.copy_(value)
