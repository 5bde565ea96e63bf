"""``shell``: a shell in a job, or beside a trial that runs."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from hpcdet import units
from hpcdet.cli.frame.output import Output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.interactive import task_verbs
from hpcdet.cli.interactive.start_verbs import IDLE_S, StartFlags, show, start_options, submitted
from hpcdet.errors import NotFound, StillPending, UsageError
from hpcdet.read.lookup import find
from hpcdet.site import Site
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.config import resolved_config
from hpcdet.store.folder import home, trust
from hpcdet.store.folder.records import Claim, End
from hpcdet.tasks import join_job, task_views
from hpcdet.tasks.folder.task_folder import TaskPaths, TaskStarted, task
from hpcdet.tasks.join_job import JoiningCommand


@click.group(
    "shell", cls=task_verbs.TaskGroup, short_help="A shell in a job, or beside a running trial."
)
def shell_command() -> None:
    """A shell on a node: in a job of its own, or in that of a trial that runs.

    \b
    Example: hpcdet shell start --time 1h --wait
             hpcdet shell open digits-7f3a/3
    """


@shell_command.command("start")
@start_options("shell", IDLE_S)
def start(out: Output, **flags: Any) -> None:
    """Take a job in which shells can be opened.

    It ends when none has been open for a while.

    \b
    Example: hpcdet shell start --slots 1 --time 1h --wait
    """
    asked = StartFlags(**flags)
    show(out, submitted(out, "shell", asked), asked)


@shell_command.command("open")
@click.argument("id", metavar="TASK|EXP/T", shell_complete=task_verbs.complete(""))
def open_(id: str) -> None:
    """Open a shell in the job of a task, or of a trial's running attempt.

    It has the job's environment, and shares all that the job has. Without a terminal it
    reads its commands from standard input.

    \b
    Examples: hpcdet shell open shell-7f3a
              echo nvidia-smi | hpcdet shell open digits-7f3a/3
    """
    try:
        found = task(id, settings().root)
    except NotFound as error:
        if id.partition("-")[0] in ("notebook", "tensorboard", "shell", "run"):
            raise error
        command = _beside_attempt(id)
    else:
        command = _in_task(found)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command.argv[0], list(command.argv), command.environment)


def _python(site: Site) -> str:
    return site.python or sys.executable


def _in_task(found: TaskPaths) -> JoiningCommand:
    """Return the command that opens a shell in a task's job.

    Raises:
        UsageError: it has ended.
        StillPending: it does not run yet.
    """
    item = task_views.view(found)
    if item.state not in task_verbs.LIVE:
        raise UsageError(f"it has ended: {item.reason}", where=found.id)
    started = TaskStarted.read(found.started)
    if started is None:
        raise StillPending(f"it does not run yet: {item.reason or item.state}", where=found.id)
    left = f", {units.duration(item.left_s)} left" if item.left_s is not None else ""
    settings().note(f"{found.id}: job {item.job} on {item.node}{left}")
    site = from_resolved(found.job.site)
    argv = [_python(site), "-Pm", "hpcdet.tasks.shell_session", str(found.root)]
    return join_job.of_task(found, started, argv, terminal=sys.stdin.isatty())


def _beside_attempt(id: str) -> JoiningCommand:
    """Return the command that opens a shell beside an attempt; say what it shares.

    Raises:
        NotFound: there is no such trial.
        UsageError: no attempt of it runs in a job.
    """
    attempt = find.attempt(id, settings().root)
    paths = find.experiment(id, settings().root)
    trust.refuse_to_run(paths.code)
    claim, called = Claim.read(attempt.claim), home.called(paths, attempt.trial, attempt.number)
    if claim is None or End.read(attempt.end) is not None or not claim.job:
        hint = f"hpcdet status {home.called(paths)}"
        raise UsageError("no attempt of it runs in a job", where=called, hint=hint)
    need = resolved_config.load(paths.config).resources
    nodes = ", ".join(claim.nodes) or claim.host
    memory = f", {units.size(need.memory_per_slot)} each" if need.memory_per_slot else ""
    settings().note(
        f"{called}: job {claim.job} on {nodes}. The shell shares the {need.slots_per_trial} slots "
        f"of the training ({need.cpus_per_slot} cores{memory}), which lacks what the shell uses "
        "and ends if memory runs out. The shell ends with the job"
    )
    site = from_resolved(paths.site)
    argv = [_python(site), "-Pm", "hpcdet.tasks.shell_session", str(paths.root.absolute())]
    argv += [str(attempt.trial), str(attempt.number)]
    host = claim.nodes[0] if claim.nodes else claim.host
    return join_job.of_job(site, claim.job, host, argv, terminal=sys.stdin.isatty())


task_verbs.add_verbs(shell_command, "shell")
