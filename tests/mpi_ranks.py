"""Programs for the ranks of ``mpirun``: what the MPI backend does, beside what gloo does.

``python -m tests.mpi_ranks PROGRAM STORE``; a failed assertion ends a rank with exit code 1.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from hpcdet.process.ranks import Ranks
from hpcdet.pytorch.gradients.compression import in_turn
from hpcdet.train import mpi
from hpcdet.train.meeting import rendezvous

KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
OPERATIONS = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT)


def meet(store: str) -> tuple[int, int]:
    ranks = Ranks.from_environment()
    mpi.prepare(ranks)
    dist.init_process_group(
        mpi.NAME,
        store=dist.FileStore(store, ranks.world),
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=timedelta(seconds=60),
    )
    return ranks.rank, ranks.world


def numbers(rank: int, kind: torch.dtype, *shape: int) -> torch.Tensor:
    """Small whole numbers: every order of summing them gives the same."""
    made = torch.Generator().manual_seed(100 + rank)
    return torch.randint(1, 4, shape, generator=made).to(kind)


def collectives(rank: int, world: int) -> None:
    """Every collective, on several kinds of numbers and on views, as gloo does it."""
    gloo = dist.new_group(backend="gloo")
    for kind in KINDS:
        for operation in OPERATIONS:
            ours, theirs = (numbers(rank, kind, 3, 5).t() for _ in range(2))
            dist.all_reduce(ours, operation)
            dist.all_reduce(theirs.contiguous(), operation, group=gloo)
            expected = torch.stack([numbers(r, kind, 3, 5).t() for r in range(world)])
            assert torch.equal(ours, _reduced(expected, operation)), (kind, operation)
        mine = numbers(rank, kind, 4)
        rows = [torch.empty(4, dtype=kind) for _ in range(world)]
        dist.all_gather(rows, mine)
        assert all(torch.equal(row, numbers(r, kind, 4)) for r, row in enumerate(rows))
        flat = torch.empty(4 * world, dtype=kind)
        dist.all_gather_into_tensor(flat, mine)
        assert torch.equal(flat, torch.cat(rows))
        own = torch.zeros_like(flat)
        own.view(world, -1)[rank] = mine  # what is given lies in its place, as FSDP2 has it
        dist.all_gather_into_tensor(own, own.view(world, -1)[rank])
        assert torch.equal(own, flat)
        sent = torch.cat([numbers(rank, kind, 4) + r for r in range(world)])
        got = torch.empty(4, dtype=kind)
        dist.reduce_scatter_tensor(got, sent.clone())
        assert torch.equal(got, sum(numbers(r, kind, 4) + rank for r in range(world)))  # type: ignore[arg-type]
        dist.reduce_scatter(got, [one.clone() for one in sent.chunk(world)])
        assert torch.equal(got, sum(numbers(r, kind, 4) + rank for r in range(world)))  # type: ignore[arg-type]
        swapped = torch.empty_like(sent)
        dist.all_to_all_single(swapped, sent)
        assert torch.equal(swapped, torch.cat([numbers(r, kind, 4) + rank for r in range(world)]))
        for root in range(world):
            value = mine.clone()
            dist.broadcast(value, root)
            assert torch.equal(value, numbers(root, kind, 4))
            dist.reduce(total := mine.clone(), root)
            if rank == root:
                assert torch.equal(total, sum(numbers(r, kind, 4) for r in range(world)))  # type: ignore[arg-type]
            gathered = [torch.empty(4, dtype=kind) for _ in range(world)]
            dist.gather(mine, gathered if rank == root else None, root)
            if rank == root:
                assert all(torch.equal(a, b) for a, b in zip(gathered, rows, strict=True))
            share = torch.empty(4, dtype=kind)
            dist.scatter(share, [row + 1 for row in rows] if rank == root else None, root)
            assert torch.equal(share, mine + 1)
    mean = torch.tensor([float(rank)])
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.item() == (world - 1) / 2
    flag = torch.tensor([rank == 1])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    assert flag.item() is True
    boxes: list[object] = [None] * world
    dist.all_gather_object(boxes, {"rank": rank})
    assert boxes == [{"rank": r} for r in range(world)]
    # several at once, waited for in another order; sends from each to the next
    works = [dist.all_reduce(torch.ones(1000 * n), async_op=True) for n in range(1, 9)]
    token = torch.tensor([rank])
    send = dist.isend(token, (rank + 1) % world)
    came = torch.empty_like(token)
    dist.recv(came, (rank - 1) % world)
    assert came.item() == (rank - 1) % world
    send.wait()  # type: ignore[union-attr]
    if rank == 0:
        senders = [(dist.recv(came), came.item()) for _ in range(1, world)]
        assert sorted(senders) == [(r, r) for r in range(1, world)]
    else:
        dist.send(token, 0)
    for work in reversed(works):
        work.wait()
    pair = dist.new_group([0, world - 1])
    if rank in (0, world - 1):
        both = torch.tensor([rank])
        dist.all_reduce(both, group=pair)
        assert both.item() == world - 1
    dist.barrier()
    assert dist.get_backend() == mpi.NAME


def long_sums(rank: int, world: int) -> None:
    """Formed in order of ranks, to the bit; numbers of 16 bits are rounded once."""
    size = (9 << 20) // 4 + 7  # several pieces, and shares that are not equal

    def draw(of: int, kind: torch.dtype, *shape: int) -> torch.Tensor:
        made = torch.Generator().manual_seed(of)
        return torch.randn(shape, generator=made).to(kind)

    def summed(kind: torch.dtype, *shape: int) -> torch.Tensor:
        total = draw(0, kind, *shape).float()
        for other in range(1, world):
            total += draw(other, kind, *shape)
        return total

    ours, others = dist.new_group(backend=mpi.NAME), dist.new_group(backend=mpi.NAME)
    values = {kind: draw(rank, kind, size) for kind in (torch.float32, torch.bfloat16)}
    few = draw(rank, torch.float16, 3)
    works = [  # at once, and on two groups in another order on each rank
        (kind, group, dist.all_reduce(values[kind], group=group, async_op=True))
        for kind, group in ((torch.float32, ours), (torch.bfloat16, others))[:: (-1) ** rank]
    ]
    works.append((torch.float16, ours, dist.all_reduce(few, dist.ReduceOp.AVG, ours, True)))
    dist.barrier()
    for kind, _, work in reversed(works):
        work.wait()
        expected = summed(kind, 3) / world if kind == torch.float16 else summed(kind, size)
        assert torch.equal(values.get(kind, few), expected.to(kind)), kind
    for kind in (torch.float32, torch.bfloat16):
        rows = draw(rank, kind, world, size // 4)
        mine = torch.empty(size // 4, dtype=kind)
        dist.reduce_scatter_tensor(mine, rows)
        assert torch.equal(mine, summed(kind, world, size // 4)[rank].to(kind)), kind
        assert torch.equal(rows, draw(rank, kind, world, size // 4))
    most = draw(rank, torch.float32, size)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    rows = torch.stack([draw(other, torch.float32, size) for other in range(world)])
    assert torch.equal(most, rows.amax(0))


def training(rank: int, world: int) -> None:
    """DDP with several buckets, plain and compressed: as gloo's to rounding; equal on all ranks."""
    for hook in (None, default_hooks.fp16_compress_hook, powerSGD_hook):
        tolerance = 1e-5 if hook is None else 1e-2
        gloos, ours = (trained(rank, hook, dist.new_group(backend=b)) for b in ("gloo", mpi.NAME))
        assert torch.allclose(ours, gloos, rtol=tolerance, atol=tolerance), hook
        copies = [torch.empty_like(ours) for _ in range(world)]
        dist.all_gather(copies, ours)
        assert all(torch.equal(copy, ours) for copy in copies)


