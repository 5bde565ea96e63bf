"""The copy, after an attempt, of staged checkpoints that its ranks had no time to copy."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable

from hpcdet.containers import opening
from hpcdet.errors import HpcdetError
from hpcdet.jobs.script import contained
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.trials import staged

_LOOK_S = 0.2
# the scheduler tells every process of the allocation, this one, too
_DEAF = ["/bin/sh", "-c", 'trap "" TERM USR1 USR2; exec "$@"', "sh"]


def drain(
    paths: ExperimentPaths,
    experiment: Resolved,
    site: Site,
    attempt: AttemptPaths,
    left_s: Callable[[], float],
) -> None:
    """Copy staged checkpoints in a process that has torch while time is left, and record it.

    Errors go to the launcher's log; the checkpoints then stay where they are.

    Args:
        left_s: asked all the time: seconds that it may still take.
    """
    where = experiment.checkpoint_storage.local_staging
    if where is None:
        return
    trial = paths.trial(attempt.trial)
    with contextlib.suppress(HpcdetError, OSError):
        place = staged.folder(where, paths, trial.number)
        if place is not None and staged.waiting(place, trial):
            _copy(_command(paths, experiment, site, attempt), attempt, left_s)
    with contextlib.suppress(OSError):
        staged.tell(attempt, trial)


def _command(
    paths: ExperimentPaths, experiment: Resolved, site: Site, attempt: AttemptPaths
) -> list[str]:
    """Return the command that copies, in the image of the ranks if it can be had here."""
    verb = ["-Pm", "hpcdet.checkpoint", "drain", str(paths.root)]
    verb += [str(attempt.trial), str(attempt.number)]
    image = contained.image(experiment, site)
    if image is not None and not opening.runtime(image.container).by_launcher:
        inside = contained.command(image, experiment, site, paths, verb, os.environ)
        return [*_DEAF, *inside.command]
    return [*_DEAF, sys.executable, *verb]


def _copy(argv: list[str], attempt: AttemptPaths, left_s: Callable[[], float]) -> None:
    with contextlib.suppress(OSError), files.append_log(attempt.launcher_log) as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
        )
        while process.poll() is None and left_s() > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
        process.kill()
        process.wait()
