"""An experiment's folder that is exchanged for another one while a rank starts.

Whoever may write the folder above can do so at any time. The rank is run again and again, and each
time the exchange falls before another of its calls to the file system (those that Python tells an
audit hook of). Whatever the moment, nothing of the other folder runs, is believed or is written to.

A sample of the moments is tried; HPCDET_EVERY_CALL=1 tries all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader.leader import Hands
from hpcdet.control.upkeep import notify
from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.read.lookup import find
from hpcdet.search.api.events import Start
from hpcdet.store.folder import held_folder
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, Verdict
from tests import dose, ranks
from tests.commands import Cli

NOBODY = 65534
EVERY = dose.EVERY_CALL
SAMPLE = 4
TOUCHING = ("open", "os.", "shutil.", "import", "exec")
"""Audit events of what may touch files."""

MODEL = """
import torch
from pathlib import Path
from torch import nn
from hpcdet import pytorch
import helper

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        import late  # in the loader's worker
        return torch.tensor([late.VALUE + index])

class MyTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        assert context.get_hparam("mine") == 1
        self.value = helper.VALUE + float(Path("data.txt").read_text())
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))

    def build_training_data_loader(self):
        return pytorch.DataLoader(Points(), 4, num_workers=1)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Points(), 4)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, "value": self.value + batch.min()}

    def evaluate_batch(self, batch, batch_idx):
        return {"validation_loss": self.model(batch).square().mean()}
"""
TRAP = "import pathlib; pathlib.Path({mark!r}).touch(); VALUE = 100.0\n"


class Scene:
    """An experiment, another one that takes its place, and a mark that only the other leaves."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "mark"
        self.mine, self.away, self.other = folder / "exp-1", folder / "away", folder / "other"
        trial = self._experiment(self.mine, "VALUE = 1.0\n", MODEL, mine=1)
        trap = TRAP.format(mark=str(self.mark))
        self._experiment(self.other, trap, trap + MODEL, mine=2)
        Claim("0001-0000.0", "here").write_once(trial.attempt(1).claim)
        Claim("0002-0000.0", "there").write_once(
            ExperimentPaths(self.other).trial(1).attempt(1).claim
        )
        self.identity = held_folder.identity(ExperimentPaths(self.mine), trial.attempt(1))

    def _experiment(self, root: Path, module: str, model: str, mine: int) -> TrialPaths:
        hparams = {"mine": mine, "global_batch_size": 4}
        entrypoint = "model_def:MyTrial"
        trial = ranks.experiment(root, code=model, hparams=hparams, until=3, entrypoint=entrypoint)
        paths = ExperimentPaths(root)
        for name in ("helper.py", "late.py"):
            (paths.code / name).write_text(module)
        (paths.code / "data.txt").write_text("5" if mine == 1 else "7")
        paths.provenance.write_text(json.dumps({"created_at": str(mine)}))
        return trial


def call(scene: Scene, at: int) -> tuple[int, int]:
    """Run the rank with the exchange before call ``at`` (0: never); exit code, number of calls."""
    reader, writer = ranks._SERVER.Pipe(duplex=False)
    process = ranks._SERVER.Process(target=_rank, args=(scene, at, writer))
    process.start()
    writer.close()
    try:
        code, calls = reader.recv() if reader.poll(ranks.PATIENCE_S) else (None, 0)
        process.join(ranks.PATIENCE_S)
        return code, calls  # type: ignore[return-value]
    finally:
        process.kill()
        process.join()


def _rank(scene: Scene, at: int, writer: Any) -> None:
    from hpcdet.attempt import main
    from hpcdet.process import signals

    me, count = os.getpid(), 0

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event.startswith(TOUCHING) and os.getpid() == me:
            count += 1
            if count == at:
                scene.mine.rename(scene.away)
                scene.other.rename(scene.mine)

    for name in [name for name in os.environ if name.startswith("HPCDET_")]:
        del os.environ[name]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    ranks.multiprocessing.set_start_method("fork", force=True)
    signals.install()
    sys.addaudithook(audit)
    code = main([str(scene.mine), "1", "1", "--identity", scene.identity])
    at = 0
    writer.send((code, count))
    os._exit(0)


