"""Tasks that a server starts again under their id: who is which, and who has to leave."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hpcdet.control.leader import lost_workers
from hpcdet.control.leader.lost_workers import CLOCKS_S, Watch
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.base import Job, Task, TaskState
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent, Submitted, WorkerClaim, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files, journal
from hpcdet.worker import again
from hpcdet.worker.claims import claims
from tests import experiments as x
from tests.worker import places

COUNTED = Allocation("7.vm", ("n1",))
UNCOUNTED = dataclasses.replace(COUNTED, counted=False)


def take(paths: ExperimentPaths, allocation: Allocation) -> WorkerPaths:
    me = claims.take_place(paths, 1, 0, allocation)
    assert me is not None
    return me


def test_who_is_not_counted_takes_the_first_free_place_and_says_so(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    first, second, third = (take(paths, UNCOUNTED) for _ in range(3))
    assert [one.incarnation for one in (first, second, third)] == [0, 1, 2]
    claim = WorkerClaim.read(second.claim)
    assert claim is not None and not claim.counted and claim.restart == 1
    # the fourth start is counted again, and finds its place free
    assert take(paths, dataclasses.replace(COUNTED, restart=3)).incarnation == 3
    # a script that is run twice is no other start
    assert claims.take_place(paths, 1, 0, dataclasses.replace(COUNTED, restart=3)) is None


def test_a_script_finds_its_worker_by_the_process_that_it_started(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    take(paths, COUNTED)
    words = [str(tmp_path), "--submission", "1", "--index", "0", "--code", "137"]
    _, mine, code = again.task("x", [*words, "--pid", str(os.getpid())])
    assert (mine.incarnation, code) == (0, 137)
    # one that was killed before it claimed its place would have taken the next one
    assert again.task("x", [*words, "--pid", "1"])[1].incarnation == 1
    elsewhere = dataclasses.replace(COUNTED, restart=1)
    there = WorkerClaim("7.vm", f"not-{socket.gethostname()}", os.getpid(), restart=1)
    there.write_once(paths.worker(1, 0, elsewhere.restart).claim)
    assert again.task("x", [*words, "--pid", str(os.getpid())])[1].incarnation == 0
    with pytest.raises(SystemExit):
        again.task("x", [*words, "--pid", "1", "--restart", "0"])


class Server:
    """A scheduler that says of every job the same."""

    def __init__(self, *rows: Task) -> None:
        self.rows = list(rows)
        self.answered_at = 0.0

    def query(self, jobs: Sequence[Job]) -> dict[str, list[Task]]:
        self.answered_at += 1
        return {job.job: self.rows for job in jobs}


@pytest.mark.parametrize(
    ("counted", "started_s", "gone"),
    [
        (True, -10, True),  # the server counts one start more than the claim
        (False, -10, False),  # nobody counted: this may be the very start that claimed
        (False, CLOCKS_S + 10, True),
    ],
)
def test_a_start_that_nobody_counted_is_told_by_its_time(
    tmp_path: Path, counted: bool, started_s: float, gone: bool
) -> None:
    paths = ExperimentPaths(tmp_path)
    Intent(1, "exp-1", "tag", tasks=1, throttle=1, term=1).write_once(paths.intent(1))
    Submitted("7.vm").write_once(paths.submitted(1))
    take(paths, COUNTED if counted else UNCOUNTED)
    start = (datetime.now(UTC) + timedelta(seconds=started_s)).isoformat()
    server = Server(Task("7.vm", 0, TaskState.RUNNING, restarts=1, start=start))
    site = x.local_site(limits={"poll_min_s": 0})
    watch = Watch(paths, site, server, time.time)  # type: ignore[arg-type]
    found = [lost.reason for _ in range(3) for lost in watch.look().gone]
    assert found[:1] == (["preempted"] if gone else [])


@pytest.mark.parametrize(
    ("requeue", "rerun", "end", "over"),
    [
        ("none", "none", WorkerEnd("signal"), True),
        ("none", "server", WorkerEnd("signal"), True),  # the server says that it comes no more
        ("none", "server", WorkerEnd("signal", returns=True), False),
        ("none", "server", WorkerEnd("time"), True),
        ("none", "server", WorkerEnd("lost"), False),  # believed so: its host may come back
        ("user", "none", WorkerEnd("signal"), False),
        ("user", "none", WorkerEnd("idle"), True),
    ],
)
def test_a_task_is_over_once_nobody_starts_it_again(
    tmp_path: Path, requeue: str, rerun: str, end: WorkerEnd, over: bool
) -> None:
    paths = ExperimentPaths(tmp_path)
    Intent(1, "exp-1", "tag", tasks=1, throttle=1, term=1).write_once(paths.intent(1))
    Submitted("7.vm").write_once(paths.submitted(1))
    end.write_once(take(paths, COUNTED).end)
    site = x.local_site(capabilities={"requeue": requeue, "rerun": rerun})
    server = Server(Task("7.vm", 0, TaskState.PENDING))
    watch = lost_workers.Watch(paths, site, server, lambda: 0.0)  # type: ignore[arg-type]
    [place] = watch.look().places
    assert (place.phase == "over") == over


def test_who_finds_himself_replaced_ends_his_ranks_and_decides_nothing_more(
    tmp_path: Path,
) -> None:
    paths = ExperimentPaths(tmp_path)
    me = paths.worker(1, 0, 0)
    files.make_folder(me.root)
    files.make_folder(paths.code)
    with journal.Writer(me.journal) as log:
        worker = places.at_work(paths, log, rank="sleep 600")
        one = places.attempt(paths, me, progressed=False)
        worker._busy.append(worker._begin(one, 0))
        assert worker._busy[0].running()
        WorkerEnd("lost", closed_by="0001-0000.1").write_once(me.end)
        assert worker._take_trials() == "lost"
        assert not worker._busy and worker.crank.turns == 0
