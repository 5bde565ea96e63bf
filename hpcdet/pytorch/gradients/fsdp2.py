"""FSDP2: every rank keeps its rows of each parameter, and gathers the others' when it needs them.

A unit is a module whose parameters are gathered at once. All ranks must run the same units in
the same order, in validation as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn

from hpcdet.checkpoint import spread
from hpcdet.checkpoint.state.tree import Sharded, rows
from hpcdet.errors import ConfigError
from hpcdet.pytorch.gradients import blocks
from hpcdet.pytorch.gradients.reducer import AveragingReducer, State
from hpcdet.store.config.placement import Fsdp2

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_WHERE = "distributed.fsdp2.units"
_DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Fsdp2Reducer(AveragingReducer):
    """Every rank has its rows of each parameter; gradients are summed where their rows are kept.

    So they travel with each backward pass, while gradients of several batches are aggregated, too:
    DDP would leave each rank its own, and a checkpoint, which has one for all, would not be what
    training went on with.
    """

    def units(self, model: nn.Module) -> list[nn.Module]:
        return find_units(model, self._session.config.distributed.fsdp2) or [model]

    def distribute(self, model: nn.Module) -> nn.Module:
        return shard(model, self._session.config.distributed.fsdp2, self._session.device)

    @property
    def shares_parameters(self) -> bool:
        return any(is_sharded(model) for model in self._models())

    def begin(self, batches: int, *, steps: bool) -> None:
        """Give all ranks rank 0's buffers at every step, as DDP does."""
        super().begin(batches, steps=steps)
        for model in self._models():
            if is_sharded(model):
                for buffer in model.buffers():
                    dist.broadcast(buffer, src=0)

    def settle(self) -> None:
        """Give back what is gathered."""
        for model in self._models():
            for module in model.modules():
                if is_sharded(module):
                    cast("FSDPModule", module).reshard()

    def spread(self, state: State) -> State:
        if not self.shares_parameters:
            return state
        ranks, peers = self._session.ranks, self._session.peers
        own: State = spread(state, ranks.rank, ranks.world, peers.allgather, peers.open_swap)
        return own


def shard(model: nn.Module, wanted: Fsdp2, device: torch.device) -> nn.Module:
    """Cut a model's parameters over all ranks, in place; rank 0's values count.

    Only one unit at a time is on the device as a whole.

    Raises:
        ConfigError: this torch has no FSDP2, there is no such unit, or units share a parameter.
    """
    try:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:
        raise ConfigError(
            f"torch {torch.__version__} has no FSDP2",
            where="distributed.strategy: fsdp2",
            hint="it needs torch 2.6 or later",
        ) from None
    units = [one for one in find_units(model, wanted) if one is not model]
    _refuse_ties(model, units)
    _agree(model, device)
    mesh = DeviceMesh.from_group(_world(), device.type)
    precision = MixedPrecisionPolicy(
        param_dtype=_DTYPES.get(wanted.param_dtype or ""),
        reduce_dtype=_DTYPES.get(wanted.reduce_dtype or ""),
        output_dtype=_DTYPES.get(wanted.output_dtype or ""),
    )
    for unit in units:
        fully_shard(
            unit, mesh=mesh, reshard_after_forward=wanted.reshard_after_forward, mp_policy=precision
        )
    # the outermost unit is needed at once in backward: torch keeps it whole until then
    fully_shard(model, mesh=mesh, mp_policy=precision)
    return model


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def find_units(model: nn.Module, wanted: Fsdp2) -> list[nn.Module]:
    """The modules whose parameters are gathered at once, inner ones first.

    Raises:
        ConfigError: there is no module of such a class.
    """
    if wanted.units is None:
        return blocks.layers(model)
    if isinstance(wanted.units, int):
        return blocks.of_size(model, wanted.units)
    return blocks.of_classes(model, wanted.units, _WHERE)


def is_sharded(model: nn.Module) -> bool:
    """True if the ranks share this model's parameters."""
    return hasattr(model, "set_requires_gradient_sync")


def place(value: Any, like: torch.Tensor) -> Any:
    """A saved tensor in the form that it has beside a parameter.

    Args:
        value: this rank's rows (``Sharded``), a whole tensor, or anything else.
        like: the parameter. Where it is cut over the ranks, so are tensors of its shape.
    """
    mesh = getattr(like, "device_mesh", None)
    if mesh is None or not isinstance(value, Sharded | torch.Tensor):
        return value
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor import Shard as ByRows

    if isinstance(value, Sharded):
        shape, local = torch.Size(value.shape), value.local
    elif value.shape == like.shape and value.ndim:
        start, stop = rows(len(value), mesh.get_local_rank(), mesh.size())
        shape, local = value.shape, value[start:stop].clone()
    elif value.ndim:  # what is smaller than its parameter is equal everywhere
        return DTensor.from_local(value.to(like.device), mesh, [Replicate()], run_check=False)
    else:
        return value
    return DTensor.from_local(
        local.to(like.device),
        mesh,
        [ByRows(0)],
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )


def place_all(saved: Mapping[str, Any], like: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """``place`` for tensors by name; those that nothing is like stay as they are."""
    return {name: place(one, like[name]) if name in like else one for name, one in saved.items()}


def _refuse_ties(model: nn.Module, units: list[nn.Module]) -> None:
    """A parameter of two units would be gathered by the one and used by the other."""
    names = {id(module): name for name, module in model.named_modules()}
    chosen = {id(unit) for unit in units}
    owner: dict[int, tuple[str, str]] = {}

    def visit(module: nn.Module, unit: str) -> None:
        unit = names[id(module)] if id(module) in chosen else unit
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{names[id(module)]}.{name}".lstrip(".")
            other, first = owner.setdefault(id(parameter), (unit, full))
            if other != unit:
                raise ConfigError(
                    f"{first} and {full} are one parameter, in the units {other or 'the model'!r} "
                    f"and {unit or 'the model'!r}",
                    where=_WHERE,
                    hint="name the class of a module that holds both",
                )
        for child in module.children():
            visit(child, unit)

    visit(model, "")


def _agree(model: nn.Module, device: torch.device) -> None:
    """All ranks begin with rank 0's parameters and buffers."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            there = tensor.detach().to(device)
            dist.broadcast(there, src=0)
            if there.data_ptr() != tensor.data_ptr():
                tensor.copy_(there)
