"""``make bench-meeting``: ranks that prove who they are, beside torch's store and plain gloo.

*Start*: from the first rank's call to the last one's default group, all ranks on this host, forked
from a process that has imported torch; the peer is ``init_process_group`` with ``TCPStore``. Both
take turns; a figure is the median of the rounds. *Steps* and collectives: in the same ranks, over
the group of the meeting and over a gloo group as torch makes it, in turn; a figure is the median
over rounds of the slower rank's mean.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from hpcdet.process.ranks import Ranks  # noqa: E402
from hpcdet.train.meeting import gloo, rendezvous  # noqa: E402

WORLDS = (2, 4, 16, 32)
SIZES = (64, 4 << 20)
ROUNDS, QUICK = 7, 3
WIDTH, LAYERS, BATCH = 512, 4, 64
_FORK = multiprocessing.get_context("fork")


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it works")
    rounds = QUICK if parser.parse_args().quick else ROUNDS
    rows = [*_starts(rounds), *_steps(5 * rounds)]
    print(f"{'what':<34}{'ours':>10}{'peer':>10}{'ratio':>8}  peer")
    for row in rows:
        figures = "".join(f"{row[key]:>10.2f}" for key in ("ours", "peer"))
        print(f"{row['what']:<34}{figures}{row['ratio']:>8.2f}  {row['peer_name']}")
    print("milliseconds")
    results.write("meeting", rows)
    return 0


def _row(what: str, ours: list[float], peer_name: str, peer: list[float]) -> results.Row:
    median, other = statistics.median(ours), statistics.median(peer)
    return {
        "what": what,
        "unit": "ms",
        "ours": round(median * 1e3, 3),
        "peer": round(other * 1e3, 3),
        "peer_name": peer_name,
        "ratio": round(median / other, 3),
        "goal": None,
        "met": None,
        "runs": len(ours),
    }


def _on_ranks(world: int, call: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a call gives on each rank, each a process of its own; they begin together."""
    together, answers = _FORK.Barrier(world), _FORK.SimpleQueue()

    def rank(number: int) -> None:
        torch.set_num_threads(1)
        answers.put(call(Ranks(number, world, number, world), together, *arguments))
        together.wait()
        rendezvous.leave()

    processes = [_FORK.Process(target=rank, args=(number,)) for number in range(world)]
    for one in processes:
        one.start()
    found = [answers.get() for _ in processes]
    for one in processes:
        one.join()
    return found


def _starts(rounds: int) -> list[results.Row]:
    rows = []
    for world in WORLDS:
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds + 1):
            for ours in (True, False) if number % 2 else (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    found = _on_ranks(world, _meet, Path(folder), None if ours else _free_port())
                first = min(begun for begun, _ in found)
                if number:  # the first round warms up
                    times[ours].append(max(done for _, done in found) - first)
        rows.append(_row(f"start of {world} ranks", times[True], "TCPStore", times[False]))
    return rows


def _meet(ranks: Ranks, together: Barrier, folder: Path, port: int | None) -> tuple[float, float]:
    """When this rank began and when it had its group; ``port``: of torch's store."""
    together.wait()
    begun = time.monotonic()
    if port is None:
        rendezvous.meet(ranks, folder / "rendezvous.json", "gloo")
    else:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        patience = timedelta(seconds=300)
        dist.init_process_group("gloo", None, patience, ranks.world, ranks.rank)
    return begun, time.monotonic()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _steps(rounds: int) -> list[results.Row]:
    with tempfile.TemporaryDirectory() as folder:
        measured = _on_ranks(2, _train, Path(folder), rounds)
    slower = {
        what: [max(both) for both in zip(*(one[what] for one in measured), strict=True)]
        for what in measured[0]
    }
    whats = dict.fromkeys(what for what, _ in slower)
    return [_row(what, slower[what, True], "plain gloo", slower[what, False]) for what in whats]


def _train(
    ranks: Ranks, together: Barrier, folder: Path, rounds: int
) -> dict[tuple[str, bool], list[float]]:
    """Seconds of each method over the meeting's group (True) and over a plain one, by round."""
    together.wait()
    rendezvous.meet(ranks, folder / "rendezvous.json", "gloo")
    gloo.release()
    groups = {True: dist.group.WORLD, False: dist.new_group(backend="gloo")}
    methods: dict[tuple[str, bool], tuple[Callable[[], object], int]] = {}
    for ours, group in groups.items():
        for size in SIZES:
            methods[f"allreduce of {size} bytes", ours] = (_reduction(size, group), 20)
        megabytes = LAYERS * WIDTH * WIDTH * 4 >> 20
        methods[f"DDP step, {megabytes} MiB of gradients", ours] = (_step(group), 5)
    measured: dict[tuple[str, bool], list[float]] = {name: [] for name in methods}
    order = random.Random(1)
    for number in range(rounds + 1):
        for name in order.sample(sorted(methods), len(methods)):
            method, times = methods[name]
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(times):
                method()
            if number:
                measured[name].append((time.perf_counter() - begun) / times)
    return measured


def _reduction(size: int, group: Any) -> Callable[[], object]:
    tensor = torch.zeros(size // 4)
    return lambda: dist.all_reduce(tensor, group=group)


def _step(group: Any) -> Callable[[], object]:
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), process_group=group
    )
    data = torch.randn(BATCH, WIDTH)

    def step() -> None:
        model(data).square().mean().backward()
        model.zero_grad(set_to_none=False)

    return step


if __name__ == "__main__":
    sys.exit(main())
