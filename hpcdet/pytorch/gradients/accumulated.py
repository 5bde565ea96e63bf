"""Gradients that wait for more batches before an optimizer steps.

The trainer aggregates (``aggregation_frequency``), or the code does so itself and steps every
few batches. Either way what has been summed up so far is state. It is found by what is there:
right after a step that forgets the gradients there is nothing.

Gradients that were already summed over the ranks are equal everywhere, and shared. Else each
rank has its own, and their mean is shared as well: that is what another number of ranks begins
with, since the next exchange takes the mean over all of them again. Where the ranks share the
parameters (FSDP2) they share the gradients: each has its rows of their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from blake3 import blake3

from hpcdet.checkpoint.state.tree import Sharded, encode
from hpcdet.core.training import Peers
from hpcdet.pytorch.gradients import fsdp2

Parameters = Mapping[str, torch.nn.Parameter]
Gradients = dict[str, Any]


def waiting(parameters: Parameters, peers: Peers) -> tuple[Gradients, Gradients | None]:
    """Gradients that wait for others: the shared ones, and this rank's own, by parameter.

    All ranks call together. For itself, a rank has an empty dict where all is shared, and None
    where others have something and it has nothing.
    """
    there = {name: one.grad for name, one in parameters.items() if one.grad is not None}
    cut = {name: one for name, one in there.items() if hasattr(one, "device_mesh")}
    own = {name: _encode(one) for name, one in there.items() if name not in cut}
    everyone = peers.allgather([_digest(own), [*own]] if own else None)
    if not any(everyone):
        return cut, {}
    if all(one == everyone[0] for one in everyone):
        return cut | own, {}
    names = {name for one in everyone if one for name in one[1]}
    means = {name: _mean(parameters[name]) for name in parameters if name in names}
    return cut | means, own or None


def restore(parameters: Parameters, shared: Gradients, own: Gradients | None) -> None:
    """Put gradients back, as ``waiting`` gave them."""
    for_all = own == {}
    for name, saved in (shared | (own or {})).items():
        if for_all or (own and name in own) or hasattr(parameters[name], "device_mesh"):
            gradient = fsdp2.place(_decode(saved), parameters[name])
            parameters[name].grad = gradient.to(parameters[name].device)


def _mean(parameter: torch.nn.Parameter) -> torch.Tensor:
    dense = torch.zeros_like(parameter.detach())
    if parameter.grad is not None:
        dense += parameter.grad.detach()
    dist.all_reduce(dense)
    return dense / dist.get_world_size()


def _encode(gradient: torch.Tensor) -> Any:
    """A gradient as a checkpoint can hold it: dense, or the parts of a sparse one."""
    if gradient.layout is torch.strided:
        return gradient
    sparse = gradient.detach()
    return {
        "indices": sparse._indices(),
        "values": sparse._values(),
        "shape": list(sparse.shape),
        "coalesced": sparse.is_coalesced(),
    }


def _decode(saved: Any) -> Any:
    if isinstance(saved, torch.Tensor | Sharded):
        return saved
    return torch.sparse_coo_tensor(
        saved["indices"], saved["values"], saved["shape"], is_coalesced=saved["coalesced"]
    )


def _digest(gradients: Gradients) -> str:
    total = blake3()
    for leaf in encode(gradients, "gradients").leaves:
        total.update(leaf.name.encode()).update(leaf.data())
    return str(total.hexdigest())
