"""The start of a task: its folder, the script of its job, and the submission."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from hpcdet.errors import ConfigError, HpcdetError, Unavailable
from hpcdet.jobs.script import command_job
from hpcdet.schedulers.calls import lost_submissions, submission_rate
from hpcdet.schedulers.common.base import SubmissionRefused
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.records import Intent, Submitted
from hpcdet.store.fs import files
from hpcdet.tasks import tunnels
from hpcdet.tasks.folder.task_folder import (
    TASKS,
    TaskEnded,
    TaskKind,
    TaskOrder,
    TaskPaths,
    refuse_foreign,
    tasks,
)

PACKAGES = {"notebook": "jupyterlab", "tensorboard": "tensorboard"}
"""What a kind needs in the site's Python, and its extra of hpcdet has."""
_KEEP_ENDED_S = 30 * 24 * 3600
_LIMIT_S = 60
_PATIENCE_S = 120.0


def refuse_without_packages(kind: TaskKind, site: Site) -> None:
    """Refuse a kind whose package the site's Python has not, if that Python is on this host.

    Raises:
        ConfigError: with the line that installs it.
    """
    package = PACKAGES.get(kind)
    python = site.python or sys.executable
    if package is None:
        return
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None and 3)"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # it may be on the nodes only
        done = subprocess.run([python, "-Pc", look], capture_output=True, timeout=_LIMIT_S)
        if done.returncode == 3:
            raise ConfigError(
                f"{python} has no {package}",
                where=f"site {site.name}: python",
                hint=shlex.join([python, "-m", "pip", "install", f"hpcdet[{kind}]"]),
            )


def start(order: TaskOrder, site: Site, experiment: Resolved, root: Path) -> TaskPaths:
    """Make a task and submit its job.

    Args:
        order: without what this host adds to it.
        experiment: whose resources and environment the job gets.
        root: the folder that holds experiments.

    Raises:
        ConfigError: the scheduler will never take the job, or a package is missing.
        Unavailable: the scheduler does not answer; nothing is left.
    """
    refuse_without_packages(order.kind, site)
    _prepare(root)
    task = _made(order.kind, root)
    try:
        _write(task, order, site)
        job = _submit(task, site, experiment)
    except BaseException:
        _undo(task, site)
        raise
    Submitted(job, site.scheduler, at=files.now()).write_once(task.job.submitted(1))
    return task


def _prepare(root: Path) -> None:
    """Make the folder of tasks; remove those that ended long ago."""
    files.make_folder(root / TASKS)
    refuse_foreign(root)
    for task in tasks(root):
        ended, order = TaskEnded.read(task.ended), TaskOrder.read(task.order)
        if ended is None or order is None:
            continue
        tunnels.close_entrance(order)
        if time.time() - datetime.fromisoformat(ended.at).timestamp() > _KEEP_ENDED_S:
            shutil.rmtree(task.root, ignore_errors=True)


def _made(kind: str, root: Path) -> TaskPaths:
    while True:
        task = TaskPaths(root / TASKS / f"{kind}-{secrets.token_hex(2)}")
        with contextlib.suppress(FileExistsError):
            task.root.mkdir(mode=files.FOLDER_MODE)
            return task


def _write(task: TaskPaths, order: TaskOrder, site: Site) -> None:
    begins_here = site.tunnel in tunnels.FROM_LOGIN and order.kind in tunnels.PORTS
    dataclasses.replace(
        order,
        host=tunnels.this_host(),
        entrance=tunnels.entrance() if begins_here else "",
        path=os.environ.get("PATH", ""),
        at=files.now(),
    ).write_once(task.order)


def _submit(task: TaskPaths, site: Site, experiment: Resolved) -> str:
    tag = f"hpcdet:{task.id}:{secrets.token_hex(4)}"
    name = task.id[-(site.limits.name_max or len(task.id)) :]
    intent = Intent(1, name, tag, tasks=1, throttle=1, term=0, at=files.now())
    intent.write_once(task.job.intent(1))
    command = ["hpcdet.tasks.task_process", str(task.root)]
    made = command_job.build(task.job, intent, experiment, site, command)
    try:
        per_min = site.limits.submit_per_min
        return submission_rate.submit(open_scheduler(site), made, per_min, _PATIENCE_S)
    except SubmissionRefused as error:
        if error.refusal.kind == "unavailable":
            raise Unavailable(error.refusal.message, where=f"site {site.name}") from error
        what = f"the scheduler refused the job: {error.refusal.message}"
        raise ConfigError(what, where=f"site {site.name}") from error


def _undo(task: TaskPaths, site: Site) -> None:
    """Cancel the job, if there is one by now, and remove what was made."""
    intent = Intent.read(task.job.intent(1))
    order = TaskOrder.read(task.order)
    if intent is not None:
        with contextlib.suppress(HpcdetError):
            scheduler = open_scheduler(site)
            script = task.job.script(intent.number)
            job = lost_submissions.find(scheduler, intent.name, intent.tag, script)
            if job is not None:
                scheduler.cancel(job)
    if order is not None:
        tunnels.close_entrance(order)
    shutil.rmtree(task.root, ignore_errors=True)
