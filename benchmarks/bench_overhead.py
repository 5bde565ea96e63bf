"""``make bench-overhead``: what a step costs beyond the loop that one writes by hand.

The same model and data in

- a hand-written loop without metrics on disk, checkpoints or any way to go on: what all others
  are compared with; a second one beside it shows the noise;
- hpcdet's PyTorchTrial and Core API with metrics, cursor, preemption check, profile and periodic
  checkpoints on;
- Lightning Fabric, and Determined's Trainer in local mode, both without any of these;
- with one rank and long steps, a hand-written loop that also calls ``torch.save`` as often as
  hpcdet makes a checkpoint, and one that leaves the allocator as it is.

All of them live at the same time and train short blocks of steps in turn, in an order that
changes by the round. Two methods are compared within a round, since a machine's speed wanders by
more than what is looked for here. After some rounds all processes end and others begin, which is
a group: what one process is slower than its equal is a matter of where its memory lies, and lasts
as long as it does. Groups are what bounds are made of (``processes.ratio``, 95 %), and goals are
judged by them; that start-up takes seconds is not counted.

Each makes its checkpoint in the middle of the last block of a group, so that what is written
beside the training is written in its own time. That block counts as one of ten: of long steps, as
a checkpoint every 300 steps of 20 ms. Blocks of long steps take more than half a second: what is
due every second or two falls due while the others train, so short blocks would hold it far oftener
than training does. Steps in the table are medians. Each rank has one thread.

All have the allocator keep the memory that a step frees, as hpcdet does by itself, with the same
numbers: else chance decides how many page faults a step has, hundreds or none, and that is more
than what is measured here. So it makes no difference between them; how much it is, the
hand-written loop without it shows.

The peers live in ``~/.cache/hpcdet-bench/peers``, which shares torch with hpcdet's environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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

import processes  # noqa: E402
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
    """How long a step is, and how many make a block."""

    name: str
    width: int
    batch: int
    block: int
    goal: float | None


CYCLE = 10
"""A checkpoint is made every so many blocks."""
WARM = 1
"""Blocks of a group that do not count."""
LONG = Step("20 ms", 1200, 128, 30, GOAL)
SHORT = Step("1 ms", 64, 32, 300, None)
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""What ``hpcdet.train.heap`` asks for."""


@dataclass(frozen=True)
class Run:
    """One group after the other; ``rounds`` of each count."""

    step: Step
    world: int
    groups: int
    rounds: int

    @property
    def steps(self) -> int:
        """Of a method in a group, up to its last block's end."""
        return (WARM + self.rounds) * self.step.block


@dataclass
class Loop:
    """One method's ranks, as long as they live."""

    name: str
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    pipes: list[tuple[int, int]] = field(default_factory=list)

    def turn(self) -> float:
        """Let it train one block; the mean of its steps, by rank 0, in seconds."""
        for writer, _ in self.pipes:
            os.write(writer, b"g")
        return statistics.fmean(self.hear())

    def hear(self) -> list[float]:
        """What rank 0 says, once all have said something."""
        said = [_line(reader, self) for _, reader in self.pipes]
        return said[0]

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
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

Start = Callable[[Run, Path], list[tuple[list[str], dict[str, str]]]]
"""Argv and environment of each rank."""


def _peer(method: str, *, keeping: bool = True) -> Start:
    def start(run: Run, folder: Path) -> list[tuple[list[str], dict[str, str]]]:
        python = sys.executable if method in ("bare", "saving") else str(VENV / "bin" / "python")
        argv = [python, str(HERE / "peers.py"), method]
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        own = {**(KEEPING if keeping else {}), **master, "BENCH_METHOD": method}
        return [(argv, own) for _ in range(run.world)]

    return start


