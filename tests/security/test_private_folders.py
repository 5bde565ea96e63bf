"""Folders of hpcdet's own that another user has made first, or may exchange."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hpcdet.cli import main
from hpcdet.errors import Unavailable
from hpcdet.read.index import database
from hpcdet.schedulers.calls import polling
from hpcdet.schedulers.common import processes
from hpcdet.schedulers.common.base import Job, Submission
from hpcdet.schedulers.local import local_job
from hpcdet.schedulers.local.local import LocalScheduler
from hpcdet.store.folder import private_folders
from tests import experiments as x
from tests.builders import Builder
from tests.commands import Cli

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="gives folders to another user")

NOBODY = 65534


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.sh"
    file.write_text("#!/bin/bash\ntrue\n")
    return file


@pytest.fixture
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of another user's, where this one's state folder shall be."""
    monkeypatch.delenv("HPCDET_LOCAL_STATE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs" / "cache"))
    (tmp_path / "theirs" / "cache").mkdir(parents=True)
    return tmp_path / "theirs"


def submit(script: Path) -> str:
    return LocalScheduler(slots=1).submit(Submission("x", "t", script, 1, 1))


def test_local_jobs_refuse_a_state_folder_below_one_of_another_user(
    below: Path, script: Path
) -> None:
    os.chown(below, NOBODY, NOBODY)
    with pytest.raises(Unavailable, match="another folder in the place") as refused:
        submit(script)
    assert str(below) in refused.value.where and "HPCDET_LOCAL_STATE" in refused.value.hint
    assert not (below / "cache" / "hpcdet").exists()
    os.chown(below, 0, 0)
    below.chmod(0o775)
    with pytest.raises(Unavailable, match="another folder in the place"):
        submit(script)
    below.chmod(0o1775)
    assert submit(script)


@pytest.mark.parametrize("part", ["", "jobs", "running", "waiting"])
def test_local_jobs_refuse_a_part_of_the_state_that_is_not_theirs(
    part: str, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("HPCDET_LOCAL_STATE", str(state))
    job = submit(script)
    os.chown(state / part, NOBODY, NOBODY)
    scheduler = LocalScheduler(slots=1)
    for act in (
        lambda: submit(script),
        lambda: scheduler.query([Job(job, 1)]),
        lambda: scheduler.find("x", "t"),
        lambda: scheduler.cancel(job),
        lambda: local_job.main([str(state / "jobs" / job)]),
    ):
        with pytest.raises(Unavailable, match="this folder belongs to another user"):
            act()


def test_a_name_that_another_user_has_taken_is_left_to_him(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / f"hpcdet-{os.getuid()}"
    taken.mkdir(mode=0o777)
    os.chown(taken, NOBODY, NOBODY)
    (tmp_path / f"hpcdet-{os.getuid()}-0000").symlink_to("/etc")
    mine = private_folders.temporary()
    assert mine.parent == tmp_path and private_folders.is_private(mine) and mine != taken
    assert private_folders.temporary() == mine  # and not a new one each time
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert database.local_folder() == mine / "index"
    (tmp_path / "home").write_text("no folder")
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "home"))
    assert polling.cache_folder() == mine
    assert not list(taken.iterdir())


def test_a_root_in_which_a_group_may_rename_is_said_at_submission(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "m", "--minimal")
    words = ("submit", tmp_path / "m" / "single.yaml", "--site", "local", "--prepare", "--no-test")

    def said() -> list[str]:
        warnings: list[str] = json.loads(cli(*words, "-o", "json").out)["warnings"]
        return [text for text in warnings if "in the place of an experiment" in text]

    assert said() == []
    os.chown(cli.root, 0, 100)
    cli.root.chmod(0o2770)
    [warning] = said()
    assert warning.startswith("group users may rename what lies in")
    assert warning.endswith(f"chmod +t {cli.root}")
    cli.root.chmod(0o3770)
    assert said() == []


def test_the_index_is_kept_where_the_first_name_is_taken(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / f"hpcdet-{os.getuid()}"
    taken.write_text("a file of that name")
    cli("init", tmp_path / "m", "--minimal")
    cli("submit", tmp_path / "m" / "single.yaml", "--site", "local", "--prepare", "--no-test")
    cli("index", "update")
    assert Path(cli("index", "path", "@last").out.strip()).is_file()
    assert taken.read_text() == "a file of that name"


def as_nobody(words: list[str]) -> tuple[int, str]:
    """Exit code and output of a command that another user gives, in a process of its own."""
    main.run([*words, "--help"])  # he may not be able to read the modules
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        for stream in (1, 2):
            os.dup2(write, stream)
        sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        code = main.run(words)
        sys.stdout.flush()
        os._exit(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def test_an_experiment_that_its_owner_shows_to_nobody_is_said_to_be_his() -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        root.chmod(0o755)
        closed = Builder(root / "mine-0001").paths.root
        closed.chmod(0o700)
        for name in ("mine-0001", "mine", "mine-0001/3", str(closed), str(closed / "trials")):
            code, said = as_nobody(["-C", made, "status", name])
            owner = f"error: {closed}: the experiment belongs to root, and you may not read it\n"
            assert code == 5 and (
                said.startswith(f"{owner}hint: ask") or name.endswith("trials")
            ), said
        assert as_nobody(["-C", made, "status", "other"])[0] == 3
        code, said = as_nobody(["-C", made, "ls"])
        assert code == 0 and "mine" not in said


def test_a_root_that_cannot_be_read_is_said_to_be_so() -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o700)
        for words in ("ls", "status", "eff", "run ls", "index update", "report x", "explain @last"):
            code, said = as_nobody(["-C", made, *words.split()])
            assert code == 5 and f"{made}" in said and "Permission denied" in said, (words, said)


STUBBORN = """\
import os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
for number in range(1000):  # removing them takes a while
    pathlib.Path(str(number)).touch()
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""


def test_who_is_in_a_hurry_leaves_nothing_of_a_test_behind(tmp_path: Path) -> None:
    model, temporary, mark = tmp_path / "model", tmp_path / "t", tmp_path / "mark"
    for folder in (model, temporary):
        folder.mkdir(mode=0o700)
    (model / "wait.py").write_text(STUBBORN)
    (model / "c.yaml").write_text(
        f"name: x\nentrypoint: {sys.executable} wait.py {mark}\n"
        "searcher: {name: single, metric: m, max_length: {batches: 1}}\n"
    )
    argv = [sys.executable, "-m", "hpcdet", "test", str(model / "c.yaml"), "--site", "local"]
    environment = {**os.environ, "TMPDIR": str(temporary), "HPCDET_ROOT": str(tmp_path / "root")}
    process = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE)
    x.until(lambda: mark.exists() and mark.read_text(), lambda: str(process.poll()))
    assert [path.name[:12] for path in temporary.iterdir()] == ["hpcdet-test-"]
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.003)
    assert list(temporary.iterdir()) == [] and processes.started(int(mark.read_text())) is None
    assert process.returncode in (130, -signal.SIGINT)
