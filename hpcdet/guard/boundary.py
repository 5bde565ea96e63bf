"""Any module, routed by running it twice: exact where its rows do not mix.

One run has the parameters in question cut off from the graph: its gradient goes to the inputs
and to everything else inside. The other has all but them cut off; of its gradient each row gets
as much as it may change them. Both see the same random numbers and give the same values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from hpcdet.guard import operators
from hpcdet.guard.router import Route, Router, RowWeights
from hpcdet.policy.codes import PolicyRefused


@torch.compiler.disable  # type: ignore[untyped-decorator]
def bounded(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The output of a module whose class has been exchanged by ``modules.attach``.

    Raises:
        PolicyRefused: its rows are not those of the batch (P12), or its parameters lie in parts on
            several ranks (P08).
    """
    router, own, name = self.__dict__["_routed"]
    parameters = dict(self.named_parameters(remove_duplicate=False))  # a tied one by each name
    if any(hasattr(one, "device_mesh") for one in parameters.values()):
        raise PolicyRefused(
            "P08",
            f"{name} has no routed operator, and fsdp2 has divided its parameters",
            where="distributed.strategy",
            hint="train it with ddp, or in a layer that every source may change",
        )
    twice = _Twice(self, (args, kwargs))
    whole = twice.run({one: parameters[one].detach() for one in own if one in parameters})
    flat, form = tree_flatten(whole)
    outer, inner = _dims(self)
    for place in sorted(set(own.values())):
        rows = router.of(place)
        learns = {one for one, at in own.items() if at == place}
        cut = {one: p.detach() for one, p in parameters.items() if one not in learns}
        part = twice.again(cut, functools.partial(_without, rows=rows, dim=outer))
        flat = [
            _joined(a, b, (outer, inner)[min(number, 1)], router, rows, name)
            for number, (a, b) in enumerate(zip(flat, tree_flatten(part)[0], strict=True))
        ]
    twice.restore()
    return tree_unflatten(flat, form)


def _dims(module: nn.Module) -> tuple[int, int]:
    """The dimension of rows in a module's inputs and its first output, and in its others."""
    dim = 0 if getattr(module, "batch_first", True) else 1
    return dim, 1 if isinstance(module, nn.RNNBase) else 0


def _without(x: torch.Tensor, rows: RowWeights | None, dim: int) -> torch.Tensor:
    """An input cut off from the graph, its denied rows zero, lest one of them be a NaN."""
    needed, x = x.requires_grad, x.detach()
    if rows is not None and rows.kept is not None and x.is_floating_point() and x.dim() > dim:
        length = x.shape[dim]
        if length and length % rows.rows == 0:
            fitting = rows.of_length(length, "a module")
            assert fitting.kept is not None
            clean = torch.zeros_like(x)
            x = clean.index_copy_(dim, fitting.kept, x.index_select(dim, fitting.kept))
    return x.requires_grad_(needed)


def _joined(
    whole: Any, part: Any, dim: int, router: Router, rows: RowWeights | None, name: str
) -> Any:
    if not (isinstance(whole, torch.Tensor) and isinstance(part, torch.Tensor)):
        return whole
    if not part.requires_grad:
        return whole
    if rows is not None:
        if whole.dim() <= dim:
            rows.of_length(0, name)
        rows = rows.of_length(whole.shape[dim], name)
    return operators.apply(operators.Join, whole, part, dim, Route(router, rows))


class _Twice:
    """Runs of one module's forward on the same inputs, random numbers and buffers."""

    def __init__(self, module: nn.Module, inputs: tuple[Any, Any]) -> None:
        self._module, self._inputs = module, inputs
        self._before = _random()
        self._after = self._before
        self._begin: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._buffers = self._begin

    def run(self, cut: Mapping[str, torch.Tensor]) -> Any:
        """The first run, whose random numbers and buffers are those that stay."""
        self._begin = [(one, one.detach().clone()) for one in self._module.buffers()]
        found = self._call(cut, lambda x: x)
        self._after = _random()
        self._buffers = [(one, one.detach().clone()) for one, _ in self._begin]
        return found

    def again(
        self, cut: Mapping[str, torch.Tensor], prepare: Callable[[torch.Tensor], torch.Tensor]
    ) -> Any:
        """Another run that sees what the first one saw."""
        _put(self._begin)
        _plant(self._before)
        return self._call(cut, prepare)

    def restore(self) -> None:
        """Leave random numbers and buffers as the first run did."""
        _put(self._buffers)
        _plant(self._after)

    def _call(
        self, cut: Mapping[str, torch.Tensor], prepare: Callable[[torch.Tensor], torch.Tensor]
    ) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, prepare, self._inputs)
        self._module.__dict__["_plainly"] = True
        try:
            with _reparametrize_module(self._module, dict(cut)):
                return self._module.forward(*args, **kwargs)
        finally:
            self._module.__dict__["_plainly"] = False


def _random() -> list[torch.Tensor]:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *on_devices]


def _plant(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def _put(values: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for buffer, value in values:
        buffer.data.copy_(value)
