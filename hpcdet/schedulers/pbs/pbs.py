"""PBS, through its commands."""

from __future__ import annotations

import contextlib
import getpass
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

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
    Usage,
)
from hpcdet.schedulers.pbs import pbs_query, pbs_states
from hpcdet.schedulers.pbs_family import (
    pbs_commands,
    pbs_ids,
    pbs_queues,
    pbs_script_import,
    pbs_text,
)
from hpcdet.schedulers.pbs_family.pbs_commands import FINISHED, OVER
from hpcdet.schedulers.pbs_family.pbs_executor import submit
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow
from hpcdet.site import Site

_WAITING = frozenset("QHW")


class PbsScheduler:
    """``base.Scheduler`` for PBS."""

    name = "pbs"

    def __init__(self, site: Site) -> None:
        self.site = site
        self.answered_at = 0.0
        self._ended: dict[str, list[PbsRow]] = {}

    def submit(self, submission: Submission) -> str:
        """See ``base.Scheduler``."""
        # without -f a first qsub stays behind to serve later ones, in the environment of its own
        job = submit(submission, ("-f",))
        if "depend" in pbs_script_import.asked(submission.script) and pbs_query.is_missed(job):
            self._change("qdel", "-x", job)
            job = submit(submission, ("-f",))
        return job

    def find(self, name: str, tag: str) -> str | None:
        """See ``base.Scheduler``. Asked only after a submission whose end is not known."""
        return self._found(name, tag, "")

    def find_sent(self, name: str, tag: str, script: Path) -> str | None:
        """See ``base.SendsElsewhere``."""
        queue = pbs_script_import.asked(script).get("queue", "")
        return self._found(name, tag, queue.partition("@")[2])

    def _found(self, name: str, tag: str, server: str) -> str | None:
        found = pbs_query.rows(pbs_query.named(name, self._user, server))
        return next((row.id for row in found if row.tag == tag), None)

    def query(self, jobs: Sequence[Job]) -> dict[str, list[Task]]:
        """See ``base.Scheduler``. ``qstat -x`` knows live and ended ones."""
        if not jobs:
            return {}
        answer = self._live.get(frozenset(job.job for job in jobs))
        self.answered_at = answer.at
        rows = pbs_text.decode(answer.text)
        self._add_former(answer, rows)
        self._remember(rows)
        return {
            job.job: pbs_states.tasks(job, rows, self._user, asked=job.job in answer.wanted)
            for job in jobs
        }

    def usage(self, jobs: Sequence[Job]) -> dict[str, list[Usage]]:
        """See ``base.Accounts``. Of a job that was run again only the last run is known."""
        if not jobs:
            return {}
        answer = self._live.get(frozenset(job.job for job in jobs))
        rows = pbs_text.decode(answer.text)
        return {
            job.job: pbs_states.usage(job, rows)
            for job in jobs
            if job.job in answer.wanted and job.job in rows
        }

    def occupancy(self, project: str | None = None) -> Occupancy:
        """See ``base.CountsJobs``."""
        if project is None:
            answer = self._own.get(frozenset())
            running, waiting = pbs_states.occupied(answer.text)
            return Occupancy(answer.at, running, waiting)
        answer = self._projects.get(frozenset({project}))
        told = json.loads(answer.text).get(project, "")
        return Occupancy(answer.at, pbs_states.occupied(told)[0])

    def running_in(self, partition: str) -> Mapping[str, int]:
        """See ``base.CountsInPartitions``."""
        answer = self._in_queues.get(frozenset({partition}))
        return pbs_states.occupied(json.loads(answer.text).get(partition, ""))[0]

    def cancel(self, job: str, index: int | None = None) -> None:
        """See ``base.Scheduler``. Of a job that waited in vain nothing is left to be told."""
        task = job if index is None else pbs_ids.task_id(job, index)
        if self._change("qdel", task) == FINISHED:
            with contextlib.suppress(Unavailable):
                if any(pbs_states.in_vain(row, {}) for row in pbs_query.rows([task])):
                    self._change("qdel", "-x", task)

    def prune(self, job: str) -> None:
        """See ``base.Prunes``."""
        rows = pbs_query.rows([job])
        waiting = [row for row in rows if row.state in _WAITING]
        if waiting == rows:
            tasks = [row.id for row in rows if row.id == job]  # none of it has begun
        else:
            # an array that is held is itself in such a state, whatever its tasks do
            indices = sorted(pbs_ids.job_and_index(row.id)[1] for row in waiting if row.id != job)
            tasks = [pbs_ids.task_range(job, *ends) for ends in _ranges(indices)]
        for task in tasks:
            self._change("qdel", task)

    def throttle(self, job: str, running: int) -> None:
        """See ``base.Scheduler``. Single jobs have nothing to throttle."""
        if pbs_ids.is_array(job):
            self._change("qalter", "-W", f"max_run_subjobs={running}", job)

    def hold(self, job: str, on: bool) -> None:
        """See ``base.Scheduler``. Our jobs refuse checkpoints, so a running one goes on."""
        self._change("qhold" if on else "qrls", "-h", "u", job)

    def check(self, submission: Submission) -> str:
        """See ``base.Scheduler``. ``qsub`` has no trial submission."""
        return ""

    def capabilities(self) -> Capabilities:
        """See ``base.Scheduler``."""
        can, limits = self.site.capabilities, self.site.limits
        return Capabilities(
            requeue=False,  # a job of PBS cannot ask for it
            accounting=can.history is not False,
            arrays=bool(can.arrays) and can.rerun == "server",  # -J refuses -r n
            max_array_tasks=limits.max_array,
            max_submit=limits.max_submit,
        )

    def partitions(self) -> list[PartitionInfo]:
        """See ``base.Queues``."""
        return pbs_queues.partitions(pbs_query.attributes(), len(pbs_query.hosts()))

    def node_groups(self) -> list[NodeGroup]:
        """See ``base.HasFeatures``."""
        return pbs_queues.groups(pbs_query.attributes(), pbs_query.hosts())

    @cached_property
    def _user(self) -> str:
        return getpass.getuser()

    @cached_property
    def _live(self) -> SharedQuery:
        def ask(jobs: frozenset[str]) -> str:
            fresh = [job for job in sorted(jobs) if job not in self._ended]
            known = [row for job in jobs for row in self._ended.get(job, [])]
            return pbs_text.encode([*known, *pbs_query.rows(fresh)])

        return self._shared("qstat", ask, pbs_text.gist)

    @cached_property
    def _own(self) -> SharedQuery:
        def ask(_: frozenset[str]) -> str:
            return pbs_query.occupied("-u", self._user)

        return self._shared("qselect", ask, str)

    @cached_property
    def _projects(self) -> SharedQuery:
        def ask(projects: frozenset[str]) -> str:
            return json.dumps({one: pbs_query.running_of(one) for one in sorted(projects)})

        return self._shared("projects", ask, str)

    @cached_property
    def _in_queues(self) -> SharedQuery:
        def ask(queues: frozenset[str]) -> str:
            return json.dumps({q: pbs_query.running_in(q, self._user) for q in sorted(queues)})

        return self._shared("queues", ask, str)

    def _shared(
        self, name: str, ask: Callable[[frozenset[str]], str], gist: Callable[[str], object]
    ) -> SharedQuery:
        limits = self.site.limits
        where = "".join(c if c.isalnum() else "-" for c in pbs_commands.server() or "pbs")
        return SharedQuery(
            f"{name}-{where}", limits.poll_min_s, ask, max_s=limits.poll_max_s, gist=gist
        )

    def _add_former(self, answer: QueryAnswer, rows: dict[str, PbsRow]) -> None:
        """Add the jobs that held jobs wait for: whether they can still end well."""
        former = {
            job
            for row in rows.values()
            if row.state == "H"
            for job in pbs_states.dependencies(row)
            if job not in answer.wanted
        }
        if former:
            with contextlib.suppress(Unavailable):
                found = pbs_text.decode(self._live.get(frozenset(former)).text)
                rows.update({job: found[job] for job in former if job in found})

    def _remember(self, rows: dict[str, PbsRow]) -> None:
        """Note the jobs that are over: nobody need ask about them again.

        One that waited in vain is taken out of the history, and has to be missed then.
        """
        for row in rows.values():
            job = pbs_ids.job_and_index(row.id)[0]
            if row.id == job and row.state == "F" and not pbs_states.in_vain(row, {}):
                self._ended[job] = [
                    one for one in rows.values() if pbs_ids.job_and_index(one.id)[0] == job
                ]

    def _change(self, *words: str) -> int:
        """Change a job; one that is over is left as it is. Returns the command's exit code."""
        done = pbs_commands.run(words)
        if done.returncode not in (0, *OVER):
            raise pbs_commands.failure(words[0], done, words[-1])
        # who has not asked does not ask for the server's name now
        if isinstance(query := vars(self).get("_live"), SharedQuery):
            with contextlib.suppress(Unavailable, OSError):
                query.expect_change()
        return done.returncode


def _ranges(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of successive numbers."""
    first = last = None
    for index in indices:
        if last is not None and index == last + 1:
            last = index
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = index
    if first is not None and last is not None:
        yield first, last
