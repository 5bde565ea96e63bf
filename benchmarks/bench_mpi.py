"""``make bench-mpi``: the MPI backend against raw mpi4py and gloo, and what overlap is worth.

Two ranks under ``mpirun``, one thread each. All methods take turns in one run, in an order that
changes by the round; a figure is the median over rounds of the slower rank's mean, the minimum
beside it. *raw* is mpi4py's blocking ``Allreduce`` in place, which spins on its core meanwhile.
*In turn* waits for each bucket of gradients before the next one is begun, *overlap* is
DDP as it is, *fp16* with gradients that travel so.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

RANKS = 2
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
SIZES = (64, 16 << 10, 256 << 10, 4 << 20, 32 << 20)
ROUNDS, QUICK = 15, 3
WIDTH, LAYERS, BATCH = 1024, 8, 192


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it works")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rounds = QUICK if given.quick else ROUNDS
    if given.rank is not None:
        _rank(given.rank, rounds)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quick"] if given.quick else []
        command = [*MPIRUN, "-np", str(RANKS), sys.executable, __file__, *options, "--rank", folder]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
        measured = json.loads((Path(folder) / "times.json").read_text())
    rows = [*_collectives(measured), *_steps(measured)]
    _show(rows)
    results.write("mpi", rows)
    return 0


def _row(what: str, ours: list[float], peer_name: str, peer: list[float]) -> results.Row:
    return {
        "what": what,
        "unit": "us",
        "ours": round(statistics.median(ours) * 1e6, 1),
        "ours_min": round(min(ours) * 1e6, 1),
        "peer": round(statistics.median(peer) * 1e6, 1),
        "peer_min": round(min(peer) * 1e6, 1),
        "peer_name": peer_name,
        "ratio": round(statistics.median(ours) / statistics.median(peer), 3),
        "goal": None,
        "met": None,
        "runs": len(ours),
    }


def _collectives(measured: dict[str, list[float]]) -> list[results.Row]:
    return [
        _row(
            f"allreduce of {size} bytes", measured[f"ours {size}"], peer, measured[f"{peer} {size}"]
        )
        for size in SIZES
        for peer in ("raw", "gloo")
    ]


def _steps(measured: dict[str, list[float]]) -> list[results.Row]:
    what = f"DDP step, {LAYERS * WIDTH * WIDTH * 4 >> 20} MiB of gradients"
    pairs = [
        (what, "mpi overlap", ("mpi in turn", "gloo overlap", "gloo in turn", "no communication")),
        (f"{what}, fp16", "mpi fp16", ("gloo fp16", "mpi overlap")),
    ]
    return [
        _row(title, measured[ours], peer, measured[peer])
        for title, ours, peers in pairs
        for peer in peers
    ]


def _show(rows: list[results.Row]) -> None:
    print(f"{'what':<42}{'ours':>11}{'(min)':>11}{'peer':>11}{'(min)':>11}{'ratio':>8}  peer")
    for row in rows:
        figures = "".join(f"{row[k]:>11.1f}" for k in ("ours", "ours_min", "peer", "peer_min"))
        print(f"{row['what']:<42}{figures}{row['ratio']:>8.2f}  {row['peer_name']}")
    print("microseconds")


def _rank(folder: Path, rounds: int) -> None:
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    from hpcdet.process.ranks import Ranks
    from hpcdet.train import mpi
    from hpcdet.train.meeting import rendezvous

    torch.set_num_threads(1)
    ranks = Ranks.from_environment()
    mpi.prepare(ranks)
    store = dist.FileStore(str(folder / "store"), ranks.world)
    dist.init_process_group(mpi.NAME, store=store, rank=ranks.rank, world_size=ranks.world)
    gloo = dist.new_group(backend="gloo")
    methods: dict[str, tuple[Callable[[], object], int]] = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        array = tensor.numpy()
        times = max(3, min(300, (8 << 20) // size))

        def ours(tensor: torch.Tensor = tensor) -> object:
            return dist.all_reduce(tensor)

        def raw(array: Any = array) -> object:
            return MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)

        def theirs(tensor: torch.Tensor = tensor) -> object:
            return dist.all_reduce(tensor, group=gloo)

        for name, method in (("ours", ours), ("raw", raw), ("gloo", theirs)):
            methods[f"{name} {size}"] = (method, times)
    for name, group in (("mpi", None), ("gloo", gloo)):
        methods[f"{name} overlap"] = (_training(group), 2)
        methods[f"{name} in turn"] = (_training(group, "in turn"), 2)
        methods[f"{name} fp16"] = (_training(group, "fp16"), 2)
    methods["no communication"] = (_training(None, alone=True), 2)
    measured: dict[str, list[float]] = {name: [] for name in methods}
    order = random.Random(1)
    for number in range(rounds + 1):
        for name in order.sample(sorted(methods), len(methods)):
            method, times = methods[name]
            dist.barrier(group=gloo)
            begin = time.perf_counter()
            for _ in range(times):
                method()
            mean = torch.tensor([(time.perf_counter() - begin) / times], dtype=torch.float64)
            dist.all_reduce(mean, dist.ReduceOp.MAX, group=gloo)
            if number:  # the first round warms up
                measured[name].append(mean.item())
    if ranks.chief:
        (folder / "times.json").write_text(json.dumps(measured))
    rendezvous.leave()


def _training(group: Any, hook: str = "", *, alone: bool = False) -> Callable[[], object]:
    """A step of a model whose gradients are many buckets."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
        allreduce_hook,
        fp16_compress_hook,
    )
    from torch.nn.parallel import DistributedDataParallel

    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20
    )

    def wait(state: Any, bucket):  # type: ignore[no-untyped-def]
        future = allreduce_hook(state, bucket)
        future.wait()
        return future

    if hook:
        model.register_comm_hook(group, wait if hook == "in turn" else fp16_compress_hook)
    data = torch.randn(BATCH, WIDTH)

    def step() -> None:
        if alone:
            with model.no_sync():
                model(data).square().mean().backward()
        else:
            model(data).square().mean().backward()
        model.zero_grad(set_to_none=False)

    return step


if __name__ == "__main__":
    sys.exit(main())
