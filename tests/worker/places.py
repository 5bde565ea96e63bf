"""A folder with workers and attempts of one trial."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, WorkerPaths
from hpcdet.store.folder.records import (
    Claim,
    End,
)
from hpcdet.store.fs import files, journal
from hpcdet.worker.allocation.notice import Notices
from hpcdet.worker.claims import claims
from hpcdet.worker.supervisor import Worker
from hpcdet.worker.turns import storage_retry
from hpcdet.worker.turns.worker_turns import WorkerCrank
from tests import experiments as x

DAEMON = {"submit_from_compute": False, "login_daemon": "allowed"}
"""A site whose workers leave all decisions to a searcher on a login node."""

HERE = Allocation("job_0", ("n1",))


def worker(paths: ExperimentPaths, incarnation: int = 0) -> WorkerPaths:
    me = claims.take_place(paths, 1, 0, Allocation("job_0", ("n1",), incarnation))
    assert me is not None
    return me


def attempt(
    paths: ExperimentPaths, me: WorkerPaths, *, progressed: bool, ended: bool = False
) -> AttemptPaths:
    """An attempt of trial 1 by this worker."""
    number = len(paths.trial(1).attempts()) + 1
    found = paths.trial(1).attempt(number)
    Claim(me.name, "here", nodes=["n1"]).write_once(found.claim)
    with journal.Writer(me.journal) as log:
        log.append("claimed", trial=1, attempt=number)
    with journal.Writer(found.journal) as log:
        log.append("start")
        log.append("first_step")
        if progressed:
            log.append("checkpoint", step=10)
    if ended:
        End("preempted", progressed=progressed).write_once(found.end)
    return found


def at_work(
    paths: ExperimentPaths, log: journal.Writer, allocation: Allocation = HERE, rank: str = ""
) -> Worker:
    """A worker in this process that nobody sends signals, with shell code for a rank."""
    python = paths.root / "rank"
    python.write_text(f"#!/bin/bash\n{rank}\n")
    python.chmod(0o700)
    alone = {**DAEMON, "requeue": "user"}
    site = x.local_site(python=str(python), capabilities=alone, max_restarts_in_place=1)
    me = paths.worker(1, 0, allocation.restart)
    files.make_folder(me.root)
    notices = Notices()
    crank = WorkerCrank(paths, site, log, notices)
    return Worker(
        paths, resolved_config.resolve(x.config()), site, allocation, notices, me, log, crank
    )


class Once:
    """Storage that refuses the first call of each kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(storage_retry, "AGAIN_S", 0.0)
        self.refused: list[str] = []
        self._monkeypatch = monkeypatch

    def refuses(
        self, owner: object, name: str, of: Callable[[Path], bool], *, done: bool = False
    ) -> None:
        """Refuse a function for these paths, once each; ``done``: it has been done all the same."""
        real = getattr(owner, name)

        def call(path: Path, *rest: Any) -> Any:
            what = f"{name} {path.name}"  # a folder that is held open has another path each time
            if not of(path) or what in self.refused:
                return real(path, *rest)
            self.refused.append(what)
            if done:
                real(path, *rest)
            raise OSError(errno.EIO, "the file server does not answer")

        self._monkeypatch.setattr(owner, name, call)
