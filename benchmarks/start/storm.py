"""Ranks that start where each call with a path takes as long as a busy metadata server needs.

The ranks of a node, and the nursery that they are forked from, have ``slow_metadata.c`` preloaded,
which notes each path. A trial notes its own first step: it looks for a file that is not there.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.start import opened_files, worker_trials
from benchmarks.start.models import SAY, TRIAL

Row = dict[str, Any]

DELAY_MS = 5.0
LATER_MOST = 50
FIRST_SHARE = 0.25
_MARK = "/first-step-of-"
_LOOK = f'    os.path.exists("{_MARK}" + os.environ["HPCDET_TRIAL"])\n'
_USERS = re.compile(r"/fd/\d+/code(/|$)")


@dataclass(frozen=True)
class Storm:
    """What the processes of a node asked for until first steps, the user's own files aside.

    Attributes:
        others: calls of the processes that are no ranks: a nursery, and what it started.
        ranks: calls of each rank, by trial.
        walls: seconds from each claim, or of the first trial from the worker's start.
    """

    others: int
    ranks: list[list[int]]
    walls: list[float]


def storm(warm: str, ranks: int, trials: int, folder: Path, delay_ms: float) -> Storm:
    """Run trials of so many ranks on one worker, one after the other."""
    folder.mkdir()
    variables = {
        **opened_files.variables(folder),
        "STORM_MS": str(delay_ms),
        "START_SAYS": str(folder / "says"),
    }
    model = TRIAL.replace(SAY, f"{SAY}{_LOOK}")
    with worker_trials.ended(model, warm, trials, folder, variables, ranks) as paths:
        walls = worker_trials.walls(paths)
    others, found = 0, {number: [] for number in range(1, trials + 1)}
    for process in (folder / "log").iterdir():
        calls = process.read_text().splitlines()
        step = next((at for at, call in enumerate(calls) if _MARK in call), None)
        if step is None:
            others += len(calls)
        else:
            own = [call for call in calls[:step] if not _USERS.search(call)]
            found[int(calls[step].rpartition("-")[2])].append(len(own))
    return Storm(others, [sorted(each) for _, each in sorted(found.items())], walls)


def rows(ranks: int, trials: int, delay_ms: float, folder: Path) -> Iterator[Row]:
    """Yield the rows of a node with so many ranks, warm beside cold."""
    warm = storm("auto", ranks, trials, folder / "warm", delay_ms)
    cold = storm("off", ranks, 1, folder / "cold", delay_ms)
    peer = f"{ranks} ranks that start anew"
    first, anew = (one.others + sum(one.ranks[0]) for one in (warm, cold))
    yield _row("calls of a node, first trial", "1", first, anew, peer, FIRST_SHARE, first / anew)
    later, old = [*itertools.chain(*warm.ranks[1:])], statistics.fmean(cold.ranks[0])
    for what, count in (("mean", statistics.fmean(later)), ("median", statistics.median(later))):
        yield _row(f"calls of a later rank, {what}", "1", count, old, peer, LATER_MOST, count)
    chief = statistics.median(max(each) for each in warm.ranks[1:])
    yield _row("calls of a later trial's rank 0", "1", chief, old, peer)
    yield _row("first trial, s", "s", warm.walls[0], cold.walls[0], peer)
    yield _row("later trials, s", "s", statistics.median(warm.walls[1:]), cold.walls[0], peer)


def _row(
    what: str,
    unit: str,
    ours: float,
    peer: float,
    name: str,
    goal: float | None = None,
    told: float = 0,
) -> Row:
    return {
        "what": f"storm: {what}",
        "unit": unit,
        "ours": round(ours, 2),
        "peer": round(peer, 2),
        "peer_name": name,
        "ratio": round(ours / peer, 4),
        "goal": goal,
        "met": None if goal is None else told <= goal,
        "runs": 1,
    }
