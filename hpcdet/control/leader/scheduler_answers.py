"""The scheduler's last answer, asked as seldom as the site wants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.base import Hastens, Job, PerHost, Scheduler, Task, TaskState


class SchedulerAnswers:
    """The scheduler's rows of this experiment's jobs.

    Attributes:
        asked: the jobs that the last answer is about.
        answered_at: tells one answer from another; see ``Scheduler.answered_at``.
        blind: why the scheduler could not be asked, or what it cannot know; "" if it answered for
            all.
    """

    def __init__(self, scheduler: Scheduler, poll_min_s: float, clock: Callable[[], float]) -> None:
        self.asked: set[str] = set()
        self.answered_at = 0.0
        self.blind = ""
        self._scheduler = scheduler
        self._poll_min_s = poll_min_s
        self._clock = clock
        self._asked_at: float | None = None
        self._answers: dict[str, list[Task]] = {}
        self._rows: dict[tuple[str, int], Task] = {}
        self._waiting: list[Task] = []
        self._hastened: set[tuple[str, int, int]] = set()

    def ask(self, jobs: list[Job]) -> None:
        """Ask for these jobs if it is time. Those on other machines are taken to live on."""
        away = {job.job: host for job in jobs if (host := self.elsewhere(job.job))}
        here = [job for job in jobs if job.job not in away]
        if here:
            self._ask(here)
        elif away:
            self.blind = ""
        if away and not self.blind:
            hosts = ", ".join(sorted(set(away.values())))
            self.blind = f"jobs of this experiment are on {hosts}, and can only be seen there"

    def elsewhere(self, job: str) -> str:
        """Return the only machine that can control a job; "" if it is this one, or any can."""
        return self._scheduler.elsewhere(job) if isinstance(self._scheduler, PerHost) else ""

    def row(self, job: str, index: int) -> Task | None:
        """Return a task's row; None if there is none."""
        found = self._rows.get((job, index))
        if found is not None:
            return found
        return next((row for row in self._answers.get(job, []) if row.index < 0), None)

    @property
    def answer(self) -> object:
        """The last answer, another object each time."""
        return self._rows

    def waiting(self) -> list[Task]:
        """Return the pending tasks."""
        return self._waiting

    @property
    def hopeless(self) -> list[Task]:
        """The pending tasks that cannot start by themselves."""
        return [row for row in self.waiting() if row.wait.kind in ("launch", "never")]

    def _all(self) -> Iterator[Task]:
        return (row for rows in self._answers.values() for row in rows)

    def _ask(self, jobs: list[Job]) -> None:
        now, wanted = self._clock(), {job.job for job in jobs}
        recent = self._asked_at is not None and now - self._asked_at < self._poll_min_s
        if recent and wanted <= self.asked:
            return
        try:
            self._answers = self._scheduler.query(jobs)
        except Unavailable as error:
            self.blind = error.what
            return
        self.blind = ""
        self._rows = {}
        self._waiting = [row for row in self._all() if row.state is TaskState.PENDING]
        for job, rows in self._answers.items():
            for row in rows:
                self._rows.setdefault((job, row.index), row)
        self.asked, self._asked_at = wanted, now
        self.answered_at = self._scheduler.answered_at
        self._hasten()

    def _hasten(self) -> None:
        """Let requeued tasks start before the scheduler's delay is over; asked once each."""
        if not isinstance(self._scheduler, Hastens):
            return
        for row in self._all():
            wait = (row.job, row.index, row.restarts)
            begins = row.wait.kind == "begin_time"
            if begins and row.restarts and wait not in self._hastened:
                self._hastened.add(wait)
                with contextlib.suppress(Unavailable):
                    self._scheduler.hasten(row.job, row.index)
