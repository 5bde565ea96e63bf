"""Nudges to the holder of the lease: something has ended, so turn the crank now.

Turns are some seconds apart, to spare a shared file system. A worker whose trial has ended and
that may not decide itself leaves a file with its name; the holder of the lease lists one folder in
between, and turns at once if there is any. A nudge that is lost costs some seconds.
"""

from __future__ import annotations

import contextlib
import os

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

EVERY_S = 1.0
"""Seconds between two looks of a holder."""


def give(paths: ExperimentPaths, who: str) -> None:
    """Leave a nudge under a worker's name."""
    with contextlib.suppress(OSError):
        files.make_folder(paths.nudges)
        os.close(os.open(paths.nudges / who, os.O_WRONLY | os.O_CREAT, files.FILE_MODE))


def take(paths: ExperimentPaths) -> bool:
    """Remove all nudges; True if there was one, so that a turn is due now."""
    try:
        names = os.listdir(paths.nudges)
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(paths.nudges / name)
    return bool(names)
