"""A communicator as a process group of torch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from hpcdet.train.mpi.memory import Part, Reduction, counts, in_place
from hpcdet.train.mpi.progress import Devices, Operation, Progress, nothing

NAME = "mpi4py"
"""What the backend is called in ``torch.distributed``, whose own ``mpi`` needs another build."""

Tensors: TypeAlias = list[torch.Tensor]


class Work(dist.Work):
    """What a collective returns: waits for it, and raises what went wrong."""

    def __init__(self, operation: Operation, progress: Progress) -> None:
        super().__init__()
        self._operation = operation
        self._progress = progress

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.get_future().wait()
        return True

    def get_future(self) -> Any:
        self._progress.drive(self._operation)  # in a callback: nobody else would
        return self._operation.future

    def is_completed(self) -> bool:
        return bool(self._operation.future.done())

    def result(self) -> Tensors:
        found: Tensors = self.get_future().wait()
        return found


# torch calls each of these methods with one of its several signatures only
_ProcessGroup: Any = dist.ProcessGroup


class MPIProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """The ranks of one communicator. The methods are those of torch's ``ProcessGroup``.

    Sums are formed in an order that depends on the library, the number of ranks and the size of
    the message alone: equal from run to run, and on all ranks.
    """

    def __init__(self, comm: Any, progress: Progress, timeout: timedelta) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._progress = progress
        self._timeout_s = timeout.total_seconds()

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def __repr__(self) -> str:
        return f"MPIProcessGroup(rank {self.rank()} of {self.size()})"

    # -- collectives -------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = opts or AllreduceOptions()
        reduction = Reduction(opts.reduceOp, self.size())
        parts = [Part(one, reduction.type_of(one)) for one in tensors]

        def start() -> list[Any]:
            for part in parts:
                part.into()
            return [
                self._comm.Iallreduce(in_place(), part.number(), reduction.operation)
                for part in parts
            ]

        def finish() -> None:
            for part in parts:
                part.back(reduction.after)

        return self._begin("allreduce", start, finish, tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = opts or ReduceOptions()
        reduction = Reduction(opts.reduceOp, self.size())
        part = Part(tensors[0], reduction.type_of(tensors[0]))
        here = self.rank() == opts.rootRank

        def start() -> list[Any]:
            part.into()
            source, target = (in_place(), part.number()) if here else (part.number(), None)
            return [self._comm.Ireduce(source, target, reduction.operation, root=opts.rootRank)]

        def finish() -> None:
            if here:
                part.back(reduction.after)

        return self._begin("reduce", start, finish, tensors)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = opts or BroadcastOptions()
        parts = [Part(one) for one in tensors]

        def start() -> list[Any]:
            if self.rank() == opts.rootRank:
                for part in parts:
                    part.into()
            return [self._comm.Ibcast(part.bytes(), root=opts.rootRank) for part in parts]

        def finish() -> None:
            for part in parts:
                part.back()

        return self._begin("broadcast", start, finish, tensors)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        (received,), (source,) = outputs, inputs
        whole = torch.empty((self.size(), *source.shape), dtype=source.dtype, device=source.device)
        mine, all_ = Part(source), Part(whole)

        def start() -> list[Any]:
            mine.into()
            return [self._comm.Iallgather(mine.bytes(), all_.bytes())]

        def finish() -> None:
            all_.back()
            for target, row in zip(received, whole, strict=True):
                target.copy_(row.view(target.shape))

        return self._begin("allgather", start, finish, received)

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        mine, all_ = Part(source), Part(output)

        def start() -> list[Any]:
            mine.into()
            return [self._comm.Iallgather(mine.bytes(), all_.bytes())]

        return self._begin("allgather", start, all_.back, [output])

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        return self.all_gather_single(output, source, opts)

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        pairs = [
            (Part(source), Part(target)) for source, target in zip(inputs, outputs, strict=True)
        ]

        def start() -> list[Any]:
            for mine, _ in pairs:
                mine.into()
            return [self._comm.Iallgather(mine.bytes(), all_.bytes()) for mine, all_ in pairs]

        def finish() -> None:
            for _, all_ in pairs:
                all_.back()

        return self._begin("allgather", start, finish, outputs)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        return self.allgather_into_tensor_coalesced(outputs, inputs, opts)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        opts = opts or GatherOptions()
        (source,) = inputs
        here = self.rank() == opts.rootRank
        received = outputs[0] if here else []
        rows = self.size() if here else 0
        whole = torch.empty((rows, *source.shape), dtype=source.dtype, device=source.device)
        mine, all_ = Part(source), Part(whole)

        def start() -> list[Any]:
            mine.into()
            target = all_.bytes() if here else None
            return [self._comm.Igather(mine.bytes(), target, root=opts.rootRank)]

        def finish() -> None:
            all_.back()
            for target, row in zip(received, whole, strict=True):
                target.copy_(row.view(target.shape))

        return self._begin("gather", start, finish, received)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:
        opts = opts or ScatterOptions()
        (target,) = outputs
        here = self.rank() == opts.rootRank
        whole = (
            torch.stack([one.view(target.shape) for one in inputs[0]])
            if here
            else target.new_empty(0)
        )
        mine, all_ = Part(target), Part(whole)

        def start() -> list[Any]:
            all_.into()
            source = all_.bytes() if here else None
            return [self._comm.Iscatter(source, mine.bytes(), root=opts.rootRank)]

        return self._begin("scatter", start, mine.back, outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:
        whole = torch.stack([one.view(outputs[0].shape) for one in inputs[0]])
        return self.reduce_scatter_single(outputs[0], whole, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        opts = opts or ReduceScatterOptions()
        reduction = Reduction(opts.reduceOp, self.size())
        kind = reduction.type_of(source)
        whole, mine = Part(source, kind, spoil=False), Part(output, kind)

        def start() -> list[Any]:
            whole.into()
            given, taken = whole.number(), mine.number()
            return [self._comm.Ireduce_scatter_block(given, taken, op=reduction.operation)]

        return self._begin("reduce_scatter", start, lambda: mine.back(reduction.after), [output])

    def _reduce_scatter_base(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        return self.reduce_scatter_single(output, source, opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        works = [
            self.reduce_scatter_single(output, source, opts)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        for work in works[:-1]:
            work.wait()
        return works[-1]

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        return self.reduce_scatter_tensor_coalesced(outputs, inputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: list[int] | None,
        input_sizes: list[int] | None,
        opts: Any = None,
    ) -> Any:
        given, taken = Part(source), Part(output)
        sends = counts(source, input_sizes, self.size())
        receives = counts(output, output_sizes, self.size())

        def start() -> list[Any]:
            given.into()
            return [self._comm.Ialltoallv(given.bytes(sends), taken.bytes(receives))]

        return self._begin("alltoall", start, taken.back, [output])

    def alltoall_base(self, *arguments: Any, **named: Any) -> Any:
        return self.all_to_all_single(*arguments, **named)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        source = torch.cat([one.reshape(-1) for one in inputs])
        flat = torch.empty(
            sum(one.numel() for one in outputs), dtype=source.dtype, device=source.device
        )
        given, taken = Part(source), Part(flat)
        sends = [one.numel() for one in inputs]
        receives = [one.numel() for one in outputs]

        def start() -> list[Any]:
            given.into()
            return [self._comm.Ialltoallv(given.bytes(sends), taken.bytes(receives))]

        def finish() -> None:
            taken.back()
            for target, part in zip(outputs, torch.split(flat, receives), strict=True):
                target.copy_(part.view(target.shape))

        return self._begin("alltoall", start, finish, outputs)

    def barrier(self, opts: Any = None) -> Any:
        return self._begin("barrier", lambda: [self._comm.Ibarrier()], nothing, [])

    # -- point to point ----------------------------------------------------------------------

    def send(self, tensors: Tensors, rank: int, tag: int = 0) -> Any:
        part = Part(tensors[0])

        def start() -> list[Any]:
            part.into()
            return [self._comm.Isend(part.bytes(), dest=rank, tag=tag)]

        return self._begin("send", start, nothing, tensors)

    def recv(self, tensors: Tensors, rank: int, tag: int = 0) -> Any:
        part = Part(tensors[0])

        def start() -> list[Any]:
            return [self._comm.Irecv(part.bytes(), source=rank, tag=tag)]

        return self._begin("recv", start, part.back, tensors)

    # -- the rest ----------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Give the communicator back."""
        with contextlib.suppress(Exception):
            self._progress.call(self._comm.Free)

    def _begin(
        self,
        name: str,
        start: Callable[[], Sequence[Any]],
        finish: Callable[[], None],
        result: Tensors,
    ) -> Any:
        device = next((one.device for one in result if one.is_cuda), None)
        if device is not None:
            # what the tensors hold is ready only when the stream has come this far
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(torch.cuda.current_stream(device))
            start = _after(ready, start)
        until = time.monotonic() + self._timeout_s
        devices: Devices = None if device is None else [device]
        operation = Operation(name, start, finish, until, result, devices)
        self._progress.ask(operation)
        return Work(operation, self._progress)


def _after(ready: Any, start: Callable[[], Sequence[Any]]) -> Callable[[], Sequence[Any]]:
    def later() -> Sequence[Any]:
        ready.synchronize()
        return start()

    return later
