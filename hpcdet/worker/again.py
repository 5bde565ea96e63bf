"""``python -m hpcdet.worker.again EXP --submission N --index I --restart R --code RC``.

Asked by the batch script after its worker: exit 0 means "requeue this task". That is so if the
worker asked for it (85), or was killed and had not said goodbye, while the experiment is open,
unless the task has come back too often in a row without getting anywhere. A Python that cannot
even start says no by failing: such a task would come back for ever.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hpcdet.errors import ConfigError
from hpcdet.schedulers.local_job import REQUEUE
from hpcdet.site import Site
from hpcdet.site.loading import from_resolved
from hpcdet.store.folder.layout import AttemptPaths, ExperimentPaths, WorkerPaths
from hpcdet.store.folder.records import Closed, WorkerEnd
from hpcdet.store.fs import journal
from hpcdet.store.trials import progress

PATIENCE_S = 20.0
"""Seconds for which storage that is away is asked again; a scheduler often kills after 30."""
_AGAIN_S = 1.0


def requeue(paths: ExperimentPaths, worker: WorkerPaths, code: int, site: Site) -> bool:
    """Whether the task of this worker should be started again.

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
    """The attempts that a worker ran, newest first, by its own notes.

    Not by the claims of all trials: there may be thousands, and seconds until the scheduler kills.
    """
    for line in reversed(journal.Reader(worker.journal).read("claimed")):
        yield paths.trial(int(line["trial"])).attempt(int(line["attempt"]))


def task(program: str, argv: list[str]) -> tuple[ExperimentPaths, WorkerPaths, int]:
    """What a batch script says of the worker that has left it, and the code that it left with."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("experiment", type=Path)
    for name in ("--submission", "--index", "--restart", "--code"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args(argv)
    paths = ExperimentPaths(given.experiment.absolute())
    return paths, paths.worker(given.submission, given.index, given.restart), given.code


def main(argv: list[str]) -> int:
    """0: requeue it; 1: do not."""
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
            time.sleep(_AGAIN_S)  # perhaps it has said that it returns, and nobody sends another


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