def _ours(**config: Any) -> Start:
    def start(run: Run, folder: Path) -> list[tuple[list[str], dict[str, str]]]:
        trial = experiment(
            folder / "EXP",
            code=HERE,
            ranks=run.world,
            hparams={"global_batch_size": run.step.batch * run.world},
            until=1_000_000,
            min_checkpoint_period={"batches": run.steps},
            **config,
        )
        argv = [sys.executable, "-m", "hpcdet.attempt", str(folder / "EXP"), str(trial.number), "1"]
        return [(argv, KEEPING) for _ in range(run.world)]

    return start


BARE, AGAIN = "hand-written", "hand-written again"
OURS = ("PyTorchTrial", "Core API")
PEERS = ("Lightning Fabric", "Determined")
METHODS: dict[str, Start] = {
    BARE: _peer("bare"),
    AGAIN: _peer("bare"),
    "PyTorchTrial": _ours(entrypoint="model_def:Trial"),
    "Core API": _ours(entrypoint="python3 core_loop.py"),
    "Lightning Fabric": _peer("fabric"),
    "Determined": _peer("determined"),
}
BESIDES: dict[str, Start] = {
    "hand-written, torch.save": _peer("saving"),
    "hand-written, malloc as it is": _peer("bare", keeping=False),
}
"""Once, with long steps and one rank."""


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def _started(names: Sequence[str], run: Run, root: Path) -> Iterator[list[Loop]]:
    """All methods' processes, ready for their first step."""
    loops: list[Loop] = []
    size = {"width": run.step.width, "batch": run.step.batch, "block": run.step.block}
    try:
        for name in names:
            loop = Loop(name)
            loops.append(loop)
            folder = root / name
            folder.mkdir()
            for rank, (argv, own) in enumerate((METHODS | BESIDES)[name](run, folder)):
                environment = {
                    **{k: v for k, v in os.environ.items() if not k.startswith(NOT_OURS)},
                    "PYTHONPATH": os.pathsep.join((str(TOP), str(HERE))),
                    "OMP_NUM_THREADS": "1",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(run.world),
                    "LOCAL_WORLD_SIZE": str(run.world),
                    "NODE_RANK": "0",
                    "BENCH_SIZE": json.dumps({**size, "checkpoint": run.steps}),
                    **own,
                }
                _start(loop, argv, environment, folder)
        for loop in loops:
            try:
                loop.hear()
            except SystemExit:
                folder = root / loop.name
                for file in sorted([*folder.glob("output-*"), *folder.rglob("rank-*.log")]):
                    print(file.name, file.read_text(errors="replace")[-3000:], file=sys.stderr)
                raise
        yield loops
    finally:
        for loop in loops:
            loop.end()


def _start(loop: Loop, argv: list[str], environment: dict[str, str], folder: Path) -> None:
    """One more rank of a method."""
    to_rank, from_rank = os.pipe(), os.pipe()
    own = (to_rank[0], from_rank[1])
    with (folder / f"output-{len(loop.ranks)}").open("wb") as output:
        loop.ranks.append(
            subprocess.Popen(
                argv,
                env={**environment, "BENCH_PIPES": f"{own[0]},{own[1]}"},
                cwd=folder,
                stdout=output,
                stderr=output,
                pass_fds=own,
            )
        )
    os.close(own[0])
    os.close(own[1])
    loop.pipes.append((to_rank[1], from_rank[0]))


Blocks = dict[str, list[list[float]]]
"""Mean steps of each method's blocks that count, by group, in seconds."""


def _measure(names: Sequence[str], run: Run) -> Blocks:
    shuffled = random.Random(1)
    blocks: Blocks = {name: [] for name in names}
    for _ in range(run.groups):
        order = list(names)
        shuffled.shuffle(order)
        with tempfile.TemporaryDirectory(prefix="overhead-") as root:  # noqa: SIM117
            with _started(order, run, Path(root)) as loops:
                for name in names:
                    blocks[name].append([])
                for number in range(WARM + run.rounds):
                    shuffled.shuffle(loops)
                    for loop in loops:
                        step = loop.turn()
                        if number >= WARM:
                            blocks[loop.name][-1].append(step)
    return blocks


# -- rows --------------------------------------------------------------------------------------


