"""The tasks that live, and the workers that are lost: gone without a record of their end.

The files of workers are believed first, the scheduler second; a worker is lost only when two of
its answers agree and the worker gave no sign of life in between. The scheduler is not asked at
all while the files show that it can have no job of the experiment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Literal

from hpcdet.control.leader.fleet_files import FleetFiles
from hpcdet.control.leader.scheduler_answers import SchedulerAnswers
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import Job, Scheduler, Task, TaskState
from hpcdet.site.models import Site
from hpcdet.store.cost.spending import epoch
from hpcdet.store.folder import home
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Final, Intent, Reason, Submitted, WorkerClaim, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files

Phase = Literal["pending", "running", "over"]

LEFT_BY_ITSELF = frozenset({"idle", "closed", "bad_node", "avoided", "spent", "resized"})
"""Ends of workers after which the batch script never requeues its task."""

PLAIN = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED})
"""Final states that no requeue follows."""

CLOCKS_S = 60.0
"""Clocks of a node and of the scheduler differ by less."""

_REASONS: dict[TaskState, Reason] = {
    TaskState.PREEMPTED: "preempted",
    TaskState.TIMEOUT: "walltime",
    TaskState.NODE_FAIL: "node_fail",
    TaskState.OOM: "oom",
    TaskState.CANCELED: "canceled",
}


@dataclass(frozen=True)
class TaskPlace:
    """One array task of one submission.

    Attributes:
        said: the scheduler's last state of it, None if it was not asked.
        worker: newest worker that claimed the place.
    """

    submission: int
    index: int
    job: str
    phase: Phase
    said: TaskState | None = None
    worker: WorkerPaths | None = None


@dataclass(frozen=True)
class Gone:
    """A lost worker: it is gone and has not recorded its end."""

    worker: WorkerPaths
    reason: Reason


@dataclass(frozen=True)
class FleetView:
    """The state of all submissions at one look."""

    places: list[TaskPlace]
    gone: list[Gone]

    @functools.cached_property
    def live(self) -> list[TaskPlace]:
        return [place for place in self.places if place.phase != "over"]

    @functools.cached_property
    def over(self) -> set[int]:
        """The submissions of which nothing lives."""
        live = {place.submission for place in self.live}
        return {place.submission for place in self.places} - live

    @property
    def newest_first(self) -> list[tuple[int, list[TaskPlace]]]:
        """The places of each submission, with its number."""
        found: dict[int, list[TaskPlace]] = {}
        for place in self.places:
            found.setdefault(place.submission, []).append(place)
        return sorted(found.items(), reverse=True)

    @property
    def unstarted(self) -> list[TaskPlace]:
        """The places of jobs of which no task runs; running workers end by themselves."""
        running = {place.job for place in self.live if place.phase == "running"}
        return [place for place in self.live if place.job not in running]


BUSY = 5
"""Polling intervals between checks for the end of a worker with open attempts: it leaves after
these have ended, and a nudge tells of that."""


@dataclass(frozen=True)
class _Suspicion:
    """A suspicion that a worker is lost; ``answer``: ``answered_at`` of the scheduler's answer."""

    beat: str
    since: float
    answer: float


