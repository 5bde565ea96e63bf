"""The tasks that live, and the workers that are lost: gone without a record of their end.

The files of workers are believed first, the scheduler second; a worker is lost only when two of
its answers agree and the worker gave no sign of life in between. The scheduler is not asked at
all while the files show that it can have no job of the experiment.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Literal

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.base import Hastens, Job, PerHost, Scheduler, Task, TaskState
from hpcdet.site.models import Site
from hpcdet.store.folder import home
from hpcdet.store.folder.layout import ExperimentPaths, WorkerPaths
from hpcdet.store.folder.records import Final, Intent, Reason, Submitted, WorkerClaim, WorkerEnd
from hpcdet.store.fs import files

Phase = Literal["pending", "running", "over"]

LEFT_BY_ITSELF = frozenset({"idle", "closed", "bad_node", "spent"})
"""Ends of workers after which the batch script never requeues its task."""

PLAIN = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED})
"""Final states that no requeue follows."""

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

    @property
    def unstarted(self) -> list[TaskPlace]:
        """The places of jobs of which no task runs; running workers end by themselves."""
        running = {place.job for place in self.live if place.phase == "running"}
        return [place for place in self.live if place.job not in running]


BUSY = 5
"""Polling intervals between checks for the end of a worker with open attempts: it leaves after
these have ended, and their files are checked in each turn."""


@dataclass(frozen=True)
class _Suspicion:
    """A suspicion that a worker is lost; ``answer``: ``answered_at`` of the scheduler's answer."""

    beat: str
    since: float
    answer: float


