"""A shell inside a job that runs, with the variables of the process that looks after the job.

``python -Pm hpcdet.tasks.shell_session TASK`` becomes one in a task's job,
``... shell_session EXP TRIAL ATTEMPT`` one in the job of a trial's attempt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcdet.errors import HpcdetError, NotFound
from hpcdet.jobs.script import launch
from hpcdet.schedulers.common import processes
from hpcdet.store.config import resolved_config
from hpcdet.store.folder import trust
from hpcdet.store.folder.held_folder import Held, hold
from hpcdet.store.folder.records import Claim, WorkerClaim
from hpcdet.tasks.folder.open_sessions import open_session
from hpcdet.tasks.folder.task_folder import TaskOrder, TaskPaths, TaskStarted

_TERMINAL = ("TERM", "COLORTERM", "COLUMNS", "LINES")
_SHELL = 'if [ -t 0 ]; then exec "${SHELL:-/bin/bash}" -i; else exec "${SHELL:-/bin/bash}"; fi'


def process_variables(pid: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a process of this user began, and this one's terminal.

    Args:
        given: the variables of this process.

    Raises:
        OSError: there is no such process, or it is another user's.
    """
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = dict(os.fsdecode(pair).partition("=")[::2] for pair in pairs if b"=" in pair)
    return found | {name: given[name] for name in _TERMINAL if name in given}


def of_task(task: TaskPaths, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a task's job.

    Raises:
        NotFound: its process is not on this host.
    """
    started = TaskStarted.read(task.started)
    if started is None or not processes.alive(started.pid, started.start):
        raise NotFound("its process does not run on this host", where=task.id)
    known = process_variables(started.pid, given)
    return known | {"HPCDET_ROOT": str(task.experiments), "HPCDET_JOINED": task.id}


def of_attempt(held: Held, trial: int, attempt: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the job of an attempt, and those of its config's ``environment``.

    Raises:
        NotFound: its worker is not on this host.
    """
    paths, name = held.paths, f"{held.named.name}/{trial}.{attempt}"
    claim = Claim.read(paths.trial(trial).attempt(attempt).claim)
    worker = (
        WorkerClaim.read(paths.root / "workers" / claim.worker / "claim.json") if claim else None
    )
    try:
        pid = worker.pid if worker is not None else 0
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        named = os.fsencode(held.named)
        if not any(os.path.realpath(word) == named for word in words if word):
            # the number is another process's by now
            raise FileNotFoundError(pid)
        known = process_variables(pid, given)
    except OSError as error:
        raise NotFound("its worker does not run on this host", where=name) from error
    known = launch.with_variables(known, resolved_config.load(paths.config).environment)
    return known | {"HPCDET_ROOT": str(held.named.parent), "HPCDET_JOINED": name}


def become_shell(folder: str, variables: Mapping[str, str]) -> None:
    """Replace this process by the user's shell: an interactive one on a terminal."""
    os.chdir(folder)
    os.execve("/bin/bash", ["bash", "-c", _SHELL], dict(variables))


def main(argv: list[str]) -> int:
    """Become the shell; return an exit code if that cannot be."""
    os.umask(0o077)
    try:
        if len(argv) > 1:
            held = hold(Path(argv[0]))
            trust.refuse_to_run(held.paths.code)
            variables = of_attempt(held, int(argv[1]), int(argv[2]), os.environ)
            become_shell(str(held.named / "code"), variables)
        task = TaskPaths(Path(argv[0]))
        trust.refuse_writable_by_others(task.root, "task")
        order = TaskOrder.read(task.order)
        assert order is not None
        variables = of_task(task, os.environ)
        open_session(task)
        if task.ended.exists():
            raise NotFound("it has ended", where=task.id)
        become_shell(order.folder, variables)
    except HpcdetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