class Watch:
    """The memory between looks: what is over for good, and what was suspected when.

    Attributes:
        files: of submissions and workers.
        scheduler: its last answer.
        settled: nothing was new to the last look.
        left_behind: submissions up to this number come from another place (``store.folder.home``):
            their jobs are not this experiment's, and their workers are gone.

    Args:
        preemptible: jobs are where nodes may be taken away at any time: a lost one is that.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        site: Site,
        scheduler: Scheduler,
        clock: Callable[[], float],
        *,
        preemptible: bool = False,
    ) -> None:
        poll_min_s = site.limits.poll_min_s
        self.files = FleetFiles(paths, BUSY * poll_min_s, clock, opening.of(site).names.job_of)
        self.scheduler = SchedulerAnswers(scheduler, poll_min_s, clock)
        self.left_behind = home.left_behind(paths)
        self._site = site
        self._preemptible = preemptible
        self._clock = clock
        self._over: set[tuple[int, int]] = set()
        self._suspicions: dict[tuple[object, ...], _Suspicion] = {}
        # as the same answer had it
        self._steady: dict[tuple[int, int], tuple[Task, TaskPlace]] = {}
        self.settled = False
        self._awaits_final = False  # of a worker that has left, and may come back
        self._seen: FleetView | None = None
        self._by: tuple[list[tuple[Intent, Submitted]], object] = [], None

    def look(self, busy: Set[str] = frozenset()) -> FleetView:
        """Read the files and, if jobs may live there and it is time, ask the scheduler.

        Args:
            busy: names of workers that have an attempt that has not ended.
        """
        former = self._seen
        unsure = former is None or former.gone or self._suspicions or self._awaits_final
        anew, newest = self.files.look(busy, anew=bool(unsure)), self.files.newest
        self._awaits_final = False
        submissions = list(self.files.submissions())
        for intent, _ in submissions if anew else ():
            self._note_ends(intent, newest)
        self.scheduler.ask(
            [
                Job(submitted.job, intent.tasks, submitted.at)
                for intent, submitted in submissions
                if submitted.job
                and intent.number > self.left_behind
                and any((intent.number, i) not in self._over for i in range(intent.tasks))
            ]
        )
        by = submissions, self.scheduler.answer
        self.settled = not anew and by[0] == self._by[0] and by[1] is self._by[1]
        if former is not None and self.settled:
            return former
        places: list[TaskPlace] = []
        gone: list[Gone] = []
        for intent, submitted in submissions:
            for index in range(intent.tasks):
                worker = newest.get((intent.number, index))
                place, lost = self._judge(intent, submitted.job, index, worker)
                places.append(place)
                gone += lost
        self._seen, self._by = FleetView(places, gone), by
        return self._seen

    @property
    def suspects(self) -> bool:
        """True if another look would settle a suspicion."""
        return bool(self._suspicions)

    @property
    def suspected(self) -> frozenset[str]:
        """The names of the workers whose tasks are over by one answer of the scheduler."""
        return frozenset(str(key[1]) for key in self._suspicions if key[-1] == "over")

    def confirmed(self, key: tuple[object, ...], beat: str = "", *, by_files: bool = False) -> bool:
        """True if this was suspected before, with the same beat, and in another answer.

        ``by_files``: the scheduler has no part in the suspicion.
        """
        now = self._clock()
        before = self._suspicions.get(key)
        if before is None or before.beat != beat:
            self._suspicions[key] = _Suspicion(beat, now, self.scheduler.answered_at)
            return False
        another = by_files or self.scheduler.answered_at != before.answer
        return another and now - before.since >= self._site.limits.poll_min_s

    def stuck(self) -> list[Task]:
        """Return the ``hopeless`` tasks that two answers in a row confirm."""
        found = {("waits", row.job, row.index, row.reason): row for row in self.scheduler.hopeless}
        for key in [key for key in self._suspicions if key[0] == "waits" and key not in found]:
            del self._suspicions[key]
        return [row for key, row in found.items() if self.confirmed(key)]

    def _note_ends(self, intent: Intent, newest: dict[tuple[int, int], WorkerPaths]) -> None:
        """Count tasks as over whose worker has recorded its end and that cannot be requeued."""
        for index in range(intent.tasks):
            key = (intent.number, index)
            worker = newest.get(key)
            if key in self._over or worker is None:
                continue
            end = self.files.end(worker)
            if end is None:
                continue
            if self._stays(end) or Final.read(worker.final) is not None:
                self._over.add(key)
            else:
                self._awaits_final = True

    def _stays(self, end: WorkerEnd) -> bool:
        """True if no task starts again after this end."""
        can = self._site.capabilities
        if end.why in LEFT_BY_ITSELF or not can.comes_back:
            return True
        # the worker has asked the server, which alone starts it again
        return can.requeue != "user" and end.why != "lost" and not end.returns

    def _judge(
        self, intent: Intent, job: str, index: int, worker: WorkerPaths | None
    ) -> tuple[TaskPlace, list[Gone]]:
        key = (intent.number, index)

        def place(phase: Phase, said: TaskState | None = None) -> TaskPlace:
            return TaskPlace(intent.number, index, job, phase, said, worker)

        if key in self._over:
            ended = self.scheduler.row(job, index)
            return place("over", ended.state if ended else None), []
        is_open = worker is not None and not self.files.has_left(worker)
        if intent.number <= self.left_behind:
            self._over.add(key)
            return place("over"), [Gone(worker, "lost")] if worker is not None and is_open else []
        if job not in self.scheduler.asked:
            return place("running" if is_open else "pending"), []
        row = self.scheduler.row(job, index)
        known = self._steady.get(key)
        if known is not None and known[0] is row and known[1].worker is worker and is_open:
            return known[1], []
        said = row.state if row else TaskState.GONE
        if not said.final:
            requeued = (
                row is not None
                and worker is not None
                and is_open
                and (said is TaskState.PENDING or _runs_again(row, worker))
            )
            if (
                requeued
                and worker
                and self.confirmed((key, worker.name, "requeued"), self._beat(worker))
            ):
                return place("pending", said), [Gone(worker, "preempted")]
            found = place("running" if said is TaskState.RUNNING else "pending", said)
            if not requeued:
                self._forget(key)
                if row is not None:
                    self._steady[key] = row, found
            return found, []
        # where no worker ever was, nothing can be lost by believing a plain word at once
        plain = worker is None and said in PLAIN
        beat = self._beat(worker) if worker is not None and is_open else ""
        if not plain and not self.confirmed((key, worker.name if worker else "", "over"), beat):
            return place("running" if is_open else "pending", said), []
        self._over.add(key)
        self._forget(key)
        gone = [Gone(worker, self._reason(said))] if worker is not None and is_open else []
        return place("over", said), gone

    def _reason(self, said: TaskState) -> Reason:
        if said is TaskState.CANCELED and self._site.capabilities.preempt_as_cancelled:
            return "preempted"
        if said is TaskState.NODE_FAIL and self._preemptible:
            return "preempted"  # an instance of a cloud that its owner has taken back
        return _REASONS.get(said, "lost")

    def _forget(self, key: tuple[int, int]) -> None:
        """Drop all suspicions of a place: it lives, or it is over for good."""
        for suspicion in [one for one in self._suspicions if one[0] == key]:
            del self._suspicions[suspicion]

    @staticmethod
    def _beat(worker: WorkerPaths) -> str:
        return files.canonical(files.read_json(worker.beat) or {}).decode()


def _runs_again(row: Task, worker: WorkerPaths) -> bool:
    """True if the task that runs was started after this worker's.

    One that nobody counted is told by the time of the start.
    """
    if row.restarts <= worker.incarnation:
        return False
    claim = WorkerClaim.read(worker.claim)
    if claim is None or claim.counted or not row.start:
        return True
    return epoch(row.start) > epoch(claim.at) + CLOCKS_S
