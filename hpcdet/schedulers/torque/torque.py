"""Torque, through its commands."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from hpcdet.errors import Unavailable
from hpcdet.schedulers.calls.polling import QueryAnswer, SharedQuery
from hpcdet.schedulers.common.base import (
    Capabilities,
    Job,
    NodeGroup,
    Occupancy,
    PartitionInfo,
    Submission,
    Task,
    TaskState,
)
from hpcdet.schedulers.pbs_family import pbs_commands, pbs_queues, pbs_text
from hpcdet.schedulers.pbs_family.pbs_commands import OVER
from hpcdet.schedulers.pbs_family.pbs_executor import submit
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow
from hpcdet.schedulers.torque import torque_facts, torque_names, torque_query, torque_states
from hpcdet.site import Site

_OPTIONS = ("-r", "n", "-j", "oe", "-o", "/dev/null")
"""Of the script, said again: a wrapper does not look for them there."""
_ENDED = re.compile(
    r"Unknown Job|invalid state for job|[Rr]equest invalid for state|no longer pending"
)


class TorqueScheduler:
    """``base.Scheduler`` for Torque. Each job is a task of its own, with the index 0."""

    name = "torque"

    def __init__(self, site: Site) -> None:
        self.site = site
        self.answered_at = 0.0
        self._ended: dict[str, PbsRow] = {}

    def submit(self, submission: Submission) -> str:
        """See ``base.Scheduler``."""
        return submit(submission, _OPTIONS, bare=True)

    def find(self, name: str, tag: str) -> str | None:
        """See ``base.Scheduler``. The job's name alone has to do where variables are not shown.

        Raises:
            Unavailable: no answer, or several jobs that may be meant.
        """
        wanted = torque_names.of_job(name)
        named = torque_query.named(wanted, getpass.getuser())
        tagged = [row for row in named if row.tag == tag]
        found = [row.id for row in tagged or named if row.tag in ("", tag)]
        if len(found) > 1:
            raise Unavailable(
                f"{', '.join(found)} have the name {wanted}: which of them it is cannot be told",
                hint="delete those that are not of this experiment by qdel",
            )
        return found[0] if found else None

    def query(self, jobs: Sequence[Job]) -> dict[str, list[Task]]:
        """See ``base.Scheduler``. ``qstat`` knows those that have ended for a while only."""
        if not jobs:
            return {}
        answer = self._live.get(frozenset(job.job for job in jobs))
        self.answered_at = answer.at
        rows = pbs_text.decode(answer.text)
        self._ended |= {row.id: row for row in rows.values() if row.exit_status is not None}
        return {
            job.job: [
                _task(job, rows.get(job.job))
                if job.job in answer.wanted
                else Task(job.job, 0, TaskState.PENDING, "just submitted")
            ]
            for job in jobs
        }

    def occupancy(self, project: str | None = None) -> Occupancy:
        """See ``base.CountsJobs``. A project is an account here."""
        if project is not None:
            answer, rows = _members(self._accounts, f"account {project}")
            return Occupancy(answer.at, torque_states.occupied(rows)[0])
        answer, rows = _members(self._own, f"user {getpass.getuser()}")
        return Occupancy(answer.at, *torque_states.occupied(rows))

    def running_in(self, partition: str) -> Mapping[str, int]:
        """See ``base.CountsInPartitions``."""
        _, rows = _members(self._in_queues, f"user {getpass.getuser()} queue {partition}")
        return torque_states.occupied(rows)[0]

    def cancel(self, job: str, index: int | None = None) -> None:
        """See ``base.Scheduler``."""
        self._change("qdel", job)

    def throttle(self, job: str, running: int) -> None:
        """See ``base.Scheduler``. Single jobs have nothing to throttle."""

    def hold(self, job: str, on: bool) -> None:
        """See ``base.Scheduler``. Our jobs refuse checkpoints, so a running one goes on."""
        self._change("qhold" if on else "qrls", "-h", "u", job)

    def check(self, submission: Submission) -> str:
        """See ``base.Scheduler``. ``qsub`` has no trial submission."""
        return ""

    def capabilities(self) -> Capabilities:
        """See ``base.Scheduler``."""
        return Capabilities(arrays=False, max_submit=self.site.limits.max_submit)

    def partitions(self) -> list[PartitionInfo]:
        """See ``base.Queues``."""
        return pbs_queues.partitions(torque_query.attributes(), len(torque_query.nodes()))

    def node_groups(self) -> list[NodeGroup]:
        """See ``base.HasFeatures``."""
        shown = [node.shown for node in torque_query.nodes()]
        return pbs_queues.groups(torque_query.attributes(), shown)

    @cached_property
    def _live(self) -> SharedQuery:
        def ask(jobs: frozenset[str]) -> str:
            known = [self._ended[job] for job in jobs if job in self._ended]
            fresh = sorted(job for job in jobs if job not in self._ended)
            return pbs_text.encode([*known, *(each.row for each in torque_query.rows(fresh))])

        return self._shared("qstat-torque", ask, pbs_text.gist)

    @cached_property
    def _own(self) -> SharedQuery:
        return self._groups("own")

    @cached_property
    def _accounts(self) -> SharedQuery:
        return self._groups("accounts")

    @cached_property
    def _in_queues(self) -> SharedQuery:
        return self._groups("queues")

    def _groups(self, name: str) -> SharedQuery:
        def ask(groups: frozenset[str]) -> str:
            shown = torque_query.every()
            told = {group: torque_query.members(shown, group) for group in sorted(groups)}
            return json.dumps({group: pbs_text.encode(rows) for group, rows in told.items()})

        def gist(text: str) -> object:
            said: dict[str, str] = json.loads(text or "{}")
            return {group: pbs_text.gist(rows) for group, rows in said.items()}

        return self._shared(f"{name}-torque", ask, gist)

    def _shared(
        self, name: str, ask: Callable[[frozenset[str]], str], gist: Callable[[str], object]
    ) -> SharedQuery:
        limits = self.site.limits
        where = "".join(c if c.isalnum() else "-" for c in torque_facts.server() or "torque")
        return SharedQuery(
            f"{name}-{where}", limits.poll_min_s, ask, max_s=limits.poll_max_s, gist=gist
        )

    def _change(self, *words: str) -> None:
        """Change a job; one that is over is left as it is."""
        done = pbs_commands.run(words)
        if done.returncode != 0 and not _over(done):
            raise pbs_commands.failure(words[0], done, words[-1])
        # who has not asked does not ask for the server's name now
        if isinstance(query := vars(self).get("_live"), SharedQuery):
            with contextlib.suppress(Unavailable, OSError):
                query.expect_change()


def _members(query: SharedQuery, group: str) -> tuple[QueryAnswer, Iterable[PbsRow]]:
    answer = query.get(frozenset({group}))
    return answer, pbs_text.decode(json.loads(answer.text).get(group, "")).values()


def _over(done: subprocess.CompletedProcess[str]) -> bool:
    """True if a command failed as the job has ended. A wrapper prints no reason then."""
    if done.returncode < 0:
        return False  # a signal has ended it
    said = f"{done.stderr}{done.stdout}".strip()
    return done.returncode in OVER or not said or _ENDED.search(said) is not None


def _task(job: Job, row: PbsRow | None) -> Task:
    own = pbs_text.of_job(row, job.submitted_at)
    if own is None:
        return Task(job.job, 0, TaskState.GONE, "Torque does not know it any more")
    return torque_states.task(own)
