"""A shell inside a job that runs, with the job's environment.

``python -Pm hpcdet.tasks.shell_session TASK`` becomes one in a task's job,
``... shell_session EXP TRIAL ATTEMPT`` one in the job of a trial's attempt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdet.jobs.script import environment, launch
from hpcdet.site import from_resolved
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder import trust
from hpcdet.store.folder.held_folder import hold
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.tasks.open_sessions import open_session
from hpcdet.tasks.task_folder import TaskOrder, TaskPaths

_PROFILE = "[ -r /etc/profile ] && . /etc/profile"
_SHELL = 'if [ -t 0 ]; then exec "${SHELL:-/bin/bash}" -i; else exec "${SHELL:-/bin/bash}"; fi'


def variables(
    given: Mapping[str, str], paths: ExperimentPaths, experiment: Resolved
) -> tuple[dict[str, str], list[str]]:
    """Return the variables and the shell lines with which the job of a folder began.

    Args:
        given: those of this process.
        paths: the folder with ``site.yaml`` and ``provenance.json``.
    """
    record: Any = files.read_json(paths.provenance)
    carried = record.get("environment", {}) if isinstance(record, dict) else {}
    view = from_resolved(paths.site).view(experiment.resources.resource_pool)
    known = {**environment.for_step(given), **carried, **view.env}
    return launch.with_variables(known, experiment.environment), list(view.setup)


def become_shell(folder: str, given: Mapping[str, str], setup: list[str]) -> None:
    """Replace this process by a shell: an interactive one on a terminal."""
    lines = [_PROFILE, *setup] if setup else []
    os.chdir(folder)
    os.execve("/bin/bash", ["bash", "-c", "\n".join([*lines, _SHELL])], dict(given))


def main(argv: list[str]) -> int:
    """Become the shell. Raises ConfigError if others may write the folder."""
    os.umask(0o077)
    place = Path(argv[0])
    if len(argv) > 1:
        held = hold(place)
        trust.refuse_to_run(held.paths.code)
        paths = held.paths
        given, setup = variables(os.environ, paths, resolved_config.load(paths.config))
        given |= {
            "HPCDET_ROOT": str(place.parent),
            "HPCDET_JOINED": f"{place.name}/{argv[1]}.{argv[2]}",
        }
        become_shell(str(held.named / "code"), given, setup)
        return 0
    task = TaskPaths(place)
    trust.refuse_writable_by_others(task.root, "task")
    order = TaskOrder.read(task.order)
    assert order is not None
    given, setup = variables(os.environ, task.job, resolved_config.load(task.environment))
    given |= {"HPCDET_ROOT": str(task.experiments), "HPCDET_JOINED": task.id}
    open_session(task)
    become_shell(order.folder, given, setup)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
