"""``make bench-gpu``: hpcdet on accelerators: NCCL, mixed precision, exact resume, saving.

- A step of the trainer against one of a hand-written loop: on one device, and on all that the
  machine has, whose gradients go over NCCL; in float32 and in mixed precision.
- A run with deterministic kernels that is stopped in its midst and goes on, against one that was
  never stopped: the digests of their last checkpoints, in both precisions.
- How long a checkpoint of the state on a device holds training up, against a copy of as many
  bytes into page-locked memory.

Exit code 3 where there is no device of the kind that is asked for; 1 where digests differ.
``--device cpu`` runs the same code without one: it shows that it runs, and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

TOP = Path(__file__).resolve().parent.parent
HERE = TOP / "benchmarks" / "gpu"
sys.path[:0] = [str(TOP), str(TOP / "benchmarks"), str(HERE)]

import gpu_model  # noqa: E402
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
        batch: samples of one rank.
        rounds: runs of each kind, in turn.
    """

    width: int = 4096
    layers: int = 4
    settle: int = 20
    steps: int = 120
    batch: int = 256
    rounds: int = 5

    def hparams(self, world: int, amp: bool) -> dict[str, Any]:
        return {
            "width": self.width,
            "layers": self.layers,
            "settle": self.settle,
            "steps": self.steps,
            "global_batch_size": self.batch * world,
            "amp": amp,
        }


SMALL = Size(width=32, layers=1, settle=2, steps=6, batch=16, rounds=1)


class Bench:
    """One run of all of it, in a folder.

    Args:
        device: ``cuda`` or ``cpu``.
    """

    def __init__(self, folder: Path, device: str, size: Size) -> None:
        self._folder = folder
        self._device = device
        self._size = size
        self._runs = 0

    # -- a step --------------------------------------------------------------------------------

    def step(self, world: int, amp: bool) -> results.Row:
        """A step of the trainer against one by hand."""
        ours: list[float] = []
        peer: list[float] = []
        for number in range(self._size.rounds):
            kinds = [(self._trained, ours), (self._by_hand, peer)]
            for measure, found in kinds if number % 2 else reversed(kinds):
                found.append(measure(world, amp))
        over = "" if world == 1 else ", nccl" if self._device == "cuda" else ", gloo"
        kind = "mixed precision" if amp else "float32"
        what = f"step, {kind}, {world} {self._device}{over}"
        return _row(what, ours, peer, "by hand", STEP_GOAL)

    def _trained(self, world: int, amp: bool) -> float:
        trial = self._experiment(world, amp)
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

    def _experiment(self, world: int, amp: bool, **config: Any) -> Any:
        self._runs += 1
        return ranks.experiment(
            self._folder / f"run-{self._runs}",
            code=HERE,
            ranks=world,
            hparams=self._size.hparams(world, amp),
            until=self._size.steps + 1,
            entrypoint="gpu_model:Trial",
            **config,
        )

    # -- going on ------------------------------------------------------------------------------

    def resumed(self, world: int, amp: bool) -> results.Row:
        """The digest of a run that was stopped, against that of one that was not."""
        exact: dict[str, Any] = {"reproducibility": {"deterministic": True}}
        says = str(self._folder / "nobody-reads-this")
        straight = ranks.run(self._experiment(world, amp, **exact), world, BENCH_SAYS=says)
        trial = self._experiment(world, amp, **exact)
        half = str(self._size.steps // 2)
        ranks.run(trial, world, BENCH_SAYS=says, BENCH_STOP_AT=half)
        again = ranks.finish(trial, world)
        digests = [
            verdict.digest if (verdict := one.verdict()) else "" for one in (straight, again)
        ]
        attempts = len(trial.attempts())
        kind = "mixed precision" if amp else "float32"
        return {
            "what": f"resumed, {kind}, {world} {self._device}, deterministic",
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
        attempt = ranks.run(trial, 1, BENCH_SAYS=str(self._folder / "nobody-reads-this"))
        lines = journal.read(attempt.paths.journal)
        # the first and the last one are waited for
        saved = [one for one in lines if one["kind"] == "checkpoint" and "period" in one["kept"]]
        if not saved:
            raise SystemExit(f"no checkpoint was made:\n{attempt.log()}")
        copied = [self._copy(saved[0]["bytes"]) for _ in range(max(3, len(saved)))]
        what = f"stall of a checkpoint of {saved[0]['bytes'] / 1e6:.0f} MB on {self._device}"
        blocked = [one["blocked_s"] for one in saved]
        return _row(what, blocked, copied, "a copy into page-locked memory", STALL_GOAL)

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
        raise SystemExit(otherwise)
    return float(json.loads(path.read_text()))


def _row(
    what: str, ours: Sequence[float], peer: Sequence[float], peer_name: str, goal: float
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
        "met": ratio is not None and ratio <= goal,
        "runs": len(ours),
        "least": min(ours),
        "peer_least": min(peer),
    }


def _print(row: results.Row) -> None:
    told = "met" if row["met"] else "missed"
    if row["unit"] == "digest":
        figures = f"{row['ours']:>18}{row['peer']:>18}"
    else:
        figures = f"{1e3 * row['ours']:>15.3f} ms{1e3 * row['peer']:>15.3f} ms"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
    goal = f"{row['goal']}: {told}"
    print(f"{row['what']:<46}{figures}{ratio:>8}  {goal:<16}{row['peer_name']}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write ``results/gpu.json``; not for a CPU, whose figures say nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a tiny model, a few steps")
    parser.add_argument("--rounds", type=int)
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
    rows = []
    with tempfile.TemporaryDirectory(prefix="hpcdet-bench-") as folder:
        bench = Bench(Path(folder), given.device, size)
        worlds = sorted({1, there})
        precisions = (False, True) if cuda else (False,)
        for world in worlds:
            for amp in precisions:
                rows += [bench.step(world, amp), bench.resumed(world, amp)]
                _print(rows[-2])
                _print(rows[-1])
        rows.append(bench.stall())
        _print(rows[-1])
    if cuda:
        names = sorted({torch.cuda.get_device_name(n) for n in range(there)})
        results.write("gpu", [{**row, "devices": f"{there} {', '.join(names)}"} for row in rows])
    return int(any(row["unit"] == "digest" and not row["met"] for row in rows))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
