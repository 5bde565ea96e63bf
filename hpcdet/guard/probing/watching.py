"""Inputs and outputs of a model's modules, and the rows of them that differ."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._pytree import tree_leaves

Flags = NDArray[np.bool_]
_ROUNDING = 8
"""Units of rounding by which rows that nothing has changed may differ."""


@dataclass(frozen=True, eq=False)
class RowLayout:
    """The rows of a pass: those of the batch, or others that code has named.

    Attributes:
        rows: how many.
        tokens: of each row, where they have sources of their own.
        made_from: the rows of the batch that each is made from, bool[rows, rows of the batch];
            None: they are the batch's.
    """

    rows: int
    tokens: int | None = None
    made_from: Flags | None = None

    def flags(self, of_units: Flags, tensor: torch.Tensor) -> Flags | None:
        """Which first entries of a tensor belong to flagged units; None if it is of no rows.

        Args:
            of_units: of the batch, bool[rows] or bool[rows, tokens].
        """
        length = len(tensor) if tensor.dim() else 0
        if length == 0 or self.rows == 0 or length % self.rows:
            return None
        if self.made_from is not None:
            of_rows = of_units if of_units.ndim == 1 else of_units.any(axis=1)
            of_units = np.asarray((self.made_from & of_rows).any(axis=1))
        if self.tokens is None:
            return np.repeat(of_units, length // self.rows)
        if length % of_units.size == 0:
            return np.repeat(of_units.reshape(-1), length // of_units.size)
        return np.repeat(of_units.any(axis=1), length // self.rows)

    def units(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor[rows, …] with tokens in its first dimension, where it has them."""
        whole = tensor.dim() > 1 and tensor.shape[:2] == (self.rows, self.tokens)
        return tensor.flatten(0, 1) if whole else tensor

    def strays(self, flags: Flags, before: torch.Tensor, after: torch.Tensor) -> int:
        """How many entries of a tensor have changed that belong to no flagged row of the batch."""
        before, after = self.units(before), self.units(after)
        mine = self.flags(flags, before)
        if mine is None:
            return 0
        if before.shape != after.shape:
            return len(before)
        return int((changed(before, after) & ~mine).sum())


Laid = tuple[RowLayout, torch.Tensor]
"""A tensor with the rows of the pass that it is of."""


@dataclass
class Call:
    """One call of a module: the tensors that it was given, and gave, and their rows."""

    name: str
    module: nn.Module
    given: list[torch.Tensor]
    gave: list[torch.Tensor]
    layout: RowLayout


@dataclass
class ForwardPass:
    """The calls of a forward pass, inner modules first, each under its name and number."""

    calls: dict[tuple[str, int], Call] = field(default_factory=dict)

    @property
    def rounds(self) -> bool:
        """True if something is computed in 16 bits."""
        return any(
            one.is_floating_point() and one.element_size() == 2
            for call in self.calls.values()
            for one in call.gave
        )

    def outputs(self, models: Sequence[nn.Module]) -> list[Laid]:
        """The outputs of these modules that gradients flow through."""
        return [
            (call.layout, one)
            for call in self.calls.values()
            if any(call.module is model for model in models)
            for one in call.gave
            if one.requires_grad
        ]


@contextlib.contextmanager
def watching(models: Sequence[nn.Module], layout: Callable[[], RowLayout]) -> Iterator[ForwardPass]:
    """Around one forward pass of models, which is not compiled.

    Args:
        layout: asked for the rows of each call.
    """
    watched, numbers = ForwardPass(), Counter[str]()
    handles = []

    def watch(name: str, module: nn.Module) -> None:
        def after(_: nn.Module, args: object, kwargs: object, output: object) -> None:
            numbers[name] += 1
            call = Call(name, module, _tensors((args, kwargs)), _tensors(output), layout())
            watched.calls[name, numbers[name]] = call

        handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=False))

    for number, model in enumerate(models):
        for name, module in model.named_modules():
            watch(name or (f"model {number}" if number else "the model"), module)
    try:
        with eagerly():
            yield watched
    finally:
        for handle in handles:
            handle.remove()


def eagerly() -> contextlib.AbstractContextManager[object]:
    """No compiled code: its modules call no hooks, and it would be compiled for small batches.

    Before torch 2.6 there is no such way, and it is.
    """
    if hasattr(torch.compiler, "set_stance"):
        stance: contextlib.AbstractContextManager[object]
        stance = torch.compiler.set_stance("force_eager")
        return stance
    return contextlib.nullcontext()


def _tensors(tree: object) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


def changed(before: torch.Tensor, after: torch.Tensor) -> Flags:
    """Which first entries of a tensor differ by more than rounding, bool[entries]."""
    if before.numel() == 0:
        return np.zeros(len(before), dtype=bool)
    if not before.is_floating_point():
        differs = before != after
    else:
        scale = torch.nan_to_num(before.detach(), 0, 0, 0).abs().max()
        near = _ROUNDING * torch.finfo(before.dtype).eps * float(scale)
        differs = ~torch.isclose(before, after, rtol=0, atol=near, equal_nan=True)
    found: Flags = differs.reshape(len(before), -1).any(1).cpu().numpy()
    return found


@contextlib.contextmanager
def undisturbed(models: Sequence[nn.Module]) -> Iterator[None]:
    """Around passes after which random numbers and buffers are as they were."""
    buffers = [(one, one.detach().clone()) for model in models for one in model.buffers()]
    numbers, others = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(list(devices)):
            yield
    finally:
        random.setstate(numbers)
        np.random.set_state(others)
        for buffer, value in buffers:
            buffer.data.copy_(value)
