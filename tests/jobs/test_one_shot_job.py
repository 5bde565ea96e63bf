"""Short jobs of their own: a command on a node, what it says, and nothing left of it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import HpcdetError, StillPending
from hpcdet.jobs import one_shot_job
from hpcdet.schedulers.common.base import Submission
from hpcdet.schedulers.local.local import LocalScheduler
from hpcdet.schedulers.local.local_state import JobFolder
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Environment, Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from tests import experiments as x
from tests.commands import Cli


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    with x.local_jobs(tmp_path / "local-state") as state:
        yield state


def everything_ended(state: Path) -> bool:
    return not any(JobFolder(job).supervised() for job in (state / "jobs").iterdir())


def test_a_command_runs_in_a_job_and_leaves_nothing_behind(state: Path, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    script = "import sys; print('good', flush=True); print('bad', file=sys.stderr); sys.exit(3)"
    with one_shot_job.folder(root) as place:
        assert place.stat().st_mode & 0o777 == 0o700
        argv = [sys.executable, "-c", script]
        answer, said = one_shot_job.run(place, x.local_site(), Resolved(), argv, 120)
    assert (answer.code, said) == (3, "good\nbad\n")
    assert not root.exists()
    x.until(lambda: everything_ended(state))


def test_a_folder_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    wanted = {"environment": dataclasses.asdict(Environment())}
    (place / "environment.yaml").write_bytes(resolved_config.dump(wanted))
    argv = [sys.executable, "-Pm", "hpcdet.jobs.one_shot_job"]
    subprocess.run(
        [*argv, str(place), "rm", "-r", str(place)], stderr=subprocess.DEVNULL, check=False
    )
    assert not place.exists()


def test_a_job_has_a_name_that_the_scheduler_takes(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str] = []
    real = LocalScheduler.submit

    def submit(self: LocalScheduler, submission: Submission) -> str:
        named.append(submission.name)
        return real(self, submission)

    monkeypatch.setattr(LocalScheduler, "submit", submit)
    with one_shot_job.folder(tmp_path / "root") as place:
        site = x.local_site(limits={"name_max": 15})
        one_shot_job.run(place, site, Resolved(), ["true"], 120)
    assert named == [f"rand-{place.name[-8:]}-1"]


@pytest.mark.parametrize(("seen", "kept"), [("0", "cuda"), ("", "cpu")])
def test_a_command_has_the_variables_of_its_device(
    state: Path, cli: Cli, tmp_path: Path, seen: str, kept: str
) -> None:
    variables: dict[str, Any] = {
        "cpu_variables": {"DEVICE": "cpu"},
        "cuda_variables": {"DEVICE": "cuda"},
    }
    wanted = Environment({"CUDA_VISIBLE_DEVICES": seen}, **variables)
    script = "import os; print('it is', os.environ['DEVICE'])"
    with one_shot_job.folder(tmp_path / "root") as place:
        argv = [sys.executable, "-c", script]
        _, said = one_shot_job.run(place, x.local_site(), Resolved(environment=wanted), argv, 120)
    assert said == f"it is {kept}\n"
    model = x.write_model(tmp_path / "model")
    (model / "model_def.py").write_text(f"{script}\nraise SystemExit(3)")
    values = x.config() | {"environment": dataclasses.asdict(wanted)}
    (model / "config.yaml").write_bytes(resolved_config.dump(values))
    said = cli("test", model / "config.yaml", "--site", "local", code=4).err
    assert f"it is {kept}" in said


def test_a_job_that_dies_is_too_long_or_is_unwanted_is_ended(state: Path, tmp_path: Path) -> None:
    broken = x.local_site(setup=["echo no module named cuda >&2; exit 7"])
    with one_shot_job.folder(tmp_path) as place, pytest.raises(HpcdetError) as caught:
        one_shot_job.run(place, broken, Resolved(), ["true"], 120)
    assert "ended (failed) without an answer" in caught.value.what
    assert caught.value.hint == "no module named cuda"

    sit = [sys.executable, "-c", "import time; time.sleep(600)"]
    with one_shot_job.folder(tmp_path) as place, pytest.raises(StillPending, match="running"):
        one_shot_job.run(place, x.local_site(), Resolved(), sit, 1)
    x.until(lambda: everything_ended(state))

    with one_shot_job.folder(tmp_path) as place:
        thread = threading.Thread(target=_interrupt_when_it_runs, args=(place,))
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            one_shot_job.run(place, x.local_site(), Resolved(), sit, 120)
        thread.join()
    x.until(lambda: everything_ended(state))
    assert [path.name for path in tmp_path.iterdir()] == ["local-state"]


def _interrupt_when_it_runs(place: Path) -> None:
    x.until(lambda: x.processes_of(ExperimentPaths(place), "hpcdet.jobs.one_shot_job"))
    os.kill(os.getpid(), signal.SIGINT)


def test_the_code_is_tried_on_a_node(
    state: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = x.write_model(tmp_path / "model")
    file = model / "config.yaml"
    file.write_bytes(resolved_config.dump(x.config(batches=20, ranks=4)))
    words = ("test", file, "--site", "local", "--node")
    said = cli(*words).err
    assert "the test ran on" in said and "one batch trained" in said
    assert list(cli.root.iterdir()) == []
    real = LocalScheduler.submit

    def held(self: LocalScheduler, submission: Submission) -> str:
        return real(self, replace(submission, held=True))

    monkeypatch.setattr(LocalScheduler, "submit", held)
    assert "pending JobHeldUser" in cli(*words, "--timeout", "1", code=8).err
    x.until(lambda: everything_ended(state))