class Watch:
    """The memory between looks: what is over for good, and what was suspected when.

    Attributes:
        blind: why the scheduler could not be asked at the last look, or what it cannot know; ""
            if it answered for all.
        newest: the newest worker of each place, by submission and index, at the last look.
        left_behind: submissions up to this number come from another place (``store.folder.home``):
            their jobs are not this experiment's, and their workers are gone.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        site: Site,
        scheduler: Scheduler,
        clock: Callable[[], float],
    ) -> None:
        self.paths = paths
        self.blind = ""
        self.left_behind = home.left_behind(paths)
        self._site = site
        self._scheduler = scheduler
        self._clock = clock
        self._over: set[tuple[int, int]] = set()
        self._suspicions: dict[tuple[object, ...], _Suspicion] = {}
        self._answers: dict[str, list[Task]] = {}
        self._asked: set[str] = set()
        self._hastened: set[tuple[str, int, int]] = set()
        self._asked_at: float | None = None
        self._answer = 0.0
        self._settled: dict[int, tuple[Intent, Submitted]] = {}
        self.newest: dict[tuple[int, int], WorkerPaths] = {}
        self._known: dict[str, WorkerPaths] = {}
        self._left: dict[tuple[int, int, int], WorkerEnd] = {}
        self._ends: dict[tuple[int, int, int], str] = {}  # where live workers will record it
        self._looked: set[tuple[int, int, int]] = set()
        self._busy: Set[str] = frozenset()
        self._asked_end: dict[str, float] = {}
        self._rows: dict[tuple[str, int], Task] = {}
        self._steady: dict[
            tuple[int, int], tuple[Task, TaskPlace]
        ] = {}  # as the same answer had it

    def look(self, busy: Set[str] = frozenset()) -> FleetView:
        """Read the files and, if jobs may live there and it is time, ask the scheduler.

        Args:
            busy: names of workers that have an attempt that has not ended.
        """
        self._looked.clear()
        self._busy = busy
        newest = self.newest = self._newest_workers()
        submissions = list(self._submissions(newest))
        for intent, _ in submissions:
            self._note_ends(intent, newest)
        alive = [
            Job(submitted.job, intent.tasks, submitted.at)
            for intent, submitted in submissions
            if submitted.job
            and intent.number > self.left_behind
            and any((intent.number, i) not in self._over for i in range(intent.tasks))
        ]
        away = self._away(alive)
        here = [job for job in alive if job.job not in away]
        if here:
            self._ask(here)
        elif away:
            self.blind = ""
        if away and not self.blind:
            hosts = ", ".join(sorted(set(away.values())))
            self.blind = f"jobs of this experiment are on {hosts}, and can only be seen there"
        places: list[TaskPlace] = []
        gone: list[Gone] = []
        for intent, submitted in submissions:
            for index in range(intent.tasks):
                worker = newest.get((intent.number, index))
                place, lost = self._judge(intent, submitted.job, index, worker)
                places.append(place)
                gone += lost
        return FleetView(places, gone)

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
            self._suspicions[key] = _Suspicion(beat, now, self._answer)
            return False
        another = by_files or self._answer != before.answer
        return another and now - before.since >= self._site.limits.poll_min_s

    def submission(self, number: int) -> tuple[Intent | None, Submitted | None]:
        """Return a submission's intent and result; both are read once when they are final."""
        if number in self._settled:
            return self._settled[number]
        intent = Intent.read(self.paths.intent(number))
        submitted = Submitted.read(self.paths.submitted(number))
        if intent is not None and submitted is not None:
            self._settled[number] = intent, submitted
        return intent, submitted

    def _submissions(
        self, newest: dict[tuple[int, int], WorkerPaths]
    ) -> Iterator[tuple[Intent, Submitted]]:
        for number in self.paths.submissions():
            intent, submitted = self.submission(number)
            if intent is None:
                continue
            if submitted is None and intent.hold:
                # given to the scheduler by hand: its workers know the job's id
                submitted = Submitted(self._by_hand(number, newest))
                yield intent, submitted
            elif submitted is not None and submitted.job:
                yield intent, submitted

    def _by_hand(self, number: int, newest: dict[tuple[int, int], WorkerPaths]) -> str:
        for (submission, _), worker in newest.items():
            claim = WorkerClaim.read(worker.claim) if submission == number else None
            if claim is not None:
                return claim.job.partition("_")[0]
        return ""

    def has_left(self, worker: WorkerPaths) -> bool:
        """True if a worker's end is recorded, by itself or for it; read once in each look."""
        return self._end(worker) is not None

    def _end(self, worker: WorkerPaths) -> WorkerEnd | None:
        key = (worker.submission, worker.index, worker.incarnation)
        if key in self._left or key in self._looked:
            return self._left.get(key)
        self._looked.add(key)
        if worker.name in self._busy and self._was_asked(worker.name):
            return None
        # a live worker is in no archive, and opening a missing file is cheap
        if key in self._ends and not _opens(self._ends[key]):
            return None
        end = WorkerEnd.read(worker.end)
        if end is None:
            self._ends[key] = str(worker.end)
        else:
            self._left[key] = end
        return end

    def _was_asked(self, worker: str) -> bool:
        """True if a worker was checked recently; else the check of now is remembered."""
        now = self._clock()
        if now - self._asked_end.get(worker, -math.inf) < BUSY * self._site.limits.poll_min_s:
            return True
        self._asked_end[worker] = now
        return False

    def _newest_workers(self) -> dict[tuple[int, int], WorkerPaths]:
        newest: dict[tuple[int, int], WorkerPaths] = {}
        for worker in self.paths.workers(self._known):
            key = (worker.submission, worker.index)
            former = newest.get(key)
            if former is None or worker.incarnation > former.incarnation:
                newest[key] = worker
        return newest

    def _note_ends(self, intent: Intent, newest: dict[tuple[int, int], WorkerPaths]) -> None:
        """Count tasks as over whose worker has recorded its end and that cannot be requeued."""
        may_return = self._site.capabilities.requeue != "none"
        for index in range(intent.tasks):
            key = (intent.number, index)
            worker = newest.get(key)
            if key in self._over or worker is None:
                continue
            end = self._end(worker)
            if end is None:
                continue
            stays = end.why in LEFT_BY_ITSELF or not may_return
            if stays or Final.read(worker.final) is not None:
                self._over.add(key)

    def _ask(self, jobs: list[Job]) -> None:
        now = self._clock()
        wanted = {job.job for job in jobs}
        recent = self._asked_at is not None and (
            now - self._asked_at < self._site.limits.poll_min_s and wanted <= self._asked
        )
        if recent:
            return
        try:
            self._answers = self._scheduler.query(jobs)
        except Unavailable as error:
            self.blind = error.what
            return
        self.blind = ""
        self._rows = {}
        for job, rows in self._answers.items():
            for row in rows:
                self._rows.setdefault((job, row.index), row)
        self._asked, self._asked_at = wanted, now
        self._answer = self._scheduler.answered_at
        self._hasten()

    def _away(self, jobs: list[Job]) -> dict[str, str]:
        """Return the jobs that live on other machines, with these. They are taken to live on."""
        hosts = {job.job: self.elsewhere(job.job) for job in jobs}
        return {job: host for job, host in hosts.items() if host}

    def elsewhere(self, job: str) -> str:
        """Return the only machine that can control a job; "" if it is this one, or any can."""
        return self._scheduler.elsewhere(job) if isinstance(self._scheduler, PerHost) else ""

    def waiting(self) -> list[Task]:
        """Return the pending tasks of the scheduler's last answer."""
        rows = (row for rows in self._answers.values() for row in rows)
        return [row for row in rows if row.state is TaskState.PENDING]

    @property
    def hopeless(self) -> list[Task]:
        """The pending tasks of the scheduler's last answer that cannot start by themselves."""
        return [row for row in self.waiting() if row.wait.kind in ("launch", "never")]

    def stuck(self) -> list[Task]:
        """Return the ``hopeless`` tasks that two answers in a row confirm."""
        found = {("waits", row.job, row.index, row.reason): row for row in self.hopeless}
        for key in [key for key in self._suspicions if key[0] == "waits" and key not in found]:
            del self._suspicions[key]
        return [row for key, row in found.items() if self.confirmed(key)]

    def _hasten(self) -> None:
        """Let requeued tasks start before Slurm's two minutes are over; asked once each."""
        if not isinstance(self._scheduler, Hastens):
            return
        for row in (row for rows in self._answers.values() for row in rows):
            wait = (row.job, row.index, row.restarts)
            begins = row.wait.kind == "begin_time"
            if begins and row.restarts and wait not in self._hastened:
                self._hastened.add(wait)
                with contextlib.suppress(Unavailable):
                    self._scheduler.hasten(row.job, row.index)

    def row(self, job: str, index: int) -> Task | None:
        """Return a task's row in the scheduler's last answer; None if there is none."""
        found = self._rows.get((job, index))
        if found is not None:
            return found
        return next((row for row in self._answers.get(job, []) if row.index < 0), None)

    def _judge(
        self, intent: Intent, job: str, index: int, worker: WorkerPaths | None
    ) -> tuple[TaskPlace, list[Gone]]:
        key = (intent.number, index)

        def place(phase: Phase, said: TaskState | None = None) -> TaskPlace:
            return TaskPlace(intent.number, index, job, phase, said, worker)

        if key in self._over:
            return place("over", self._said(job, index)), []
        is_open = worker is not None and not self.has_left(worker)
        if intent.number <= self.left_behind:
            self._over.add(key)
            return place("over"), [Gone(worker, "lost")] if worker is not None and is_open else []
        if job not in self._asked:
            return place("running" if is_open else "pending"), []
        row = self.row(job, index)
        known = self._steady.get(key)
        if known is not None and known[0] is row and known[1].worker is worker and is_open:
            return known[1], []
        said = row.state if row else TaskState.GONE
        if not said.final:
            requeued = (
                row is not None
                and worker is not None
                and is_open
                and (said is TaskState.PENDING or row.restarts > worker.incarnation)
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

    def _said(self, job: str, index: int) -> TaskState | None:
        row = self.row(job, index)
        return row.state if row else None

    def _reason(self, said: TaskState) -> Reason:
        if said is TaskState.CANCELED and self._site.capabilities.preempt_as_cancelled:
            return "preempted"
        return _REASONS.get(said, "lost")

    def _forget(self, key: tuple[int, int]) -> None:
        """Drop all suspicions of a place: it lives, or it is over for good."""
        for suspicion in [one for one in self._suspicions if one[0] == key]:
            del self._suspicions[suspicion]

    @staticmethod
    def _beat(worker: WorkerPaths) -> str:
        return files.canonical(files.read_json(worker.beat) or {}).decode()


def _opens(path: str) -> bool:
    """True if a file exists; opening it asks the server, where a lookup may come from a cache."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
