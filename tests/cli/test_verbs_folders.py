"""Verbs on whole folders: move, pack, archive, remove; and folders that cannot be written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdet.cli.observe import follow
from hpcdet.read.lookup import find
from hpcdet.store.folder.records import WorkerEnd
from tests.builders import Builder
from tests.commands import Cli

# -- whole folders -----------------------------------------------------------------------


def test_what_is_alive_is_not_touched(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.job()
    for argv in (["move", "digits", cli.root.parent], ["archive", "digits"], ["rm", "digits"]):
        assert "still active" in cli(*argv, "-y", code=2).err
    attempt = built.trial().attempt()
    folder = attempt.checkpoint(100)
    assert "running" in cli("ckpt", "rm", folder, "-y", code=2).err
    attempt.end("preempted")
    assert "is paused" in cli("ckpt", "rm", folder, "-y", code=2).err
    assert folder.is_dir()
    built.close("CANCELED")
    cli("ckpt", "rm", folder, "-y")


def test_only_whole_experiments_are_moved_packed_or_removed(
    cli: Cli, swept: Builder, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "experiment.yaml").write_text("entrypoint: model_def:Mine\n")
    parts = (swept.paths.config, swept.paths.code, swept.paths.trial(1).root, "digits/1")
    for what in (*parts, mine, mine / "experiment.yaml"):
        for argv in (["rm", what], ["move", what, tmp_path], ["archive", what, "--remove"]):
            cli(*argv, "-y", code=2)
    assert swept.paths.config.is_file() and (mine / "experiment.yaml").is_file()
    cli("rm", f"{swept.paths.root}/", "-y")
    assert not swept.paths.root.exists()


def test_workers_say_goodbye_before_a_folder_goes(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Builder(cli.root / "digits-7f3a")
    worker = built.worker()
    built.close()
    end = WorkerEnd("closed", worker)
    said: list[bool] = []
    monkeypatch.setattr(
        follow, "pause", lambda _: said.append(end.write_once(built.paths.worker(1, 0, 0).end))
    )
    cli("rm", "digits", "-y")
    assert said == [True] and list(cli.root.iterdir()) == []


def test_moved_it_is_the_same_experiment(cli: Cli, swept: Builder, tmp_path: Path) -> None:
    before = cli("metrics", "digits", "-o", "csv").out
    kept = tmp_path / "kept"
    kept.mkdir()
    cli("move", "digits", kept, "-n")
    assert swept.paths.root.exists()
    cli("move", "digits", kept)
    assert not swept.paths.root.exists()
    assert cli("-C", kept, "metrics", "digits", "-o", "csv").out == before
    assert "exists already" in cli("-C", kept, "move", "digits", kept, code=2).err


def test_moved_to_another_file_system(cli: Cli, swept: Builder) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == cli.root.stat().st_dev:
        pytest.skip("there is one file system only")
    other = Path(tempfile.mkdtemp(dir=memory))
    try:
        (swept.paths.code / "link").symlink_to("model_def.py")
        cli("move", "digits", other)
        assert not swept.paths.root.exists()
        moved = find.experiment("digits", other)
        assert (moved.code / "link").is_symlink()
        assert [p.name for p in other.iterdir()] == ["digits-7f3a"]
    finally:
        shutil.rmtree(other)


def test_an_archive_holds_all_but_secrets(cli: Cli, swept: Builder, tmp_path: Path) -> None:
    before = cli("show", "digits", "-o", "json", "--fields", "trials,attempts").items
    swept.paths.secrets.write_text("{}")
    for name in (swept.paths.secrets.name, swept.paths.index.name):
        (swept.paths.code / name).write_text("the code's own")
    file = tmp_path / "digits.tar.gz"
    assert "needs confirmation" in cli("archive", "digits", "--out", file, "--remove", code=2).err
    assert "no such folder" in cli("archive", "digits", "--out", "no/x.tar.gz", code=2).err
    cli("archive", "digits", "--out", file, "--remove", "-y")
    assert not swept.paths.root.exists() and file.stat().st_mode & 0o777 == 0o600
    subprocess.run(["tar", "-xzf", file, "-C", cli.root], check=True)
    assert not swept.paths.secrets.exists()
    assert (swept.paths.code / swept.paths.secrets.name).exists()
    assert (swept.paths.code / swept.paths.index.name).exists()
    there = {path.name for path in tmp_path.iterdir()} - {"cache"}
    assert there == {"digits.tar.gz", "root"}
    for old, new in zip(
        before[0]["attempts"],
        cli("show", "digits", "-o", "json", "--fields", "attempts").items[0]["attempts"],
        strict=True,
    ):
        assert old == new


def test_removed_is_removed_and_asked_for(cli: Cli, swept: Builder) -> None:
    assert "would remove" in cli("rm", "digits", "-n").out
    path = swept.paths.trial(1).checkpoint(100, 1)
    assert json.loads(cli("ckpt", "rm", path, "-n", "-o", "jsonl").out)["removed"] is False
    cli("ckpt", "rm", path, "-y")
    assert not path.exists()
    assert "only whole experiments" in cli("rm", "digits/1", "-y", code=2).err
    older = Builder(cli.root / "older-1a2b").paths
    os.utime(older.config, ns=(0, 0))
    cli("rm", "digits", "@last", "-y")  # one and the same, and not the next one when it has gone
    assert list(cli.root.iterdir()) == [older.root]
    older.root.rename(cli.root / ".older-1a2b.removed")
    assert cli("ls", "-o", "json").items == []


@pytest.fixture
def read_only(cli: Cli, swept: Builder) -> Iterator[Builder]:
    """The folder of experiments cannot be written, not even by root."""
    commands = (["--bind", cli.root, cli.root], ["-o", "remount,ro,bind", cli.root])
    mounted = subprocess.run(["mount", *commands[0]], capture_output=True, text=True, check=False)  # type: ignore[list-item]
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        subprocess.run(["mount", *commands[1]], check=True)  # type: ignore[list-item]
        yield swept
    finally:
        subprocess.run(["umount", "--lazy", str(cli.root)], check=True)


def test_what_cannot_be_written_can_be_read(cli: Cli, read_only: Builder, tmp_path: Path) -> None:
    for argv in (["ls"], ["status"], ["show"], ["metrics"], ["logs"], ["events"], ["explain"]):
        assert cli(*argv, *(["digits"] if argv[0] != "ls" else [])).out
    assert cli("ckpt", "ls", "digits").out
    cli("archive", "digits", "--out", tmp_path / "digits.tar.gz")
    cli("init", tmp_path / "work")
    config = tmp_path / "work" / "random.yaml"
    for refused in (
        ["tag", "digits", "--add", "x"],
        ["index", "rebuild", "digits"],
        ["rm", "digits", "-y"],
        ["submit", config, "--site", "local", "--no-test"],
    ):
        assert "Read-only file system" in cli(*refused, code=5).err, refused
    assert "could not be removed" in cli("move", "digits", tmp_path, code=5).err
    assert not (tmp_path / "digits-7f3a").exists()
    assert cli("status", "digits", "-o", "json").items[0]["state"] == "COMPLETED"
