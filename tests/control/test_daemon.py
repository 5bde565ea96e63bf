"""The searcher daemon as a process: it outlives its starter, frees the lease, and says why not."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpcdet.control import daemon
from hpcdet.control.leader import daemon_registry
from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.control.turn import controller
from hpcdet.errors import StillPending, UsageError
from hpcdet.jobs.create import create
from hpcdet.read.experiment import states
from hpcdet.read.experiment.gather import gather
from hpcdet.site_files import load_site
from hpcdet.store.decisions import lease
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed
from hpcdet.store.fs import files
from tests.builders import put
from tests.experiments import Plain, config, daemon_pids, local_jobs, local_site, strike, until


@pytest.fixture
def paths(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ExperimentPaths]:
    """A paused experiment: what is decided for it needs no worker."""
    model = tmp_path / "model"
    model.mkdir(mode=0o700)
    site = local_site(**getattr(request, "param", {}))
    with local_jobs(tmp_path / "state"):
        made = create.create(Plain(config(), {}), site, model, tmp_path / "root")
        commands.ask(made, "pause")
        yield made
        strike(daemon_pids(made))


def test_a_daemon_runs_until_it_is_stopped_and_frees_the_lease(paths: ExperimentPaths) -> None:
    assert daemon.status(paths)["held"] is False
    assert daemon.stop(paths) is False
    pid = daemon.start(paths)
    until(lambda: paths.trial(1).record.exists(), paths.searcher_log.read_text)
    said = daemon.status(paths)
    assert (said["kind"], said["pid"], said["held"]) == ("daemon", pid, True)
    with pytest.raises(UsageError, match=f"runs already on .* pid {pid}"):
        daemon.start(paths)
    assert daemon.stop(paths) is True
    assert os.waitpid(pid, 0) == (pid, 143 << 8)
    newest = lease.last(paths)
    assert newest is not None
    assert newest[1] is not None
    assert newest[1].released
    log = paths.searcher_log.read_text()
    assert "create trial 1" in log
    assert "searcher ends with 143" in log
    assert states.health(gather(paths))["health"] == "ok"  # paused: nothing is left to do


@pytest.mark.parametrize("paths", [{"lease_ttl_s": 600}], indirect=True, ids=["held"])
def test_a_daemon_that_stands_by_is_neither_started_again_nor_left_over(
    paths: ExperimentPaths,
) -> None:
    holder = Holder.open(paths, "worker")
    try:
        assert controller.advance(paths, holder).held
        pid = daemon.start(paths)
        said = daemon.status(paths)
        assert (said["kind"], said["held"], said["waits"]) == ("worker", True, pid)
        with pytest.raises(UsageError, match=f"runs already on .* pid {pid}; it stands by"):
            daemon.start(paths)
        assert daemon.stop(paths) is True
        assert os.waitpid(pid, 0) == (pid, 143 << 8)
        assert daemon.status(paths)["waits"] == 0
        assert daemon.stop(paths) is False
    finally:
        holder.close()


def test_a_daemon_that_cannot_work_says_why_at_once(paths: ExperimentPaths) -> None:
    paths.config.unlink()
    with pytest.raises(StillPending, match="ended at once with 1"):
        daemon.start(paths)
    assert "cannot read the config" in paths.searcher_log.read_text()
    Closed("COMPLETED").write_once(paths.closed)
    with pytest.raises(UsageError, match="nothing is left to decide"):
        daemon.start(paths)


def test_a_daemon_that_was_killed_is_seen_dead_on_its_own_host(paths: ExperimentPaths) -> None:
    pid = daemon.start(paths)
    until(lambda: lease.last(paths), paths.searcher_log.read_text)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert daemon.status(paths)["held"] is False
    assert daemon.stop(paths) is False


def test_a_process_that_has_the_number_of_a_daemon_is_none(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon.os, "kill", lambda *_: pytest.fail("an innocent one is struck"))
    host = socket.gethostname()
    assert lease.Lease(paths, "daemon", 100).try_acquire()
    beat = lease.beat_path(paths, 1)
    old = time.time() - daemon.FRESH_S - 1
    put(beat, lease.Beat("ab", at=datetime.fromtimestamp(old, UTC).isoformat()))
    assert daemon.status(paths)["held"] is True, "the file is new: its writer's clock is late"
    os.utime(beat, (old, old))
    assert daemon.status(paths)["held"] is False
    assert daemon.stop(paths) is False
    files.replace(paths.site, load_site.dump(local_site(lease_ttl_s=2 * daemon.FRESH_S)))
    assert daemon.status(paths)["held"] is True, "a beat may be so old then"
    put(beat, lease.Beat("ab", at="2026-01-01T10:00:00Z"))
    os.utime(beat, (0, 0))
    daemon_registry.Daemon(os.getpid(), 1).write_once(paths.daemon(host))
    assert daemon_registry.here(paths) is None
    elsewhere = daemon_registry.Daemon(7, 1, "b", "2026-11-20T10:00:00Z")
    elsewhere.write_once(paths.daemon("login-2.site"))
    with daemon_registry.tell(paths):
        assert daemon.status(paths)["held"] is True
    assert not paths.daemon(host).exists()
    # nobody can tell from here whether that one lives
    said = daemon.status(paths)
    assert said["perhaps"] == [{"host": "login-2.site", "pid": 7, "at": "2026-11-20T10:00:00Z"}]
    assert (said["waits"], daemon.stop(paths)) == (0, False)


def test_who_stands_by_is_ended_though_another_host_has_the_lease(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[int] = []
    monkeypatch.setattr(daemon.os, "kill", lambda pid, _: struck.append(pid))
    monkeypatch.setattr(daemon.daemon_registry, "here", lambda _: daemon_registry.Daemon(77, 1))
    lease.Term(1, "daemon", "elsewhere", 7).write_once(paths.term(1))
    with pytest.raises(UsageError, match="runs on another host"):
        daemon.stop(paths)
    assert struck == [77]


def test_the_loop_ends_with_the_experiment_and_survives_trouble_of_the_disk(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, troubles = daemon.controller.advance, [OSError(28, "No space left on device")]

    def advance(*args: object, **options: object) -> object:
        if troubles:
            raise troubles.pop()
        return real(*args, **options)

    monkeypatch.setattr(daemon.controller, "advance", advance)
    commands.ask(paths, "cancel")
    turns: list[str] = []
    assert daemon.run(paths, "wait", on_turn=lambda turn: turns.append(turn.state)) == 0
    assert turns[-1] == "CANCELED"


def test_a_signal_ends_the_loop_and_the_lease_is_free_for_the_next(paths: ExperimentPaths) -> None:
    former = signal.getsignal(signal.SIGTERM)

    def strike_when_held() -> None:
        until(lambda: lease.last(paths))
        os.kill(os.getpid(), signal.SIGTERM)

    striker = threading.Thread(target=strike_when_held)
    striker.start()
    assert daemon.run(paths) == 143
    striker.join()
    assert signal.getsignal(signal.SIGTERM) is former
    assert lease.Lease(paths, "next", 1e9).try_acquire()


def test_health_says_when_the_scheduler_does_not_answer(paths: ExperimentPaths) -> None:
    holder = lease.Lease(paths, "daemon", 100)
    holder.blind = "squeue failed: Unable to contact slurm controller"
    assert holder.try_acquire()
    (paths.commands / "0001.json").unlink()
    said = states.health(gather(paths), now=time.time())
    assert (said["health"], said["why"]) == ("blind", holder.blind)
    files.replace(paths.closed, Closed("COMPLETED").encode())
    assert states.health(gather(paths))["health"] == "ok"
