"""Any module, routed by running it twice: exact where its rows do not mix.

One run has the parameters in question cut off from the graph: its gradient goes to the inputs
and to everything else inside. The other learns on their account alone: stand-ins for them are all
that its gradient is asked for, and of that gradient each row gets as much as it may change them.
Both see the same random numbers and buffers, and inputs that require gradients alike, so that
the same kernels are chosen; the values are those of the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_flatten, tree_unflatten

from hpcdet.guard.routing import operators
from hpcdet.guard.routing.router import ROWS_HINT, Route, RowWeights
from hpcdet.policy.codes import PolicyRefused

Tensors = dict[str, torch.Tensor]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def bounded(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The output of a module whose class has been exchanged by ``modules.attach``.

    Raises:
        PolicyRefused: its rows are not those of the batch (P12), or its parameters lie in parts on
            several ranks (P08).
    """
    router, own, name = self.__dict__["_routed"]
    parameters: Tensors = dict(
        self.named_parameters(remove_duplicate=False)
    )  # a tied one by each name
    if any(hasattr(one, "device_mesh") for one in parameters.values()):
        raise PolicyRefused(
            "P08",
            f"{name} has no routed operator, and fsdp2 has divided its parameters",
            where="distributed.strategy",
            hint="train it with ddp, or in a layer that every source may change",
        )
    twice = _Twice(self, (args, kwargs))
    cut = {one: p.detach() for one, p in parameters.items()}
    whole = twice.run({one: cut[one] for one in own if one in cut})
    flat, form = tree_flatten(whole)
    outer, inner = _dims(self)
    dims = [outer] + [inner] * len(flat)
    for place in sorted(set(own.values())):
        rows = router.of(place)
        learns = {one: parameters[one] for one, at in own.items() if at == place}
        route, stand_ins, part = Route(router, rows), _stand_ins(learns), None
        if rows is not None and not rows.denied:
            prepare = functools.partial(_input, rows=rows, dim=outer)
            part = tree_flatten(twice.again(cut | stand_ins, prepare))[0]
        flat = _joined(flat, part, learns, stand_ins, dims, route, name)
    twice.restore()
    return tree_unflatten(flat, form)


def _stand_ins(learns: Tensors) -> Tensors:
    """A leaf of its own for each parameter; one for all names of a tied one."""
    by_parameter = {one: one.detach().requires_grad_() for one in learns.values()}
    return {name: by_parameter[one] for name, one in learns.items()}


def _dims(module: nn.Module) -> tuple[int, int]:
    """The dimension of rows in a module's inputs and its first output, and in its others."""
    dim = 0 if getattr(module, "batch_first", True) else 1
    return dim, 1 if isinstance(module, nn.RNNBase) else 0


def _input(x: torch.Tensor, first: bool, *, rows: RowWeights, dim: int) -> torch.Tensor:
    """An input cut off from the graph, a kept row in place of each denied one.

    A NaN in a denied row would reach the parameters even under a gradient of 0. What requires no
    gradient and is not the first input may be a mask, whose rows are none of the batch.
    """
    needed, x = x.requires_grad, x.detach()
    of_rows = x.is_floating_point() and (first or needed) and x.dim() > dim
    if of_rows and rows.kept is not None and x.shape[dim] == rows.rows:
        source = rows.kept[:1].repeat(rows.rows).index_copy_(0, rows.kept, rows.kept)
        x = x.index_select(dim, source)
    return x.requires_grad_(needed)


def _joined(
    flat: list[Any],
    part: list[Any] | None,
    learns: Tensors,
    stand_ins: Tensors,
    dims: list[int],
    route: Route,
    name: str,
) -> list[Any]:
    """The outputs of the first run, through which the parameters of one layer learn."""
    found = [n for n, one in enumerate(flat) if _differentiable(one, part and part[n])]
    rows = []
    for number in found:
        one, dim = flat[number], dims[number]
        if one.dim() <= dim:
            raise PolicyRefused(
                "P12", f"{name} gives a value of no row", where="train_batch", hint=ROWS_HINT
            )
        rows.append(route.rows and _rows_of(one, dim, route.rows, name))
    names = list({one: name for name, one in learns.items()}.values())
    outputs = operators.join(
        route,
        [(dims[number], of_one) for number, of_one in zip(found, rows, strict=True)],
        [part[number] for number in found] if part else [],
        [stand_ins[one] for one in names],
        [flat[number] for number in found],
        [learns[one] for one in names],
    )
    joined = list(flat)
    for number, output in zip(found, outputs, strict=True):
        joined[number] = output
    return joined


def _differentiable(whole: Any, part: Any) -> bool:
    if not isinstance(whole, torch.Tensor) or not whole.is_floating_point():
        return False
    return part is None or bool(part.requires_grad)


def _rows_of(one: torch.Tensor, dim: int, rows: RowWeights, name: str) -> RowWeights:
    finer = rows.finer
    if finer is not None and dim == 0 and one.dim() > 2 and len(one) == rows.rows:
        rows = finer if len(one) * one.shape[1] == finer.rows else rows
        return rows
    return rows.of_length(one.shape[dim], name)


class _Twice:
    """Runs of one module's forward on the same inputs, random numbers and buffers."""

    def __init__(self, module: nn.Module, inputs: tuple[Any, Any]) -> None:
        self._module = module
        self._inputs, self._form = tree_flatten(inputs)
        self._before = _random()
        self._after = self._before
        self._begin: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._buffers = self._begin

    def run(self, cut: Tensors) -> Any:
        """The first run, whose random numbers and buffers are those that stay."""
        self._begin = [(one, one.detach().clone()) for one in self._module.buffers()]
        self._module.__dict__["_plainly"] = True
        try:
            found = self._call(cut, self._inputs)
        finally:
            self._module.__dict__["_plainly"] = False
        self._after = _random()
        self._buffers = [(one, one.detach().clone()) for one, _ in self._begin]
        return found

    def again(self, swapped: Tensors, prepare: Callable[[torch.Tensor, bool], torch.Tensor]) -> Any:
        """Another run that sees what the first one saw; nothing inside is routed.

        Args:
            prepare: makes an input of the first run's; told whether it is the first one.
        """
        _put(self._begin)
        _plant(self._before)
        tensors = [n for n, one in enumerate(self._inputs) if isinstance(one, torch.Tensor)]
        inputs = [
            prepare(one, n == tensors[0]) if n in tensors else one
            for n, one in enumerate(self._inputs)
        ]
        router, _, _ = self._module.__dict__["_routed"]
        with router.unrouted():
            return self._call(swapped, inputs)

    def restore(self) -> None:
        """Leave random numbers and buffers as the first run did."""
        _put(self._buffers)
        _plant(self._after)

    def _call(self, swapped: Mapping[str, torch.Tensor], inputs: list[Any]) -> Any:
        args, kwargs = tree_unflatten(inputs, self._form)
        with _reparametrize_module(self._module, dict(swapped)):
            return type(self._module).forward(self._module, *args, **kwargs)  # not a wrapper of it


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
