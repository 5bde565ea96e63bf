"""Trials that have ended are packed, and nobody who reads them sees a difference."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.control.upkeep import packing
from hpcdet.control.upkeep.packing import QUIET_S, pack
from hpcdet.read.experiment import gather, series
from hpcdet.read.index import database
from hpcdet.read.lookup import find
from hpcdet.read.views import logs, views
from hpcdet.read.views.items import encode
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, End, Verdict
from hpcdet.store.fs import files, journal, packed
from hpcdet.store.trials import standing
from hpcdet.store.trials.controls import in_force
from hpcdet.units import Length
from hpcdet.worker.claims import claims
from tests.builders import sweep
from tests.paper import Waves, World


def free() -> None:
    """A term that never ends."""


def told(paths: ExperimentPaths) -> dict[str, Any]:
    """What every reader has to say of an experiment."""
    gathered = gather.Gathered(paths)
    printed = [
        [dataclasses.asdict(line) for line in logs.read(source, since="2026-01-01")]
        for source in logs.sources(paths, launcher=True)
    ]
    return {
        "standings": [standing.standing(trial) for trial in paths.trials()],
        "controls": [in_force(trial) for trial in paths.trials()],
        "status": views.status(gathered).trials,
        "attempts": [dataclasses.replace(row, log="") for row in views.attempts(gathered)],
        "checkpoints": views.checkpoints(gathered),
        "metrics": series.metrics(gathered, superseded=True),
        "events": views.events(gathered),
        "workers": [(one.claim, one.end, one.beat) for one in gathered.workers],
        "journals": [
            [attempt.lines for attempt in trial.attempts] for trial in gather.Gathered(paths).trials
        ],
        "logs": printed,
        "errors": logs.errors(paths),
        "found": find.reference(f"{paths.id}/1.2", paths.root.parent),
    }


def entries(trial: TrialPaths) -> set[str]:
    return set(os.listdir(trial.root))


def tidy(trial: TrialPaths) -> bool:
    return entries(trial) - {"checkpoints"} == {"trial.json", "history-1.zip"}


def test_no_reader_tells_a_packed_trial_from_one_that_is_not(tmp_path: Path) -> None:
    paths = sweep(tmp_path / "digits-7f3a").paths
    paths.trial(1).attempt(2).launcher_log.write_text("srun: fine\n")
    before = told(paths)
    following = journal.Reader(paths.trial(1).attempt(2).journal)
    assert len(following.read()) > 2
    database.rebuild(paths)
    for trial in paths.trials():
        assert pack(trial, free) == "packed"
        assert tidy(trial)
        assert pack(trial, free) == "nothing to do"
    assert told(paths) == before
    assert following.read() == []
    log = paths.trial(1).attempt(2).log(1)
    archive = packed.archive(paths.trial(1).root, 1)
    assert packed.where(log) == f"{archive}:attempts/2/logs/rank-1.log"
    assert find.reference(str(log), tmp_path) == find.Reference(paths, 1, 2)
    assert not packed.exists(paths.trial(1).attempt(3).root)
    with zipfile.ZipFile(archive) as opened:
        assert opened.read("attempts/2/logs/rank-1.log") == b"rank 1 speaks\n"
    assert archive.stat().st_mode & 0o777 == 0o600
    assert database.differences(paths) == []


def test_what_lies_on_scratch_is_packed_there_and_may_be_purged(tmp_path: Path) -> None:
    paths = sweep(tmp_path / "project" / "digits-7f3a").paths
    scratch = tmp_path / "scratch" / paths.id
    for logs_of in list(paths.root.glob("trials/*/attempts/*/logs")):
        there = scratch / logs_of.relative_to(paths.root)
        there.parent.mkdir(parents=True)
        logs_of.rename(there)
    paths.scratch.symlink_to(scratch)
    before = told(paths)
    assert len(before["logs"]) == 5
    for trial in paths.trials():
        assert pack(trial, free) == "packed"
        assert tidy(trial)
    assert told(paths) == before
    log = paths.trial(1).attempt(2).log(1)
    archive = packed.archive(paths.scratch / "trials" / "0001", 1)
    assert packed.where(log) == f"{archive}:attempts/2/logs/rank-1.log"
    assert sorted(os.listdir(scratch / "trials" / "0001")) == [archive.name]
    shutil.rmtree(scratch)
    assert told(paths) == {**before, "logs": [], "errors": []}
    assert pack(paths.trial(1), free) == "nothing to do"


def test_workers_that_left_are_packed_and_nobody_takes_their_place(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    alive = built.paths.worker(1, 0, 0).root.with_name(built.worker(2))
    paths, before = built.paths, told(built.paths)
    with journal.Writer(paths.worker(1, 0, 0).journal) as writer:
        writer.append("start", job="123")
    assert packing.pack_workers(paths, free, number=9) == "later", (
        "an archive for a few is too dear"
    )
    assert packing.pack_workers(paths, free) == "packed"
    assert packed.archive(paths.root, 1).exists()
    assert list((paths.root / "workers").iterdir()) == [alive]
    assert told(paths) == before
    assert [line["kind"] for line in journal.read(paths.worker(1, 0, 0).journal)] == ["start"]
    here = Allocation("123", ("n1",), restart=0)
    assert claims.take_place(paths, 1, 0, here) is None
    assert claims.take_place(paths, 1, 0, dataclasses.replace(here, restart=1)) is not None
    again = paths.worker(1, 0, 1)
    assert claims.close_predecessors(paths, again) == []
    assert told(paths)["workers"][0] == before["workers"][0]


class Killed(BaseException):
    """As SIGKILL."""


class Killer:
    """Kills at one effect on the file system, or lets the disk be full there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.count, self.full, self.armed = 0, 0, False, False
        for name in ("open", "fsync", "link", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += self.armed
            if self.armed and self.count == self.at:
                raise OSError(28, "No space left on device") if self.full else Killed
            if self.armed and self.count > self.at > 0 and not self.full:
                raise Killed  # a dead process tidies nothing up
            return real(*args, **kwargs)

        return call


@pytest.mark.parametrize("full", [False, True], ids=["killed", "disk full"])
def test_cut_off_anywhere_nothing_is_lost_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    template = sweep(tmp_path / "template" / "digits-7f3a").paths
    killer = Killer(monkeypatch)
    killer.full = full

    def cut_off(at: int) -> None:
        root = tmp_path / str(at) / "digits-7f3a"
        shutil.copytree(template.root, root)
        paths = ExperimentPaths(root)
        before, trial = told(paths), paths.trial(1)
        killer.at, killer.count, killer.armed = at, 0, True
        with contextlib.suppress(Killed, OSError):
            pack(trial, free)
        killer.armed = False
        assert told(paths) == before, f"cut off at effect {at}"
        pack(trial, free)
        assert tidy(trial), f"cut off at effect {at}"
        assert told(paths) == before

    cut_off(0)
    effects = killer.count
    assert effects > 20
    for at in range(1, effects + 1, 1 + full):
        cut_off(at)


def test_what_a_lost_copy_writes_later_changes_nothing(tmp_path: Path) -> None:
    paths = sweep(tmp_path / "digits-7f3a").paths
    trial = paths.trial(1)
    late = (trial.attempt(2).log(0)).open("ab")
    before = told(paths)
    with late:
        assert pack(trial, free) == "packed"
        late.write(b"still here\n")
    # its ranks, its worker, and a holder of a former term
    Verdict("fail", "error", 9999).write_once(trial.attempt(1).verdict)
    End("user_error").write_once(trial.attempt(2).end)
    with journal.Writer(trial.attempt(2).journal) as writer:
        writer.append("metrics", group="training", step=1, metrics={"loss": 0.0})
    Claim("0001-0007.0", "n9").write_once(trial.attempt(1).claim)
    files.write_once(trial.attempt(2).log(7), b"rank 7\n")
    files.write_once(trial.control(1), b'{"action": "fail", "schema": 1}')
    assert told(paths) == before
    claim = Claim.read(trial.attempt(1).claim)
    assert claim is not None and claim.host == "n1"
    assert pack(trial, free) == "packed"
    assert tidy(trial) and told(paths) == before


def test_a_file_that_another_host_packs_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = sweep(tmp_path / "digits-7f3a").paths.trial(1)
    journal_of = trial.attempt(2).journal
    before, really = journal.read(journal_of), packed.open_file

    def stale(path: Path) -> Any:
        monkeypatch.setattr(packed, "open_file", really)
        pack(trial, free)
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(packed, "open_file", stale)
    assert journal.read(journal_of) == before
    assert tidy(trial)


def test_files_that_change_meanwhile_and_open_attempts_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    trial = built.paths.trial(1)
    log, sync = trial.attempt(2).log(0), os.fsync

    def add(fd: int) -> None:
        sync(fd)
        with log.open("ab") as file:
            file.write(b"more\n")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", add)
        assert pack(trial, free) == "later"
    assert "attempts" in entries(trial) and not any("history" in name for name in entries(trial))
    with monkeypatch.context() as patch:
        patch.setattr(packing, "LARGEST", 100)
        assert pack(trial, free) == "nothing to do"

    def fenced() -> None:
        raise InterruptedError

    before = told(built.paths)
    with pytest.raises(InterruptedError):
        pack(trial, fenced)
    assert "attempts" in entries(trial) and told(built.paths) == before
    third = trial.attempt(3)
    Claim("0001-0000.0", "n1").write_once(third.claim)
    assert pack(trial, free) == "later"
    assert third.claim.is_file()
    (trial.attempt(4).root / "logs").mkdir(parents=True)  # begun, but never claimed
    End("lost").write_once(third.end)
    assert pack(trial, free) == "packed"
    assert os.listdir(trial.root / "attempts") == ["4"]
    assert standing.standing(trial).next_attempt == 4


@pytest.mark.parametrize(
    ("node", "several"), [("n1", False), ("n2", False), ("n1", True)], ids=["here", "there", "both"]
)
def test_a_trial_that_has_just_ended_elsewhere_stays_as_it_is_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str, several: bool
) -> None:
    """A folder that has come into sight in part would be packed in part, for good."""
    monkeypatch.setattr("socket.gethostname", lambda: node)
    world = World.make(tmp_path, Waves(count=2, width=2))
    holder, play = world.holder(), world.play()
    advance(world.paths, holder)
    one, two = play.start_all()
    attempts = play.claim(one, 1), play.claim(two, 2)
    for attempt in attempts:
        play.finish(attempt)
    if several:  # the ranks of the other node have left files, too
        claim = Claim.read(attempts[1].claim)
        assert claim is not None
        files.replace(attempts[1].claim, dataclasses.replace(claim, nodes=["n1", "n2"]).encode())
    long_ago = (datetime.now(UTC) - timedelta(seconds=world.site.lease_ttl_s + 1)).isoformat()
    end = End.read(attempts[0].end)
    assert end is not None
    files.replace(attempts[0].end, dataclasses.replace(end, at=long_ago).encode())
    late = attempts[1].verdict.rename(tmp_path / "late")  # another node has written it
    for _ in range(3):
        advance(world.paths, holder)
    assert world.paths.closed.exists()
    assert tidy(world.paths.trial(1))
    assert tidy(world.paths.trial(2)) == (node == "n1" and not several)
    if node == "n2" or several:
        late.rename(attempts[1].verdict)
        said = Verdict.read(attempts[1].verdict)
        assert said is not None and said.cause == "completed"


