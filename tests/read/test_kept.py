"""What a host has kept of experiments changes no answer, whatever happens to it or to them."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from hpcdet.read import catalog, left_row
from hpcdet.read.catalog import Catalog
from hpcdet.read.experiment import digests, gather, kept
from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, GatheredTrial, Memory
from hpcdet.read.experiment.summary import AttemptJournal
from hpcdet.read.lookup.all_experiments import of_each
from hpcdet.read.usage import spans
from hpcdet.read.views import brief, checkpoints, trials, views
from hpcdet.read.views.items import encode
from hpcdet.read.views.views import ExperimentView
from hpcdet.store.folder import derived_store, private_folders
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Reopened, Verdict
from hpcdet.store.fs import freshness, journal
from tests.builders import Builder, at, put, sweep
from tests.commands import Cli
from tests.read.plays import STEPS, Play

HOUR_S = 3600


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def aged(root: Path, age_s: float = HOUR_S) -> None:
    """Let everything below a folder look as if it were written so long ago."""
    at = time.time() - age_s
    for place, _, names in os.walk(root):
        for path in (place, *(os.path.join(place, name) for name in names)):
            os.utime(path, (at, at))


def seen(source: ExperimentPaths | Gathered) -> dict[str, Any]:
    """What views say of an experiment, without what passes with time."""
    passing = {"duration_s", "last_turn_s", "spent"}
    found: dict[str, list[dict[str, Any]]] = {}
    for view in (views.trials, views.attempts, views.checkpoints, views.events, views.jobs):
        found[view.__name__] = [encode(row) for row in view(source)]
    found["status"] = [encode(views.status(source))]
    found["metrics"] = views.metrics(source, superseded=True)
    return {
        name: [{key: item for key, item in row.items() if key not in passing} for row in rows]
        for name, rows in found.items()
    }


def listed(root: Path) -> tuple[list[ExperimentView], list[str]]:
    catalog = Catalog(root)
    return of_each(catalog.experiments, catalog.row)


# -- any sequence of changes -------------------------------------------------------------------


@pytest.mark.parametrize("rows", [False, True], ids=["views", "rows"])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
@example(steps=["checkpoint", "end", "update", "prune", "update", "pack", "update", "attempt"])
@example(  # the same step twice, behind a rewind, and by a journal that is put in its place
    steps=[
        *(("validation", step, "validation_loss", 1.0, 0) for step in (0, 1, 2)),
        *("update", "rewind", "update", "attempt", ("validation", 1, "validation_loss", 0.5, 1)),
        *("update", "end", "pack", "move", "update", "close", "update", "tag", "touch"),
    ]
)
@example(steps=["update", "attempt", "update", "end", "update", "stop", "update", "trial"])
@example(steps=["event", "update", "event", "update", "term", "update", "event", "close"])
@example(steps=["end", "close", "update", "attempt", "update", "end"])
@example(steps=["end", "update", "stop"])
@example(steps=["checkpoint", "end", "update", "prune"])
@example(steps=["checkpoint", "end", "update", "rewind"])
@example(steps=["folder", "update", "progress"])
@example(steps=["close", "update", ("validation", 3, "validation_loss", 0.5, 0)])
def test_what_is_kept_says_what_the_files_say(
    steps: list[Any], rows: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows of lists watch only what may still change: no attempt that has ended writes again."""
    root = Path(tempfile.mkdtemp(dir=tmp_path_factory.getbasetemp()))
    times = itertools.count(0.0, 2 * freshness.TICK_S)
    play = Play(root)
    with pytest.MonkeyPatch.context() as patch:
        # each look is longer after the last one than a tick of a file system's clock
        patch.setattr(kept, "clock", lambda: next(times))
        memory = Memory(play.built.paths, lambda: next(times))  # of a server that lives on
        for step in steps:
            if rows and _is_too_late(play, step):
                continue
            if step == "update":
                for _ in range(2):  # after the second look, nothing that is unchanged is opened
                    views.status(play.built.paths)
                    listed(root)
                    seen(memory.look())
            elif step == "half":  # its writer takes back what was cut off while a reader looked
                _half(play)
            else:
                play.do(step)
        paths = play.built.paths
        for _ in range(2):
            assert seen(paths) == seen(memory.look()) == seen(Gathered(paths, afresh=True))
            if rows:
                afresh = of_each([paths], lambda p: views.brief(Gathered(p, afresh=True)))
                assert listed(root) == afresh
        away = root / "away"
        away.mkdir()
        paths.root.rename(away / paths.id)
        moved = ExperimentPaths(away / paths.id)
        assert seen(moved) == seen(Gathered(moved, afresh=True))
        assert [row.path for row in listed(away)[0]] in ([], [str(moved.root)])
        assert listed(root) == ([], [])
    shutil.rmtree(root)


