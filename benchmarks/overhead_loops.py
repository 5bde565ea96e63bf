"""The loops of ``bench_overhead``: their processes, which live side by side and train in turn."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ranks import experiment

TOP = Path(__file__).resolve().parent.parent
HERE = TOP / "benchmarks" / "overhead"
VENV = Path.home() / ".cache" / "hpcdet-bench" / "peers"
PATIENCE_S = 300.0
NOT_OURS = ("HPCDET_", "MALLOC_", "GLIBC_TUNABLES")
"""Of the environment: what no loop is to have."""


@dataclass(frozen=True)
class Step:
    """How long a step is, and how many make a block.

    Attributes:
        turn: steps of a turn inside of one process.
    """

    name: str
    width: int
    batch: int
    block: int
    turn: int
    goal: float | None


WARM = 1
"""Blocks of a group that do not count."""
WARM_PAIRED = 20
"""Rounds inside of one process that do not."""
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""What ``hpcdet.train.attempt.startup.keep_memory`` asks for."""


@dataclass(frozen=True)
class Run:
    """One group after the other; ``rounds`` of each count."""

    step: Step
    world: int
    groups: int
    rounds: int

    @property
    def period(self) -> int:
        """Steps between checkpoints: of a method in a group, up to its last block's end."""
        return (WARM + self.rounds) * self.step.block


@dataclass(frozen=True)
class PairedRun(Run):
    """The same in turn inside of one process: rounds of few steps, and one of a whole block."""

    @property
    def period(self) -> int:
        return (WARM_PAIRED + self.rounds) * self.step.turn + self.step.block // 2


@dataclass
class Loop:
    """One method's ranks, as long as they live."""

    name: str
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    pipes: list[tuple[int, int]] = field(default_factory=list)

    def turn(self) -> Any:
        """Let it train one block, or one of each loop in it; what rank 0 says of its steps."""
        for writer, _ in self.pipes:
            os.write(writer, b"g")
        return self.hear()

    def hear(self) -> Any:
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


def _line(reader: int, loop: Loop) -> Any:
    raw = b""
    deadline = time.monotonic() + PATIENCE_S
    while not raw.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], 1.0)
        piece = os.read(reader, 1 << 16) if ready else b""
        raw += piece
        if (ready and not piece) or time.monotonic() > deadline:
            raise SystemExit(f"{loop.name} ended or hangs")
    return json.loads(raw)


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
            min_checkpoint_period={"batches": run.period},
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
def _started(names: Sequence[str], run: Run, root: Path, **more: Any) -> Iterator[list[Loop]]:
    """All methods' processes, ready for their first step; they are told ``more``."""
    loops: list[Loop] = []
    size = {"width": run.step.width, "batch": run.step.batch, "block": run.step.block}
    size |= {"checkpoint": run.period, **more}
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
                    "BENCH_SIZE": json.dumps(size),
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


CLOCKS = ("", ", processor")
"""What is measured inside of one process: the time of day, and that of the processor."""
Blocks = dict[str, list[list[float]]]
"""Mean steps of each method's blocks that count, by group, in seconds."""


def measure(names: Sequence[str], run: Run) -> Blocks:
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
                        step = statistics.fmean(loop.turn())
                        if number >= WARM:
                            blocks[loop.name][-1].append(step)
    return blocks


def measure_paired(name: str, beside: Sequence[str], run: PairedRun) -> list[Blocks]:
    """Let loops train in turn inside of the processes of ``name``.

    Returns:
        Blocks by the clock, and by the time of the processor.
    """
    seen: list[Blocks] = [{one: [] for one in (BARE, name, *beside)} for _ in CLOCKS]
    packages = next((VENV / "lib").glob("python*/site-packages"), "")
    rounds = [run.step.turn] * (WARM_PAIRED + run.rounds) + [run.step.block]
    for group in range(run.groups):
        told = {"ours": name, "beside": [BARE, *beside], "rounds": rounds, "seed": group}
        with tempfile.TemporaryDirectory(prefix="overhead-") as root:  # noqa: SIM117
            with _started([name], run, Path(root), packages=str(packages), **told) as [loop]:
                found = loop.turn()
        for one, steps in found.items():
            for blocks, times in zip(seen, zip(*steps, strict=True), strict=True):
                blocks[one].append(list(times[WARM_PAIRED:]))
    return seen