def tree(folder: Path) -> dict[str, str]:
    """All that is below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def moments(folder: Path) -> list[int]:
    """The calls before which the exchange falls."""
    scene = Scene(folder)
    code, calls = call(scene, 0)
    assert code == 0 and calls > 100, scene.mine
    verdict = Verdict.read(ExperimentPaths(scene.mine).trial(1).attempt(1).verdict)
    assert verdict is not None and verdict.cause == "completed"
    shutil.rmtree(folder)
    every = range(1, calls)
    # those of the beginning lie close together: the folder is opened there
    return list(every) if EVERY else [*range(1, 24, 8), *every[30 :: max(1, calls // SAMPLE)]]


@pytest.mark.parametrize(
    "whose",
    [
        pytest.param(
            "another user's",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user"),
        ),
        "another experiment of the same user",
    ],
)
def test_a_rank_runs_nothing_of_a_folder_that_takes_the_place(whose: str, tmp_path: Path) -> None:
    ended = {0: 0, 1: 0}
    for at in moments(tmp_path / "counted"):
        scene = Scene(tmp_path / str(at))
        if whose == "another user's":
            for path in (scene.other, *scene.other.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        before = tree(scene.other)
        code, _ = call(scene, at)
        assert not scene.mark.exists(), f"exchanged before call {at}"
        assert scene.away.exists(), f"there was no call {at}"
        assert tree(scene.mine) == before, f"exchanged before call {at}"
        verdict = Verdict.read(ExperimentPaths(scene.away).trial(1).attempt(1).verdict)
        assert code in ended and (verdict is not None) == (code == 0), f"call {at}: {verdict}"
        ended[code] += 1
        shutil.rmtree(tmp_path / str(at))
    assert all(ended.values())  # exchanged early it refuses, later it goes on with its own


def test_a_fork_with_the_same_config_is_another_experiment(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    fork, mine = ExperimentPaths(tmp_path / "fork"), ExperimentPaths(scene.mine)
    shutil.copytree(mine.root, fork.root)
    other = fork.trial(1).attempt(1)
    opened = held_folder.hold(fork.root)
    held_folder.refuse_another(
        opened, opened.paths.trial(1).attempt(1), scene.identity
    )  # a copy of all
    other.claim.unlink()
    Claim("0007-0000.0", "elsewhere").write_once(other.claim)
    with pytest.raises(IntegrityError, match="another folder has taken its place"):
        held_folder.refuse_another(opened, opened.paths.trial(1).attempt(1), scene.identity)


def test_a_held_folder_is_named_as_its_links_lead(tmp_path: Path) -> None:
    (tmp_path / "real" / "EXP").mkdir(parents=True)
    (tmp_path / "project").symlink_to(tmp_path / "real")
    (tmp_path / "latest").symlink_to("project/EXP")
    opened = held_folder.hold(tmp_path / "latest")
    assert opened.named == tmp_path / "real" / "EXP" and opened.paths.id == "EXP"
    assert opened.root.samefile(opened.named) and opened.root != opened.named


def test_without_proc_the_folder_is_checked_and_used_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1 << 23)  # as in a container with another's /proc
    opened = held_folder.hold(tmp_path)
    assert opened.paths == ExperimentPaths(tmp_path, tmp_path.name)
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="may be changed by everybody"):
        held_folder.hold(tmp_path)


def test_who_decides_runs_the_program_and_the_hook_of_the_folder_that_was_checked(
    cli: Cli, tmp_path: Path
) -> None:
    model, marks = tmp_path / "model", tmp_path / "marks"
    model.mkdir(mode=0o700)
    marks.mkdir()

    def program(folder: Path, name: str) -> None:
        answer = json.dumps({"state": None, "actions": []})
        (folder / "search.sh").write_text(
            f"#!/bin/bash\ntouch {marks}/{name}\nwhile read line; do echo '{answer}'; done\n"
        )
        (folder / "search.sh").chmod(0o700)

    program(model, "mine")
    (model / "c.yaml").write_text(
        "entrypoint: 'true'\nhyperparameters: {x: {type: double, minval: 0, maxval: 1}}\n"
        "searcher: {name: custom, program: ./search.sh, metric: m, max_length: {batches: 4},"
        " max_trials: 2}\n"
    )
    cli("submit", model / "c.yaml", "--site", "local", "--no-test", "--prepare")
    paths = find.experiment("@last", cli.root)
    hands = Hands.of(paths)
    (marks / "mine").unlink()
    away = paths.root.rename(tmp_path / "away")
    shutil.copytree(away, paths.root)
    program(paths.code, "other")
    hands.method.on_event(hands.method.initial(), Start())
    (away / "hook.sh").write_text(f"touch {marks}/hook-of-mine\n")
    (paths.root / "hook.sh").write_text(f"touch {marks}/hook-of-other\n")
    assert notify.run_hook(paths, ["sh", "hook.sh"], "end", "", held=hands.held) == 0
    assert {path.name for path in marks.iterdir()} == {"mine", "hook-of-mine"}


@pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")
def test_a_rank_refuses_a_folder_that_somebody_else_may_change(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    os.chown(scene.mine, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="belongs to nobody"):
        held_folder.hold(scene.mine)
    os.chown(scene.mine, 0, 0)
    scene.mine.chmod(0o777)
    with pytest.raises(ConfigError, match="may be changed by everybody"):
        held_folder.hold(scene.mine)
    argv = [sys.executable, "-Pm", "hpcdet.attempt", str(scene.mine), "1", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "may be changed by everybody" in done.stderr
    assert not (ExperimentPaths(scene.mine).trial(1).attempt(1).verdict).exists()


def test_a_removed_folder_is_not_held_again_and_names_are_free(tmp_path: Path) -> None:
    """A worker's descriptor leads its ranks to a folder that is gone, too."""
    (tmp_path / "EXP").mkdir()
    held = held_folder.hold(tmp_path / "EXP")
    (tmp_path / "EXP").rmdir()
    with pytest.raises(FileNotFoundError):
        held_folder.hold(held.root)
    (tmp_path / "EXP (deleted)").mkdir()
    assert held_folder.hold(tmp_path / "EXP (deleted)").paths.id == "EXP (deleted)"
    with pytest.raises(FileNotFoundError):
        held_folder.hold(held.root)
