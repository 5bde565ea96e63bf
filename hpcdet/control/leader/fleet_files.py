"""The files of submissions and of their workers, each read as seldom as its kind allows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Set

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent, Submitted, WorkerClaim, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths


class FleetFiles:
    """The submissions and workers of an experiment, as its files show them.

    Attributes:
        newest: the newest worker of each task, by submission and index, at the last ``look``.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        busy_every_s: float,
        clock: Callable[[], float],
        job_of: Callable[[str], str],
    ) -> None:
        """Look at an experiment's files.

        Args:
            job_of: returns the job of a task, by the task's id.
            busy_every_s: seconds between checks for the end of a worker that has open attempts.
        """
        self.newest: dict[tuple[int, int], WorkerPaths] = {}
        self._paths = paths
        self._busy_every_s = busy_every_s
        self._clock = clock
        self._job_of = job_of
        self._settled: dict[int, tuple[Intent, Submitted]] = {}
        self._known: dict[str, WorkerPaths] = {}
        self._left: dict[tuple[int, int, int], WorkerEnd] = {}
        self._ends: dict[tuple[int, int, int], str] = {}  # where live workers will record it
        self._looked: set[tuple[int, int, int]] = set()
        self._busy: Set[str] = frozenset()
        self._asked_end: dict[str, float] = {}
        self._names: Set[str] = frozenset()
        self._rests_until = -math.inf

    def look(self, busy: Set[str], *, anew: bool = True) -> bool:
        """Begin a new look.

        Args:
            busy: names of workers that have an open attempt.
            anew: check for ends of workers in any case.

        Returns:
            False if nothing is new of workers: there are no others, and it is not yet time to
            check any of them for its end.
        """
        names = self._paths.worker_names()
        same = (names, busy) == (self._names, self._busy)
        if same and self._clock() < self._rests_until and not anew:
            return False
        self._looked.clear()
        self._names, self._busy, self._rests_until = names, busy, math.inf
        self.newest = {}
        for worker in self._paths.workers(self._known, names):
            key = (worker.submission, worker.index)
            former = self.newest.get(key)
            if former is None or worker.incarnation > former.incarnation:
                self.newest[key] = worker
        return True

    def submission(self, number: int) -> tuple[Intent | None, Submitted | None]:
        """Return a submission's intent and result; both are read once when they are final."""
        if number in self._settled:
            return self._settled[number]
        intent = Intent.read(self._paths.intent(number))
        submitted = Submitted.read(self._paths.submitted(number))
        if intent is not None and submitted is not None:
            self._settled[number] = intent, submitted
        return intent, submitted

    def submissions(self) -> Iterator[tuple[Intent, Submitted]]:
        """Yield the submissions that have a job, or that are given to the scheduler by hand."""
        for number in self._paths.submissions():
            intent, submitted = self.submission(number)
            if intent is None:
                continue
            if submitted is None and intent.hold:
                yield intent, Submitted(self._by_hand(number))
            elif submitted is not None and submitted.job:
                yield intent, submitted

    def has_left(self, worker: WorkerPaths) -> bool:
        """True if a worker's end is recorded, by itself or for it; read once in each look."""
        return self.end(worker) is not None

    def end(self, worker: WorkerPaths) -> WorkerEnd | None:
        """Return a worker's end; None if it is not recorded, or was checked recently."""
        key = (worker.submission, worker.index, worker.incarnation)
        if key in self._left or key in self._looked:
            return self._left.get(key)
        self._looked.add(key)
        if worker.name not in self._busy:
            self._rests_until = -math.inf
        elif self._was_asked(worker.name):
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

    def _by_hand(self, number: int) -> str:
        """Return the id of a job that was submitted by hand; its workers know it."""
        for (submission, _), worker in self.newest.items():
            claim = WorkerClaim.read(worker.claim) if submission == number else None
            if claim is not None:
                return self._job_of(claim.job)
        return ""

    def _was_asked(self, worker: str) -> bool:
        """True if a worker was checked recently; else the check of now is remembered."""
        now = self._clock()
        asked = now - self._asked_end.get(worker, -math.inf) < self._busy_every_s
        if not asked:
            self._asked_end[worker] = now
        self._rests_until = min(self._rests_until, self._asked_end[worker] + self._busy_every_s)
        return asked


def _opens(path: str) -> bool:
    """True if a file exists; opening it asks the server, where a lookup may come from a cache."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
