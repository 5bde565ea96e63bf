"""Waits that deciders are to blame for: until a directive comes, and until a free place is used."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

from hpcdet.control.turn.controller import advance
from hpcdet.jobs.create import create
from hpcdet.search.api import events
from hpcdet.store.cost.spending import epoch
from hpcdet.store.folder.records import Claim, End
from hpcdet.store.fs import journal
from hpcdet.store.trials.controls import in_force
from hpcdet.units import Length
from tests import experiments
from tests.paper import World

LENGTH = 1000


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
