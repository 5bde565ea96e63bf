"""``make bench-checkpoint``: what checkpoints cost, beside the disk itself and what others use.

The state is that of a transformer under Adam: 1.1 GB in 2,312 tensors, most of them small, equal on
all ranks. Every method ends with the data on the disk (``fsync``). The floor of a save is a raw
``O_DIRECT`` write and ``fsync`` of the same bytes, shared among the ranks; that of a stall is a
copy of the tensors into memory that is there already; that of a load, a raw ``O_DIRECT`` read
(``checkpoint_loads``). All methods take turns in one run.

Peers: torch.save, safetensors, torch.distributed.checkpoint (synchronous, thread, process), h5py
as everybody uses it. Of several ranks, the first writes for all where a peer knows no better.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PEERS = TOP / "benchmarks" / ".venv-checkpoint"
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]
sys.path.append(str(PEERS))

import checkpoint_loads as loading  # noqa: E402
import results  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from checkpoint_saves import (  # noqa: E402
    DCP_PROCESS,
    DCP_THREAD,
    FILES,
    FLOOR,
    MEMCPY,
    STAGED,
    SYNC,
    Done,
    Methods,
    State,
)

STALLS = (MEMCPY, STAGED, DCP_THREAD, DCP_PROCESS)
SYNC_PEERS = ("torch.save", "safetensors", "DCP", "h5py")

Seen = dict[str, list[dict[str, float]]]
"""What each method took, in each round."""


def state(quick: bool) -> State:
    """Parameters, two moments of each, and its step."""
    generator = torch.Generator().manual_seed(0)
    width, layers = (64, 2) if quick else (512, 24)
    shapes: dict[str, tuple[int, ...]] = {
        "emb.weight": (32 * width, width),
        "head.weight": (32 * width, width),
    }
    for layer in range(layers):
        block = f"blocks.{layer}"
        for name, rows, columns in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.fc1", 4 * width, width),
            ("mlp.fc2", width, 4 * width),
        ):
            shapes |= {f"{block}.{name}.weight": (rows, columns), f"{block}.{name}.bias": (rows,)}
        for name in ("ln1", "ln2"):
            shapes |= {f"{block}.{name}.weight": (width,), f"{block}.{name}.bias": (width,)}
        shapes |= {f"{block}.lora.{n}.scale": (17 + n,) for n in range(12)}
    made = {
        f"{kind}/{name}": torch.randn(shape, generator=generator)
        for kind in ("model", "exp_avg", "exp_avg_sq")
        for name, shape in shapes.items()
    }
    return made | {f"step/{name}": torch.tensor(1000.0) for name in shapes}


# -- one rank --------------------------------------------------------------------------------------


class Step:
    """A step of training: many small products, and what else Python does."""

    def __init__(self) -> None:
        self.x = torch.randn(192, 192)
        self.layers = [torch.randn(192, 192) for _ in range(24)]
        self.base = 0.0

    def __call__(self) -> float:
        start = time.perf_counter()
        y = self.x
        for layer in self.layers:
            y = torch.relu(y @ layer) * 0.01
        return time.perf_counter() - start

    def learn(self) -> None:
        """What a step takes while nothing is saved."""
        times = [self() for _ in range(100)]
        self.base = statistics.median(times[20:])


@contextmanager
def emptied(folder: Path, rank: int) -> Iterator[Path]:
    """The same folder for all ranks, empty before, gone afterwards; nothing waits to go out."""
    if rank == 0:
        folder.mkdir()
        os.sync()
    dist.barrier()
    yield folder
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


def rank_main(rank: int, world: int, rounds: int, quick: bool, folder: Path) -> None:
    """Measure everything, in turn; rank 0 writes what it saw as JSON."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    what = folder.name
    torch.set_num_threads(1 if what == "stalls" else max(1, (os.cpu_count() or 1) // world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    if what == "loads":
        seen = measure_loads(rank, world, rounds, quick, folder)
    else:
        names = STALLS if what == "stalls" else None
        seen = measure_saves(rank, world, rounds, quick, folder, names)
    if rank == 0:
        (folder / "seen.json").write_text(json.dumps(seen))
    dist.barrier()
    os._exit(0)  # what peers leave running is not waited for


def measure_loads(rank: int, world: int, rounds: int, quick: bool, folder: Path) -> Seen:
    """Seconds of each way to load, until all ranks are through."""
    loads = loading.Loads(state(quick), rank, world, folder, FILES)
    seen: Seen = {name: [] for name in loads.loads}
    for turn in range(rounds + 1):
        order = list(seen)
        random.Random(turn).shuffle(order)
        for name in order:
            load = loads.cold(name)
            start = time.perf_counter()
            loaded = load()
            dist.barrier()
            if turn:  # the first is to warm up
                seen[name].append({"load": time.perf_counter() - start})
            del loaded
    return seen


def measure_saves(
    rank: int, world: int, rounds: int, quick: bool, folder: Path, names: Iterable[str] | None
) -> Seen:
    """Time these ways to save (None: all), once alone, and once while training goes on."""
    methods, step = Methods(state(quick), rank, world), Step()
    seen: Seen = {name: [] for name in names or methods.saves}
    for turn in range(rounds + 1):
        order = list(seen)
        random.Random(turn).shuffle(order)
        for name in order:
            one = measure(methods.saves[name], step, folder / "save", rank)
            if turn:  # the first is to warm up
                seen[name].append(one)
    return seen


def measure(save: Callable[[Path], Done], step: Step, at: Path, rank: int) -> dict[str, float]:
    """Once while nothing else happens, once while training goes on."""
    with emptied(at, rank) as folder:
        start = time.perf_counter()
        done = save(folder)
        begun = time.perf_counter()
        while not done():
            time.sleep(0.0005)
        dist.barrier()
        end = time.perf_counter()
    step.learn()
    with emptied(at, rank) as folder:
        first = time.perf_counter()
        done = save(folder)
        stall = time.perf_counter() - first
        slower = 0.0
        while not done():
            slower += max(0.0, step() - step.base)
    return {
        "whole": end - start,
        "blocked": min(begun - start, stall),
        "behind": end - begun,
        "effective": stall + slower,
    }


# -- all of them -----------------------------------------------------------------------------------


def run(what: str, world: int, rounds: int, quick: bool) -> Seen:
    """Start the ranks, to do ``saves``, ``stalls`` or ``loads``; what the first of them saw."""
    with tempfile.TemporaryDirectory(prefix="hpcdet-bench-") as top, socket.socket() as probe:
        name = str(Path(top) / what)
        Path(name).mkdir()
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = ["--rounds", str(rounds), "--folder", name, "--world", str(world)]
        arguments += ["--quick"] if quick else []
        log = Path(name) / "log"  # peers talk much
        with log.open("wb") as output:
            ranks = [
                subprocess.Popen(
                    [sys.executable, __file__, *arguments, "--rank", str(rank)],
                    env=environment,
                    stdout=output,
                    stderr=output,
                )
                for rank in range(world)
            ]
            try:
                codes = [each.wait() for each in ranks]
            finally:
                for each in ranks:
                    each.kill()
                    each.wait()
        if any(codes):
            raise SystemExit(f"ranks ended with {codes}:\n{log.read_text()[-5000:]}")
        found: Seen = json.loads((Path(name) / "seen.json").read_text())
        return found


def compare(
    seen: Seen, what: str, ours: str, part: str, peer: str, peer_part: str, goal: float
) -> results.Row:
    """A row: medians and minima; ``goal``: the ratio to reach."""
    own = [one[part] for one in seen[ours]]
    other = [one[peer_part] for one in seen[peer]]
    made = results.row(what, own, peer, other, goal * statistics.median(other))
    return made | {
        "goal": round(made["goal"], 4),
        "ours_min": round(min(own), 4),
        "peer_min": round(min(other), 4),
        "ratio_min": round(min(own) / min(other), 3),
    }


def of_loads(seen: Seen, ranks: str, of_raw: float) -> list[results.Row]:
    """Rows of our loads against floors and peers; ``of_raw``: the goal beside a raw read."""

    def row(what: str, ours: str, peer: str, goal: float) -> results.Row:
        return compare(seen, f"{ranks}: {what}", ours, "load", peer, "load", goal)

    into, new = "cold load into tensors", "cold load, new tensors"
    return [
        row(into, loading.INTO, loading.RAW, of_raw),
        *(row(into, loading.INTO, peer, 1.0) for peer in (*loading.PEERS, loading.DCP)),
        row(new, loading.NEW, loading.RAW_NEW, of_raw),
        *(row(new, loading.NEW, f"{peer}, new", 1.0) for peer in loading.PEERS),
        row("cold verify", loading.VERIFY, loading.RAW, of_raw),
    ]


def of_saves(seen: Seen, ranks: str) -> list[results.Row]:
    """Rows of our saves against floors and peers."""

    def row(what: str, ours: str, part: str, peer: str, peer_part: str, goal: float) -> results.Row:
        return compare(seen, f"{ranks}: {what}", ours, part, peer, peer_part, goal)

    rows = [
        row("staged to committed", STAGED, "behind", FLOOR, "whole", 1.05),
        row("synchronous save", SYNC, "whole", FLOOR, "whole", 1.10),
    ]
    rows += [row("synchronous save", SYNC, "whole", peer, "whole", 1.0) for peer in SYNC_PEERS]
    rows += [row("until durable", STAGED, "whole", DCP_THREAD, "whole", 1.0)]
    rows += [row("until durable", STAGED, "whole", DCP_PROCESS, "whole", 1.0)]
    rows += of_stalls(seen, ranks)
    return rows + [
        row("effective stall", STAGED, "effective", peer, "effective", 1.0) for peer in SYNC_PEERS
    ]


def of_stalls(seen: Seen, ranks: str) -> list[results.Row]:
    """Rows of what training loses by our saves, against a copy and others beside training."""

    def row(what: str, part: str, peer: str, goal: float) -> results.Row:
        return compare(seen, f"{ranks}: {what}", STAGED, part, peer, part, goal)

    return [
        row("blocking stall", "blocked", MEMCPY, 1.1),
        row("blocking stall", "blocked", DCP_THREAD, 1.0),
        row("blocking stall", "blocked", DCP_PROCESS, 1.0),
        row("effective stall", "effective", DCP_PROCESS, 0.25),
        row("effective stall", "effective", DCP_THREAD, 0.25),
    ]


def install() -> None:
    """The peer that is not here already, into a folder of its own."""
    if importlib.util.find_spec("safetensors") is None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(PEERS), "safetensors"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small state, one round")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--world", type=int, default=0, help="only so many ranks")
    parser.add_argument("--only", choices=["saves", "loads"], nargs="*", default=["saves", "loads"])
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rounds = given.rounds or (1 if given.quick else 7)
    if given.rank >= 0:
        rank_main(given.rank, given.world, rounds, given.quick, given.folder)
        return
    install()
    rows: list[results.Row] = []
    for world in (given.world,) if given.world else (1, 2):
        ranks = f"{world} rank{'s' * (world > 1)}"
        if "saves" in given.only:
            rows += of_saves(run("saves", world, rounds, given.quick), ranks)
            if world == 1:  # one core is left to what saves
                found = run("stalls", world, rounds, given.quick)
                rows += of_stalls(found, f"{ranks}, 1 thread")
        if "loads" in given.only:
            seen = run("loads", world, rounds, given.quick)
            rows += of_loads(seen, ranks, 1.20 if world == 1 else 1.10)
    results.publish("checkpoint", rows)
    print(
        "minima:",
        *(f"{row['what']} / {row['peer_name']}: {row['ratio_min']}" for row in rows),
        sep="\n  ",
    )


if __name__ == "__main__":
    main()
