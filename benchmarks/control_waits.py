"""Waits that deciders are to blame for: until a directive comes, and until a free place is used."""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet.control.leader.trial_cache import Sight
from hpcdet.control.turn.controller import advance
from hpcdet.jobs.create import create
from hpcdet.search import searcher_factory
from hpcdet.search.api import events
from hpcdet.store.cost.spending import epoch
from hpcdet.store.decisions import wakeup
from hpcdet.store.folder.records import Claim, Control, End
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import journal
from hpcdet.store.trials.controls import in_force
from hpcdet.units import Length
from tests import experiments
from tests.paper import World

LENGTH = 1000
PLACES = 25
TURN_S = 15.0


TEN = {
    f"x{n}": {"type": "double", "minval": 0.0, "maxval": 1.0}
    if n % 3
    else {"type": "categorical", "vals": ["a", "b", "c", "d"]}
    for n in range(10)
}


class Judge:
    """Pauses every trial at its first report, and makes another one."""

    name, version = "judge", 1

    def __init__(self, width: int) -> None:
        self.width = width

    def initial(self) -> events.State:
        return {"made": 0}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        actions: list[events.Action] = []
        if isinstance(event, events.Report):
            actions.append(events.Pause(event.trial, "judged"))
        for _ in range(self.width - state["made"]):
            state["made"] += 1
            until = Length("batches", LENGTH)
            actions.append(events.Create(state["made"], {}, state["made"], until))
        return state, actions


def latencies(folder: Path, trials: int, interval_s: float) -> list[float]:
    """Seconds from before a report is written until the trial can read what came of it."""
    made = World.make(folder, Judge(trials), searcher={"max_concurrent_trials": trials})
    holder = made.holder()
    advance(made.paths, holder)
    play = made.play()
    attempts = [play.claim(worker, number) for number, worker in enumerate(play.start_all(), 1)]
    advance(made.paths, holder)
    over = threading.Event()

    def crank() -> None:
        while not over.wait(interval_s):
            made.clock.now += interval_s
            advance(made.paths, holder)

    thread = threading.Thread(target=crank)
    thread.start()
    found = []
    try:
        for attempt in attempts:
            writer = journal.Writer(attempt.journal)
            began = time.perf_counter()
            units = {"batches": 10}
            said = {"group": "validation", "step": 10, "metrics": {"loss": 0.5}, "units": units}
            writer.append("metrics", sync=True, **said)
            while True:
                control = in_force(made.paths.trial(attempt.trial))
                if control is not None and control.action == "pause":
                    break
                time.sleep(0.002)
            found.append(time.perf_counter() - began)
            writer.close()
    finally:
        over.set()
        thread.join()
    return found


