"""``make bench-cli``: how long the command line takes to answer. Prints a table, writes JSON.

Peers are measured in the same call, run by run in turn: python alone is the floor under any
command line written in it, ``pip --version`` a command line that everybody knows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

from tests.builders import sweep  # noqa: E402

RUNS = 15
EXPERIMENTS = 20

POLICY = str(TOP / "examples" / "governed" / "policy.yaml")

FLOOR = ("python -c pass", [sys.executable, "-c", "pass"])
PIP = ("pip --version", [sys.executable, "-m", "pip", "--version"])


@dataclass(frozen=True)
class Case:
    """One command of ours, what it is compared with, and the goal in seconds."""

    what: str
    argv: Sequence[str]
    peer: tuple[str, list[str]]
    goal_s: float


CASES = (
    Case("hpcdet --help", ["--help"], PIP, 0.2),
    Case("hpcdet --version", ["--version"], FLOOR, 0.2),
    Case("hpcdet status ID", ["status", "digits-0000"], PIP, 0.3),
    Case(f"hpcdet ls, {EXPERIMENTS} experiments", ["ls"], PIP, 0.4),
    Case("hpcdet policy check FILE", ["policy", "check", POLICY], PIP, 0.3),
    Case("hpcdet logs ID --tail 5", ["logs", "digits-0000", "--tail", "5"], PIP, 0.3),
)


def main() -> int:
    """Measure, print, write; exit 0 also where a goal was missed (the table says so)."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(EXPERIMENTS):
            sweep(Path(folder) / f"digits-{number:04d}")
        environment = os.environ | {"HPCDET_ROOT": folder, "PYTHONPATH": str(TOP)}
        rows = [_measure(case, environment) for case in CASES]
    results.publish("cli", rows)
    return 0


def _measure(case: Case, environment: dict[str, str]) -> results.Row:
    argv = [sys.executable, "-m", "hpcdet", *case.argv]
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(RUNS):
        ours.append(_seconds(argv, environment))
        peer.append(_seconds(case.peer[1], environment))
    return results.row(case.what, ours, case.peer[0], peer, case.goal_s)


def _seconds(argv: Sequence[str], environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(argv, env=environment, capture_output=True, check=True)
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
