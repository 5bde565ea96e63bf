"""The simulation: an agenda of events, in which the searcher's own code decides.

Times stand for journals and controls: a report is written, comes into sight, is told at a turn of
the crank, and the decision reaches the trial, which may have trained on meanwhile. Pure: no clock,
no file, the same course for the same arguments.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from hpcdet.search.api import events
from hpcdet.sim.actors import Luck, SimulatedTrial, SimulatedWorker
from hpcdet.sim.array import JobArray
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.outcome import Course, Moment
from hpcdet.sim.surrogate import Workload
from hpcdet.sim.turns import Reports, SimulatedCrank
from hpcdet.store.trials.parents import Parent
from hpcdet.units import Length


class Agenda:
    """Events by time; those of one time in the order in which they were added.

    Attributes:
        now: the time of the event that is handled, or was last.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any, int]] = []
        self._added = itertools.count(1)

    @property
    def next_at(self) -> float | None:
        """The time of the next event; None without one."""
        return self._heap[0][0] if self._heap else None

    def add(self, at: float, act: Callable[[Any], None], whom: Any) -> None:
        """Have ``act(whom)`` called at a time; not if ``whom`` has another ``version`` by then."""
        heapq.heappush(self._heap, (at, next(self._added), act, whom, getattr(whom, "version", 0)))

    def handle(self) -> None:
        """Handle the next event."""
        self.now, _, act, whom, version = heapq.heappop(self._heap)
        if getattr(whom, "version", 0) == version:
            act(whom)