def test_a_packed_trial_is_retried_and_packed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "n1")
    world = World.make(tmp_path, Waves(count=2, width=2), max_restarts=0)
    holder, play = world.holder(), world.play()
    advance(world.paths, holder)
    one, two = play.start_all()
    first = play.claim(one, 1)
    play.claim(two, 2)
    play.report(first, 10, 3.0)
    play.fail(first)
    advance(world.paths, holder)  # given up
    advance(world.paths, holder)
    trial = world.paths.trial(1)
    assert "attempts" in entries(trial)  # not at once: somebody may be reading it
    world.clock.now += QUIET_S / 2
    advance(world.paths, world.holder())  # a new holder, who does not know since when
    world.clock.now += 101
    holder = world.holder("next")
    while not advance(world.paths, holder).held:
        world.clock.now += 101
    world.clock.now += QUIET_S
    holder.lease.beat()
    while not tidy(trial):
        assert advance(world.paths, holder).held or world.clock.now < 9999
        world.clock.now += 50
    assert standing.standing(trial).state == "failed"
    assert "attempts" in entries(world.paths.trial(2))  # it runs

    commands.ask(world.paths, "retry", 1)
    assert advance(world.paths, holder).held
    assert standing.standing(trial).state == "runnable"
    again = play.claim(one, 1)
    assert again.number == 2
    play.finish(again)
    play.finish(trial_two := world.paths.trial(2).attempt(1))
    for _ in range(3):
        advance(world.paths, holder)
    assert world.paths.closed.exists()
    assert entries(trial) == {"trial.json", "history-1.zip", "history-2.zip"}
    assert tidy(world.paths.trial(2)) and standing.standing(trial).attempts == 2
    ends = [End.read(attempt.end) for attempt in trial.attempts()]
    assert [end and end.reason for end in ends] == ["user_error", "completed"]
    said = Verdict.read(trial_two.verdict)
    assert said is not None and said.until == Length("batches", 100)
    assert [path.name for path in sorted(trial.root.iterdir())][:1] == ["history-1.zip"]
    heard = [
        line["event"]["length"]["batches"]
        for line in chain.read(world.paths)
        if line["kind"] == "event" and line["event"].get("trial") == 1 and "length" in line["event"]
    ]
    assert heard == [10, 100]


