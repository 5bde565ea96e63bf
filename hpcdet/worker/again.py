"""``python -m hpcdet.worker.again EXP --submission N --index I --restart R --code RC``.

The batch script runs it after its worker: exit 0 means "requeue this task". That is the case if
the worker asked for it (85), or was killed before it recorded its end, while the experiment is
open, unless the task has been requeued too often in a row without progress. A Python that cannot
start exits with an error, which means no: such a task would be requeued for ever.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hpcdet.errors import ConfigError
from hpcdet.schedulers.common.base import REQUEUE
from hpcdet.site import Site
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.folder import log_streams
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, WorkerClaim, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import journal
from hpcdet.store.trials import progress

PATIENCE_S = 20.0
"""Seconds of retries while the storage is unavailable; a scheduler often kills after 30."""
_AGAIN_S = 1.0


def requeue(paths: ExperimentPaths, worker: WorkerPaths, code: int, site: Site) -> bool:
    """True if the task of this worker should be started again.

    Args:
        code: exit code of the worker as the shell saw it; above 128 it died of a signal.
    """
    if Closed.read(paths.closed) is not None:
        return False
    end = WorkerEnd.read(worker.end)
    killed = code > 128 and (end is None or end.returns)  # by then it may have said so itself
    if code != REQUEUE and not killed:
        return False
    idle = 0
    for incarnation in range(worker.incarnation, -1, -1):
        past = paths.worker(worker.submission, worker.index, incarnation)
        if any(progress.of(attempt).progressed for attempt in noted(paths, past)):
            break
        idle += 1
    return idle <= site.max_restarts_in_place


def noted(paths: ExperimentPaths, worker: WorkerPaths) -> Iterator[AttemptPaths]:
    """Yield the attempts that a worker ran, newest first, from the worker's own journal.

    The claims of all trials are not read: there may be thousands, and the scheduler kills the
    task within seconds.
    """
    for line in reversed(journal.Reader(worker.journal).read("claimed")):
        yield paths.trial(int(line["trial"])).attempt(int(line["attempt"]))


def task(program: str, argv: list[str]) -> tuple[ExperimentPaths, WorkerPaths, int]:
    """Parse a batch script's arguments: the experiment, its worker and the worker's exit code."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("experiment", type=Path)
    for name in ("--submission", "--index", "--code"):
        parser.add_argument(name, type=int, required=True)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--restart", type=int)
    which.add_argument("--pid", type=int, help="of the worker, where nobody counts restarts")
    given = parser.parse_args(argv)
    paths = ExperimentPaths(given.experiment.absolute())
    place = given.submission, given.index
    restart = _restart(paths, place, given.pid) if given.restart is None else given.restart
    return paths, paths.worker(*place, restart), given.code


def _restart(paths: ExperimentPaths, place: tuple[int, int], pid: int) -> int:
    """Return the incarnation that a process of this host has claimed, else the next one."""
    mine = 0
    for worker in paths.workers():
        if (worker.submission, worker.index) == place:
            claim = WorkerClaim.read(worker.claim)
            if claim is not None and (claim.host, claim.pid) == (socket.gethostname(), pid):
                return worker.incarnation
            mine = max(mine, worker.incarnation + 1)
    return mine


def main(argv: list[str]) -> int:
    """Return exit code 0 if the task is to be requeued, 1 if not."""
    paths, worker, code = task("hpcdet.worker.again", argv)
    limit = time.monotonic() + PATIENCE_S
    while True:
        try:
            return 0 if requeue(paths, worker, code, from_resolved(paths.site)) else 1
        except (OSError, ConfigError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            away = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
            if not away or time.monotonic() >= limit:
                raise
            time.sleep(_AGAIN_S)  # a worker that is to be requeued may have no other replacement


if __name__ == "__main__":
    log_streams.lose_what_does_not_fit()
    sys.exit(main(sys.argv[1:]))
