"""The worker's experiment: awaited, opened, and checked to be the right one."""

from __future__ import annotations

import contextlib
import time

from hpcdet.store.config import resolved_config
from hpcdet.store.folder.held_folder import Held, hold
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.worker.allocation.notice import Notices
from hpcdet.worker.crank.retry import START_S

_LOOK_S = 0.5


def appeared(paths: ExperimentPaths, digest: str, notices: Notices) -> Held | None:
    """Wait until the folder is complete, as a network file system may show it late.

    Args:
        digest: of the config that it must have; "": any.

    Returns:
        The open folder; None if it did not appear in time, or a notice came first.

    Raises:
        ConfigError: another user may change it.
    """
    limit = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError):
            held = hold(paths.root)
            found = held.paths
            there = found.site.exists() and found.config.exists()
            if there and (not digest or resolved_config.digest(found.config) == digest):
                return held
        if time.monotonic() > limit or notices.heard():
            return None
        notices.wait(_LOOK_S)
