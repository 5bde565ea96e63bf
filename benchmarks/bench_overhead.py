"""``make bench-overhead``: what a step costs beyond the loop that one writes by hand.

The same model and data in

- a hand-written loop without metrics on disk, checkpoints or any way to go on: what all others
  are compared with; a second one beside it shows the noise;
- a hand-written loop that also calls ``torch.save`` as often as hpcdet makes a checkpoint;
- hpcdet's PyTorchTrial and Core API with metrics, cursor, preemption check, profile and periodic
  checkpoints on;
- Lightning Fabric, and Determined's Trainer in local mode, both without any of these.

All of them live at the same time and train short blocks of steps in turn, in an order that
changes by the round. Each makes its checkpoints in the middle of every thirtieth of its blocks, so
that what is written beside the training is written in its own time. Two methods are compared
within a round, since a machine's speed wanders by more than what is looked for here: a ratio is
the geometric mean over rounds, without the tenth at each end, 29 parts of it from rounds without a
checkpoint and one part from those with one. Bounds are a bootstrap over rounds (95 %), and goals
are judged by them. Steps in the table are medians. Each rank has one thread.

All have the allocator keep the memory that a step frees, as hpcdet does by itself: else chance
decides how many page faults a step has, hundreds or none, and that is more than what is measured
here. A last hand-written loop leaves the allocator as it is.

The peers live in ``~/.cache/hpcdet-bench/peers``, which shares torch with hpcdet's environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import select
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

from tests.ranks import experiment  # noqa: E402

HERE = TOP / "benchmarks" / "overhead"
VENV = Path.home() / ".cache" / "hpcdet-bench" / "peers"
PATIENCE_S = 300.0
NOT_OURS = ("HPCDET_", "MALLOC_", "GLIBC_TUNABLES")
"""Of the environment: what no loop is to have."""
GOAL = 1.02


@dataclass(frozen=True)
class Step:
    """How long a step is, and how many make a block; ``checkpoint``: steps between two of ours."""

    name: str
    width: int
    batch: int
    block: int
    checkpoint: int
    goal: float | None


CYCLE = 30
"""Blocks from one checkpoint to the next."""
WARM = 5
"""Blocks that do not count."""
LONG = Step("20 ms", 1200, 128, 10, 10 * CYCLE, GOAL)
SHORT = Step("1 ms", 64, 32, 100, 100 * CYCLE, None)
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**26)}


@dataclass
class Loop:
    """One method's ranks; ``blocks`` are mean steps in seconds."""

    name: str
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    pipes: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)

    @property
    def step(self) -> float:
        """A step, in seconds."""
        return statistics.median(self.blocks)

    def turn(self) -> list[float]:
        """Let it train one block; its steps by rank 0."""
        for writer, _ in self.pipes:
            os.write(writer, b"g")
        return self.hear()

    def hear(self) -> list[float]:
        """Wait until all ranks have said what they had to say."""
        said = [_line(reader, self) for _, reader in self.pipes]
        return said[0]

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        for pair in self.pipes:
            for fd in pair:
                os.close(fd)


def _line(reader: int, loop: Loop) -> list[float]:
    raw = b""
    deadline = time.monotonic() + PATIENCE_S
    while not raw.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], 1.0)
        piece = os.read(reader, 1 << 16) if ready else b""
        raw += piece
        if (ready and not piece) or time.monotonic() > deadline:
            raise SystemExit(f"{loop.name} ended or hangs")
    times: list[float] = json.loads(raw)
    return times


# -- methods -----------------------------------------------------------------------------------

Start = Callable[[Step, int, Path], list[tuple[list[str], dict[str, str]]]]
"""Argv and environment of each rank."""


def _peer(method: str, *, keeping: bool = True) -> Start:
    def start(step: Step, world: int, folder: Path) -> list[tuple[list[str], dict[str, str]]]:
        python = sys.executable if method in ("bare", "saving") else str(VENV / "bin" / "python")
        argv = [python, str(HERE / "peers.py"), method]
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        own = {**(KEEPING if keeping else {}), **master, "BENCH_METHOD": method}
        return [(argv, own) for _ in range(world)]

    return start


