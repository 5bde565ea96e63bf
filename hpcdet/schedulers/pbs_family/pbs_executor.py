"""A submitit executor for ``qsub``: it submits a finished script, and does nothing else.

See ``docs/decisions/0020-what-submitit-does.md``: the script, the command and the job's id are
ours, nothing is pickled, and no state is read from its jobs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.base import Refusal, Submission, SubmissionRefused
from hpcdet.schedulers.pbs_family import pbs_commands, pbs_ids, pbs_text


def _nothing() -> None:
    """The command for submitit; the script itself holds the real one."""


def submit(submission: Submission, options: Sequence[str], *, bare: bool = False) -> str:
    """Submit a script; returns the id of its job or array.

    Args:
        options: of ``qsub``, over those in the script.
        bare: ids may lack the server's name.

    Raises:
        SubmissionRefused: there is no job, or nobody knows.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="hpcdet-") as folder:
            executor = PbsExecutor(Path(folder), submission.script, options, bare=bare)
            jobs = executor.submit_array([_nothing] * submission.tasks)
    except PbsRefused as error:
        raise SubmissionRefused(pbs_text.refusal(error.code, str(error))) from error
    except (Unavailable, utils.FailedSubmissionError) as error:
        # whether there is a job now is not known: it is looked for before another submission
        raise SubmissionRefused(Refusal("unavailable", str(error))) from error
    return pbs_ids.job_and_index(str(jobs[0].job_id))[0]


class PbsRefused(utils.FailedJobError):
    """``qsub`` made no job. ``code`` is its exit code."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


class SubmittedJob(core.Job[Any]):
    """A job of submitit's with an id of the server's."""


class PbsExecutor(core.Executor):
    """A submitit executor that submits a finished script, for one task as for an array."""

    job_class = SubmittedJob

    def __init__(
        self, folder: Path, script: Path, options: Sequence[str], *, bare: bool = False
    ) -> None:
        super().__init__(folder)
        self.script, self.options, self.bare = script, tuple(options), bare

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
        """Submit one script for all tasks."""
        done = pbs_commands.run(["qsub", *self.options, str(self.script)])
        if done.returncode != 0:
            raise PbsRefused(done.returncode, done.stderr.strip() or done.stdout)
        lines = done.stdout.splitlines()
        found = {job for line in lines if (job := pbs_ids.parse(line, bare=self.bare))}
        # a number alone may be something else, where an id with its server is there
        named = {job for job in found if "." in job} or found
        if len(named) != 1:
            what = "several job ids" if named else "no job id"
            raise utils.FailedSubmissionError(f"qsub printed {what}: {done.stdout!r}")
        [job] = named
        return [
            self.job_class(self.folder, pbs_ids.task_id(job, index))
            for index in range(len(delayed_submissions))
        ]
