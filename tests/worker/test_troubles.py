"""Workers on a full disk, on storage that is away, and with records that are wrong."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from hpcdet.control.turn import controller
from hpcdet.control.turn.controller import Turn
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.base import REQUEUE
from hpcdet.site_files import load_site
from hpcdet.store.config import resolved_config
from hpcdet.store.folder import log_streams
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.names import CONFIG
from hpcdet.store.folder.records import (
    Closed,
    End,
    Stuck,
    WorkerEnd,
)
from hpcdet.store.fs import files, journal
from hpcdet.worker import handover, sentinel
from hpcdet.worker.allocation.notice import Notices
from hpcdet.worker.attempts import cancels
from hpcdet.worker.main import run
from hpcdet.worker.turns import storage_retry
from hpcdet.worker.turns.worker_turns import WorkerCrank
from tests import experiments as x
from tests.worker.places import DAEMON, Once, at_work, attempt, worker


def test_a_full_disk_does_not_part_a_worker_from_its_ranks(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        (paths.root / "go").touch()  # a rank goes on only after its worker could not write
        raise OSError(errno.ENOSPC, "no space left")

    code = f"cd {paths.root}; until [ -e go ]; do sleep 0.05; done; rm go; echo >> over"
    with journal.Writer(paths.worker(1, 0, 0).journal) as log:
        work = at_work(paths, log, rank=code)
        monkeypatch.setattr(files, "replace", full)
        monkeypatch.setattr(journal.Writer, "append", full)
        assert work.work() == 0
    ended = [attempt for attempt in paths.trial(1).attempts() if End.read(attempt.end)]
    assert len(ended) == (paths.root / "over").read_text().count("\n") == 2
    end = WorkerEnd.read(work.me.end)
    assert end is not None and end.why == "bad_node"


def test_a_worker_that_has_lost_a_node_leaves_and_blames_no_other(paths: ExperimentPaths) -> None:
    said = f"echo ORTE has lost communication with a remote daemon >{paths.root}/trials/0001"
    with journal.Writer(paths.worker(1, 0, 0).journal) as log:
        work = at_work(paths, log, rank=f"{said}/attempts/1/logs/launcher.log; exit 1")
        assert work.work() == REQUEUE
    assert x.ends(paths, 1) == ["node_fail"]
    end = WorkerEnd.read(work.me.end)
    assert end is not None and end.why == "signal"


class Idle:
    """A holder of nothing."""

    def close(self) -> None: ...


def test_a_turn_that_fails_while_the_log_is_full_is_made_again(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk = [OSError(errno.ENOSPC, "no space left")]

    def advance(*_: object, **__: object) -> Turn:
        if full_disk:
            raise full_disk.pop()
        return Turn(True)

    monkeypatch.setattr(controller, "advance", advance)
    monkeypatch.setattr(controller.Holder, "open", lambda *_, **__: Idle())
    worker(paths)
    with open("/dev/full", "wb") as full, journal.Writer(paths.worker(1, 0, 0).journal) as log:
        monkeypatch.setattr(sys, "stderr", log_streams.stream(full.fileno()))
        crank = WorkerCrank(paths, load_site.load("local"), log, Notices())
        assert [crank.turned(), crank.turned(limit_s=60)] == [False, True]
        crank.close()


def test_storage_that_is_away_for_a_moment_ends_no_trial(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = files.write_once, set[str]()
    away = OSError(errno.EIO, "the file server does not answer")

    def write_once(path: Path, data: bytes, *rest: int) -> bool:
        what = path.name if path.name == "claim.json" else str(path)
        ours = path.is_relative_to(paths.root / "trials") or path == paths.worker(1, 0, 0).end
        if what not in refused and ours:
            refused.add(what)
            if path.name == "claim.json":
                real(path, data, *rest)  # it was made, and nobody has heard of it
            raise away
        return real(path, data, *rest)

    def in_force(_: object) -> None:
        (paths.root / "go").touch()  # a rank goes on only after its worker could not read
        raise away

    monkeypatch.setattr(files, "write_once", write_once)
    monkeypatch.setattr(cancels, "in_force", in_force)
    monkeypatch.setattr(storage_retry, "AGAIN_S", 0.05)
    code = f"cd {paths.root}; until [ -e go ]; do sleep 0.05; done; echo >> over"
    with journal.Writer(paths.worker(1, 0, 0).journal) as log:
        work = at_work(paths, log, rank=code)
        work.crank.every_s = 0.05
        assert work.work() == 0
    reasons = [end.reason for one in paths.trial(1).attempts() if (end := End.read(one.end))]
    assert reasons == ["released", "launch_failed", "launch_failed"]
    assert (paths.root / "over").read_text().count("\n") == 2
    assert {Path(path).name for path in refused} == {"claim.json", "end.json"}
    assert str(work.me.end) in refused and WorkerEnd.read(work.me.end) is not None


def test_a_sentinel_tells_though_the_storage_is_away_for_a_moment(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, once = paths.root / "heard", Once(monkeypatch)
    hook = {"command": f'echo "$HPCDET_EVENT" >>{heard}', "on": ["stuck"]}
    files.write_once(paths.site, load_site.dump(x.local_site()))
    files.write_once(paths.config, resolved_config.dump(x.config(notify=hook)))
    once.refuses(files, "read", lambda path: path.name in (paths.site.name, CONFIG))
    once.refuses(files, "write_once", lambda path: path == paths.stuck(1), done=True)
    told = sentinel._tell(paths, 1, "all tasks have ended")
    assert Stuck.read(paths.stuck(1)) == told
    assert heard.read_text() == "stuck\n"
    Closed("COMPLETED").write_once(paths.closed)
    assert sentinel.watch(paths, 1) is None
    assert len(once.refused) == 3


def test_what_is_wrong_with_an_experiment_ends_both_programs_with_a_line_and_its_code(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--index", "0", "--restart", "0", "--code", "1")
    asked = [str(paths.root), "--submission", "1"]
    programs = [(sentinel, asked), (handover, [*asked, *place])]
    paths.site.write_text("scheduler: abacus\n")
    paths.site.chmod(0o600)
    monkeypatch.setenv("HPCDET_JOB", "7_0")
    for module, argv in programs:
        assert module.main(argv) == 4
        assert f"error: {paths.site}" in capsys.readouterr().err

    def away(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(paths.site))

    for module, argv in programs:
        monkeypatch.setattr(module, "START_S", 0.0)
        monkeypatch.setattr(module, "from_resolved", away)
        assert module.main(argv) == 5
        assert capsys.readouterr().err == f"error: {paths.site}: Input/output error\n"


def test_storage_that_is_away_while_a_worker_starts_ends_no_task(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that failed would not come back, and perhaps nobody could send another."""
    site = x.local_site(capabilities=DAEMON)
    files.write_once(paths.site, load_site.dump(site))
    files.write_once(paths.config, resolved_config.dump(x.config()))
    digest = resolved_config.digest(paths.config)
    open_attempt = attempt(paths, worker(paths), progressed=True)
    Closed("CANCELED").write_once(paths.closed)
    me, once = paths.worker(1, 0, 1), Once(monkeypatch)
    once.refuses(Path, "exists", lambda path: path.name == paths.site.name)
    once.refuses(resolved_config, "digest", lambda _: True)
    once.refuses(files, "read", lambda path: path.name in (paths.site.name, CONFIG))
    once.refuses(files, "write_once", lambda path: path == me.claim, done=True)
    once.refuses(journal, "Reader", lambda path: path == me.journal)
    once.refuses(End, "read", lambda path: path == open_attempt.end)
    monkeypatch.setattr(Notices, "install", lambda deaf: deaf)
    monkeypatch.setattr(Notices, "close", lambda _: None)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("HPCDET_RESTART_COUNT", "1")
    assert run(str(paths.root), 1, 0, digest) == 0
    assert len(once.refused) == 7
    ends = End.read(open_attempt.end), WorkerEnd.read(me.end)
    assert [ends[0] and ends[0].reason, ends[1] and ends[1].why] == ["lost", "closed"]