def _ours(**config: Any) -> Start:
    def start(step: Step, world: int, folder: Path) -> list[tuple[list[str], dict[str, str]]]:
        trial = experiment(
            folder / "EXP",
            code=HERE,
            ranks=world,
            hparams={"global_batch_size": step.batch * world},
            until=1_000_000,
            min_checkpoint_period={"batches": step.checkpoint},
            **config,
        )
        argv = [sys.executable, "-m", "hpcdet.attempt", str(folder / "EXP"), str(trial.number), "1"]
        return [(argv, KEEPING) for _ in range(world)]

    return start


METHODS: dict[str, Start] = {
    "hand-written": _peer("bare"),
    "hand-written again": _peer("bare"),
    "hand-written, torch.save": _peer("saving"),
    "PyTorchTrial": _ours(entrypoint="model_def:Trial"),
    "Core API": _ours(entrypoint="python3 core_loop.py"),
    "Lightning Fabric": _peer("fabric"),
    "Determined": _peer("determined"),
    "hand-written, malloc as it is": _peer("bare", keeping=False),
}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def _started(names: Sequence[str], step: Step, world: int, root: Path) -> Iterator[list[Loop]]:
    loops: list[Loop] = []
    size = {"width": step.width, "batch": step.batch, "block": step.block}
    try:
        for name in names:
            loop = Loop(name)
            loops.append(loop)
            folder = root / f"{name} {step.name} {world}"
            folder.mkdir()
            for rank, (argv, own) in enumerate(METHODS[name](step, world, folder)):
                to_rank, from_rank = os.pipe(), os.pipe()
                environment = {
                    **{k: v for k, v in os.environ.items() if not k.startswith(NOT_OURS)},
                    "PYTHONPATH": os.pathsep.join((str(TOP), str(HERE))),
                    "OMP_NUM_THREADS": "1",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_WORLD_SIZE": str(world),
                    "NODE_RANK": "0",
                    "BENCH_SIZE": json.dumps({**size, "checkpoint": step.checkpoint}),
                    "BENCH_PIPES": f"{to_rank[0]},{from_rank[1]}",
                    **own,
                }
                with (folder / f"output-{rank}").open("wb") as output:
                    loop.ranks.append(
                        subprocess.Popen(
                            argv,
                            env=environment,
                            cwd=folder,
                            stdout=output,
                            stderr=output,
                            pass_fds=(to_rank[0], from_rank[1]),
                        )
                    )
                os.close(to_rank[0])
                os.close(from_rank[1])
                loop.pipes.append((to_rank[1], from_rank[0]))
            try:
                loop.hear()  # it is ready for its first step
            except SystemExit:
                for file in sorted([*folder.glob("output-*"), *folder.rglob("rank-*.log")]):
                    print(file.name, file.read_text(errors="replace")[-3000:], file=sys.stderr)
                raise
        yield loops
    finally:
        for loop in loops:
            loop.end()


def _measure(names: Sequence[str], step: Step, world: int, rounds: int) -> list[Loop]:
    shuffled = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="overhead-") as root:  # noqa: SIM117
        with _started(names, step, world, Path(root)) as loops:
            for number in range(rounds + WARM):
                order = list(loops)
                shuffled.shuffle(order)
                for loop in order:
                    steps = loop.turn()
                    if number >= WARM:
                        loop.blocks.append(statistics.fmean(steps))
            return loops


# -- rows --------------------------------------------------------------------------------------


def saves(number: int) -> bool:
    """Whether a block that counts has a checkpoint: the last one of each cycle."""
    return (number + WARM) % CYCLE == CYCLE - 1


def compared(ours: Sequence[float], peer: Sequence[float], numbers: Sequence[int]) -> float:
    """The ratio of two methods' steps over the rounds ``numbers``."""
    found = {kind: [n for n in numbers if saves(n) is kind] for kind in (False, True)}
    quiet, saving = (_ratio(ours, peer, found[kind] or numbers) for kind in (False, True))
    return ((CYCLE - 1) * quiet + saving) / CYCLE


def _ratio(ours: Sequence[float], peer: Sequence[float], numbers: Sequence[int]) -> float:
    logs = sorted(math.log(ours[n] / peer[n]) for n in numbers)
    cut = len(logs) // 10
    return math.exp(statistics.fmean(logs[cut : len(logs) - cut]))


def bounds(ours: Sequence[float], peer: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """95 % of the ratio, by drawing rounds anew."""
    chance = random.Random(7)
    kinds = [[n for n in range(len(ours)) if saves(n) is kind] for kind in (False, True)]
    found = []
    for _ in range(draws):
        drawn = [n for kind in kinds if kind for n in chance.choices(kind, k=len(kind))]
        found.append(compared(ours, peer, drawn))
    found.sort()
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]


