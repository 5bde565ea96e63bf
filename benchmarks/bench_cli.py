"""``make bench-cli``: how long the command line takes to answer. Prints a table, writes JSON.

Peers are measured in the same call, run by run in turn: python alone is the floor under any
command line written in it, ``pip --version`` a command line that everybody knows.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from tests.builders import sweep  # noqa: E402

RUNS = 15
EXPERIMENTS = 20

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
    Case("hpcdet logs ID --tail 5", ["logs", "digits-0000", "--tail", "5"], PIP, 0.3),
)


def main() -> int:
    """Measure, print, write; exit 0 also where a goal was missed (the table says so)."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(EXPERIMENTS):
            sweep(Path(folder) / f"digits-{number:04d}")
        environment = os.environ | {"HPCDET_ROOT": folder, "PYTHONPATH": str(TOP)}
        rows = [_measure(case, environment) for case in CASES]
    print(f"{'what':<32}{'ours':>9}{'peer':>9}{'ratio':>7}{'goal':>8}  met  peer")
    for row in rows:
        print(
            f"{row['what']:<32}{row['ours']:>7.3f} s{row['peer']:>7.3f} s{row['ratio']:>7.2f}"
            f"{row['goal']:>6.2f} s  {'yes' if row['met'] else 'no':<5}{row['peer_name']}"
        )
    results = TOP / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    result = {"machine": _machine(), "commit": _commit(), "rows": rows}
    (results / "cli.json").write_text(json.dumps(result, indent=2) + "\n")
    return 0


def _measure(case: Case, environment: dict[str, str]) -> dict[str, Any]:
    argv = [sys.executable, "-m", "hpcdet", *case.argv]
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(RUNS):
        ours.append(_seconds(argv, environment))
        peer.append(_seconds(case.peer[1], environment))
    median, other = statistics.median(ours), statistics.median(peer)
    return {
        "what": case.what,
        "unit": "s",
        "ours": round(median, 4),
        "peer": round(other, 4),
        "peer_name": case.peer[0],
        "ratio": round(median / other, 3),
        "goal": case.goal_s,
        "met": median <= case.goal_s,
        "runs": RUNS,
    }


def _seconds(argv: Sequence[str], environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(argv, env=environment, capture_output=True, check=True)
    return time.perf_counter() - begin


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _commit() -> str:
    argv = ["git", "-C", str(TOP), "rev-parse", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
