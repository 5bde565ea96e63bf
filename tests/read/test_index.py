"""The index: brought up to date it is what it would be if made from nothing."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from hpcdet.errors import Unavailable
from hpcdet.read.experiment import kept, series
from hpcdet.read.experiment.gather import GatheredTrial
from hpcdet.read.index import database, tables, updating
from hpcdet.read.views import views
from hpcdet.store.fs import freshness, journal
from hpcdet.store.fs.mounts import of
from tests.builders import sweep
from tests.commands import Cli
from tests.read.plays import STEPS, Play


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is longer after the last one than a tick of a file system's."""
    times = itertools.count(0.0, 2 * freshness.TICK_S)
    monkeypatch.setattr(kept, "clock", lambda: next(times))


def everything(file: Path) -> dict[str, list[Any]]:
    db = sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)
    try:
        names = (*tables.TABLES, *tables.VIEWS, "journals")
        return {name: sorted(map(repr, db.execute(f"select * from {name}"))) for name in names}
    finally:
        db.close()


# -- any interleaving --------------------------------------------------------------------


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
@example(steps=["checkpoint", "checkpoint", "end", "update", "prune", "update"])
@example(  # twice back: the second time to before what the first one had left behind
    steps=[
        *(("validation", step, "loss", 1.0, 0) for step in (0, 1, 2)),
        *("update", "rewind", "attempt", ("validation", 1, "loss", 2.0, 1), "update"),
        *("rewind", "attempt", ("validation", 2, "loss", 3.0, 2)),
    ]
)
def test_updates_at_any_time_give_what_a_rebuild_gives(
    steps: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = Path(tempfile.mkdtemp(dir=tmp_path_factory.getbasetemp()))
    play = Play(root)
    for step in steps:
        play.do(step)
    paths = play.built.paths
    database.update(paths)
    updated = everything(paths.index)
    database.snapshot(paths, root / "fresh.sqlite")
    assert everything(root / "fresh.sqlite") == updated
    rows = database.query(paths, "select * from metrics order by trial, attempt, n")
    told = views.metrics(paths, superseded=True)
    assert [(r["trial"], r["attempt"], r["step"], r["name"], r["superseded"]) for r in rows] == [
        (t["trial"], t["attempt"], t["step"], t["name"], t["superseded"]) for t in told
    ]
    shown = [
        (t.state, t.steps, series.number(t.best), t.restarts, t.promotions)
        for t in views.trials(paths)
    ]
    columns = "state, steps, best, restarts, promotions"
    rows = database.query(paths, f"select {columns} from trials order by trial")
    assert [tuple(row.values()) for row in rows] == shown
    shutil.rmtree(root)


# -- what is read ------------------------------------------------------------------------


def test_an_update_reads_what_is_new_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    last = built.trial().attempt()
    for step in range(200):
        last.metrics("training", step, loss=0.5)
    read: list[tuple[str, int]] = []
    reading = journal.Reader.each

    def counted(self: journal.Reader, *only: str, loose: bool = False) -> Iterator[journal.Line]:
        lines = list(reading(self, *only, loose=loose))
        read.append((str(self.path.relative_to(built.paths.root)), len(lines)))
        return iter(lines)

    monkeypatch.setattr(journal.Reader, "each", counted)
    database.update(built.paths)
    assert sum(n for _, n in read) > 200
    database.update(built.paths)  # what has just changed is read once more
    read.clear()
    database.update(built.paths)
    assert all(n <= 1 for path, n in read if "trials" in path), "but the last line of a new journal"
    version = built.paths.index.stat()
    read.clear()
    last.metrics("validation", 200, validation_loss=0.05)
    database.update(built.paths)
    [longest] = {(p, n) for p, n in read if n > 1 and "trials" in p}
    assert longest == ("trials/0004/attempts/1/journal.jsonl", 2)
    assert built.paths.index.stat().st_ino != version.st_ino
    [best] = database.query(built.paths, "select trial, best from v_leaderboard limit 1")
    assert best == {"trial": 4, "best": 0.05}
    version = built.paths.index.stat()
    database.update(built.paths)
    assert built.paths.index.stat().st_ino == version.st_ino  # nothing was new


# -- where it is -------------------------------------------------------------------------


def test_what_is_written_during_an_update_is_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file server's clock is minutes late, so that what was just written looks settled."""
    play, real = Play(tmp_path), kept._plain
    paths, trial = play.built.paths, play.trials[-1]

    def plain(seen: GatheredTrial) -> dict[str, Any]:
        text = real(seen)  # all of it has been read
        if len(trial.paths.attempts()) == 1:
            trial.attempt()
        for folder, _, names in os.walk(trial.paths.root):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                os.utime(path, (time.time() - 300, time.time() - 300))
        return text

    database.update(paths)
    monkeypatch.setattr(kept, "_plain", plain)
    trial.control("pause")
    for _ in range(2):
        database.update(paths)
    database.snapshot(paths, tmp_path / "fresh.sqlite")
    assert everything(paths.index) == everything(tmp_path / "fresh.sqlite")


def test_it_is_written_on_a_disk_of_this_host_and_carried_on_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    opened: list[str] = []
    connect = sqlite3.connect

    def noted(name: Any, *args: Any, **more: Any) -> sqlite3.Connection:
        opened.append(str(name))
        made: sqlite3.Connection = connect(name, *args, **more)
        return made

    monkeypatch.setattr(sqlite3, "connect", noted)
    database.rebuild(built.paths)
    database.update(built.paths)
    folder = database.local_folder()
    writable = [name for name in opened if "mode=ro" not in name]
    assert writable and all(Path(name).is_relative_to(folder.parent) for name in writable)
    [copy] = folder.glob("*.sqlite")
    assert (
        stat.S_IMODE(copy.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    )
    assert everything(copy) == everything(built.paths.index)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another-host"))
    made: list[str] = []
    monkeypatch.setattr(updating, "_empty", lambda *_: made.append("from nothing"))
    built.trial().attempt().metrics("validation", 1, validation_loss=0.01)
    database.update(built.paths)
    assert not made and database.differences.__name__
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    assert database.differences(built.paths) == []
    copy = database._local(built.paths)
    old = copy.with_name("gone-0000.abc.sqlite")
    old.touch()
    os.utime(old, (0, 0))
    copy.write_bytes(b"this is no database" * 100)
    os.utime(built.paths.index, (0, 0))
    database.update(built.paths)
    assert database.differences(built.paths) == []
    assert not old.exists() and copy.exists()


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = database.local_folder()
    assert folder.is_relative_to(tmp_path)
    folder.chmod(0o770)
    with pytest.raises(Unavailable, match="belongs to another user"):
        database.local_folder()
    table = tmp_path / "mounts"
    table.write_text(
        f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
        f"tmpfs {tmp_path}/a\\040b tmpfs rw 0 0\n"
    )
    found = [of(path, table) for path in (tmp_path / "c", tmp_path / "a b" / "c", tmp_path.parent)]
    assert [mount.shared for mount in found if mount] == [True, False, False]


def test_updates_at_once_wait_for_each_other_and_a_killed_one_leaves_no_trace(
    tmp_path: Path,
) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    database.update(built.paths)
    built.trial().attempt().metrics("validation", 1, validation_loss=0.01)
    script = (
        "import os, pathlib, hpcdet.read.index.database as i, hpcdet.read.index.updating as u\n"
        "from hpcdet.store.folder.layout import ExperimentPaths\n"
        "u._Update._decisions = lambda self: os._exit(9)\n"  # after the trials were written
        f"i.update(ExperimentPaths(pathlib.Path({str(built.paths.root)!r})))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=120)
    assert ended.returncode == 9
    threads = [threading.Thread(target=database.update, args=(built.paths,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.differences(built.paths) == []


def test_the_verbs_of_the_index(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    built = sweep(cli.root / "digits-7f3a", ended=False)
    file = cli("index", "update", "digits").out.strip()
    assert file == str(built.paths.index) == cli("index", "path", "digits").out.strip()
    assert cli("index", "check", "digits").code == 0
    built.trial().attempt()
    assert "trials" in cli("index", "check", "digits", code=9).err
    assert cli("index", "update").out.strip() == file
    cli("index", "check", "digits")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as on a folder of a colleague
    here = Path(cli("index", "update", "digits").out.strip())
    assert here.is_relative_to(database.local_folder())
    assert here == Path(cli("index", "path", "digits").out.strip())
