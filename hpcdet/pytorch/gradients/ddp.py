"""``DistributedDataParallel`` whose gradients are summed in the same order in every attempt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map_only

from hpcdet.core.training import Phases
from hpcdet.data import rng
from hpcdet.pytorch.gradients import buffers as _buffers
from hpcdet.pytorch.gradients.reducer import AveragingReducer, State

if TYPE_CHECKING:  # it imports torch's hooks, which few ask for
    from hpcdet.pytorch.gradients.compression import Compression

_WARM_UPS = 2


class DdpReducer(AveragingReducer):
    """Every rank has the whole model; gradients travel in buckets while backward runs."""

    def distribute(self, model: torch.nn.Module) -> torch.nn.Module:
        session = self._session
        devices = [session.device] if session.device.type == "cuda" else None
        parallel = Parallel(
            super().distribute(model), session.registered.generators, device_ids=devices
        )
        if (wanted := session.config.optimizations).gradient_compression:
            from hpcdet.pytorch.gradients.compression import Compression

            parallel.compression = Compression(parallel, wanted)
        parallel.phases = self._phases
        parallel.settling = self.settling
        return parallel

    def plain(self) -> list[torch.nn.Module]:
        return [one.module if isinstance(one, Parallel) else one for one in self._models()]

    def begin(self, batches: int, *, steps: bool) -> None:
        super().begin(batches, steps=steps)
        for model in self._wrapped():
            model.exchange(gradients=steps)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        wrapped = self._wrapped()
        for model in wrapped:
            model.bypass = True
        try:
            yield
        finally:
            for model in wrapped:
                model.bypass = False

    def state(self) -> list[State]:
        found = [one.compression.state() for one in self._wrapped() if one.compression]
        return found if any(found) else []

    def load(self, saved: Sequence[State]) -> None:
        there = [one.compression for one in self._wrapped() if one.compression]
        for compression, one in zip(there, saved, strict=False):
            compression.load(one, self._session.device)

    def _wrapped(self) -> list[Parallel]:
        return [one for one in self._models() if isinstance(one, Parallel)]


class Parallel(DistributedDataParallel):
    """DDP whose buckets are the final ones from the first step of each attempt on.

    DDP groups gradients into buckets anew after its first step, so that with three or more ranks
    the sums of a resumed run would differ from those of one that was never interrupted. So each
    attempt first runs two backwards with gradients of zero, and undoes what they changed.

    Attributes and methods of the model are found on this, too. A method of it that computes with
    parameters runs on this rank alone: gradients meet after calls of the model itself.

    Attributes:
        compression: how gradients travel; None: as they are.
        bypass: call the module alone, without talking to other ranks: while validating.
        phases: told that this rank waits for rank 0's buffers.
        settling: put around the backward passes with gradients of zero.
    """

    def __init__(
        self, module: torch.nn.Module, generators: Mapping[str, rng.Generator], **options: Any
    ) -> None:
        super().__init__(module, **options)
        self.compression: Compression | None = None
        self.bypass = False
        self.phases = Phases()
        self.settling: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self._generators = generators
        self._settled = False

    def __getattr__(self, name: str) -> Any:
        """Forward to the model whatever DDP does not have, as if it were not wrapped."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # not there yet
                raise
            return getattr(self.module, name)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.bypass or not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)
        if not self._settled:
            self._settle(inputs, kwargs)
            self._settled = True
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def exchange(self, *, gradients: bool) -> None:
        """Send buffers with the next pass, and gradients if so.

        A module's attributes are set only where they change, since it looks for parameters in
        whatever it is given.
        """
        if self.require_backward_grad_sync != gradients:
            self.require_backward_grad_sync = gradients
        if not self.require_forward_param_sync:
            self.require_forward_param_sync = True

    def _sync_buffers(self) -> None:
        with self.phases.within("communication"):
            super()._sync_buffers()  # type: ignore[no-untyped-call]

    def _settle(self, inputs: Any, kwargs: Any) -> None:
        state = rng.capture(self._generators)
        compression = self.compression.begin_anew() if self.compression else {}
        buffers = _buffers.copies(self.module)
        parameters = list(self.module.parameters())
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        communicates = self.require_backward_grad_sync
        self.require_backward_grad_sync = True
        for _ in range(_WARM_UPS):
            cut_inputs, cut_kwargs = tree_map_only(torch.Tensor, _cut, (inputs, kwargs))
            outputs = super().forward(*cut_inputs, **cut_kwargs)  # type: ignore[no-untyped-call]
            ends = [one for one in tree_leaves(outputs) if _trains(one)]
            if ends:
                with self.settling():
                    torch.autograd.backward([_unmoved(one) for one in ends])
        self.require_backward_grad_sync = communicates
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        _buffers.put_back(self.module, buffers)
        if self.compression:
            self.compression.load(compression, next(iter(parameters)).device)
        rng.restore(state, self._generators)


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    """The same values without the graph behind them, which belongs to the real step."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _unmoved(end: torch.Tensor) -> torch.Tensor:
    """A number whose gradient by ``end`` is zero everywhere.

    A pass from given gradients would be the same, but imports sympy: 490 modules, 1 s (torch 2.13).
    """
    return ((end.real if end.is_complex() else end) * 0).sum()


def _trains(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
