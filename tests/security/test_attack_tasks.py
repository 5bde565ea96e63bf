"""Another Unix user of the same host and the tasks of this one: connect, list, read, replace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hpcdet.store.folder import private_folders
from hpcdet.tasks.folder import task_folder
from tests.commands import Cli
from tests.experiments import until
from tests.interactive import NOBODY, another_user_tries, no_jupyter
from tests.security.test_private_folders import as_nobody
from tests.tasks.conftest import local as local
from tests.tasks.conftest import visible as visible

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="acts as another user")


def served(cli: Cli, kind: str, *words: object) -> dict[str, Any]:
    [item] = cli(kind, "start", *words, "--wait", "-o", "json").items
    return dict(item)


def refused(lines: list[str]) -> bool:
    return len(lines) > 4 and all(line.endswith("PermissionError") for line in lines)


@pytest.mark.parametrize("kind", ["tensorboard", "notebook"])
def test_another_user_cannot_connect_list_or_read_the_token(visible: Cli, kind: str) -> None:
    if kind == "notebook" and no_jupyter():
        pytest.skip(no_jupyter())
    words = [visible.root] if kind == "tensorboard" else []
    item = served(visible, kind, *words)
    # a control: what others may reach, they do reach
    shown = visible.root / "shown"
    shown.mkdir(mode=0o755)
    (shown / "file").write_text("seen")
    (shown / "file").chmod(0o644)
    assert "read got seen" in another_user_tries(str(shown / "file"))

    folder = visible.root / "tasks" / item["id"]
    paths = [item["socket"], item["token_file"], str(folder / "task.json")]
    assert refused(another_user_tries(*paths)), another_user_tries(*paths)
    code, said = as_nobody(["-C", str(visible.root), kind, "ls"])
    assert code == 0 and item["id"] not in said
    code, said = as_nobody(["-C", str(visible.root), kind, "url", item["id"]])
    assert code == 3 and "token=" not in said
    assert as_nobody(["-C", str(visible.root), kind, "stop", item["id"]])[0] == 3
    visible(kind, "stop", item["id"])


def test_a_folder_of_tasks_that_others_may_write_is_refused(visible: Cli) -> None:
    id = visible("run", "-o", "id", "--", "true").out.strip()
    found = task_folder.task(id, visible.root)
    until(found.ended.exists)
    for place in (found.root.parent, found.root):
        mode = place.stat().st_mode & 0o7777
        place.chmod(0o777)
        assert "others may write" in visible("shell", "open", id, code=5).err
        assert "others may write" in visible("run", "logs", id, code=5).err
        place.chmod(mode)
        os.chown(place, NOBODY, NOBODY)
        assert "belongs to another user" in visible("run", "logs", id, code=5).err
        os.chown(place, 0, 0)
    visible("run", "logs", id)


def test_a_root_in_which_others_may_rename_is_refused(visible: Cli) -> None:
    id = visible("run", "-o", "id", "--", "true").out.strip()
    until(task_folder.task(id, visible.root).ended.exists)
    os.chown(visible.root, 0, 100)
    visible.root.chmod(0o2770)
    for words in (["ls"], ["logs", id], ["--", "true"]):
        said = visible("run", *words, code=5).err
        assert "may rename what lies in" in said and "chmod +t" in said
    visible.root.chmod(0o3770)
    visible("run", "logs", id)


def test_a_folder_of_tasks_that_another_user_made_is_left_to_him(visible: Cli) -> None:
    folder = visible.root / "tasks"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    said = visible("run", "--", "true", code=5).err
    assert "belongs to another user" in said and "-C DIR" in said
    assert not list(folder.iterdir())


def test_a_job_runs_no_task_that_others_may_write(visible: Cli) -> None:
    id = visible("run", "-o", "id", "--", "true").out.strip()
    found = task_folder.task(id, visible.root)
    until(found.ended.exists)
    found.ended.unlink()
    found.root.chmod(0o777)
    argv = [sys.executable, "-Pm", "hpcdet.tasks.task_process", str(found.root)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode != 0 and "may be changed by everybody" in done.stderr
    assert not found.ended.exists()


def test_what_another_user_has_put_there_is_not_listed_and_not_run(visible: Cli) -> None:
    id = visible("run", "-o", "id", "--", "true").out.strip()
    found = task_folder.task(id, visible.root)
    until(found.ended.exists)
    planted = found.root.parent / "shell-0bad"
    shutil.copytree(found.root, planted)
    for one in (planted, *planted.rglob("*")):
        os.chown(one, NOBODY, NOBODY)
    assert "belongs to another user" in visible("shell", "open", "shell-0bad", code=5).err


def test_a_socket_lies_where_nobody_can_exchange_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="h-", dir="/tmp") as open_to_all:
        monkeypatch.setattr(tempfile, "tempdir", open_to_all)
        for mode, taken in ((0o777, False), (0o1777, True), (0o700, True)):
            Path(open_to_all).chmod(mode)
            folder = private_folders.of_sockets()
            assert folder.is_relative_to(open_to_all) == taken
            assert folder.stat().st_mode & 0o777 == 0o700
            folder.rmdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("deep" * 20)))
    folder = private_folders.of_sockets()
    assert len(str(folder / "kernel-00000000-0000-0000-0000-000000000000-ipc-1")) <= 107
    folder.rmdir()
