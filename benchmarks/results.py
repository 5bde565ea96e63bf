"""What every benchmark does with its rows: print a table, write ``results/NAME.json``."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent

Row = dict[str, Any]


def row(
    what: str, ours: Sequence[float], peer_name: str, peer: Sequence[float], goal_s: float
) -> Row:
    """One row of seconds: medians of runs taken in turn."""
    median, other = statistics.median(ours), statistics.median(peer)
    return {
        "what": what,
        "unit": "s",
        "ours": round(median, 4),
        "peer": round(other, 4),
        "peer_name": peer_name,
        "ratio": round(median / other, 3),
        "goal": goal_s,
        "met": median <= goal_s,
        "runs": len(ours),
    }


def alone(
    what: str, unit: str, ours: Sequence[float], goal: float | None, runs: int | None = None
) -> Row:
    """One row without a peer: the median and the least of some runs."""
    median = statistics.median(ours)
    return {
        "what": what,
        "unit": unit,
        "ours": round(median, 4),
        "min": round(min(ours), 4),
        "peer": None,
        "peer_name": "",
        "ratio": None,
        "goal": goal,
        "met": goal is None or median <= goal,
        "runs": runs or len(ours),
    }


def publish(name: str, rows: Sequence[Row]) -> None:
    """Print the rows and write them, with machine and commit, to ``results/NAME.json``."""
    width = max(len(row["what"]) for row in rows) + 2
    print(f"{'what':<{width}}{'ours':>9}{'peer':>9}{'ratio':>7}{'goal':>8}  met  peer")
    for row in rows:
        print(
            f"{row['what']:<{width}}{row['ours']:>7.3f} s{row['peer']:>7.3f} s{row['ratio']:>7.2f}"
            f"{row['goal']:>6.2f} s  {'yes' if row['met'] else 'no':<5}{row['peer_name']}"
        )
    write(name, rows)


def write(name: str, rows: Sequence[Row]) -> None:
    """Write the rows, with machine and commit, to ``results/NAME.json``."""
    folder = TOP / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    result = {"machine": _machine(), "commit": _commit(), "rows": list(rows)}
    (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def written(name: str) -> list[Row]:
    """The rows that an earlier call wrote; none if there was none."""
    path = TOP / "benchmarks" / "results" / f"{name}.json"
    rows: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _commit() -> str:
    argv = ["git", "-C", str(TOP), "rev-parse", "HEAD"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # a machine that was lent may have no Git
        return ""
