"""A worker on a host that is to be avoided, where the scheduler cannot leave hosts out of a job.

It takes no trial, and has a replacement submitted. Were it to leave at once, the scheduler would
give that the same free host again, so it stays until the replacement runs elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, Intent, WorkerClaim
from hpcdet.store.folder.worker_paths import WorkerPaths

WHY = "avoided"
"""Why such a worker ends."""
LONGEST_S = 600.0
"""The longest that a host is held for nothing."""


def avoided(paths: ExperimentPaths, submission: int, nodes: Collection[str]) -> list[str]:
    """The nodes of this allocation that its submission was to avoid."""
    intent = Intent.read(paths.intent(submission))
    return [] if intent is None else sorted(set(intent.exclude).intersection(nodes))


def stay(
    paths: ExperimentPaths,
    me: WorkerPaths,
    nodes: Collection[str],
    wait: Callable[[], bool],
    longest_s: float = LONGEST_S,
) -> None:
    """Stay until a later worker runs on other nodes, or there is nothing to wait for.

    Args:
        wait: sleeps for a while; False: it is time to leave.
    """
    limit = time.monotonic() + longest_s
    while time.monotonic() < limit and Closed.read(paths.closed) is None:
        for worker in paths.workers():
            if worker.submission > me.submission:
                claim = WorkerClaim.read(worker.claim)
                if claim is not None and not set(claim.nodes).intersection(nodes):
                    return
        if not wait():
            return
