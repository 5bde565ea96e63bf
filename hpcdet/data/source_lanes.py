"""Lanes: parts of a model that only rows of their own sources are computed through."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

from hpcdet.data import rng
from hpcdet.errors import UsageError
from hpcdet.policy.codes import PolicyRefused

RowFlags = NDArray[np.bool_]
_META = torch.device("meta")


class KnownRows(Protocol):
    """Knows whose rows are under way."""

    def rows_of(self, sources: frozenset[str], length: int) -> RowFlags | None:
        """Flags of the rows that are of these sources alone, bool[length]; None: unknown."""

    def only(self, flags: RowFlags) -> contextlib.AbstractContextManager[None]:
        """Around passes over the flagged rows alone; over one row that counts as none without."""


class Lane(nn.Module):
    """A module that only rows of its own sources are computed through.

    For all other rows its output is 0, so that ``x + lane(x)`` leaves them as they are, or its
    input. Under a policy the trainer knows each row's sources; a row of several is computed only if
    all of them are the lane's. Where nobody knows the sources of rows, as at validation without
    sources and without a policy, the lane is off for all of them.

    In training the lane has random numbers of its own: it takes one number from torch's for each
    call, whatever its rows are, and what it draws changes nothing that others draw.

    Args:
        module: takes rows in the first dimension of its first tensor, and gives values by row.
            Other tensors of as many rows are divided, too; a mask of tokens needs another shape.
        source: the name of its source in the policy, or several.
        others: the output for other rows, ``zeros`` or ``input``.

    Attributes:
        sources: as given.
        everyone: every row is of the lane's sources: set it where a model is applied and nothing
            says sources. It is refused under a policy.
    """

    def __init__(
        self,
        module: nn.Module,
        source: str | Sequence[str],
        others: Literal["zeros", "input"] = "zeros",
    ) -> None:
        super().__init__()
        self.module: nn.Module | None = module
        self.sources = frozenset([source] if isinstance(source, str) else source)
        if not self.sources or not all(one and isinstance(one, str) for one in self.sources):
            raise UsageError(f"{source!r} names no source", where="Lane(source=…)")
        if others not in ("zeros", "input"):
            raise UsageError(f"{others!r} is neither zeros nor input", where="Lane(others=…)")
        self.others = others
        self.everyone = False
        self._known: KnownRows | None = None
        self._removed: list[nn.Module] = []  # without parameters; in a list, so that it is no child

    def attach(self, known: KnownRows) -> None:
        """Learn from now on whose rows are under way."""
        self._known = known

    def remove(self) -> None:
        """Take the lane's parameters and buffers out: it is off for ever."""
        if self.module is not None:
            self._removed = [self.module.to(_META)]
            self.module = None

    def extra_repr(self) -> str:
        """The lane's sources, and that it has been removed."""
        return ", ".join([*sorted(self.sources), *(["removed"] if self._removed else [])])

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output for rows of the lane's sources.

        Raises:
            UsageError: there is no tensor with rows, or the output has not one value per row.
            PolicyRefused: ``everyone`` is set under a policy (P11), or these rows are not the
                batch's (P12).
        """
        leaves, _ = tree_flatten((args, kwargs))
        first = next((x for x in leaves if isinstance(x, torch.Tensor) and x.dim()), None)
        if first is None:
            raise UsageError("it is given no tensor with rows", where=f"Lane({self.extra_repr()})")
        if self.module is None:
            return self._without(first, args, kwargs)
        flags = self._flags(len(first))
        with self._own_numbers(first.device):
            if flags.all():
                return self.module(*args, **kwargs)
            return self._divided(self.module, flags, first, args, kwargs)

    def _flags(self, length: int) -> RowFlags:
        if self._known is None:
            return np.full(length, self.everyone)
        if self.everyone:
            raise PolicyRefused(
                "P11",
                f"the lane of {', '.join(sorted(self.sources))} is on for every row",
                where="Lane.everyone",
                hint="leave it out under a policy: give the data their sources",
            )
        found = self._known.rows_of(self.sources, length)
        return np.zeros(length, dtype=bool) if found is None else found

    def _divided(
        self, module: nn.Module, flags: RowFlags, first: torch.Tensor, args: Any, kwargs: Any
    ) -> Any:
        """Run the module on the flagged rows.

        Without any it runs on one row of zeros, whose output is thrown away: each parameter is
        in the graph on every rank and at every step.
        """
        there = np.flatnonzero(flags)
        places = torch.from_numpy(there).to(first.device)

        def selected(x: torch.Tensor) -> torch.Tensor:
            if not x.dim() or len(x) != len(flags):
                return x
            if len(there):
                return x.index_select(0, places.to(x.device))
            one = x[:1].detach()
            if not one.is_floating_point():
                return one
            return torch.zeros_like(one).requires_grad_(x.requires_grad)  # as hooks expect it

        inputs, named = tree_map_only(torch.Tensor, selected, (args, kwargs))
        known = contextlib.nullcontext() if self._known is None else self._known.only(flags)
        with known:
            found = module(*inputs, **named)
        return tree_map(lambda one: self._spread(one, places, max(len(there), 1), first), found)

    def _spread(self, one: Any, places: torch.Tensor, rows: int, first: torch.Tensor) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        self._check(one, rows, first)
        if self.others == "input":
            whole = first.to(one.dtype)
        else:
            whole = one.new_zeros((len(first), *one.shape[1:]))
        return whole.index_copy(0, places, one[: len(places)])

    def _check(self, one: torch.Tensor, rows: int, first: torch.Tensor) -> None:
        if not one.dim() or len(one) != rows:
            what = f"the output has the shape {tuple(one.shape)}, and there are {rows} rows"
            hint = "let its module give one value per row"
        elif self.others == "input" and one.shape[1:] != first.shape[1:]:
            what = f"the output has the shape {tuple(one.shape)}, unlike the input"
            hint = "others='input' needs an output of the input's shape: leave it out"
        else:
            return
        raise UsageError(what, where=f"Lane({self.extra_repr()})", hint=hint)

    def _without(self, first: torch.Tensor, args: Any, kwargs: Any) -> Any:
        """The output of a lane that has been removed."""
        if self.others == "input":
            return first

        def shape(x: torch.Tensor) -> torch.Tensor:
            return x[:1].to(_META) if x.dim() and len(x) == len(first) else x.to(_META)

        inputs, named = tree_map_only(torch.Tensor, shape, (args, kwargs))
        with torch.no_grad():
            found = self._removed[0](*inputs, **named)

        def zeros(one: torch.Tensor) -> torch.Tensor:
            return torch.zeros((len(first), *one.shape[1:]), dtype=one.dtype, device=first.device)

        return tree_map_only(torch.Tensor, zeros, found)

    @contextlib.contextmanager
    def _own_numbers(self, device: torch.device) -> Iterator[None]:
        """Random numbers of this call alone, in training."""
        if not self.training:
            yield
            return
        seed = int(torch.randint(2**62, (), device="cpu"))
        before = rng.capture_cpu()
        there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        rng.plant(seed)
        try:
            yield
        finally:
            rng.restore_cpu(before)
            if there is not None:
                torch.cuda.set_rng_state(there, device)


def remove_lanes(model: nn.Module, *sources: str) -> list[str]:
    """Take lanes and their parameters out of a model, after its weights have been loaded.

    Under assurance ``isolated`` the rest has learned nothing from their sources.

    Args:
        sources: only lanes of these; none: all lanes.

    Returns:
        The names of the lanes that were removed.
    """
    found = [
        (name, one)
        for name, one in model.named_modules()
        if isinstance(one, Lane) and (not sources or one.sources & set(sources))
    ]
    for _, lane in found:
        lane.remove()
    return [name for name, _ in found]