def _is_too_late(play: Play, step: Any) -> bool:
    """True if a step happens only before the experiment, or the attempt that writes, has ended."""
    closed = play.built.paths.closed.exists()
    if step == "rewind":
        return closed
    if not play.attempts or not (isinstance(step, tuple) or step in ("progress", "touch")):
        return False
    one = play.attempts[step[4] % len(play.attempts) if isinstance(step, tuple) else -1]
    after = one.trial.attempt(one.paths.number + 1).root
    return closed or one.paths.end.exists() or after.exists()


def _half(play: Play) -> None:
    if not play.attempts:
        return
    path = play.attempts[-1].paths.journal
    with path.open("ab") as file:
        file.write(b'{"n":7,"t":"2026')
    views.status(play.built.paths)
    with path.open("ab") as file:
        file.truncate(file.tell() - 16)


def test_what_looks_as_before_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    aged(tmp_path)
    first = seen(built.paths)["trials"]
    opened = []
    reading = journal.Reader.each
    monkeypatch.setattr(
        journal.Reader, "each", lambda self, *a, **k: opened.append(self.path) or reading(self, *a)
    )
    assert [encode(row) for row in views.trials(built.paths)] == first
    assert not [path for path in opened if "trials" in str(path)]
    last = built.trial().attempt()
    last.metrics("validation", 7, validation_loss=0.01)
    assert views.trials(built.paths)[-1].best == 0.01
    assert {path.parents[2].name for path in opened if "trials" in str(path)} == {"0004"}


def test_an_overview_derives_again_only_the_trials_that_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    last = built.trial().attempt()
    aged(tmp_path)
    first = seen(built.paths)["status"]
    derived_store.reopened()
    made, decoded = [], []
    one, decode = digests._made, AttemptJournal.decode
    monkeypatch.setattr(
        digests, "_made", lambda trial, *by: made.append(trial.number) or one(trial, *by)
    )
    monkeypatch.setattr(
        AttemptJournal, "decode", lambda data: decoded.append(len(data)) or decode(data)
    )
    assert seen(built.paths)["status"] == first
    decoded.clear()
    assert views.status(built.paths).trials[-1].best is None
    assert (made, decoded) == ([], [])
    last.metrics("validation", 7, validation_loss=0.01)
    assert views.status(built.paths).trials[-1].best == 0.01
    assert set(made) == {4}
    asked = Gathered(built.paths).config.searcher
    for searcher in (replace(asked, metric="accuracy"), replace(asked, smaller_is_better=False)):
        gathered = Gathered(built.paths)
        vars(gathered)["config"] = replace(gathered.config, searcher=searcher)
        made.clear()
        digests.digests(gathered)
        assert made == [1, 2, 3, 4], "what is kept is of another comparison"


def test_an_overview_makes_no_record_of_trials_that_look_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    built.decide("state", state="RUNNING", why="", by="")
    aged(tmp_path)
    first = views.status(built.paths)
    derived_store.reopened()
    recalled = []
    one = gather.recall
    monkeypatch.setattr(
        gather, "recall", lambda trial, kept: recalled.append(trial.number) or one(trial, kept)
    )
    saved = built.paths.trial(2).checkpoints / "00000900.g1"
    saved.mkdir(parents=True)  # of checkpoints an overview says nothing that is not in journals
    again = views.status(built.paths)
    assert (recalled, again.trials) == ([], first.trials)
    put(built.paths.trial(3).attempt(1).verdict, Verdict("done", "completed", 77))
    views.status(built.paths)
    assert recalled == [3]