OURS = ("PyTorchTrial", "Core API")


def _rows(loops: Sequence[Loop], step: Step, world: int) -> list[results.Row]:
    """All against the hand-written loop, and hpcdet against each of the others that do as much."""
    bare, *others = loops
    rows = [_row(loop, bare, step, world, step.goal) for loop in others]
    for peer in others:
        if peer.name in ("Lightning Fabric", "Determined"):
            rows += [_row(loop, peer, step, world, 1.0) for loop in others if loop.name in OURS]
    return rows


def _row(loop: Loop, peer: Loop, step: Step, world: int, goal: float | None) -> results.Row:
    low, high = bounds(loop.blocks, peer.blocks)
    goal = goal if loop.name in OURS else None
    return {
        "what": f"{loop.name}, {step.name}, {world} rank{'s' if world > 1 else ''}",
        "unit": "s",
        "ours": loop.step,
        "peer": peer.step,
        "peer_name": peer.name,
        "ratio": round(compared(loop.blocks, peer.blocks, range(len(loop.blocks))), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "least": min(loop.blocks),
        "peer_least": min(peer.blocks),
        "goal": goal,
        "met": None if goal is None else high <= goal,
        "missed": None if goal is None else low > goal,
        "runs": len(loop.blocks),
    }


def _print(rows: Sequence[results.Row]) -> None:
    width = max(len(row["what"]) for row in rows) + 2
    print(f"{'what':<{width}}{'step':>9}{'than':>9}{'ratio':>8}{'95 %':>14}  goal")
    for row in rows:
        verdict = ""
        if row["goal"] is not None:
            said = "met" if row["met"] else "missed" if row["missed"] else "not decided"
            verdict = f"{row['goal']}: {said}"
        interval = f"{row['low']:.3f}-{row['high']:.3f}"
        print(
            f"{row['what']:<{width}}{1e3 * row['ours']:>6.2f} ms{1e3 * row['peer']:>6.2f} ms"
            f"{row['ratio']:>8.3f}{interval:>14}  {row['peer_name']:<18}{verdict}",
            flush=True,
        )


# -- the peers' environment --------------------------------------------------------------------


def _prepare() -> list[str]:
    """Install the peers, if they are not; the methods that can run."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        alone = ["lightning-fabric", "lightning-utilities", "fsspec", "packaging"]
        subprocess.run([*pip, "determined", "tensorboard"], check=False)
        subprocess.run([*pip, "--no-deps", *alone, "typing-extensions"], check=False)
        site = next((VENV / "lib").glob("python*")) / "site-packages"
        # torch comes from here, behind all that the peers brought
        paths = {sysconfig.get_paths()["purelib"], *(p for p in sys.path if "site-packages" in p)}
        (site / "zz-torch.pth").write_text("\n".join(sorted(paths)) + "\n")
    found = list(METHODS)
    for method, module in (("Lightning Fabric", "lightning_fabric"), ("Determined", "determined")):
        argv = [python, "-c", f"import {module}"]
        if subprocess.run(argv, capture_output=True, check=False).returncode:
            print(f"{method} cannot be installed here and is left out", file=sys.stderr)
            found.remove(method)
    return found


def main() -> int:
    """Measure, print, write; exit 0 also where a goal was missed (the table says so)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of each kind")
    parser.add_argument("--rounds", type=int, default=8 * CYCLE)
    parser.add_argument("--world", type=int, action="append", help="only so many ranks")
    parser.add_argument("--step", action="append", help="only steps of '20 ms' or '1 ms'")
    parser.add_argument("--add", action="store_true", help="keep the rows of other calls")
    given = parser.parse_args()
    names = _prepare()
    rows = _written() if given.add else []
    for step in (LONG, SHORT):
        for world in given.world or (1, 2):
            if given.step and step.name not in given.step:
                continue
            loops = _measure(names, step, world, CYCLE if given.quick else given.rounds)
            made = _rows(loops, step, world)
            _print(made)
            new = {(row["what"], row["peer_name"]) for row in made}
            rows = [row for row in rows if (row["what"], row["peer_name"]) not in new] + made
            results.write("overhead", rows)
    return 0


def _written() -> list[results.Row]:
    path = TOP / "benchmarks" / "results" / "overhead.json"
    rows: list[results.Row] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


if __name__ == "__main__":
    sys.exit(main())
