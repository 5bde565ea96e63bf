"""``make bench-gpu``: hpcdet on accelerators: processes, steps, exact resume, saving.

The parts, in the order of what the others stand on:

- ``fork``: a fork of a process that has asked NVML for devices computes on one.
- ``lanes``: what trials side by side see of the devices, parts of devices (MIG) included.
- ``resume``: a run with deterministic kernels that is stopped, or killed, in its midst and goes
  on, against one that was never stopped: the digests of their last checkpoints. On one device,
  on all that the machine has (NCCL), and on one that two ranks share (gloo); in float32 and in
  mixed precision. The model draws from the device's random numbers.
- ``warm``: trials whose ranks are forked, against ranks that start anew: time and digests.
- ``step``: a step of the trainer against one of a hand-written loop, and with deterministic
  kernels against without.
- ``save``: how long a checkpoint holds training up, against a copy of as many bytes into
  page-locked memory; steps with checkpoints beside them, against steps without.

Exit code 3 where there is no device of the kind that is asked for; 1 where a part fails or
digests differ. What is measured is written after each row. ``--device cpu`` runs the same code
without a device: it shows that it runs, and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

TOP = Path(__file__).resolve().parent.parent
HERE = TOP / "benchmarks" / "gpu"
sys.path[:0] = [str(TOP), str(TOP / "benchmarks"), str(HERE)]

import gpu_model  # noqa: E402
import gpu_processes  # noqa: E402
import results  # noqa: E402

from hpcdet.store.fs import journal  # noqa: E402
from tests import ranks  # noqa: E402

NO_DEVICE = 3
STEP_GOAL, STALL_GOAL = 1.02, 1.1
PATIENCE_S = 600.0
_SERVER = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Size:
    """How much is trained.

    Attributes:
        settle: steps before the clock starts; ``steps``: at which it stops.
        many: the same where checkpoints are made beside them, one in ``every_s``.
        pace_s: seconds of each step in which nothing is computed, where a checkpoint has to be
            written before the next is due.
        batch: samples of one rank.
        rounds: runs of each kind, in turn.
        trials: of a worker.
    """

    width: int = 4096
    layers: int = 4
    settle: int = 20
    steps: int = 120
    many: int = 2500
    every_s: float = 1.0
    pace_s: float = 0.1
    batch: int = 256
    rounds: int = 5
    trials: int = 4

    def hparams(self, world: int, amp: bool, steps: int | None = None) -> dict[str, Any]:
        return {
            "width": self.width,
            "layers": self.layers,
            "settle": self.settle,
            "steps": steps or self.steps,
            "global_batch_size": self.batch * world,
            "amp": amp,
        }


SMALL = Size(32, 1, 2, 6, many=40, every_s=0.01, pace_s=0.01, batch=16, rounds=1, trials=2)


class Bench:
    """One run of all of it, in a folder.

    Args:
        device: ``cuda`` or ``cpu``.
        there: devices of this machine.
    """

    def __init__(self, folder: Path, device: str, size: Size, there: int = 1) -> None:
        self._folder = folder
        self._device = device
        self._size = size
        self._there = there
        self._runs = 0

    def rows(self, part: str) -> Iterator[Callable[[], results.Row | list[results.Row]]]:
        """What makes the rows of a part, to be called one after the other."""
        cuda, alone = self._device == "cuda", self._there == 1
        precisions = (False, True) if cuda else (False,)
        kinds = [(world, amp) for world in sorted({1, self._there}) for amp in precisions]
        if part == "fork":
            yield lambda: gpu_processes.forks(self._device)
        elif part == "lanes":
            yield lambda: gpu_processes.devices(self._there if cuda else 0)
        elif part == "warm":
            place = self._folder / "workers"
            yield lambda: [*gpu_processes.workers(self._size.trials, place)]
        elif part == "resume":
            yield from (
                lambda kind=kind, by=by: self.resumed(*kind, by=by)
                for kind in kinds
                for by in ("SIGTERM", "SIGKILL")
            )
            if alone:
                yield lambda: self.resumed(2, False, distributed={"backend": "gloo"})
        elif part == "step":
            yield from (lambda kind=kind: self.step(*kind) for kind in kinds)
            yield from (lambda kind=kind: self.deterministic(*kind) for kind in kinds)
        else:
            yield self.stall
            yield self.beside

    # -- a step --------------------------------------------------------------------------------

    def step(self, world: int, amp: bool) -> results.Row:
        """A step of the trainer against one by hand."""
        ours, peer = self._in_turn(
            lambda: self._trained(world, amp), lambda: self._by_hand(world, amp)
        )
        return _row(f"step, {self._kind(world, amp)}", ours, peer, "by hand", STEP_GOAL)

    def deterministic(self, world: int, amp: bool) -> results.Row:
        """A step with deterministic kernels against one with any."""
        exact: dict[str, Any] = {"reproducibility": {"deterministic": True}}
        ours, peer = self._in_turn(
            lambda: self._trained(world, amp, **exact), lambda: self._trained(world, amp)
        )
        what = f"deterministic step, {self._kind(world, amp)}"
        return _row(what, ours, peer, "a step with any kernels", None)

    def _in_turn(
        self, one: Callable[[], float], other: Callable[[], float]
    ) -> tuple[list[float], list[float]]:
        ours: list[float] = []
        peer: list[float] = []
        for number in range(self._size.rounds):
            kinds = [(one, ours), (other, peer)]
            for measure, found in kinds if number % 2 else reversed(kinds):
                found.append(measure())
        return ours, peer

    def _kind(self, world: int, amp: bool) -> str:
        over = "" if world == 1 else ", nccl" if self._device == "cuda" else ", gloo"
        return f"{'mixed precision' if amp else 'float32'}, {world} {self._device}{over}"

    def _trained(self, world: int, amp: bool, steps: int | None = None, **config: Any) -> float:
        trial = self._experiment(world, amp, steps, **config)
        says = self._folder / f"says-{self._runs}"
        attempt = ranks.run(trial, world, BENCH_SAYS=str(says))
        return _said(says, attempt.log())

    def _by_hand(self, world: int, amp: bool) -> float:
        self._runs += 1
        says = self._folder / f"says-{self._runs}"
        given = {**self._size.hparams(world, amp), "device": self._device}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"BENCH_SAYS": str(says), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        running = [
            _SERVER.Process(
                target=gpu_model.by_hand, args=(given, rank, world, {**common, "RANK": str(rank)})
            )
            for rank in range(world)
        ]
        try:
            for one in running:
                one.start()
            for one in running:
                one.join(PATIENCE_S)
        finally:
            for one in running:
                with contextlib.suppress(AssertionError):  # it was never started
                    one.kill()
                    one.join()
        return _said(says, "the hand-written loop ended early")

    def _experiment(self, world: int, amp: bool, steps: int | None = None, **config: Any) -> Any:
        # what was measured is gone: a state of gigabytes in each would fill the disk
        for last in self._folder.glob("run-*"):
            shutil.rmtree(last)
        self._runs += 1
        return ranks.experiment(
            self._folder / f"run-{self._runs}",
            code=HERE,
            ranks=world,
            hparams=self._size.hparams(world, amp, steps),
            until=(steps or self._size.steps) + 1,
            entrypoint="gpu_model:Trial",
            **config,
        )

    # -- going on ------------------------------------------------------------------------------

    def resumed(self, world: int, amp: bool, *, by: str = "SIGTERM", **config: Any) -> results.Row:
        """The digest of a run that was ended by a signal, against that of one that was not."""
        every = max(2, self._size.steps // 6)
        exact = {
            "reproducibility": {"deterministic": True},
            "min_checkpoint_period": {"batches": every},
            **config,
        }
        half = str(self._size.steps // 2)
        straight = ranks.run(self._experiment(world, amp, **exact), world)
        digests = [verdict.digest if (verdict := straight.verdict()) else ""]
        trial = self._experiment(world, amp, **exact)
        # with this, ranks agree on leaving after each step, not a few times in a second
        leave = {"LEAVE": half, "BENCH_STOP_AT": half, "BENCH_STOP_BY": by}
        ranks.run(trial, world, **leave)
        again = ranks.finish(trial, world)
        digests += [verdict.digest if (verdict := again.verdict()) else ""]
        attempts = len(trial.attempts())
        kind = f"float32, {world} ranks on one, gloo" if config else self._kind(world, amp)
        return {
            "what": f"resumed after {by}, {kind}",
            "unit": "digest",
            "ours": digests[1][:16],
            "peer": digests[0][:16],
            "peer_name": "never stopped",
            "ratio": None,
            "goal": "the same",
            "met": bool(digests[0]) and digests[0] == digests[1] and attempts > 1,
            "runs": attempts,
        }

    # -- saving --------------------------------------------------------------------------------

    def stall(self) -> results.Row:
        """What a checkpoint holds training up for, against a copy of its bytes."""
        every = max(2, self._size.steps // 6)
        trial = self._experiment(1, False, min_checkpoint_period={"batches": every})
        attempt = ranks.run(trial, 1, BENCH_PACE_S=str(self._size.pace_s))
        lines = journal.read(attempt.paths.journal)
        # the first and the last one are waited for
        saved = [one for one in lines if one["kind"] == "checkpoint" and "period" in one["kept"]]
        if not saved:
            raise RuntimeError(f"no checkpoint was made:\n{attempt.log()}")
        copied = [self._copy(saved[0]["bytes"]) for _ in range(max(3, len(saved)))]
        what = f"stall of a checkpoint of {saved[0]['bytes'] / 1e6:.0f} MB on {self._device}"
        blocked = [one["blocked_s"] for one in saved]
        row = _row(what, blocked, copied, "a copy into page-locked memory", STALL_GOAL)
        return {**row, "save_s": statistics.median(one["save_s"] for one in saved)}

    def beside(self) -> results.Row:
        """Steps with checkpoints beside them, as many as time allows, against steps without."""
        size = self._size
        ours, peer = self._in_turn(
            lambda: self._trained(1, False, size.many, checkpoint_every_s=size.every_s),
            lambda: self._trained(1, False, size.many, checkpoint_every_s=1e6),
        )
        what = f"step with saves beside it, float32, 1 {self._device}"
        return _row(what, ours, peer, "a step without", None)

    def _copy(self, size: int) -> float:
        source = torch.ones(size, dtype=torch.uint8, device=self._device)
        target = torch.ones(size, dtype=torch.uint8, pin_memory=self._device == "cuda")
        self._settle()
        begin = time.perf_counter()
        target.copy_(source)
        self._settle()
        return time.perf_counter() - begin

    def _settle(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def _said(path: Path, otherwise: str) -> float:
    if not path.exists():
        raise RuntimeError(otherwise)
    return float(json.loads(path.read_text()))


def _row(
    what: str, ours: Sequence[float], peer: Sequence[float], peer_name: str, goal: float | None
) -> results.Row:
    median, other = statistics.median(ours), statistics.median(peer)
    ratio = median / other if other else None
    return {
        "what": what,
        "unit": "s",
        "ours": median,
        "peer": other,
        "peer_name": peer_name,
        "ratio": None if ratio is None else round(ratio, 4),
        "goal": goal,
        "met": goal is None or (ratio is not None and ratio <= goal),
        "runs": len(ours),
        "least": min(ours),
        "peer_least": min(peer),
    }


def _failed(part: str, why: str) -> results.Row:
    keys = ("unit", "ours", "peer", "peer_name", "ratio")
    empty = dict.fromkeys(keys, "")
    return {
        "what": f"{part}: failed",
        **empty,
        "goal": "works",
        "met": False,
        "runs": 0,
        "why": why,
    }


def _print(row: results.Row) -> None:
    figures = "".join(
        f"{1e3 * row[who]:>15.3f} ms" if row["unit"] == "s" else f"{row[who]!s:>18}"
        for who in ("ours", "peer")
    )
    ratio = f"{row['ratio']:.3f}" if row["ratio"] else ""
    goal = "" if row["goal"] is None else f"{row['goal']}: {'met' if row['met'] else 'missed'}"
    print(f"{row['what']:<58}{figures}{ratio:>8}  {goal:<18}{row['peer_name']}", flush=True)
    if why := row.get("why"):
        print(why, file=sys.stderr, flush=True)


def _device(there: int) -> str:
    names = sorted({torch.cuda.get_device_name(number) for number in range(there)})
    return f"{there} {', '.join(names)}, torch {torch.__version__}"


PARTS = ("fork", "lanes", "resume", "warm", "step", "save")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write ``results/gpu.json``; of a CPU, whose figures say nothing, apart."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a tiny model, a few steps")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one")
    given = parser.parse_args(argv)
    cuda = given.device == "cuda"
    if cuda and not torch.cuda.is_available():
        print("bench-gpu: no GPU on this machine; nothing was measured", file=sys.stderr)
        return NO_DEVICE
    size = SMALL if given.quick else Size()
    size = replace(size, rounds=given.rounds or size.rounds)
    there = torch.cuda.device_count() if cuda else 1
    if cuda and there == 1:
        print("bench-gpu: one GPU: nothing here goes over NCCL", file=sys.stderr)
    device = _device(there) if cuda else "cpu"
    name = "gpu" if cuda else "gpu-on-cpu"
    parts = given.part or PARTS
    kept = [row for row in results.written(name) if row["part"] not in parts]
    rows: list[results.Row] = []
    with tempfile.TemporaryDirectory(prefix="hpcdet-bench-") as folder:
        bench = Bench(Path(folder), given.device, size, there)
        for part in parts:
            for measure in bench.rows(part):
                try:
                    found = measure()
                except Exception:  # the others are worth as much
                    found = _failed(part, traceback.format_exc())
                for row in found if isinstance(found, list) else [found]:
                    rows.append({"part": part, **row, "devices": device})
                    _print(row)
                results.write(name, [*kept, *rows])  # who has little time has what there is
    return int(any(isinstance(row["goal"], str) and not row["met"] for row in rows))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
