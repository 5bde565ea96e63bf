"""Checkpoints in two places: scratch, which is purged, and project storage, which is not."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint import RetentionRules
from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.keep import replicate
from hpcdet.errors import ConfigError, IntegrityError, Unavailable
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.read.lookup import find
from hpcdet.read.views import views
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder import scratch
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.names import SCRATCH_MARK
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import files, journal
from hpcdet.store.trials.standing import latest_checkpoint
from hpcdet.train.checkpoints.background import Background
from hpcdet.train.checkpoints.checkpointer import Keeper
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.tracker import Tracker
from tests.builders import Builder
from tests.commands import Cli

TRIAL = Trial(1, {}, 1)
BEST_AND_LATEST = RetentionRules(trial_best=1, trial_latest=1)


def split(folder: Path, name: str = "x-0001") -> Builder:
    """An experiment on project storage with a folder on scratch."""
    built = Builder(folder / "project" / "hpcdet-experiments" / name)
    apart = folder / "scratch" / "hpcdet-experiments" / name
    files.make_folder(apart)
    scratch.link(built.paths, apart)
    scratch.prepare(built.paths)
    return built


def apart(paths: ExperimentPaths) -> Path:
    folder = scratch.target(paths)
    assert folder is not None
    return folder


def save(trial: TrialPaths, step: int, metric: float | None = None, kind: str = "kept") -> Path:
    folder = trial.checkpoint(step, 1)
    state = {"w": torch.full((200,), float(step)), "step": step}
    checkpoint.save(folder, state, meta={"metric": metric, "kind": kind})
    return folder


def names(place: Path | None) -> list[str]:
    return sorted(os.listdir(place)) if place and place.is_dir() else []


def steps(place: Path | None) -> list[int]:
    """What is whole there: every byte is read."""
    found = manifests.committed(place) if place else []
    assert place is not None
    for each in found:
        checkpoint.verify(place / each.name)
    return [each.step for each in found]


def restored(trial: TrialPaths) -> checkpoint.LoadedState | None:
    return checkpoint.restore(trial.checkpoints, kept=trial.kept)


def test_what_the_policy_keeps_is_copied_and_the_rest_goes(tmp_path: Path) -> None:
    paths = split(tmp_path).paths
    trial = paths.trial(1)
    for step, metric in ((1, 0.1), (2, 0.3), (3, 0.2)):
        save(trial, step, metric)
        checkpoint.sweep(paths, BEST_AND_LATEST, 1, 1)
        assert not checkpoint.secure(paths, BEST_AND_LATEST, 1, 1).failed
    save(trial, 4, kind="resume")
    assert checkpoint.secure(paths, BEST_AND_LATEST, 1, 1) == checkpoint.Secured()
    checkpoint.sweep(paths, BEST_AND_LATEST, 1, 1)
    assert steps(trial.checkpoints) == [1, 3, 4]  # best, latest, newest two
    assert steps(trial.kept) == [1, 3]  # what only serves to go on stays on scratch
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (trial.kept or Path()).rglob("*")}
    assert modes == {0o700, 0o600}
    rows = views.checkpoints(paths)
    assert [(row.step, row.on) for row in rows] == [
        (1, ["scratch", "project"]),
        (3, ["scratch", "project"]),
        (4, ["scratch"]),
    ]
    assert all(Path(row.path).is_dir() and row.state == "complete" for row in rows)


def test_a_purge_of_everything_half_a_checkpoint_or_the_mark(tmp_path: Path) -> None:
    paths = split(tmp_path).paths
    trial = paths.trial(1)
    save(trial, 1, 0.1)
    checkpoint.secure(paths, BEST_AND_LATEST, 1, 1)
    newer = [save(trial, step, kind="resume") for step in (2, 3, 4)]
    (newer[2] / "rank-00000-of-00001.h5").unlink()
    (newer[1] / "MANIFEST.json").unlink()
    (apart(paths) / SCRATCH_MARK).unlink()
    loaded = restored(trial)
    assert loaded is not None and loaded.shared["step"] == 2
    assert ".bad-00000004.g1" in names(trial.checkpoints)
    scratch.prepare(paths)
    assert scratch.owner(apart(paths)) is not None

    shutil.rmtree(apart(paths))
    assert scratch.is_gone(paths) and latest_checkpoint(trial) == "00000001.g1"
    loaded = restored(trial)
    assert loaded is not None and loaded.folder.parent == trial.kept
    scratch.prepare(paths)
    assert stat.S_IMODE(apart(paths).stat().st_mode) == 0o700
    save(trial, 5)
    assert names(trial.checkpoints) == ["00000005.g1"]


def test_only_a_purge_may_leave_nothing_to_go_on_from(tmp_path: Path) -> None:
    trial = split(tmp_path).paths.trial(1)
    (save(trial, 1) / "rank-00000-of-00001.h5").unlink()
    assert restored(trial) is None
    assert trial.kept is not None
    shutil.move(save(trial, 2), trial.kept / "00000002.g1")
    (trial.kept / "00000002.g1" / "rank-00000-of-00001.h5").unlink()
    with pytest.raises(IntegrityError, match="none of its checkpoints"):
        restored(trial)


def test_of_two_copies_the_whole_one_is_taken(tmp_path: Path) -> None:
    paths = split(tmp_path).paths
    trial = paths.trial(1)
    save(trial, 1)
    folder = save(trial, 2)
    checkpoint.secure(paths, BEST_AND_LATEST, 1, 1)
    loaded = restored(trial)
    assert loaded is not None and loaded.folder == folder
    (folder / "rank-00000-of-00001.h5").write_bytes(b"")
    loaded = restored(trial)
    assert loaded is not None and loaded.folder == (trial.kept or Path()) / folder.name


CALLS = ["open", "write", "fsync", "close", "mkdir", "rename", "rmdir", "unlink"]


class Cut(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), Cut()])
def test_a_copy_may_fail_or_be_cut_off_at_every_step(tmp_path: Path, error: BaseException) -> None:
    """What was safe stays safe, nothing half copied is ever taken for a checkpoint."""
    template = split(tmp_path / "template").paths
    trial = template.trial(1)
    save(trial, 1, 0.5)
    checkpoint.secure(template, BEST_AND_LATEST, 1, 1)
    save(trial, 2, 0.4)
    checkpoint.sweep(template, BEST_AND_LATEST, 1, 1, resume=0)
    reached = nth = 0
    while reached >= nth:
        nth += 1
        folder = tmp_path / f"run-{nth}"
        shutil.copytree(tmp_path / "template", folder, symlinks=True)
        paths = ExperimentPaths(folder / "project" / "hpcdet-experiments" / "x-0001")
        scratch.link(paths, folder / "scratch" / "hpcdet-experiments" / "x-0001")
        reached = 0
        with pytest.MonkeyPatch.context() as monkeypatch:

            def counted(real: Callable[..., Any], nth: int = nth) -> Callable[..., Any]:
                def call(*arguments: Any, **options: Any) -> Any:
                    nonlocal reached
                    reached += 1
                    if reached == nth or (reached > nth and isinstance(error, Cut)):
                        raise error
                    return real(*arguments, **options)

                return call

            for name in CALLS:
                monkeypatch.setattr(os, name, counted(getattr(os, name)))
            with contextlib.suppress(Cut, OSError):
                checkpoint.secure(paths, BEST_AND_LATEST, 1, 1)
        kept = paths.trial(1).kept
        assert steps(kept) in ([1], [1, 2], [2])
        again = checkpoint.secure(paths, BEST_AND_LATEST, 1, 2)
        assert not again.failed
        assert names(kept) == ["00000002.g1"]
        shutil.rmtree(folder)
    assert nth > 15


def test_a_copy_is_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = split(tmp_path).paths
    save(paths.trial(1), 1)
    calls: list[tuple[str, str]] = []
    opened: dict[int, str] = {}

    def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            if name == "open":
                opened[result] = Path(arguments[0]).name
            elif name == "rename":
                calls.append((name, Path(arguments[1]).name))
            else:
                calls.append((name, opened.get(arguments[0], "")))
            return result

        return call

    with monkeypatch.context() as watched:
        for name in ("open", "write", "fsync", "rename"):
            watched.setattr(os, name, watch(name, getattr(os, name)))
        assert checkpoint.secure(paths, BEST_AND_LATEST, 1, 1).copied
    renamed = calls.index(("rename", "00000001.g1"))
    for file in ("rank-00000-of-00001.h5", "MANIFEST.json"):
        assert calls.index(("write", file)) < calls.index(("fsync", file)) < renamed
    assert ("fsync", ".partial-00000001.g1-1") in calls[:renamed]
    assert ("fsync", "checkpoints") in calls[renamed:]


def test_a_failure_keeps_the_older_copy_and_damage_is_found(tmp_path: Path) -> None:
    paths = split(tmp_path).paths
    trial = paths.trial(1)
    save(trial, 1, 0.5)
    checkpoint.secure(paths, BEST_AND_LATEST, 1, 1)
    folder = save(trial, 2, 0.4)
    with (folder / "rank-00000-of-00001.h5").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    [(name, why)] = checkpoint.secure(paths, BEST_AND_LATEST, 1, 1).failed
    assert name == "00000002.g1" and "not what was written" in why
    assert steps(trial.kept) == [1] and names(trial.kept) == ["00000001.g1"]
    assert ".bad-00000002.g1" in names(trial.checkpoints)
    assert checkpoint.secure(paths, BEST_AND_LATEST, 1, 1) == checkpoint.Secured()
    with pytest.raises(replicate.ReplicationStopped):
        replicate.copy(
            trial.checkpoints / "00000001.g1", tmp_path / "to", tmp_path / "partial", lambda: True
        )
    assert not (tmp_path / "to").exists() and not (tmp_path / "partial").exists()


def test_work_in_the_background_is_never_done_twice_at_once() -> None:
    busy, go = threading.Semaphore(0), threading.Semaphore(0)
    rounds = iter(range(9))

    def work(stop: Callable[[], bool]) -> int:
        busy.release()
        assert go.acquire(timeout=120)
        return next(rounds)

    background = Background(work)
    background.request()
    assert busy.acquire(timeout=120)
    background.request()
    background.request()
    assert not background.wait(0)
    go.release(2)
    assert background.wait(120) and background.results() == [0, 1]
    background.settled(hurry=True)
    background.request()
    assert background.wait(120) and background.results() == []


# -- the folder on scratch -----------------------------------------------------------------


def test_a_folder_that_is_not_ours_is_neither_written_nor_removed(tmp_path: Path) -> None:
    one, other = split(tmp_path).paths, split(tmp_path, "x-0002").paths
    other.provenance.write_text("{}")
    (apart(other) / SCRATCH_MARK).unlink()
    scratch.prepare(other)
    scratch.link(one, apart(other))
    for act in (scratch.prepare, scratch.refuse_foreign):
        with pytest.raises(ConfigError, match="x-0002"):
            act(one)

    away = other.root.rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="x-0002"):  # moved by hand: it is still not ours
        scratch.prepare(one)
    away.rename(other.root)

    copy = ExperimentPaths(tmp_path / "copy")
    shutil.copytree(other.root, copy.root, symlinks=True)
    with pytest.raises(ConfigError, match="is a copy"):
        scratch.prepare(copy)

    scratch.link(one, tmp_path / "scratch" / "hpcdet-experiments" / "x-0001")
    apart(one).chmod(0o770)
    with pytest.raises(ConfigError, match="changed by others"):
        scratch.prepare(one)
    apart(one).chmod(0o700)
    (apart(one) / SCRATCH_MARK).unlink()
    (apart(one) / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="not hpcdet's"):
        scratch.refuse_foreign(one)
    scratch.link(one, tmp_path / "no" / "such" / "scratch")
    with pytest.raises(Unavailable, match="not there"):
        scratch.prepare(one)


def ended(cli: Cli, folder: Path) -> ExperimentPaths:
    """An experiment that is over, with a checkpoint in both places and one on scratch alone."""
    cli.root = folder / "project" / "hpcdet-experiments"
    built = split(folder)
    built.trial().attempt().end("completed")
    built.close()
    paths = built.paths
    trial = paths.trial(1)
    save(trial, 1)
    checkpoint.secure(paths, BEST_AND_LATEST, 1, 1)
    save(trial, 2, kind="resume")
    files.make_folder(trial.attempt(1).logs)
    trial.attempt(1).log(0).write_text("hello\n")
    return paths


def test_verbs_that_handle_whole_experiments_see_both_places(cli: Cli, tmp_path: Path) -> None:
    paths = ended(cli, tmp_path)
    root = ["-C", str(cli.root)]
    old = apart(paths)
    inside = old / "trials" / "0001" / "checkpoints" / "00000002.g1"
    found = find.reference(str(inside), cli.root)
    assert (found.paths, found.trial) == (paths, 1)
    assert find.reference(str(paths.scratch / "trials" / "0001"), cli.root).trial == 1
    cli(*root, "rm", "-y", old / "trials", code=2)

    cli(*root, "archive", paths.id, "--out", tmp_path / "x.tar.gz")
    with tarfile.open(tmp_path / "x.tar.gz") as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    whole = ExperimentPaths(tmp_path / "unpacked" / paths.id)
    assert not whole.scratch.is_symlink()
    assert [row.step for row in views.checkpoints(whole)] == [1, 2]
    assert steps(whole.trial(1).checkpoints) == [2] and steps(whole.trial(1).kept) == [1]
    assert whole.trial(1).attempt(1).log(0).read_text() == "hello\n"
    scratch.prepare(whole)
    save(whole.trial(1), 3)
    assert not any((apart(paths) / "trials" / "0001" / "checkpoints").glob("*3.g1"))

    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cli(*root, "move", paths.id, tmp_path / "elsewhere" / "x-new")
    moved = ExperimentPaths(tmp_path / "elsewhere" / "x-new")
    assert not old.exists() and apart(moved) == old.with_name("x-new")
    assert steps(moved.trial(1).checkpoints) == [1, 2] and steps(moved.trial(1).kept) == [1]
    scratch.prepare(moved)

    verified = cli("ckpt", "verify", moved.root / "trials" / "0001", "-o", "json")
    assert len(verified.items) == 3
    copy = moved.trial(1).checkpoints / "00000001.g1"
    assert len(cli("ckpt", "rm", "-y", copy, "-o", "json").items) == 2
    assert steps(moved.trial(1).checkpoints) == [2] and steps(moved.trial(1).kept) == []

    cli("rm", "-y", moved.root)
    assert not moved.root.exists() and not old.with_name("x-new").exists()
    assert (tmp_path / "scratch" / "hpcdet-experiments").is_dir()


def test_rm_follows_no_link_to_what_is_not_ours(cli: Cli, tmp_path: Path) -> None:
    paths = ended(cli, tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "thesis.tex").touch()
    scratch.link(paths, mine)
    said = cli("-C", cli.root, "rm", "-y", paths.id, code=4)
    assert "not hpcdet's" in said.err and (mine / "thesis.tex").exists() and paths.root.exists()
    paths.scratch.unlink()
    cli("-C", cli.root, "rm", "-y", paths.id)
    assert not paths.root.exists() and (mine / "thesis.tex").exists()


def test_a_purge_is_said(cli: Cli, tmp_path: Path) -> None:
    cli.root = tmp_path / "project" / "hpcdet-experiments"
    built = split(tmp_path)
    trial = built.trial()
    attempt = trial.attempt()
    for step, kind in ((100, "kept"), (200, "resume")):
        folder = save(built.paths.trial(1), step, kind=kind)
        attempt.line("checkpoint", name=folder.name, step=step, digest="", bytes=9)
        checkpoint.secure(built.paths, BEST_AND_LATEST, 1, 1)
    attempt.end("preempted")
    assert views.status(built.paths).purged == []
    shutil.rmtree(apart(built.paths))
    gone, behind = views.status(built.paths).purged
    assert str(apart(built.paths)) in gone
    assert "goes on from 00000100.g1" in behind
    said = cli("-C", cli.root, "status", built.paths.id)
    assert "goes on from 00000100.g1" in said.err.replace("\n", " ")


# -- in an attempt -------------------------------------------------------------------------


def keeper(paths: ExperimentPaths, attempt: int = 1) -> Keeper:
    place = AttemptLocation(paths.trial(1), paths.trial(1).attempt(attempt), paths)
    tracker = Tracker(place.attempt.journal)
    return Keeper(place, Peers(Ranks(0, 1, 0, 1, 0)), Resolved(), tracker, Deadline(None))


def kinds(paths: ExperimentPaths, attempt: int = 1) -> list[tuple[str, str]]:
    lines = journal.read(paths.trial(1).attempt(attempt).journal)
    return [(line["kind"], line.get("name", "")) for line in lines]


def never() -> bool:
    return False


def test_an_attempt_goes_on_whatever_becomes_of_scratch_and_of_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths, other = split(tmp_path).paths, split(tmp_path, "x-0002").paths
    other.provenance.write_text("{}")
    (apart(other) / SCRATCH_MARK).unlink()
    scratch.prepare(other)
    trial, own = paths.trial(1), keeper(paths)
    assert own.save(1, {"step": 1}, None, kept=["best"])
    own.settle(never)
    assert steps(trial.kept) == [1] and ("checkpoint_copied", "00000001.g1") in kinds(paths)

    shutil.rmtree(apart(paths))
    assert own.save(2, {"step": 2}, None, kept=["best"])
    own.settle(never)
    assert steps(trial.checkpoints) == [2] and steps(trial.kept) == [2]

    mine = apart(paths)
    scratch.link(paths, apart(other))
    assert not own.save(3, {"step": 3}, None, kept=["best"])
    assert not (apart(other) / "trials").exists()
    assert kinds(paths)[-1] == ("checkpoint_failed", "")
    scratch.link(paths, mine)

    with monkeypatch.context() as broken:
        full = OSError(errno.ENOSPC, "No space left on device")
        broken.setattr(replicate, "_copy_file", lambda *_: (_ for _ in ()).throw(full))
        assert own.save(4, {"step": 4}, None, kept=["best"])
        own.settle(never)
    assert steps(trial.kept) == [2] and ("copy_failed", "00000004.g1") in kinds(paths)
    assert "no copy of 00000004.g1" in capsys.readouterr().err

    shutil.rmtree(trial.checkpoints / "00000004.g1")
    following = keeper(paths, 2)
    loaded = following.restore(TRIAL)
    assert loaded is not None and loaded.shared == {"step": 2}


def test_a_notice_does_not_wait_for_a_copy_and_the_next_attempt_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = split(tmp_path).paths
    go, busy = threading.Event(), threading.Event()
    real = replicate._copy_file

    def slow(source: Path, target: Path, stop: Callable[[], bool]) -> None:
        busy.set()
        assert go.wait(120)
        real(source, target, stop)

    with monkeypatch.context() as delayed:
        delayed.setattr(replicate, "_copy_file", slow)
        delayed.setattr("hpcdet.train.checkpoints.background._GIVE_UP_S", 0.0)
        own = keeper(paths)
        assert own.save(1, {"step": 1}, None, kept=["best"])
        assert busy.wait(120)
        own.settle(lambda: True)
        go.set()
        assert own._copies._safe is not None and own._copies._safe.wait(120)
    assert names(paths.trial(1).kept) == []
    following = keeper(paths, 2)
    assert following.restore(TRIAL) is not None
    following.settle(never)
    assert steps(paths.trial(1).kept) == [1]


# -- at a site -----------------------------------------------------------------------------


def test_a_site_with_both_is_looked_at_and_submitted_to(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HPCDET_ROOT")
    monkeypatch.chdir(tmp_path)
    project, purged = tmp_path / "project" / "ada", tmp_path / "scratch" / "ada"
    for folder in (project, purged):
        folder.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("WHO", "ada")
    (tmp_path / "both.yaml").write_text(
        "extends: local\n"
        f"paths: {{project: '{project.parent}/$WHO', scratch: '{purged.parent}/$WHO',"
        " purge_days: 2}\n"
    )
    (tmp_path / "model").mkdir(mode=0o700)
    (tmp_path / "model" / "single.yaml").write_text(
        "name: both\nentrypoint: python train.py\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 9}}\n"
        "resources: {walltime_s: 86400}\n"
    )
    site = ["--site", tmp_path / "both.yaml"]
    said = cli(
        "submit", tmp_path / "model" / "single.yaml", *site, "--prepare", "--no-test", "-o", "json"
    )
    [item] = said.items
    paths = ExperimentPaths(Path(item["path"]))
    assert paths.root.parent == project / "hpcdet-experiments"
    assert apart(paths) == purged / "hpcdet-experiments" / paths.id
    for folder in (paths.root, apart(paths)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    [warning] = [text for text in json.loads(said.out)["warnings"] if "purged" in text]
    assert warning.startswith(str(purged)) and "project storage" in warning
    cli("test", tmp_path / "model" / "single.yaml", *site, code=4)  # there is no train.py
    assert names(project / "hpcdet-experiments") == names(purged / "hpcdet-experiments")

    looked = [item["what"] for item in cli("site", "check", site[1], "-o", "json").items]
    looked += [item["what"] for item in cli("doctor", *site, "-o", "json").items]
    for folder in (project, purged):
        assert sum(str(folder) in what for what in looked) >= 2, looked
