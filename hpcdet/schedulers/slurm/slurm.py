"""Slurm, through its commands; submission through submitit, which no other file knows.

What submitit gives is its interface (``docs/decisions/0020-what-submitit-does.md``); the script is
ours and is submitted as it was rendered, for one task as for an array. No state is read from its
objects.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from submitit.core import utils
from submitit.slurm.slurm import SlurmExecutor

from hpcdet.errors import Unavailable
from hpcdet.schedulers.calls.polling import SharedQuery
from hpcdet.schedulers.common import questions
from hpcdet.schedulers.common.base import (
    Capabilities,
    Job,
    NodeGroup,
    Occupancy,
    PartitionInfo,
    Refusal,
    Submission,
    SubmissionRefused,
    Task,
    Usage,
)
from hpcdet.schedulers.slurm.answers import slurm_features, slurm_tasks, slurm_text, slurm_waits
from hpcdet.schedulers.slurm.answers.slurm_tasks import JobAccounting
from hpcdet.schedulers.slurm.answers.slurm_text import SlurmRow
from hpcdet.schedulers.slurm.slurm_commands import run
from hpcdet.site import Site
from hpcdet.site.models import SiteLimits

_NOW_S = 60.0
"""Clocks of a node and of the controller differ by less."""


class ScriptExecutor(SlurmExecutor):
    """A submitit executor that submits a finished script as one job with its array tasks."""

    def __init__(self, folder: Path, script: str) -> None:
        super().__init__(folder)
        self.script = script

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
        """Submit one script for all tasks.

        submitit's own way writes a script of its own, pickles functions that no task is to load,
        and calls ``sbatch`` without a time limit, in the environment of the job it runs in.
        """
        file = self.folder / "worker.sbatch"
        file.write_text(self.script)
        done = run(["sbatch", "--parsable", str(file)])
        if done.returncode != 0:
            raise utils.FailedJobError(done.stderr or done.stdout)
        job = slurm_text.job_id(done.stdout)
        if job is None:
            raise utils.FailedSubmissionError(f"sbatch printed no job id: {done.stdout!r}")
        return [
            self.job_class(folder=self.folder, job_id=f"{job}_{index}", tasks=[0])
            for index in range(len(delayed_submissions))
        ]


def _nothing() -> None:
    """The command for submitit; the script itself holds the real one."""


class SlurmScheduler:
    """``base.Scheduler`` for Slurm."""

    name = "slurm"

    def __init__(self, site: Site) -> None:
        self.site = site
        self.answered_at = 0.0
        self._left: dict[str, dict[int, float]] = {}

    def submit(self, submission: Submission) -> str:
        """See ``base.Scheduler``."""
        script = submission.script.read_text()
        try:
            with tempfile.TemporaryDirectory(prefix="hpcdet-") as folder:
                executor = ScriptExecutor(Path(folder), script)
                jobs = executor.submit_array([_nothing] * submission.tasks)
        except utils.FailedJobError as error:
            raise SubmissionRefused(slurm_text.refusal(str(error))) from error
        except (Unavailable, RuntimeError) as error:  # the latter: submitit finds no srun
            raise SubmissionRefused(Refusal("unavailable", str(error))) from error
        return str(jobs[0].job_id).partition("_")[0]

    def find(self, name: str, tag: str) -> str | None:
        """See ``base.Scheduler``. Asked only after a submission whose end is not known."""
        argv = ["squeue", "--me", "-h", "-t", "all", f"--name={name}", "-o", "%F|%k"]
        for line in self._ask(argv).splitlines():
            job, _, comment = line.strip().partition("|")
            if comment == tag:
                return job
        if not self._accounting():
            return None
        argv = ["sacct", "-X", "-n", "-P", f"--name={name}", "-S", "now-30days", "-o"]
        for line in self._ask([*argv, "JobID,Comment"]).splitlines():
            job, _, comment = line.strip().partition("|")
            if comment in ("", tag):  # comments are stored only where the site wants it
                return job.partition("_")[0]
        return None

    def query(self, jobs: Sequence[Job]) -> dict[str, list[Task]]:
        """See ``base.Scheduler``. ``squeue`` knows the live ones, ``sacct`` those that are gone."""
        if not jobs:
            return {}
        wanted = frozenset(job.job for job in jobs)
        answer = self._live.get(wanted)
        self.answered_at = answer.at
        rows = slurm_tasks.by_job(slurm_text.squeue(answer.text))
        found = {job.job: slurm_tasks.own(rows.get(job.job, []), job) for job in jobs}
        self._tell_too_wide(found)
        missing = {job.job: slurm_tasks.missing(job, found[job.job]) for job in jobs}
        lacking = [job for job in jobs if missing[job.job]]
        gone = frozenset(job.job for job in lacking if slurm_tasks.settled(job, answer.at))
        accounts = self._ended(gone)
        before = {job.job: self._left.pop(job.job, {}) for job in jobs}
        for job in lacking:
            lost = missing[job.job]
            if job.job not in gone:
                found[job.job].append(slurm_tasks.just_submitted(job, lost))
                continue
            left = {index: before[job.job].get(index, answer.at) for index in lost}
            self._left[job.job] = left
            ends = slurm_tasks.ends(job, left, accounts)
            found[job.job] += ends
            if not all(row.task.state.final for row in ends):
                self._expect_change("_accounts")
        return {job: [row.task for row in rows] for job, rows in found.items()}

    def _tell_too_wide(self, found: dict[str, list[SlurmRow]]) -> None:
        """Mark pending jobs that ask for more nodes than their partition can ever give."""
        wait = slurm_waits.wait(slurm_waits.SIZE)
        waiting = [job for job, rows in found.items() if any(r.task.wait == wait for r in rows)]
        if not waiting:
            return
        with contextlib.suppress(Unavailable):
            asked, _, partitions = self._sizes.get(frozenset(waiting)).text.partition("\n\n")
            for job in waiting:
                if slurm_text.too_wide(job, asked, partitions):
                    found[job] = slurm_tasks.told(found[job], wait, slurm_waits.TOO_WIDE)

    def usage(self, jobs: Sequence[Job]) -> dict[str, list[Usage]]:
        """See ``base.Accounts``."""
        if not jobs or not self._accounting():
            return {}
        answer = self._usage.get(frozenset(job.job for job in jobs))
        rows, known = slurm_text.usage(answer.text), answer.wanted
        return {
            job.job: [run for run, at in rows if run.job == job.job and slurm_tasks.is_of(job, at)]
            for job in (each for each in jobs if each.job in known)
        }

    def occupancy(self, project: str | None = None) -> Occupancy:
        """See ``base.CountsJobs``. ``squeue`` shows a user's own jobs in any case."""
        if project is None:
            answer = self._live.get(frozenset())
            return slurm_tasks.occupancy(slurm_text.squeue(answer.text), answer.at)
        told = self._projects.get(frozenset({project}))
        return Occupancy(told.at, slurm_text.running_of(told.text, project))

    def running_in(self, partition: str) -> Mapping[str, int]:
        """See ``base.CountsInPartitions``."""
        return slurm_text.running_of(self._in_partitions.get(frozenset()).text, partition)

    def cancel(self, job: str, index: int | None = None) -> None:
        """See ``base.Scheduler``."""
        self._cancel(job, job if index is None else f"{job}_{index}")

    def prune(self, job: str) -> None:
        """See ``base.Prunes``."""
        self._cancel(job, "--state=PENDING", job)

    def _cancel(self, job: str, *words: str) -> None:
        done = run(["scancel", *words])
        if done.returncode != 0 and "Invalid job id" not in done.stderr:
            raise Unavailable(
                f"scancel failed: {slurm_text.message(done.stderr)}", where=f"job {job}"
            )
        self._expect_change()

    def launched_on(self, job: str, index: int) -> tuple[str, ...]:
        """See ``base.Remembers``. Only accounting tells, once a task has been requeued."""
        if not self._accounting():
            return ()
        one = job if index < 0 else f"{job}_{index}"
        rows = self._ask(["sacct", "-X", "-D", "-n", "-P", "-j", one, "-o", "NodeList"])
        nodes = [line for line in rows.splitlines() if line and line != "None assigned"]
        return slurm_text.hosts(nodes[-1]) if nodes else ()

    def join(
        self, job: str, host: str, command: Sequence[str], *, terminal: bool = False
    ) -> list[str]:
        """See ``base.Joins``: a step beside those that run, with all that the job has."""
        # srun takes no A_T
        running = self._ask(["squeue", "--me", "-h", "-t", "R", "-j", job, "-o", "%A"]).split()
        if not running:
            raise Unavailable("the job does not run", where=f"job {job}")
        return [
            *("srun", f"--jobid={running[0]}", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0"),
            *("--mpi=none", "--cpu-bind=none", "--export=ALL", "--job-name=join"),
            "--pty" if terminal else "--unbuffered",
            *command,
        ]

    def throttle(self, job: str, running: int) -> None:
        """See ``base.Scheduler``."""
        self._update(job, f"ArrayTaskThrottle={running}")

    def hold(self, job: str, on: bool) -> None:
        """See ``base.Scheduler``."""
        self._control("hold" if on else "release", job)

    def hasten(self, job: str, index: int) -> None:
        """Let a requeued task start now, not two minutes after its requeue. Its owner may."""
        self._update(f"{job}_{index}", "StartTime=now")

    def check(self, submission: Submission) -> str:
        """See ``base.Scheduler``.

        Raises:
            SubmissionRefused: as ``submit`` would.
        """
        done = run(["sbatch", "--test-only", str(submission.script)], "standard")  # for people
        if done.returncode != 0:
            raise SubmissionRefused(slurm_text.refusal(done.stderr))
        return done.stderr.replace("sbatch: ", "").strip()

    def starts_now(self, script: Path, nodes: int, exclude: Sequence[str]) -> bool:
        """See ``base.Foresees``. Jobs ahead of it in the queue count, too."""
        size = (f"--nodes={nodes}-{nodes}", "--array=0", f"--exclude={','.join(exclude)}")
        done = run(["sbatch", "--test-only", *size, "--dependency=", str(script)])
        at = slurm_text.starts_at(done.stderr) if done.returncode == 0 else None
        return at is not None and at <= time.time() + _NOW_S

    def capabilities(self) -> Capabilities:
        """See ``base.Scheduler``. A site that was resolved at submission has asked already.

        Of one that leaves something open, or has the widest array by default, the narrower counts
        of what the cluster and the site file say, and the site's word alone while the cluster does
        not answer: scripts can be prepared.
        """
        can, limits = self.site.capabilities, self.site.limits
        accounting, widest = bool(can.accounting), ""
        if can.accounting is None or limits.max_array == SiteLimits().max_array:
            with contextlib.suppress(Unavailable):
                accounting, widest = self._accounting(), self._config.get("MaxArraySize", "")
        return Capabilities(
            requeue=can.requeue == "user",
            accounting=accounting,
            max_array_tasks=min(
                limits.max_array, int(widest) if widest.isdecimal() else limits.max_array
            ),
            max_submit=limits.max_submit,
        )

    def _accounting(self) -> bool:
        said = self.site.capabilities.accounting
        if said is not None:
            return said
        return self._config.get("AccountingStorageType", "").endswith("slurmdbd")

    def partitions(self) -> list[PartitionInfo]:
        """See ``base.Queues``."""
        return slurm_text.sinfo(self._ask(slurm_text.PARTITIONS))

    def node_groups(self) -> list[NodeGroup]:
        """See ``base.HasFeatures``."""
        return slurm_features.groups(self._ask(slurm_features.NODES))

    @cached_property
    def _config(self) -> Mapping[str, str]:
        return slurm_text.parse_config(self._ask(["scontrol", "show", "config"]))

    @cached_property
    def _cluster(self) -> str:
        """Names the shared answers. Inside a job the name is in the environment."""
        name = os.environ.get("SLURM_CLUSTER_NAME") or self._config.get("ClusterName")
        return "".join(c if c.isalnum() else "-" for c in name or "slurm")

    @cached_property
    def _live(self) -> SharedQuery:
        def ask(_: frozenset[str]) -> str:
            form = slurm_text.squeue_format()
            return self._ask(["squeue", "--me", "-h", "-t", "all", "-O", form])

        return self._shared("squeue", ask, slurm_text.squeue_gist)

    @cached_property
    def _accounts(self) -> SharedQuery:
        def ask(jobs: frozenset[str]) -> str:
            fields = ",".join(slurm_text.SACCT_FIELDS)
            return self._ask(
                ["sacct", "-X", "-n", "-P", "-o", fields, "-j", ",".join(sorted(jobs))]
            )

        return self._shared("sacct", ask, str)

    @cached_property
    def _sizes(self) -> SharedQuery:
        def ask(_: frozenset[str]) -> str:
            return f"{self._ask(slurm_text.ASKED)}\n\n{self._ask(slurm_text.PARTITIONS)}"

        return self._shared("sizes", ask, str)

    @cached_property
    def _projects(self) -> SharedQuery:
        def ask(names: frozenset[str]) -> str:
            return self._ask([*slurm_text.OF_PROJECTS, f"--account={','.join(sorted(names))}"])

        return self._shared("projects", ask, str)

    @cached_property
    def _in_partitions(self) -> SharedQuery:
        return self._shared("partitions", lambda _: self._ask([*slurm_text.OF_PARTITIONS]), str)

    @cached_property
    def _usage(self) -> SharedQuery:
        def ask(jobs: frozenset[str]) -> str:
            return self._ask([*slurm_text.USAGE, "-j", ",".join(sorted(jobs))])

        return self._shared("usage", ask, slurm_text.usage_gist)

    def _shared(
        self, name: str, ask: Callable[[frozenset[str]], str], gist: Callable[[str], object]
    ) -> SharedQuery:
        limits = self.site.limits
        name = f"{name}-{self._cluster}"
        return SharedQuery(name, limits.poll_min_s, ask, max_s=limits.poll_max_s, gist=gist)

    def _ended(self, jobs: frozenset[str]) -> JobAccounting | None:
        """Return accounting's rows for jobs that left the queue; None without accounting."""
        if not jobs or not self._accounting():
            return None
        answer = self._accounts.get(jobs)
        cancelled = self.site.capabilities.preempt_as_cancelled
        rows = slurm_tasks.by_job(slurm_text.sacct(answer.text, os.getuid(), cancelled))
        return JobAccounting({job: rows.get(job, []) for job in jobs & answer.wanted}, answer.at)

    def _expect_change(self, question: str = "_live") -> None:
        """The shared answer is old sooner than while nothing happens."""
        # who has not asked does not ask for the cluster's name now
        if isinstance(query := vars(self).get(question), SharedQuery):
            with contextlib.suppress(Unavailable, OSError):
                query.expect_change()

    def _update(self, job: str, change: str) -> None:
        self._control("update", f"JobId={job}", change, job=job)

    def _control(self, *words: str, job: str = "") -> None:
        """Change a job; one that is over, or of which nothing waits, is left as it is."""
        done = run(["scontrol", *words])
        known = ("Invalid job id", "already completing", "already finished", "no longer pending")
        if done.returncode != 0 and not any(text in done.stderr for text in known):
            raise Unavailable(
                f"scontrol failed: {slurm_text.message(done.stderr)}",
                where=f"job {job or words[-1]}",
            )
        self._expect_change()

    def _ask(self, argv: Sequence[str]) -> str:
        questions.refuse(argv[0])
        done = run(argv)
        if done.returncode != 0:
            said = slurm_text.message(done.stderr) or f"exit code {done.returncode}"
            raise Unavailable(f"{argv[0]} failed: {said}")
        return done.stdout