def trained(rank: int, hook: Any, group: Any) -> torch.Tensor:
    """The parameters after a dozen steps."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(6)]
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=0.02
    )
    if hook is powerSGD_hook:
        state = powerSGD.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=1
        )
        model.register_comm_hook(state, lambda state, bucket: in_turn(state, bucket))
    elif hook is not None:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    for _ in range(12):
        loss = model(torch.randn(8, 64, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def sharded(rank: int, world: int) -> None:
    """FSDP2, DTensors and functional collectives included: the bits of gloo's."""
    ours, gloos = (by_rows(rank, dist.new_group(backend=backend)) for backend in (mpi.NAME, "gloo"))
    assert all(torch.equal(one, other) for one, other in zip(ours, gloos, strict=True))


def by_rows(rank: int, group: Any) -> list[torch.Tensor]:
    """The parameters after some steps, as wholes, and the norm of the last gradients."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Tanh()) for _ in range(3)]
    model = torch.nn.Sequential(*layers)
    mesh = DeviceMesh.from_group(group, "cpu")
    for unit in (*layers, model):
        fully_shard(unit, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 10, generator=data)).square().mean().backward()
        for one in model.parameters():
            assert one.grad is not None
            one.grad.copy_((one.grad * 64).round())  # the order of sums may differ from gloo's
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    tensors: Any = [norm, *model.parameters()]
    return [one.full_tensor() for one in tensors]


def raising(rank: int, world: int) -> None:
    """An exception on one rank while the others wait in a collective."""
    if rank == 1:
        raise ValueError("on rank 1")
    dist.all_reduce(torch.ones(1))


def missing(rank: int, world: int) -> None:
    """A collective to which one rank does not come fails, and says so."""
    assert world > 1
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            print("missed:", error, flush=True)
    dist.barrier()


def _reduced(rows: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
    wide = rows.float() if rows.dtype.is_floating_point and rows.element_size() == 2 else rows
    results = {
        dist.ReduceOp.SUM: lambda: wide.sum(0),
        dist.ReduceOp.MAX: lambda: wide.amax(0),
        dist.ReduceOp.MIN: lambda: wide.amin(0),
        dist.ReduceOp.PRODUCT: lambda: wide.prod(0),
    }
    return results[operation]().to(rows.dtype)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, world = meet(sys.argv[2])
    programs = {
        "everything": (collectives, long_sums, training, sharded, missing),
        "raising": (raising,),
    }
    for program in programs[sys.argv[1]]:
        program(rank, world)
    rendezvous.leave()