def test_a_server_asked_for_one_trial_looks_at_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    attempt = built.trial().attempt()
    memory = Memory(built.paths)
    whole = seen(memory.look())
    looked: list[int] = []
    look = memory._trials.look
    monkeypatch.setattr(memory._trials, "look", lambda n: looked.append(n) or look(n))
    for view in (views.metrics, views.attempts, views.checkpoints, views.events):
        found = [encode(row) for row in view(memory.look(), trial=2)]
        mine = [encode(row) for row in view(built.paths) if encode(row)["trial"] == 2]
        assert [row["trial"] for row in found] == [row["trial"] for row in mine] != []
        assert set(looked) == {2}, view.__name__
    attempt.metrics("validation", 9, validation_loss=0.25)
    assert [row["step"] for row in views.metrics(memory.look(), trial=4)] == [9]
    assert set(looked) == {2, 4} and memory.look().trial(5) is None
    assert seen(memory.look()) != whole


def test_a_server_shows_no_traces_that_were_removed(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a", profiling={"enabled": True})
    attempt = built.trial().attempt()
    attempt.end("completed")
    traces = attempt.paths.traces
    traces.mkdir()
    for rank in range(2):
        (traces / f"rank-{rank}.json.gz").touch()
    memory = Memory(built.paths)
    aged(tmp_path)
    [row] = views.attempts(memory.look(), trial=1)
    assert len(row.traces) == 2
    (traces / "rank-0.json.gz").unlink()
    assert views.show(memory.look()).files.traces == [str(traces / "rank-1.json.gz")]


def test_a_server_derives_again_only_of_trials_that_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    running = built.trial().attempt()
    memory = Memory(built.paths)
    aged(tmp_path)
    whole = seen(memory.look()), spans.spans(memory.look(), 2e9)
    derived: set[tuple[str, int]] = set()

    def counted(name: str, one: Callable[..., Any]) -> Callable[..., Any]:
        def count(*given: Any) -> Any:
            of = next(each for each in given if isinstance(each, GatheredAttempt | GatheredTrial))
            derived.add((name, of.paths.trial if isinstance(of, GatheredAttempt) else of.number))
            return one(*given)

        return count

    for module, name in ((trials, "_attempt"), (checkpoints, "_checkpoints"), (spans, "_trial")):
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    assert (seen(memory.look()), spans.spans(memory.look(), 2e9)) == whole
    assert derived == {("_attempt", 4), ("_checkpoints", 4), ("_trial", 4)}
    running.checkpoint(50)
    running.end("completed")
    built.paths.trial(2).attempt(1).verdict.unlink()
    again = seen(memory.look())
    assert ("_attempt", 2) in derived and ("_attempt", 1) not in derived
    assert again == seen(Gathered(built.paths, afresh=True)) != whole[0]


def test_a_report_opens_no_journal_for_times_that_it_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    attempt = built.trial().attempt()
    opened = []
    reading = journal.Reader.each
    monkeypatch.setattr(
        journal.Reader,
        "each",
        lambda self, *a, **k: opened.append((self.path, *a)) or reading(self, *a, **k),
    )
    gathered = Gathered(built.paths)
    assert all(not one.profiles for trial in gathered.trials for one in trial.attempts)
    assert not [path for path, *kinds in opened if "profile" in kinds]
    line = {"rank": 0, "host": "n1", "batches": 5, "seconds": 2.0, "steps": 5, "phases": {}}
    attempt.line("profile", **line)
    again = [one for trial in Gathered(built.paths).trials for one in trial.attempts]
    assert [line["seconds"] for line in again[-1].profiles] == [2.0]


def test_what_makes_a_value_is_called_once_it_is_written(tmp_path: Path) -> None:
    store = derived_store.reopened()
    state = {"n": 1}
    store.put("home", "part", lambda: str(state["n"]).encode())
    assert store.get("home", "part") == store.every("home")["part"] == b"1"
    state["n"] = 2
    store.flush()
    state["n"] = 3
    assert derived_store.reopened().get("home", "part") == b"2"


def test_the_summary_of_a_long_journal_takes_little_memory(tmp_path: Path) -> None:
    """Its lines as values take more than ten times what may be taken here."""
    built = Builder(tmp_path / "long-0001")
    attempt = built.trial().attempt()
    fields = {"group": "training", "metrics": {f"m{n}": 0.5 for n in range(20)}, "units": {}}
    with attempt.paths.journal.open("ab") as file:
        for n in range(3, 60_003):
            file.write(journal.encode(n, "metrics", {**fields, "step": n}, built.tick(0)))
    script = (
        "import pathlib, resource\n"
        "from hpcdet.read.views import views\n"
        "from hpcdet.store.folder.layout import ExperimentPaths\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"paths = ExperimentPaths(pathlib.Path({str(built.paths.root)!r}))\n"
        "before = used()\n"
        "assert views.trials(paths)[0].steps == 60002\n"
        "print(used() - before)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert int(said.stdout) < 20_000, "kilobytes"


# -- what may happen to the store --------------------------------------------------------------


def _store() -> Path:
    [file] = private_folders.of_host("derived").glob("*.sqlite")
    return file


def _looked_at(root: Path) -> tuple[Any, Any]:
    """What is seen by a process that has nothing of the store in its memory yet."""
    derived_store.reopened()
    found = seen(ExperimentPaths(root / "digits-7f3a")), listed(root)
    derived_store.reopened()
    return found


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    sweep(root / "digits-7f3a")
    aged(root)
    return root


def test_a_store_that_is_damaged_anywhere_changes_no_answer(swept: Path) -> None:
    first = _looked_at(swept)
    whole = _store().read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 20)):
        data = bytearray(whole)
        data[place : place + 7] = bytes(byte ^ 0x5A for byte in data[place : place + 7])
        _put(bytes(data))
        assert _looked_at(swept) == first, place
    for text in (b"", b"no database" * 999, whole[: len(whole) // 2]):
        _put(text)
        assert _looked_at(swept) == first
    assert _looked_at(swept) == first and sqlite3.connect(_store()).execute(
        "select count(*) from known"
    ).fetchone() > (0,), "it is made anew"


def _put(data: bytes) -> None:
    file = _store()
    for other in file.parent.glob(f"{file.name}-*"):
        other.unlink()
    file.write_bytes(data)


def test_a_value_of_another_shape_is_read_anew(swept: Path) -> None:
    first = _looked_at(swept)
    with sqlite3.connect(_store()) as base:
        rows = base.execute("select home, part from known").fetchall()
    store = derived_store.opened()
    for value in (b"", b"{}", b"[]", b"null", b'{"seen": 3}', b"\0"):
        for home, part in rows:
            store.put(home, part, value)
        store.flush()
        assert _looked_at(swept) == first


@pytest.mark.parametrize("how", ["absent", "a file", "another's", "read-only"])
def test_without_a_folder_for_it_answers_are_the_same(
    how: str, swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _looked_at(swept)
    cache = tmp_path / "other"
    cache.mkdir()
    match how:
        case "absent":
            monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
        case "a file":
            cache.rmdir()
            cache.write_text("")
        case "another's":
            (cache / "hpcdet").mkdir()
            (cache / "hpcdet").chmod(0o777)
        case "read-only":
            (cache / "hpcdet" / "derived").mkdir(parents=True, mode=0o700)
            (cache / "hpcdet").chmod(0o700)
            monkeypatch.setattr(sqlite3, "connect", _read_only(sqlite3.connect))
    if how != "absent":
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert _looked_at(swept) == first
    assert _looked_at(swept) == first


def _read_only(connect: Any) -> Any:
    """Databases that can only be read, as on a disk that is mounted so (this test may be root)."""
    return lambda path, **more: connect(f"file:{path}?mode=ro", uri=True, **more)


def test_a_full_disk_costs_what_is_kept_and_nothing_else(swept: Path) -> None:
    script = (
        "import json, pathlib, resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "from hpcdet.read.views import views\n"
        "from hpcdet.store.folder import derived_store\n"
        "from hpcdet.store.folder.layout import ExperimentPaths\n"
        f"paths = ExperimentPaths(pathlib.Path({str(swept / 'digits-7f3a')!r}))\n"
        "print(len(views.trials(paths)))\n"
        "derived_store.opened().flush()\n"
        "print(len(views.trials(paths)))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, text=True
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "3\n3\n", "")


def test_processes_and_threads_use_it_at_once(swept: Path) -> None:
    for number in range(8):
        shutil.copytree(swept / "digits-7f3a", swept / f"copy-{number:04d}")
    aged(swept)
    argv = [sys.executable, "-m", "hpcdet", "-C", str(swept), "ls", "--trials", "-o", "jsonl"]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    rows: list[Any] = []
    threads = [threading.Thread(target=lambda: rows.append(listed(swept))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0, 0]
    assert told[0] == told[1] == told[2] and len(told[0].splitlines()) == 27
    assert all(one == rows[0] for one in rows) and len(rows[0][0]) == 9


def test_what_nobody_wrote_for_long_is_forgotten(
    swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _looked_at(swept)
    later = time.time() + 40 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    derived_store.reopened().close()
    with sqlite3.connect(_store()) as base:
        assert base.execute("select count(*) from known").fetchone() == (0,)


def test_a_root_of_another_user_is_read_and_never_written(cli: Cli, swept: Path) -> None:
    before = sorted(str(path) for path in swept.rglob("*"))
    looks = freshness.looks(before)
    for words in (("ls",), ("status",), ("status", "digits", "--all"), ("best", "digits")):
        assert cli("-C", swept, *words).code == 0
    assert sorted(str(path) for path in swept.rglob("*")) == before
    assert freshness.looks(before) == looks


# -- lists -------------------------------------------------------------------------------------


def test_an_unchanged_experiment_is_not_read_for_its_row(
    swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Builder(swept / "alive-0001")
    built.trial().attempt()
    aged(swept)
    first = listed(swept)
    read: list[str] = []
    one = brief.brief
    monkeypatch.setattr(brief, "brief", lambda source: read.append(source.id) or one(source))
    assert listed(swept) == first and read == []
    built.decide("state", state="PAUSED", why="paused by its user", by="")
    rows, _ = listed(swept)
    assert [row.state for row in rows if row.id == "alive-0001"] == ["STOPPING"]
    assert read == ["alive-0001"]


def test_a_copy_under_another_name_has_a_row_of_its_own(swept: Path) -> None:
    [[row], _] = listed(swept)
    shutil.copytree(swept / "digits-7f3a", swept / "digits-8000")
    rows, _ = listed(swept)
    other = replace(row, id="digits-8000", path=str(swept / "digits-8000"))
    assert sorted(rows, key=lambda one: one.id) == [row, other]


# -- rows left in folders ----------------------------------------------------------------------


@pytest.fixture
def ended(tmp_path: Path) -> Builder:
    built = Builder(tmp_path / "root" / "ended-0001")
    attempt = built.trial(hidden=1).attempt()
    attempt.metrics("validation", 100, validation_loss=0.5)
    attempt.end("completed")
    built.decide("state", state="COMPLETED", why="", by="")
    built.close()
    return built


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of experiments whose records were read for a row."""
    found: list[str] = []
    one = brief.brief
    monkeypatch.setattr(brief, "brief", lambda source: found.append(source.id) or one(source))
    return found


def on_another_host(monkeypatch: pytest.MonkeyPatch, folder: Path, root: Path) -> ExperimentView:
    """Return the row of a root's only experiment as a host lists it that knows nothing of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    derived_store.reopened()
    [row], warnings = listed(root)
    assert not warnings
    return row


def test_the_row_of_an_ended_experiment_is_read_from_its_folder(
    ended: Builder, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ended.paths.root.parent
    truth = brief.brief(Gathered(ended.paths, afresh=True))
    catalog.leave_row(ended.paths)
    assert ended.paths.row.stat().st_mode & 0o077 == 0
    read.clear()
    assert on_another_host(monkeypatch, tmp_path / "one", root) == truth
    assert read == []
    listed(root)
    assert read == [], "it is kept on the host as well"
    ended.paths.row.unlink()
    assert on_another_host(monkeypatch, tmp_path / "two", root) == truth
    assert read == [ended.paths.id]


def test_a_row_is_made_after_the_clock_of_files_has_moved_on(
    ended: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time.time() + HOUR_S
    os.utime(ended.paths.provenance, (ahead, ahead))
    monkeypatch.setattr(freshness, "TICK_S", 0.05)
    catalog.leave_row(ended.paths)
    assert [*ended.paths.row.parent.iterdir()] == [], "a change now would have an older time"
    catalog.leave_row(ExperimentPaths(ended.paths.root / "nothing"))  # best effort
    os.utime(ended.paths.provenance, (1, 1))
    catalog.leave_row(ended.paths)
    assert [*ended.paths.row.parent.iterdir()] == [ended.paths.row]


def test_a_row_is_left_of_what_has_ended_alone(tmp_path: Path) -> None:
    built = Builder(tmp_path / "alive-0001")
    built.trial().attempt()
    catalog.leave_row(built.paths)
    assert not built.paths.row.parent.exists()


CHANGES: dict[str, Any] = {
    "tagged": lambda built: built.command("tag", add=["paper"]),
    "renamed in place": lambda built: built.paths.config.write_text(
        built.paths.config.read_text().replace("ended", "other"), "utf-8"
    ),
    "reopened": lambda built: put(built.paths.reopened(1), Reopened(1, "ada", at(9))),
    "an attempt": lambda built: built.paths.trial(1).attempt(2).root.mkdir(),
    "a trial": lambda built: built.trial(),
    "its end": lambda built: built.paths.closed.write_text('{"state": "ERROR", "why": "no"}'),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_row_that_was_left_before_a_change_is_not_used(
    ended: Builder,
    read: list[str],
    change: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog.leave_row(ended.paths)
    change(ended)  # within the same second
    read.clear()
    row = on_another_host(monkeypatch, tmp_path / "one", ended.paths.root.parent)
    assert read == [ended.paths.id]
    assert row == brief.brief(Gathered(ended.paths, afresh=True))


HOSTILE: dict[str, Any] = {
    "no json": lambda path, value: path.write_bytes(b"\x00[" * 1000),
    "deep": lambda path, value: path.write_text("[" * 50_000),
    "large": lambda path, value: path.write_text(" " * (1 << 20)),
    "another form": lambda path, value: write(path, {**value, "form": left_row.FORM + 1}),
    "no row": lambda path, value: write(path, {**value, "row": 3}),
    "a key less": lambda path, value: write(path, {**value, "row": {"name": "x"}}),
    "a key more": lambda path, value: write(path, {**value, "row": {**value["row"], "x": 1}}),
    "another type": lambda path, value: write(
        path, {**value, "row": {**value["row"], "labels": "a"}}
    ),
    "no time": lambda path, value: write(path, {**value, "row": {**value["row"], "created": "x"}}),
    "a file elsewhere": lambda path, value: write(
        path, {**value, "records": [*value["records"], "/../../../../etc/hostname"]}
    ),
    "a link": lambda path, value: (path.rename(path.parent / "a"), path.symlink_to("a")),
    "a pipe": lambda path, value: (path.unlink(), os.mkfifo(path)),
    "writable by others": lambda path, value: path.chmod(0o666),
}


def write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=HOSTILE)
def test_a_row_that_may_not_be_used_is_left_aside(
    ended: Builder,
    read: list[str],
    spoil: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog.leave_row(ended.paths)
    spoil(ended.paths.row, json.loads(ended.paths.row.read_text()))
    read.clear()
    row = on_another_host(monkeypatch, tmp_path / "one", ended.paths.root.parent)
    assert read == [ended.paths.id]
    assert row == brief.brief(Gathered(ended.paths, afresh=True))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_row_of_another_user_s_is_not_used_and_says_no_owner(
    ended: Builder, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.leave_row(ended.paths)
    os.chown(ended.paths.row, 65534, 65534)
    read.clear()
    row = on_another_host(monkeypatch, tmp_path / "one", ended.paths.root.parent)
    assert read == [ended.paths.id] and row.owner != "nobody"
    os.chown(ended.paths.root, 65534, 65534)
    row = on_another_host(monkeypatch, tmp_path / "two", ended.paths.root.parent)
    assert row.owner == "nobody", "who owns the folder, whatever the row says"
