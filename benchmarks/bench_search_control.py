"""``make bench-search-control``: what it costs to decide, by real journals in real folders.

A restart of a long search, with and without a snapshot; a turn of the crank over many trials
that report; and the time from a report to the control that the trial reads. The scheduler is
on paper, the clock of the turns too: what is measured is this process, and the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import control_waits  # noqa: E402
import results  # noqa: E402
from metadata_count import Metadata  # noqa: E402
from results import alone  # noqa: E402

from hpcdet.control.leader import decision_log  # noqa: E402
from hpcdet.control.leader.trial_cache import Sight  # noqa: E402
from hpcdet.control.turn.controller import advance  # noqa: E402
from hpcdet.search import searcher_factory  # noqa: E402
from hpcdet.search.api import events  # noqa: E402
from hpcdet.store.decisions import snapshots, wakeup  # noqa: E402
from hpcdet.store.folder.records import Claim  # noqa: E402
from hpcdet.store.fs import journal  # noqa: E402
from hpcdet.units import Length  # noqa: E402
from tests.builders import at  # noqa: E402
from tests.paper import World  # noqa: E402

REPORTS = 10
"""Reports of each trial of the long search; also seconds between two of a live one."""

TURN_S = 15.0
"""Seconds between two turns of a daemon on a cluster (``daemon.interval``)."""

TOP_LENGTH = 1000

JUDGED = {"directives": "random", "directives-tpe": "tpe"}
"""Parts that time directives, and the samplers of their searches."""

CHANGES = 100
"""Trials that have reported in a turn of which others are quiet."""


def search(trials: int, concurrent: int, length: int) -> dict[str, Any]:
    """A search by rungs."""
    return {
        "name": os.environ.get("BENCH_SEARCHER", "async_halving"),
        "metric": "loss",
        "max_length": {"batches": length},
        "max_trials": trials,
        "max_concurrent_trials": concurrent,
    }


def world(folder: Path, trials: int, concurrent: int, length: int = TOP_LENGTH) -> World:
    settings = search(trials, concurrent, length)
    made = World.make(
        folder,
        searcher=settings,
        hyperparameters={"rate": {"type": "log", "minval": -4, "maxval": -1}, "width": 32},
        site={"limits": {"poll_min_s": 60}, "lease_ttl_s": 180},
    )
    made.method = searcher_factory.searcher(made.resolved)
    return made


def loss(trial: int, step: int) -> float:
    """A curve of each trial, falling to a level of its own."""
    level = (trial * 2654435761 % 1000) / 1000
    return level + 10.0 / (1 + step)


# -- restart -------------------------------------------------------------------------------------


def long_search(made: World, trials: int) -> None:
    """Record all events of a search; then as many late ones as may come before a snapshot."""
    holder = made.holder()
    assert holder.begin()
    holder.tell(events.Start())
    heard = set[int]()
    while len(heard) < trials:
        new = sorted(holder.decided.trials.plans.keys() - heard)
        for number in new or ():
            for step in range(1, REPORTS + 1):
                length = step * TOP_LENGTH // REPORTS
                metrics = {"loss": loss(number, length), "accuracy": 0.5}
                report = events.Report(number, Length("batches", length), metrics, 60.0 * step)
                holder.tell(report)
            plan = holder.decided.trials.plans[number]
            if plan.searcher == "run":
                holder.tell(events.SegmentEnd(number, "target"))
        heard.update(new)
        holder.commit()
        made.clock.now += 1
        holder.lease.beat()
        holder.log.snapshot(holder.fence)
        if not new:
            break
    due = max(
        decision_log.SNAPSHOT_EVERY, len(holder.decided.trials.plans) // decision_log.SNAPSHOT_PART
    )
    while holder.log.unsnapped < due - 1:
        late = events.Report(1, Length("batches", TOP_LENGTH), {"loss": 1.0}, 600.0)
        holder.tell(late)
    holder.commit()
    holder.close()


def restart(made: World, *, snapshot: bool) -> float:
    """Seconds until a new holder knows what has been decided."""
    holder = made.holder()
    with _without_snapshots(snapshot):
        began = time.perf_counter()
        assert holder.begin()
        took = time.perf_counter() - began
    assert (holder.log.chain.since is not None) == snapshot
    holder.close()
    return took


@contextlib.contextmanager
def _without_snapshots(there: bool) -> Iterator[None]:
    read = snapshots.read
    if not there:
        snapshots.read = lambda *_: iter(())  # type: ignore[assignment]
    try:
        yield
    finally:
        snapshots.read = read


# -- a turn --------------------------------------------------------------------------------------


class Live:
    """Trials that run and report; time passes when they are told."""

    def __init__(self, folder: Path, trials: int) -> None:
        # long enough that none comes to a rung while it is measured: reports alone
        self.world = world(folder, 4 * trials, trials, 100 * TOP_LENGTH)
        self.holder = self.world.holder()
        self.seconds = 0.0
        self.writers: dict[int, journal.Writer] = {}
        self.batches: dict[int, int] = {}
        self.turn()
        self.claim()

    def claim(self) -> None:
        """Workers start and claim what is runnable."""
        scheduler, paths = self.world.scheduler, self.world.paths
        workers = self.world.play().start_all()
        for number, worker in enumerate(workers, 1):
            attempt = paths.trial(number).attempt(1)
            Claim(worker.name, "n1", "job", ["n1"], at(0)).write_once(attempt.claim)
            wakeup.tell(paths, number, "attempt")
            writer = self.writers[number] = journal.Writer(attempt.journal)
            writer.append("start", world=1, host="n1", pid=1, checkpoint="", batches=0)
            writer.append("first_step")
            self.batches[number] = 0
        assert len(self.writers) == len(scheduler.live)

    def train(self, seconds: float, first: int = 0) -> int:
        """All, or the first ones, train: a report per 10 s, progress per 5 s. Returns reports."""
        reports = 0
        for number, writer in list(self.writers.items())[: first or None]:
            phase = number % 10
            for second in range(int(self.seconds), int(self.seconds + seconds)):
                if (second + phase) % 5 == 0:
                    batches = self.batches[number]
                    writer.append("progress", batches=batches, records=64 * batches, epochs=0)
                if (second + phase) % 10 == 0:
                    self.batches[number] += 1
                    step = self.batches[number]
                    metrics = {"loss": loss(number, step), "accuracy": 0.5, "f1": 0.25}
                    units = {"batches": step, "records": 64 * step, "epochs": 0}
                    writer.append(
                        "metrics", group="validation", step=step, metrics=metrics, units=units
                    )
                    wakeup.tell(self.world.paths, number, "report")
                    reports += 1
        self.seconds += seconds
        return reports

    def turn(self) -> tuple[float, float]:
        """A turn: seconds of processor and of the wall."""
        self.world.clock.now += TURN_S
        self.holder.lease.beat()
        cpu, wall = time.process_time(), time.perf_counter()
        assert advance(self.world.paths, self.holder, everything=False).held  # as a daemon's
        return time.process_time() - cpu, time.perf_counter() - wall


def turns(folder: Path, trials: int, count: int) -> dict[str, Any]:
    live = Live(folder, trials)
    live.holder.sight = Sight(live.world.paths, live.world.clock)
    cpu, wall, reports = [], [], 0
    for _ in range(3):  # what has just begun is looked at twice
        live.train(TURN_S)
        live.turn()
    for _ in range(count):
        reports += live.train(TURN_S)
        one, other = live.turn()
        cpu.append(one)
        wall.append(other)
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    metadata = Metadata()
    for _ in range(count):
        live.train(TURN_S)
        with metadata.counted():
            live.turn()
    each = metadata.count / trials / count
    found = {"cpu": cpu, "wall": wall, "reports": reports, "rss_mb": high}
    return {**found, "metadata": each}


def quiet(folder: Path, trials: int, count: int) -> dict[str, Any]:
    """Turns of 15 s by kind: nothing happened, 100 trials have reported, all are looked at."""
    live = Live(folder, trials)
    live.holder.sight = Sight(live.world.paths, live.world.clock)
    for _ in range(4):  # all are looked at in the first, and in every fourth one
        live.train(TURN_S)
        live.turn()
    metadata = Metadata()
    kinds = ("everything", "nothing", "changes", "nothing")
    found: dict[str, Any] = {kind: [] for kind in kinds} | {"cpu": [], "metadata": {}}
    for round_ in range(-2, count):
        for kind in kinds:
            if kind == "changes":
                live.train(10, CHANGES)  # one report each
            before = metadata.count
            with metadata.counted():
                cpu, wall = live.turn()
            if round_ >= 0:  # before, what has just begun is looked at more often
                found[kind].append(wall)
                found["cpu"] += [cpu] if kind == "nothing" else []
                found["metadata"][kind] = metadata.count - before
    return found


# -- all of it -----------------------------------------------------------------------------------


def _child(what: str, trials: int, count: int) -> dict[str, Any]:
    """A part in a process of its own, whose memory is that part's alone."""
    argv = [sys.executable, __file__, "--part", what, "--trials", str(trials), "--n", str(count)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=os.environ)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _part(what: str, trials: int, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        if what == "turns":
            return turns(Path(folder), trials, count)
        if what == "quiet":
            return quiet(Path(folder), trials, count)
        if what in ("places", "places-daemon"):
            return {
                "s": control_waits.empty_places(
                    Path(folder), trials, daemon=what == "places-daemon"
                )
            }
        if what == "latency":
            return {"s": control_waits.latencies(Path(folder), trials, 0.25)}
        if what in JUDGED:
            return dict(control_waits.directives(Path(folder), JUDGED[what], trials, count))
        made = world(Path(folder), trials, 100)
        long_search(made, trials)
        found: dict[str, Any] = {"with": [], "without": []}
        for _ in range(count):
            found["with"].append(restart(made, snapshot=True))
            found["without"].append(restart(made, snapshot=False))
        size = max(file.stat().st_size for file in made.paths.snapshots.iterdir())
        return {**found, "bytes": size, "trials": trials}


def directives(sizes: Sequence[int], count: int) -> list[results.Row]:
    """From a report to its directive when a turn is made at once, without a model and with one."""
    rows = []
    for trials in sizes:
        for part, sampler in JUDGED.items():
            found = _child(part, trials, count)
            for kind, goal in (("wall", 0.02), ("cpu", 0.02), ("floor", None)):
                took = sorted(found[kind])
                what = f"report to directive, turn at once, {sampler}, {trials} trials: {kind}"
                rows.append(alone(f"{what}, median", "s", took, None))
                p95 = [took[int(0.95 * (len(took) - 1))]]
                rows.append(alone(f"{what}, p95", "s", p95, goal, count))
    return rows


def free_places(who: str, waited: list[float]) -> list[results.Row]:
    what = f"free place to next start, {who} decides"
    longest = alone(f"{what}: longest", "s", [max(waited)], None, len(waited))
    return [alone(f"{what}: median", "s", waited, None), longest]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument(
        "--part",
        choices=["turns", "quiet", "latency", "restart", "places", "places-daemon", *JUDGED],
    )
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--n", type=int, default=0)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(_part(given.part, given.trials, given.n)))
        return
    long, live, count, judged = (500, 50, 4, 20) if given.quick else (10_000, 1000, 20, 100)
    restarts = _child("restart", long, 5)
    turned = _child("turns", live, count)
    still = _child("quiet", 2 * live, count)
    waited = sorted(_child("latency", judged, 1)["s"])
    small = 8 if given.quick else 40
    empty = {who: _child(who, small, 1)["s"] for who in ("places", "places-daemon")}
    share = [100 * cpu / TURN_S for cpu in turned["cpu"]]
    p95 = waited[int(0.95 * (len(waited) - 1))]
    each = [1e6 * sum(turned["cpu"]) / turned["reports"]]
    rows = [
        alone(
            f"restart, {long} trials x {REPORTS} reports, from a snapshot",
            "s",
            restarts["with"],
            0.5,
        ),
        alone(
            f"restart, {long} trials x {REPORTS} reports, from all records",
            "s",
            restarts["without"],
            None,
        ),
        alone(f"{live} live trials, a report each per 10 s: share of a core", "%", share, 1.0),
        alone(
            f"{live} live trials: a turn every {TURN_S:g} s, wall time", "s", turned["wall"], None
        ),
        alone("processor per report, all of a turn", "us", each, None, count),
        alone(f"{live} live trials: memory", "MB", [turned["rss_mb"]], 300.0),
        alone("metadata operations per trial and turn", "", [turned["metadata"]], 2.0, count),
        alone(f"{2 * live} live trials, a turn without news", "s", still["nothing"], 0.005),
        alone("the same: processor time", "s", still["cpu"], None),
        alone(f"{2 * live} live trials, {CHANGES} have reported", "s", still["changes"], 0.2),
        alone(f"{2 * live} live trials, all looked at, each 60 s", "s", still["everything"], None),
        *(
            alone(f"metadata operations of a turn: {kind}", "", [count], None)
            for kind, count in still["metadata"].items()
        ),
        alone(
            "report to directive, turns every 0.25 s: median",
            "s",
            [statistics.median(waited)],
            None,
            judged,
        ),
        alone("report to directive, turns every 0.25 s: p95", "s", [p95], None, judged),
        *(
            row
            for who, part in (("a worker", "places"), ("a searcher", "places-daemon"))
            for row in free_places(who, empty[part])
        ),
        *directives((30,) if given.quick else (200, 1000), 5 if given.quick else 100),
    ]
    print(f"a snapshot of {long} trials has {restarts['bytes'] / 1e6:.1f} MB")
    width = max(len(row["what"]) for row in rows) + 2
    print(f"{'what':<{width}}{'median':>10}{'min':>10}{'goal':>8}  met")
    for row in rows:
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        met = "" if row["goal"] is None else ("yes" if row["met"] else "no")
        print(
            f"{row['what']:<{width}}{row['ours']:>10.4g}{row['min']:>10.4g}{goal:>8}  "
            f"{met:<4}{row['unit']}"
        )
    results.write("search-control", rows)


if __name__ == "__main__":
    main()