def compared(ours: Sequence[float], peer: Sequence[float]) -> float:
    """One group's ratio of two methods; in its last block is the checkpoint."""
    quiet = processes.within(ours[:-1], peer[:-1])
    return float((quiet * (CYCLE - 1) + ours[-1] / peer[-1]) / CYCLE)


def _rows(blocks: Blocks, run: Run) -> list[results.Row]:
    """All against the hand-written loop, and hpcdet against each of the others that do as much."""
    rows = [_row(name, BARE, blocks, run) for name in blocks if name != BARE]
    return rows + [
        _row(name, peer, blocks, run) for peer in PEERS if peer in blocks for name in OURS
    ]


def _row(name: str, peer: str, blocks: Blocks, run: Run) -> results.Row:
    ours, others = blocks[name], blocks[peer]
    found = processes.ratio([compared(*pair) for pair in zip(ours, others, strict=True)])
    goal, said = None, found.rank()
    if name in OURS and peer in PEERS:
        goal = 1.0
    elif name in OURS and run.step.goal is not None:
        goal, said = run.step.goal, found.against(run.step.goal)
    row: results.Row = {
        "what": f"{name}, {run.step.name}, {run.world} rank{'s' if run.world > 1 else ''}",
        "unit": "s",
        "ratio": round(found.value, 4),
        "peer_name": peer,
        "low": round(found.low, 4),
        "high": round(found.high, 4),
        "goal": goal,
        "met": None if goal is None else said in ("met", "ahead"),
        "said": said,
        "runs": run.groups,
        "rounds": run.rounds,
    }
    for whose, times in (("ours", ours), ("peer", others)):
        every = [step for group in times for step in group]
        row |= {whose: statistics.median(every), f"{whose}_least": min(every)}
    return row


def _print(rows: Sequence[results.Row]) -> None:
    width = max(len(row["what"]) for row in rows) + 2
    print(f"{'what':<{width}}{'step':>9}{'than':>9}{'ratio':>8}{'95 %':>14}")
    for row in rows:
        interval = f"{row['low']:.3f}-{row['high']:.3f}"
        goal = "" if row["goal"] in (None, 1.0) else f"{row['goal']}: "
        print(
            f"{row['what']:<{width}}{1e3 * row['ours']:>6.2f} ms{1e3 * row['peer']:>6.2f} ms"
            f"{row['ratio']:>8.3f}{interval:>14}  {row['peer_name']:<18}{goal}{row['said']}",
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
    for method, module in zip(PEERS, ("lightning_fabric", "determined"), strict=True):
        argv = [python, "-c", f"import {module}"]
        if subprocess.run(argv, capture_output=True, check=False).returncode:
            print(f"{method} cannot be installed here and is left out", file=sys.stderr)
            found.remove(method)
    return found


def main() -> int:
    """Measure, print, write; exit 0 also where a goal was missed (the table says so)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few groups of few rounds")
    parser.add_argument("--groups", type=int, default=12, help="times that processes begin")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of blocks, of all groups")
    parser.add_argument("--world", type=int, action="append", help="only so many ranks")
    parser.add_argument("--step", action="append", help="only steps of '20 ms' or '1 ms'")
    parser.add_argument("--add", action="store_true", help="keep the rows of other calls")
    given = parser.parse_args()
    groups = processes.LEAST if given.quick else given.groups
    rounds = 3 if given.quick else max(3, given.rounds // groups)
    if groups < processes.LEAST:
        parser.error(f"--groups: at least {processes.LEAST}")
    names = _prepare()
    rows = results.written("overhead") if given.add else []
    for step in (LONG, SHORT):
        for world in given.world or (1, 2):
            if given.step and step.name not in given.step:
                continue
            run = Run(step, world, groups, rounds)
            besides = BESIDES if step is LONG and world == 1 else ()
            made = _rows(_measure([*names, *besides], run), run)
            _print(made)
            new = {(row["what"], row["peer_name"]) for row in made}
            rows = [row for row in rows if (row["what"], row["peer_name"]) not in new] + made
            results.write("overhead", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
