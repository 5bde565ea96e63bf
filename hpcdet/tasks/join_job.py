"""Another process inside a job that runs: a shell, or the end of a relay."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdet.errors import NotFound
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import Joins
from hpcdet.schedulers.common.variables import scrubbed
from hpcdet.site import Site
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.folder.records import Submitted
from hpcdet.tasks.folder.task_folder import TaskPaths, TaskStarted


@dataclass(frozen=True)
class JoiningCommand:
    """A command of this host that runs another one inside a job, ready to be executed."""

    argv: tuple[str, ...]
    environment: dict[str, str]


def of_task(
    task: TaskPaths, started: TaskStarted, command: Sequence[str], *, terminal: bool = False
) -> JoiningCommand:
    """Return how to run a command in a task's job, as ``of_job``.

    Raises:
        NotFound: the task has no job.
    """
    submitted = Submitted.read(task.job.submitted(1))
    if submitted is None or not submitted.job:
        raise NotFound("it has no job", where=task.id)
    site = from_resolved(task.job.site)
    return of_job(site, submitted.job, started.host, command, terminal=terminal)


def of_job(
    site: Site, job: str, host: str, command: Sequence[str], *, terminal: bool = False
) -> JoiningCommand:
    """Return how to run a command inside a job, by the scheduler where it can, else by ssh.

    Args:
        job: the scheduler's id of the job, or of the array task.
        host: the node.
        terminal: the command gets this one's terminal.

    Raises:
        Unavailable: the scheduler does not answer, or the job is another machine's.
    """
    scheduler = opening.open_scheduler(site)
    environ = scrubbed(os.environ, opening.of(site).names)
    if isinstance(scheduler, Joins):
        argv = scheduler.join(job, host, command, terminal=terminal)
    else:
        argv = ["ssh", "-t" if terminal else "-T", host, shlex.join(command)]
    return JoiningCommand(tuple(argv), environ)
