"""A real JupyterLab in a job: through ssh, socket to socket, a cell that submits, its idle end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdet.schedulers.common import processes
from hpcdet.store.folder.records import Closed
from hpcdet.tasks.folder import task_folder
from hpcdet.tasks.folder.task_folder import TaskPaths, TaskStarted
from tests import experiments as x
from tests.commands import Cli
from tests.experiments import until
from tests.interactive import get, listeners, no_jupyter, no_sshd, private_sshd, tunnel

pytestmark = pytest.mark.skipif(bool(no_jupyter()), reason=no_jupyter())

CELL = Path(__file__).with_name("cell.py")


def notebook(cli: Cli, *words: str) -> tuple[TaskPaths, dict[str, Any]]:
    """Start a notebook and wait until it answers."""
    [item] = cli("notebook", "start", "--wait", "-o", "json", *words).items
    return task_folder.task(item["id"], cli.root), item


def said(entrance: Path | str, found: TaskPaths, code: str) -> str:
    """What a cell prints that runs in a new kernel."""
    argv = [sys.executable, str(CELL), str(entrance), str(found.token), code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def server(found: TaskPaths) -> set[int]:
    """The processes of a notebook's server and of its kernels, which leave its session."""
    record = TaskStarted.read(found.started)
    assert record is not None
    family = set(processes.members(os.getsid(record.pid)))
    while True:
        names = (Path(f"/proc/{pid}/task/{pid}/children") for pid in family)
        below = {int(pid) for name in names for pid in name.read_text().split()} - family
        if not below:
            return family
        family |= below


def test_a_notebook_answers_who_has_the_token_and_opens_no_port(local: Cli, tmp_path: Path) -> None:
    found, item = notebook(local)
    path, token = Path(item["socket"]), found.token.read_text()
    assert get(path, "/api/kernels")[0] == 403
    assert get(path, "/api/kernels", token) == (200, "[]")
    assert get(path, "/api/kernels", token, host="evil.example")[0] == 403
    assert listeners(server(found)) == []
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    line, address, left = local("notebook", "url", found.id).out.splitlines()
    assert line == item["tunnel"] and address == f"http://localhost:8888/lab?token={token}"
    assert left.startswith("time left: 3 h 59 min")

    assert said(path, found, "import os; print(os.getcwd(), os.environ['HPCDET_ROOT'])") == (
        f"{tmp_path} {local.root}\n"
    )
    # the one port of a kernel, on the loopback: processes that it forks hand it their output there
    assert all(one.startswith("0100007F:") for one in listeners(server(found)))
    places = [found.root, path.parent, tmp_path]
    for file in (one for place in places for one in place.rglob("*") if one.is_file()):
        assert file == found.token or token.encode() not in file.read_bytes(), file
    for pid in server(found):
        for name in ("cmdline", "environ"):
            assert token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    local("notebook", "stop", found.id)
    until(found.ended.exists)
    until(lambda: not path.parent.exists())
    assert not found.token.exists()


def test_a_notebook_that_nobody_uses_ends_with_its_kernels(local: Cli) -> None:
    found, item = notebook(local, "--idle", "5")
    said(item["socket"], found, "print(1)")
    until(found.ended.exists, lambda: found.output.read_text())
    assert local("notebook", "ls", "-o", "json").items[0]["reason"] == "idle"


@pytest.mark.skipif(bool(no_sshd()), reason=no_sshd())
def test_through_ssh_socket_to_socket_a_cell_submits_an_experiment(
    local: Cli, tmp_path: Path
) -> None:
    found, item = notebook(local)
    token = found.token.read_text()
    model = x.write_model(tmp_path / "model")
    (model / "c.yaml").write_text(
        "name: cell\nentrypoint: model_def:Model\n"
        "hyperparameters: {global_batch_size: 16, x: 0.5}\n"
        "searcher: {name: single, metric: validation_loss, max_length: {batches: 4}}\n"
    )
    with private_sshd(tmp_path / "sshd") as sshd:
        line = shlex.split(local("notebook", "url", found.id).out.splitlines()[0])
        with tunnel(line, sshd, tmp_path / "laptop") as entrance:
            assert get(entrance, "/lab")[0] in (302, 403)
            status, page = get(entrance, "/lab", token)
            assert status == 200 and "JupyterLab" in page
            submits = f"!{sys.executable} -m hpcdet submit {model}/c.yaml --no-test --wait -q"
            printed = said(entrance, found, submits)
        id = local("ls", "-o", "id").out.strip()
        assert id.startswith("cell-") and id in printed, printed
        reads = f"from hpcdet import client; one = client.get({id!r})"
        reads += "; print(one.wait(60), one.trials()[0].steps, len(one.metrics('validation_loss')))"
        assert said(item["socket"], found, reads) == "COMPLETED 4 1\n"
    until((local.root / id / "closed.json").exists)
    closed = Closed.read(local.root / id / "closed.json")
    assert closed is not None and closed.state == "COMPLETED"
    assert json.loads(local("status", id, "-o", "json").out)["items"][0]["trials"][0]["steps"] == 4