def test_an_archive_is_opened_once_for_all_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sweep(tmp_path / "digits-7f3a").paths
    for trial in paths.trials():
        pack(trial, free)
    packed._read.cache_clear()
    opened: list[Path] = []
    real = zipfile.ZipFile.__init__

    def count(self: zipfile.ZipFile, file: Any, *args: Any, **kwargs: Any) -> None:
        opened.append(file)
        real(self, file, *args, **kwargs)

    monkeypatch.setattr(zipfile.ZipFile, "__init__", count)
    for _ in range(3):
        assert [standing.standing(trial).attempts for trial in paths.trials()] == [2, 1, 2]
    assert len(opened) == 3
    views.status(paths)
    assert len(opened) == 3 + 5  # and each attempt's journal


def test_nobody_begins_a_trial_again_whose_archive_is_damaged(tmp_path: Path) -> None:
    paths = sweep(tmp_path / "digits-7f3a").paths
    for trial in paths.trials():
        pack(trial, free)
    archive = packed.archive(paths.trial(1).root, 1)
    whole = archive.read_bytes()

    def spoilt(name: bytes) -> bytes:
        at = whole.index(name) + len(name) + 5
        return whole[:at] + b"zzzz" + whole[at + 4 :]

    for damage in (b"what is this", whole[: len(whole) // 2], spoilt(b"attempts/1/claim.json")):
        archive.write_bytes(damage)
        assert standing.standing(paths.trial(1)).state == "paused"
        assert (
            json.dumps(encode(views.status(paths)))
            and standing.standing(paths.trial(2)).state == "done"
        )
    archive.write_bytes(spoilt(b"attempts/2/journal.jsonl"))
    assert journal.read(paths.trial(1).attempt(2).journal) == []
    assert standing.standing(paths.trial(1)).state == "done"
