"""A communicator as a process group of torch."""

from __future__ import annotations

import contextlib
import time
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

from hpcdet.train.mpi.direct import Direct
from hpcdet.train.mpi.memory import BufferPart, Reduction, counts, in_place
from hpcdet.train.mpi.progress_thread import Devices, Operation, ProgressThread, Steps

NAME = "mpi4py"
"""What the backend is called in ``torch.distributed``, whose own ``mpi`` needs another build."""

Tensors: TypeAlias = list[torch.Tensor]


class Work(dist.Work):
    """The handle of a collective: waits for it, and raises what went wrong."""

    def __init__(self, operation: Operation, progress: ProgressThread) -> None:
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

    def _source_rank(self) -> int:
        """Return the sender of a ``recv`` that is over."""
        assert self._operation.statuses
        return int(self._operation.statuses[0].source)


# torch calls each of these methods with one of its several signatures only
_ProcessGroup: Any = dist.ProcessGroup


class MPIProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """The ranks of one communicator. The methods are those of torch's ``ProcessGroup``.

    Sums of long tensors are formed in order of ranks, others in one that depends on the library,
    the number of ranks and the size of the message alone: equal from run to run, and on all ranks.
    """

    def __init__(
        self, comm: Any, direct: Direct, progress: ProgressThread, timeout: timedelta
    ) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._direct = direct
        self._progress = progress
        self._timeout_s = timeout.total_seconds()
        self._name = ""

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    # torch keeps a group's name in its backends in C++, of which this one has none; whatever finds
    # groups by their names (functional collectives, DTensor, FSDP2) asks these
    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def __repr__(self) -> str:
        return f"MPIProcessGroup(rank {self.rank()} of {self.size()})"

    # -- collectives -------------------------------------------------------------------------
    #
    # What each is made of is a generator: it yields MPI's requests and goes on when they are done.
    # Collectives of the library are all begun before the first ``yield``: in the order of calls.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = opts or AllreduceOptions()
        reduction = Reduction(opts.reduceOp, self.size())
        long = [BufferPart(one) for one in tensors if self._direct.takes(one, reduction)]
        short = [
            BufferPart(one, reduction.type_of(one))
            for one in tensors
            if not self._direct.takes(one, reduction)
        ]

        def steps() -> Steps:
            for part in (*short, *long):
                part.into()
            sums = [self._direct.allreduce(part.buffer, reduction) for part in long]
            yield [
                self._comm.Iallreduce(in_place(), part.number(), reduction.operation)
                for part in short
            ]
            for part in short:
                part.back(reduction.after)
            for part, one in zip(long, sums, strict=True):
                yield from one
                part.back()

        return self._begin("allreduce", steps(), tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = opts or ReduceOptions()
        reduction = Reduction(opts.reduceOp, self.size())
        part = BufferPart(tensors[0], reduction.type_of(tensors[0]))
        here = self.rank() == opts.rootRank

        def steps() -> Steps:
            part.into()
            source, target = (in_place(), part.number()) if here else (part.number(), None)
            yield [self._comm.Ireduce(source, target, reduction.operation, root=opts.rootRank)]
            if here:
                part.back(reduction.after)

        return self._begin("reduce", steps(), tensors)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = opts or BroadcastOptions()
        parts = [BufferPart(one) for one in tensors]

        def steps() -> Steps:
            if self.rank() == opts.rootRank:
                for part in parts:
                    part.into()
            yield [self._comm.Ibcast(part.bytes(), root=opts.rootRank) for part in parts]
            for part in parts:
                part.back()

        return self._begin("broadcast", steps(), tensors)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        (received,), (source,) = outputs, inputs
        whole = torch.empty((self.size(), *source.shape), dtype=source.dtype, device=source.device)
        mine, all_ = BufferPart(source), BufferPart(whole)

        def steps() -> Steps:
            mine.into()
            yield [self._comm.Iallgather(mine.bytes(), all_.bytes())]
            all_.back()
            for target, row in zip(received, whole, strict=True):
                target.copy_(row.view(target.shape))

        return self._begin("allgather", steps(), received)

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        return self.allgather_into_tensor_coalesced([output], [source], opts)

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        return self.all_gather_single(output, source, opts)

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        pairs = [
            (BufferPart(source), BufferPart(target))
            for source, target in zip(inputs, outputs, strict=True)
        ]

        def steps() -> Steps:
            for mine, _ in pairs:
                mine.into()
            yield [
                self._comm.Iallgather(self._row(mine, all_), all_.bytes()) for mine, all_ in pairs
            ]
            for _, all_ in pairs:
                all_.back()

        return self._begin("allgather", steps(), outputs)

    def _row(self, mine: BufferPart, all_: BufferPart) -> Any:
        """Return this rank's contribution: where FSDP2 gathers, it is in its place already.

        MPI forbids memory that is given and taken at once; MPICH refuses it.
        """
        place = all_.buffer.data_ptr() + self.rank() * mine.buffer.nbytes
        return in_place() if mine.buffer.data_ptr() == place else mine.bytes()

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
        mine, all_ = BufferPart(source), BufferPart(whole)

        def steps() -> Steps:
            mine.into()
            memory = all_.bytes() if here else None
            yield [self._comm.Igather(mine.bytes(), memory, root=opts.rootRank)]
            all_.back()
            for target, row in zip(received, whole, strict=True):
                target.copy_(row.view(target.shape))

        return self._begin("gather", steps(), received)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:
        opts = opts or ScatterOptions()
        (target,) = outputs
        here = self.rank() == opts.rootRank
        whole = (
            torch.stack([one.view(target.shape) for one in inputs[0]])
            if here
            else target.new_empty(0)
        )
        mine, all_ = BufferPart(target), BufferPart(whole)

        def steps() -> Steps:
            all_.into()
            source = all_.bytes() if here else None
            yield [self._comm.Iscatter(source, mine.bytes(), root=opts.rootRank)]
            mine.back()

        return self._begin("scatter", steps(), outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:
        whole = torch.stack([one.view(outputs[0].shape) for one in inputs[0]])
        return self.reduce_scatter_single(outputs[0], whole, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        opts = opts or ReduceScatterOptions()
        reduction = Reduction(opts.reduceOp, self.size())
        if self._direct.takes(source, reduction):
            return self._begin("reduce_scatter", self._summed(output, source, reduction), [output])
        kind = reduction.type_of(source)
        whole, mine = BufferPart(source, kind, spoil=False), BufferPart(output, kind)

        def steps() -> Steps:
            whole.into()
            given, taken = whole.number(), mine.number()
            yield [self._comm.Ireduce_scatter_block(given, taken, op=reduction.operation)]
            mine.back(reduction.after)

        return self._begin("reduce_scatter", steps(), [output])

    def _summed(self, output: torch.Tensor, source: torch.Tensor, reduction: Reduction) -> Steps:
        whole, mine = BufferPart(source), BufferPart(output)
        whole.into()
        yield from self._direct.reduce_scatter(whole.buffer, mine.buffer, reduction)
        mine.back()

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
        given, taken = BufferPart(source), BufferPart(output)
        sends = counts(source, input_sizes, self.size())
        receives = counts(output, output_sizes, self.size())

        def steps() -> Steps:
            given.into()
            yield [self._comm.Ialltoallv(given.bytes(sends), taken.bytes(receives))]
            taken.back()

        return self._begin("alltoall", steps(), [output])

    def alltoall_base(self, *arguments: Any, **named: Any) -> Any:
        return self.all_to_all_single(*arguments, **named)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        source = torch.cat([one.reshape(-1) for one in inputs])
        flat = torch.empty(
            sum(one.numel() for one in outputs), dtype=source.dtype, device=source.device
        )
        given, taken = BufferPart(source), BufferPart(flat)
        sends = [one.numel() for one in inputs]
        receives = [one.numel() for one in outputs]

        def steps() -> Steps:
            given.into()
            yield [self._comm.Ialltoallv(given.bytes(sends), taken.bytes(receives))]
            taken.back()
            for target, part in zip(outputs, torch.split(flat, receives), strict=True):
                target.copy_(part.view(target.shape))

        return self._begin("alltoall", steps(), outputs)

    def barrier(self, opts: Any = None) -> Any:
        def steps() -> Steps:
            yield [self._comm.Ibarrier()]

        return self._begin("barrier", steps(), [])

    # -- point to point ----------------------------------------------------------------------

    def send(self, tensors: Tensors, rank: int, tag: int = 0) -> Any:
        part = BufferPart(tensors[0])

        def steps() -> Steps:
            part.into()
            yield [self._comm.Isend(part.bytes(), dest=rank, tag=tag)]

        return self._begin("send", steps(), tensors)

    def recv(self, tensors: Tensors, rank: int, tag: int = 0) -> Any:
        part = BufferPart(tensors[0])

        def steps() -> Steps:
            yield [self._comm.Irecv(part.bytes(), source=rank, tag=tag)]
            part.back()

        return self._begin("recv", steps(), tensors, statuses=[])

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        from mpi4py import MPI

        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    # -- the rest ----------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Give the communicators back."""
        with contextlib.suppress(Exception):
            self._progress.call(self._direct.free)
            self._progress.call(self._comm.Free)

    def _begin(
        self, name: str, steps: Steps, result: Tensors, statuses: list[Any] | None = None
    ) -> Any:
        device = next((one.device for one in result if one.is_cuda), None)
        if device is not None:
            # what the tensors hold is ready only when the stream has come this far
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(torch.cuda.current_stream(device))
            steps = _after(ready, steps)
        until = time.monotonic() + self._timeout_s
        devices: Devices = None if device is None else [device]
        operation = Operation(name, steps, until, result, devices, statuses=statuses)
        self._progress.ask(operation)
        return Work(operation, self._progress)


def _after(ready: Any, steps: Steps) -> Steps:
    ready.synchronize()
    yield from steps