@dataclass
class Judged:
    """A search by rungs, long under way: a trial reports, a turn is made at once, it is paused.

    Attributes:
        floor: seconds that the disk takes for what has to be on it before the trial may know: two
            lines of journals, and a control.
    """

    folder: Path
    sampler: str
    trials: int
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = {"random_fraction": 0.0} if self.sampler != "random" else {}
        search = {
            "name": "async_halving",
            "max_length": {"batches": LENGTH},
            "max_trials": 10 * self.trials + 1000,
            "max_concurrent_trials": PLACES,
            "sampler": {"name": self.sampler, **model},
        }
        site = {"limits": {"poll_min_s": 60}, "lease_ttl_s": 180}
        made = World.make(self.folder, searcher=search, hyperparameters=TEN, site=site)
        made.method = searcher_factory.searcher(made.resolved)
        self.world, self.holder, self.chance = made, made.holder(), random.Random(0)
        self.lengths = [rung.value for rung in made.resolved.searcher.rungs]
        assert self.holder.begin()
        self.plans = self.holder.decided.trials.plans
        self.remember()
        self.turn()  # writes all of that
        self.holder.sight = Sight(made.paths, made.clock)
        self.live = dict.fromkeys(self.running()[-PLACES:])
        for worker, number in zip(made.play().start_all(), self.live, strict=True):
            self.claim(worker, number)
        # what has just begun is looked at twice, and of paused trials a hundred in each turn
        for _ in range(3 + len(self.plans) // 100):
            self.turn()

    def remember(self) -> None:
        """Tell of former trials, whose losses differ more than they fall."""
        self.holder.tell(events.Start())
        while len(self.plans) < self.trials + PLACES:
            for number in self.running():
                length = next((one for one in self.lengths if one > self.plans[number].told), None)
                if length is None:
                    self.holder.tell(events.SegmentEnd(number, "target"))
                    continue
                shown = {"loss": random.Random(number).random() + self.chance.random() / 10}
                self.holder.tell(events.Report(number, Length("batches", length), shown))
        self.holder.commit()

    def running(self) -> list[int]:
        """Trials that are to train, oldest first."""
        plans = sorted(self.plans.items())
        return [number for number, one in plans if one.searcher == "run" and not one.ended]

    def claim(self, worker: WorkerPaths, number: int) -> None:
        attempt = self.world.play().claim(worker, number)
        self.live[number] = worker, attempt

    def turn(self) -> None:
        self.world.clock.now += TURN_S
        self.holder.lease.beat()
        assert advance(self.world.paths, self.holder, everything=False).held  # as a daemon's

    def report(self) -> None:
        """The one that has waited longest reports a bad loss, and leaves once it is paused."""
        number = next(iter(self.live))
        worker, attempt = self.live.pop(number)
        length = next(one for one in self.lengths if one > self.plans[number].told)
        said = {"step": length, "metrics": {"loss": 10 + self.chance.random()}}
        units = {"batches": length}
        with journal.Writer(attempt.journal) as writer, self.noted(number) as at:
            cpu, wall = time.process_time(), time.perf_counter()
            writer.append("metrics", sync=True, group="validation", units=units, **said)
            wakeup.tell(self.world.paths, number, "report")
            self.turn()
        self.cpu.append(at[0] - cpu)
        self.wall.append(at[1] - wall)
        self.world.play().end(attempt, "paused", progressed=True)
        self.turn()
        self.claim(worker, next(one for one in self.running()[::-1] if one not in self.live))
        self.turn()
        self.floor.append(self.disk(len(self.floor) + 1, said))

    @contextlib.contextmanager
    def noted(self, number: int) -> Iterator[list[float]]:
        """When a trial's control has been written: times of the processor and of the wall."""
        write, controls = Control.write_once, self.world.paths.trial(number).controls
        at: list[float] = []

        def noting(control: Control, path: Path) -> bool:
            made = write(control, path)
            if path.parent == controls:
                at[:] = time.process_time(), time.perf_counter()
            return made

        Control.write_once = noting  # type: ignore[method-assign]
        try:
            yield at
        finally:
            Control.write_once = write  # type: ignore[method-assign]

    def disk(self, number: int, said: dict[str, Any]) -> float:
        with journal.Writer(self.folder / "one") as one, journal.Writer(self.folder / "two") as two:
            began = time.perf_counter()
            one.append("metrics", sync=True, **said)
            two.append("event", sync=True, **said)
            Control("pause", None).write_once(self.folder / "controls" / f"{number}.json")
        return time.perf_counter() - began


def directives(folder: Path, sampler: str, trials: int, count: int) -> dict[str, list[float]]:
    """Seconds from a trial's report to its directive, after so many trials, without waiting."""
    judged = Judged(folder, sampler, trials)
    for _ in range(count):
        judged.report()
    return {"wall": judged.wall, "cpu": judged.cpu, "floor": judged.floor}


def empty_places(folder: Path, trials: int, *, daemon: bool) -> list[float]:
    """Seconds from the end of a trial until its worker begins the next one, by their records.

    Tiny trials on the local scheduler, one new one for each that ends; scheduler and turns as
    seldom as on a cluster. Decided by one of the two workers, or by a searcher of its own.
    """
    site = experiments.local_site(
        python=experiments.fake_python(folder), limits={"poll_min_s": 60}, lease_ttl_s=180
    )
    values = experiments.config(
        2, trials=trials, data={"step_s": 0.0}, searcher={"max_concurrent_trials": 2}
    )
    searcher = None
    with experiments.local_jobs(folder / "state"):
        made = create.create(experiments.Plain(values, {}), site, _model(folder), folder / "root")
        if daemon:
            argv = [sys.executable, "-m", "hpcdet", "searcher", "run", str(made.root)]
            searcher = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        else:
            experiments.turn(made)
        experiments.until(made.closed.exists, lambda: "the search does not end", 600)
        if searcher is not None:
            searcher.wait(60)
    by_worker: dict[str, list[tuple[float, float]]] = {}
    for trial in made.trials():
        for attempt in trial.attempts():
            claim, end = Claim.read(attempt.claim), End.read(attempt.end)
            if claim is not None and end is not None:
                times = (epoch(claim.at), epoch(end.at))
                by_worker.setdefault(claim.worker, []).append(times)
    return [
        later[0] - sooner[1]
        for spans in by_worker.values()
        for sooner, later in itertools.pairwise(sorted(spans))
    ]


def _model(folder: Path) -> Path:
    model = folder / "model"
    model.mkdir()
    return model