@pytest.mark.parametrize(("incarnation", "why", "code"), [(0, "time", 85), (1, "spent", 0)])
def test_a_worker_whose_task_may_not_return_does_not_count_on_it(
    paths: ExperimentPaths, incarnation: int, why: str, code: int
) -> None:
    """Else nobody would be left who submits another one."""
    over = Allocation("job_0", ("n1",), incarnation, end_at=0.0)
    with journal.Writer(paths.worker(1, 0, incarnation).journal) as log:
        work = at_work(paths, log, over)
        assert work.work() == code
    end = WorkerEnd.read(work.me.end)
    assert end is not None and end.why == why


@pytest.mark.parametrize(("requeue", "code"), [("user", 85), ("none", 1)])
def test_a_worker_that_cannot_say_why_it_ends_is_as_one_that_was_killed(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch, requeue: str, code: int
) -> None:
    def away(*_: object) -> None:
        raise OSError(errno.EIO, "the file server does not answer")

    monkeypatch.setattr(WorkerEnd, "write_once", away)
    with journal.Writer(paths.worker(1, 0, 0).journal) as log:
        work = at_work(paths, log, Allocation("job_0", ("n1",), 0, end_at=0.0))
        alone = {**DAEMON, "requeue": requeue}
        work.site = x.local_site(capabilities=alone)
        assert work.work() == code
    assert WorkerEnd.read(work.me.end) is None


@pytest.mark.parametrize(
    ("turn", "code"),
    [
        (Turn(True, wanted=1, lacking=1), 1),
        (Turn(True, wanted=1, lacking=1, sent=1), 0),
        (Turn(True, wanted=1, live=(2,)), 0),
        (Turn(True, "PAUSED", wanted=1, lacking=1), 0),
        (Turn(True), 0),
    ],
)
def test_a_worker_that_leaves_trials_for_which_nobody_was_sent_ends_with_an_error(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch, turn: Turn, code: int
) -> None:
    """The scheduler may refuse a job just then: the script and the job behind it try again."""
    monkeypatch.setattr(controller, "advance", lambda *_, **__: turn)
    with journal.Writer(paths.worker(1, 0, 0).journal) as log:
        work = at_work(paths, log, Allocation("job_0", ("n1",), end_at=0.0))
        work.site = x.local_site(capabilities={"requeue": "none"})
        files.write_once(paths.site, load_site.dump(work.site))
        files.write_once(paths.config, resolved_config.dump(x.config()))
        work.crank = WorkerCrank(paths, work.site, log, work.notices)
        assert work.work() == code
        work.crank.close()