@dataclass
class Simulation:
    """One search on one cluster. ``run`` may be called once.

    Attributes:
        begun: length at which trials begin that have no parent; their curves are their own.
        horizon_s, patience: it ends then, or after so many events without a report, at the latest.
        keep: keep every moment of the course.
    """

    searcher: InitVar[events.Method[Any]]
    cluster: Cluster
    workload: Workload
    reports: Reports
    seed: InitVar[int] = 0
    horizon_s: float = math.inf
    begun: int = 0
    patience: int = 100_000
    keep: bool = False

    agenda: Agenda = field(default_factory=Agenda, init=False)
    course: Course = field(default_factory=Course, init=False)

    def __post_init__(self, searcher: events.Method[Any], seed: int) -> None:
        self._trials: dict[int, SimulatedTrial] = {}
        self._runnable: list[int] = []  # a heap: workers take the lowest number first
        self._open = 0  # trials that run, leave, or wait for a worker
        self._array = JobArray(self.cluster, seed)
        self._luck = Luck(seed, len(self.reports.lengths) + 1)
        self._at_rungs: list[tuple[SimulatedTrial, int]] = []
        self._crank = SimulatedCrank(searcher, self.cluster, np.random.default_rng((seed, 3)))
        self._quiet = 0  # events since something was learnt

    def run(self) -> Course:
        """Run the search until it is over, stalls, or reaches the horizon.

        Raises:
            Exception: whatever the searcher raises.
        """
        self._crank.bring(events.Start())
        self._settle()
        while not (over := self.course.over and not self._open) and self._quiet < self.patience:
            if (at := self.agenda.next_at) is None:
                break
            if at > self.horizon_s:
                return self._close(self.horizon_s)
            self.agenda.handle()
            self._quiet += 1
            self._settle()
        self.course.stalled = not over
        return self._close(self.agenda.now)

    def _close(self, at: float) -> Course:
        self.agenda.now = at
        for trial in self._trials.values():
            if trial.state == "running":
                self._train(trial)
        self.course.allocated_s = self._array.allocated(at)
        self.course.waits_s = self._array.waits_s
        self.course.end_s, self.course.facts = at, self._crank.told
        return self.course

    def _settle(self) -> None:
        """Deliver visible events to the searcher, then give runnable trials to workers."""
        while event := self._crank.next():
            self._obey(self._crank.tell(event))
        while self._at_rungs:  # nothing has held it there
            trial, version = self._at_rungs.pop()
            if trial.version == version:
                self._stretch(trial)
        while self._runnable and (worker := self._array.first_idle()):
            self._serve(worker)
        for worker, until in self._array.submit(len(self._runnable), self.agenda.now):
            self.agenda.add(until, self._grant, worker)
        while self.course.over and (worker := self._array.first_idle()):
            self._leave(worker)

    def _note(
        self, what: str, trial: int = 0, worker: int = -1, length: int = -1, why: str = ""
    ) -> None:
        if self.keep:
            self.course.moments.append(Moment(self.agenda.now, what, trial, worker, length, why))

    def _grant(self, worker: SimulatedWorker) -> None:
        """Start a worker whose wait in the queue is over."""
        if not self._array.grant(worker, self.agenda.now):
            return
        self._note("grant", worker=worker.number)
        ends, why = self._array.end(worker)
        if ends < math.inf:
            self.agenda.add(ends, partial(self._end, why=why), worker)
        self._serve(worker)

    def _serve(self, worker: SimulatedWorker) -> None:
        """Give a worker a trial, let it wait for one, or let it leave."""
        if not self._array.may_train(worker, self.agenda.now):
            self._leave(worker)
        elif self._runnable:
            self._start(self._trials[heapq.heappop(self._runnable)], worker)
        else:
            until = self._array.rest(worker, self.agenda.now)
            if until < math.inf:
                self.agenda.add(until, self._end_idle, worker)

    def _end_idle(self, worker: SimulatedWorker) -> None:
        if self._array.has_idled(worker, self.agenda.now):
            self._leave(worker)

    def _leave(self, worker: SimulatedWorker) -> None:
        """End a worker's allocation; the next worker in line may run."""
        self._note("leave", worker=worker.number)
        following = self._array.leave(worker, self.agenda.now)
        if following:
            self._grant(following)

    def _end(self, worker: SimulatedWorker, why: str) -> None:
        """Handle the end of an allocation by walltime, preemption or failure."""
        if worker.state == "idle":
            self._leave(worker)
            return
        trial = self._trials[worker.trial]
        if why == "node failed":
            self._fail(trial, worker)
            return
        worker.going = True
        if trial.state == "running":  # otherwise it is being saved already
            self.course.preempted += 1
            self._depart(trial, why)

    def _fail(self, trial: SimulatedTrial, worker: SimulatedWorker) -> None:
        """End a worker without a further checkpoint."""
        self.course.failures += 1
        if trial.state == "running":
            self._train(trial)
        self._note("lost", trial.number, worker.number, trial.at)
        if self.cluster.on_failure != "checkpoint":
            trial.saved = trial.origin
        trial.leave(trial.saved)
        trial.worker = -1
        self._leave(worker)
        if self.cluster.on_failure == "lost":
            trial.wanted = "lost"
        self.agenda.add(self.agenda.now + self.cluster.detect_s, self._left, trial)

    def _start(self, trial: SimulatedTrial, worker: SimulatedWorker) -> None:
        """Begin an attempt of a trial on a worker."""
        trial.state, trial.worker = "running", worker.number
        worker.state, worker.trial = "busy", trial.number
        trial.at = trial.saved
        starting = self.cluster.start_s + (self.cluster.restore_s if trial.at else 0.0)
        trial.began = trial.since = self.agenda.now + starting
        self._note("restore" if trial.at else "begin", trial.number, worker.number, trial.at)
        self._stretch(trial)

    def _stretch(self, trial: SimulatedTrial) -> None:
        """Train on until the next report or, if that is sooner, the target."""
        place = trial.aim(self.reports.lengths)
        slow = 1.0
        if spread := self.cluster.stragglers:
            slow += spread * abs(self._luck.of(trial.number, place))
        seconds = self.workload.seconds(trial.number, trial.at, trial.goal) * slow
        trial.rate = seconds / max(1, trial.goal - trial.at)
        trial.version += 1
        self.agenda.add(trial.since + seconds, self._reach, trial)

    def _train(self, trial: SimulatedTrial) -> None:
        """Account for a running trial's training up to now."""
        spent, again = trial.train(self.agenda.now, self.cluster.checkpoint_every_s)
        self.course.trained_s += spent
        self.course.redone_s += again

    def _reach(self, trial: SimulatedTrial) -> None:
        """Handle a trial that has come to the next report, or to its target."""
        self._train(trial)
        trial.at = trial.goal
        trial.most = max(trial.most, trial.at)
        if trial.at in self.reports.lengths:
            self._report(trial)
        if trial.at < trial.until:
            self._at_rungs.append((trial, trial.version))
        else:
            self._finish(trial)

    def _finish(self, trial: SimulatedTrial) -> None:
        """Handle a trial at its target, whatever was requested meanwhile."""
        worker = self._array[trial.worker]
        trial.saved, trial.state, trial.worker = trial.at, "ended", -1
        trial.version += 1
        self._open -= 1
        what = "finish" if trial.at >= self.reports.full else "target"
        self._note(what, trial.number, worker.number, trial.at)
        self._hear(trial, events.SegmentEnd(trial.number, "target"))
        self._free(worker)

    def _report(self, trial: SimulatedTrial) -> None:
        """Validate, count new results, and send the report to the searcher."""
        length, number = trial.at, trial.number
        loss = self.workload.metric(number, length)
        self._note("report", number, trial.worker, length)
        report = self.reports.of(trial, loss)
        self._hear(trial, report)
        if length <= trial.reported:
            return
        trial.reported, self._quiet = length, 0
        whole = self.workload.final(number) if length == self.reports.full else None
        self.course.learn(self.agenda.now, number, length, loss, whole)
        if (later := self._crank.repeats(self.agenda.now)) is not None:
            self.agenda.add(later, lambda told: self._obey(self._crank.ask(told)), report)

    def _depart(self, trial: SimulatedTrial, why: str) -> None:
        """A running trial saves its state and leaves its worker; one at a rung reports first."""
        self._train(trial)
        if trial.reported < trial.at and trial.at in self.reports.lengths:
            self._report(trial)
        if trial.at >= trial.until:
            self._finish(trial)
            return
        trial.leave(trial.at)
        self._note(trial.wanted if trial.wanted != "run" else "wait", trial.number, why=why)
        if self.cluster.save_s:
            self.agenda.add(self.agenda.now + self.cluster.save_s, self._left, trial)
        else:
            self._left(trial)

    def _left(self, trial: SimulatedTrial) -> None:
        """Handle a trial that left its worker; requests made meanwhile apply."""
        trial.version += 1
        trial.saved = trial.at = trial.leaves_with
        worker, trial.worker = trial.worker, -1
        if trial.wanted == "run":
            self._queue(trial)
        else:
            self._open -= 1
            self._park(trial)
        if worker >= 0:
            self._free(self._array[worker])

    def _park(self, trial: SimulatedTrial) -> None:
        """Take a trial off its worker, for now or for good."""
        trial.state = "paused" if trial.wanted == "pause" else "ended"
        if trial.wanted == "stop":
            self._hear(trial, events.SegmentEnd(trial.number, "stopped"))
        elif trial.wanted == "lost":
            self._hear(trial, events.SegmentEnd(trial.number, "failed"))

    def _free(self, worker: SimulatedWorker) -> None:
        """Free the worker that a trial has left."""
        worker.trial = 0
        worker.going = worker.going or not self.cluster.shared
        self._serve(worker)

    def _queue(self, trial: SimulatedTrial) -> None:
        trial.state = "runnable"
        heapq.heappush(self._runnable, trial.number)

    def _hear(self, trial: SimulatedTrial, event: events.Event) -> None:
        heard = self._crank.write(trial, event, self.agenda.now)
        if heard is not None:
            self.agenda.add(heard, self._crank.bring, event)

    def _obey(self, actions: list[events.Action]) -> None:
        for action in actions:
            self._do(action)

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Create(number, params, _, until, parent):
                target = until.value if until else self.reports.full
                trial = self._trials[number] = SimulatedTrial(number, target)
                origin = Parent.parse(parent) if parent else None
                if origin is not None and origin.length is not None:
                    trial.inherit(origin.length.value)
                    self.workload.inherit(number, origin.trial)
                else:
                    trial.inherit(self.begun)
                self.workload.begin(number, params)
                self.course.created += 1
                self._open += 1
                self._note("create", number, length=target)
                self._queue(trial)
            case events.Continue(number, until):
                self._continue(self._trials[number], until)
            case events.Pause(number):
                self._halt(self._trials[number], "pause", action.why)
            case events.Stop(number, why):
                self._halt(self._trials[number], "stop", why)
            case events.Shutdown(why=why):
                self.course.over = True
                self._note("shutdown", why=why)
            case events.Ask(why):
                self._note("ask", why=why)  # its user says yes at once

    def _continue(self, trial: SimulatedTrial, until: Length | None) -> None:
        if trial.wanted == "lost":
            return
        trial.until, trial.wanted = until.value if until else trial.until, "run"
        if trial.state in ("paused", "ended"):
            self._open += 1
            self._note("continue", trial.number, length=trial.until)
            self._queue(trial)

    def _halt(self, trial: SimulatedTrial, wanted: Literal["pause", "stop"], why: str) -> None:
        if trial.state == "ended" or trial.wanted in ("stop", "lost"):
            return
        trial.wanted, trial.why = wanted, why
        if trial.state == "running":
            if self.cluster.directive_s:
                self.agenda.add(
                    self.agenda.now + self.cluster.directive_s, self._heed, trial.number
                )
            else:
                self._heed(trial.number)
        elif trial.state in ("runnable", "paused"):
            if trial.state == "runnable":
                self._runnable.remove(trial.number)
                heapq.heapify(self._runnable)
                self._open -= 1
            self._park(trial)

    def _heed(self, number: int) -> None:
        trial = self._trials[number]
        if trial.state == "running" and trial.wanted != "run":
            self._depart(trial, trial.why)
