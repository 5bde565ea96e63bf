"""The worker's start: it waits for the experiment and takes its place."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path

from hpcdet.control.upkeep import store_copies
from hpcdet.errors import HpcdetError
from hpcdet.read import catalog
from hpcdet.schedulers import opening
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.config import overrides, resolved_config
from hpcdet.store.folder.held_folder import Held, hold
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import journal
from hpcdet.store.trials import staged_data
from hpcdet.worker.allocation.notice import Notices
from hpcdet.worker.allocation.regrowth import Regrowth
from hpcdet.worker.claims import claims
from hpcdet.worker.departure import LOOK_S
from hpcdet.worker.supervisor import Worker
from hpcdet.worker.turns.storage_retry import START_S, insist, within
from hpcdet.worker.turns.worker_turns import WorkerCrank


def run(exp: str, submission: int, index: int, digest: str) -> int:
    """Run the worker of one array task; return the exit code of the process.

    0: it left by itself, or its place was taken. 85: the trial goes on in this task, requeued.
    1: the experiment did not appear; the storage was unavailable to the end, where no task
    requeues itself; or trials wait for a worker that could not be submitted.
    """
    notices = Notices().install()
    paths = ExperimentPaths(Path(exp).absolute())
    held = _appeared(paths, digest, notices)
    if held is None:
        print(
            f"{paths.root}: no experiment with digest {digest[:12]} after {START_S:g} s",
            file=sys.stderr,
        )
        return 1
    left_s = within(START_S, notices.heard)
    opened = held.paths
    experiment = insist(lambda: overrides.of_submission(opened, submission), left_s)
    site = insist(lambda: from_resolved(opened.site), left_s)
    inside = opening.of(site).inside
    allocation = inside.allocation(os.environ, experiment.resources.walltime_s)
    me = claims.take_place(paths, submission, index, allocation, left_s)
    if me is None:
        return 0
    most = experiment.resources
    need = most.granted(len(allocation.nodes))
    experiment = dataclasses.replace(experiment, resources=need)
    pool = experiment.resources.resource_pool
    with insist(lambda: journal.Writer(me.journal), left_s) as log:
        crank = WorkerCrank(paths, site, log, notices)
        try:
            notices.listen(allocation, site, pool, me.root / "heard")
            regrowth = Regrowth.of(most, paths, me, allocation, site, notices.wake)
            worker = Worker(
                paths, experiment, site, allocation, notices, me, log, crank, held, regrowth
            )
            code = worker.work()
            crank.close()
            if crank.closed:
                store_copies.settle(paths, lambda: bool(notices.heard()))
                if not notices.heard():
                    catalog.leave_row(paths)
            return code
        finally:
            crank.close()
            notices.close()
            if site.paths.local:
                staged_data.remove(site.paths.local)  # of this node; others are swept by the next


def _appeared(paths: ExperimentPaths, digest: str, notices: Notices) -> Held | None:
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
        notices.wait(LOOK_S)


def main(argv: list[str]) -> int:
    """Run ``python -m hpcdet.worker EXP --submission N --index I --digest D``."""
    parser = argparse.ArgumentParser(prog="hpcdet worker")
    parser.add_argument("experiment")
    parser.add_argument("--submission", type=int, required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--digest", default="")
    given = parser.parse_args(argv)
    try:
        return run(given.experiment, given.submission, given.index, given.digest)
    except HpcdetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
