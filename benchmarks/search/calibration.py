"""Part e: the simulator against real searches on the private Slurm.

Two searches with ranks that only sleep. What an attempt's start, a decision and a job's wait take
is measured in the first, adaptive and with four workers; with these figures the course of the
second, another method with another number of trials, other lengths and three workers, is foretold
and compared with what it was.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hpcdet.search.searcher_factory import searcher
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.turns import Reports
from hpcdet.sim.waits import QueueWait
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.records import Claim, End, Submitted, WorkerClaim
from hpcdet.store.fs import journal
from tests import experiments, fake_rank
from tests.cluster import slurm
from tests.cluster.configuration import Options
from tests.slurm_runs import Lab, Run

PACE_S = 0.1


@dataclass(frozen=True)
class Search:
    """A search of so many steps at most, on so many workers."""

    full: int
    workers: int
    asked: dict[str, Any]


MEASURED = Search(64, 4, {"name": "adaptive_asha", "divisor": 4, "max_rungs": 4, "max_trials": 27})
FORETOLD = Search(81, 3, {"name": "async_halving", "divisor": 3, "num_rungs": 4, "max_trials": 20})


@dataclass(frozen=True)
class Figures:
    """Medians in seconds, and what the search was: times since its submission."""

    start_s: float
    unit_s: float
    decide_s: float
    wait_s: float
    end_s: float
    trained: int
    at: Counter[int]


class Sleep:
    """The workload of the fake ranks."""

    def __init__(self, unit_s: float, full: int) -> None:
        self.unit_s, self.full = unit_s, full

    def begin(self, trial: int, params: Mapping[str, Any]) -> None:
        pass

    def seconds(self, trial: int, begin: int, until: int) -> float:
        return (until - begin) * self.unit_s

    def metric(self, trial: int, length: int) -> float:
        return fake_rank.loss(trial, length, "scrambled")

    def final(self, trial: int) -> float:
        return self.metric(trial, self.full)


def values(search: Search) -> dict[str, Any]:
    return experiments.config(
        search.full,
        trials=search.asked["max_trials"],
        searcher={**search.asked, "max_concurrent_trials": search.workers},
        resources={"walltime_s": 3600},
        data={"losses": "scrambled", "every": 4},
    )


def real(lab: Lab, search: Search) -> Figures:
    run = lab.submit(values(search), pace=PACE_S, site={"python": lab.fake})
    run.crank()
    run.wait(timeout=400)
    return figures(run)


def figures(run: Run) -> Figures:
    paths = run.paths
    first = Submitted.read(paths.submitted(paths.submissions()[0]))
    assert first is not None
    begun = _seconds(first.at)
    claims = [WorkerClaim.read(worker.claim) for worker in paths.workers()]
    free = {
        worker.name: _seconds(claim.at)
        for worker, claim in zip(paths.workers(), claims, strict=True)
        if claim is not None
    }
    waits = [at - begun for at in free.values()]
    attempts = sorted(
        (
            (_seconds(claim.at), claim.worker, attempt)
            for trial in paths.trials()
            for attempt in trial.attempts()
            if (claim := Claim.read(attempt.claim)) is not None
        ),
        key=lambda found: found[0],
    )
    starts, units, decisions, trained, end = [], [], [], 0, begun
    at: Counter[int] = Counter()
    for _, worker, attempt in attempts:
        lines = journal.read(attempt.journal)
        ended = End.read(attempt.end)
        assert ended is not None
        times = {line["kind"]: _seconds(line["t"]) for line in lines}
        reports = [(line["step"], _seconds(line["t"])) for line in lines if "metrics" in line]
        from_step = next(line["batches"] for line in lines if line["kind"] == "start")
        if "first_step" in times:
            starts.append(times["first_step"] - PACE_S - free[worker])
        steps = [line["step"] for line in lines if line["kind"] == "checkpoint"]
        trained += max(steps, default=from_step) - from_step
        for step, when in reports:
            at[step] += 1
            if step - from_step > 1:
                units.append((when - times["first_step"]) / (step - from_step - 1))
        if ended.reason == "paused" and reports:
            decisions.append(times["end"] - reports[-1][1])
        free[worker] = times["end"]
        end = max(end, _seconds(ended.at))
    return Figures(
        statistics.median(starts),
        statistics.median(units),
        statistics.median(decisions or [0.0]),
        statistics.median(waits),
        end - begun,
        trained,
        at,
    )


def foretold(known: Figures, search: Search) -> tuple[float, int, Counter[int]]:
    resolved = resolved_config.resolve(values(search))
    cluster = Cluster(
        search.workers,
        queue_wait=QueueWait(typical_s=known.wait_s),
        start_s=known.start_s,
        directive_s=known.decide_s,
        checkpoint_every_s=4 * known.unit_s,
    )
    lengths = [rung.value for rung in resolved.searcher.rungs]
    simulation = Simulation(
        searcher(resolved), cluster, Sleep(known.unit_s, search.full), Reports(lengths)
    )
    course = simulation.run()
    return course.end_s, round(course.trained_s / known.unit_s), course.at


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def measure(quick: bool) -> list[dict[str, Any]]:
    """Rows; none where no private Slurm can run."""
    reason = slurm.why_not(accounting=False)
    if reason:
        return [{"kind": "calibration", "skipped": reason}]
    cluster = slurm.SlurmCluster(f"sim-{os.getpid()}", Options(accounting=False))
    cluster.up(owner=os.getpid())
    patch = pytest.MonkeyPatch()
    try:
        with tempfile.TemporaryDirectory(prefix="hpcdet-") as folder:
            lab = Lab(cluster, Path(folder), patch)
            try:
                first = real(lab, MEASURED)
                second = first if quick else real(lab, FORETOLD)
            finally:
                lab.end()
    finally:
        patch.undo()
        cluster.down()
    end_s, trained, at = foretold(first, MEASURED if quick else FORETOLD)
    return [
        {
            "kind": "calibration",
            "start_s": first.start_s,
            "unit_s": first.unit_s,
            "decide_s": first.decide_s,
            "wait_s": first.wait_s,
            "end_s": {"foretold": end_s, "real": second.end_s},
            "trained": {"foretold": trained, "real": second.trained},
            "at": {"foretold": dict(at), "real": dict(second.at)},
        }
    ]
