"""A submitit executor for PBS: it submits a finished script, and does nothing else.

See ``docs/decisions/0020-what-submitit-does.md``: the script, the command and the job's id are
ours, nothing is pickled, and no state is read from its jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from hpcdet.schedulers.pbs import pbs_commands
from hpcdet.schedulers.pbs.answers import pbs_ids


class PbsRefused(utils.FailedJobError):
    """``qsub`` made no job. ``code`` is its exit code."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


class SubmittedJob(core.Job[Any]):
    """A job of submitit's with an id of PBS's."""


class PbsExecutor(core.Executor):
    """A submitit executor that submits a finished script, for one task as for an array."""

    job_class = SubmittedJob

    def __init__(self, folder: Path, script: Path) -> None:
        super().__init__(folder)
        self.script = script

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
        """Submit one script for all tasks.

        Without ``-f`` a first ``qsub`` stays in the background to serve later ones, in the
        environment of its own.
        """
        done = pbs_commands.run(["qsub", "-f", str(self.script)])
        if done.returncode != 0:
            raise PbsRefused(done.returncode, done.stderr or done.stdout)
        found = [job for line in done.stdout.splitlines() if (job := pbs_ids.parse(line))]
        if not found:
            raise utils.FailedSubmissionError(f"qsub printed no job id: {done.stdout!r}")
        job = found[-1]
        return [
            self.job_class(self.folder, pbs_ids.task_id(job, index))
            for index in range(len(delayed_submissions))
        ]
