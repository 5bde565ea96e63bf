"""FSDP2, and what else the config does to a trial's model: the bits and the digests stay."""

from __future__ import annotations

import importlib
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3

from hpcdet import checkpoint
from hpcdet.checkpoint import Sharded, content_digest
from hpcdet.checkpoint.format import manifest
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Control, Verdict
from tests import ranks
from tests.experiments import same_bits
from tests.pytorch.test_bits_local import HPARAMS, MODEL, interrupt, make, signals
from tests.ranks import Result

pytestmark = pytest.mark.xdist_group("bits")

RANKS = 3  # the order in which two ranks add is always the same
UNTIL = 16
FSDP: dict[str, Any] = {"strategy": "fsdp2"}
POWERSGD = {"gradient_compression": "powersgd", "powersgd": {"start_step": 2}}
SHARDED = (
    MODEL
    + """

import shutil

from blake3 import blake3


class Look(pytorch.PyTorchCallback):
    \"\"\"Says what the trial holds when training begins, whoever holds it.\"\"\"

    def __init__(self, trial):
        self.trial = trial

    def on_training_start(self):
        total = blake3()
        for name, one in sorted(self.trial.model.named_parameters()):
            total.update(whole(one))
            for _, slot in sorted(self.trial.optimizer.state[one].items()):
                total.update(whole(slot))
        if "LOOK" in os.environ and self.trial.context.distributed.rank == 0:
            Path(os.environ["LOOK"]).write_text(total.hexdigest())

    def on_checkpoint_write_end(self, checkpoint_dir):
        folder = Path(checkpoint_dir)
        if self.trial.context.distributed.rank == 0 and folder.name == "00000000.g1":
            shutil.copytree(folder, folder.parents[3] / "beginning")


def whole(tensor):
    tensor = tensor.detach()
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return tensor.contiguous().reshape(-1).numpy().tobytes()


class ShardedTrial(BitsTrial):
    def build_callbacks(self):
        return {**super().build_callbacks(), "look": Look(self)}
"""
)


def sharded(root: Path, world: int = RANKS, **changes: Any) -> TrialPaths:
    settings = {"until": UNTIL, "distributed": FSDP, "entrypoint": "model_def:ShardedTrial"}
    return make(root, world, **{"code": SHARDED, **settings, **changes})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrialPaths, Result]:
    trial = sharded(tmp_path_factory.mktemp("undisturbed") / "EXP")
    attempt = ranks.run(trial, RANKS)
    assert attempt.verdict() is not None, attempt.log()
    return trial, ranks.result(trial)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrialPaths, Verdict]:
    """A trial that was told to leave between two steps of the optimizer."""
    folder = tmp_path_factory.mktemp("left")
    trial = sharded(folder / "EXP", checkpoint_every_s=0.1)
    attempt = interrupt(trial, folder / "1", "train:5", signals(signal.SIGUSR2, 2), RANKS)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.batches == 7, attempt.log()
    return trial, verdict


def copy(trial: TrialPaths, root: Path) -> TrialPaths:
    shutil.copytree(trial.root.parent.parent, root, symlinks=True)
    return ExperimentPaths(root).trial(trial.number)


def test_a_sharded_trial_that_is_interrupted_leaves_the_bits(
    undisturbed: tuple[TrialPaths, Result], left: tuple[TrialPaths, Verdict], tmp_path: Path
) -> None:
    trial = copy(left[0], tmp_path / "EXP")
    saved = checkpoint.load(trial.checkpoints / left[1].checkpoint, 0, RANKS, sharded=True)
    assert saved.manifest.schema == 2
    # gradients wait for the next batch; no rank has more of them than its rows
    assert [len(one.local) for one in saved.shared["gradients"].values()][:2] == [6, 6]
    interrupt(trial, tmp_path / "2", "train:11", signals(signal.SIGKILL), RANKS)
    ranks.finish(trial, RANKS)
    same_bits(ranks.result(trial), undisturbed[1])


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_over_mpi_a_sharded_trial_has_the_bits_of_one_over_gloo(tmp_path: Path) -> None:
    """Two ranks, whose sums have one order only; interrupted over MPI."""
    short: dict[str, Any] = {"world": 2, "until": 8, "min_validation_period": {"batches": 4}}
    gloo = sharded(tmp_path / "GLOO", **short)
    assert ranks.run(gloo, 2).verdict() is not None
    trial = sharded(tmp_path / "MPI", distributed={**FSDP, "backend": "mpi"}, **short)
    left = ranks.by_mpirun(trial, 2, LEAVE="train:4").verdict()
    assert left is not None and left.verdict == "resume"
    ranks.by_mpirun(trial, 2)
    same_bits(ranks.result(trial), ranks.result(gloo))


def test_parts_are_the_whole_for_any_number_of_ranks(
    undisturbed: tuple[TrialPaths, Result], tmp_path: Path
) -> None:
    trial = undisturbed[0]
    folder = trial.checkpoints / manifest.current(trial.checkpoints)[-1]
    whole = checkpoint.load(folder).shared
    weight = whole["models"][0]["4.weight"]
    for world in (2, 3, 5):
        parts = [
            checkpoint.load(folder, rank, world, sharded=True).shared["models"][0]["4.weight"]
            for rank in range(world)
        ]
        assert all(isinstance(part, Sharded) for part in parts)
        assert torch.equal(torch.cat([part.local for part in parts]), weight)
    again = trial.checkpoint(UNTIL, 77)
    checkpoint.save(again, whole, checkpoint.load(folder).private)
    shared = [manifest.read(one).shared for one in (folder, again)]
    assert shared[0] == shared[1]  # as if one rank had saved all of it


def test_a_sharded_trial_goes_on_with_fewer_ranks(
    left: tuple[TrialPaths, Verdict], tmp_path: Path
) -> None:
    trial = copy(left[0], tmp_path / "EXP")
    saved = checkpoint.load(trial.checkpoints / left[1].checkpoint).shared
    total = blake3()
    for name in sorted(saved["models"][0]):
        if name != "1.mean":
            total.update(saved["models"][0][name].numpy().tobytes())
            for _, slot in sorted(saved["optimizers"][0]["state"][f"0.{name}"].items()):
                total.update(slot.numpy().tobytes())
    attempt = ranks.run(trial, 2, LOOK=str(tmp_path / "look"))
    assert attempt.verdict() is not None, attempt.log()
    assert (tmp_path / "look").read_text() == total.hexdigest()
    assert ranks.result(trial).batches == UNTIL


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[TrialPaths, Result]]:
    """Trials on one and two ranks without any optimization, by their numbers of ranks."""
    found = {}
    for world in (1, 2):
        trial = sharded(tmp_path_factory.mktemp("plain") / "EXP", world, distributed={}, until=12)
        attempt = ranks.run(trial, world)
        assert attempt.verdict() is not None, attempt.log()
        found[world] = trial, ranks.result(trial)
    return found


def test_a_state_has_one_digest_whatever_holds_it(
    plain: dict[int, tuple[TrialPaths, Result]], undisturbed: tuple[TrialPaths, Result]
) -> None:
    """Here what each trial began with, on one rank, on two with DDP and on three with FSDP2."""
    found = set()
    for trial in (plain[1][0], plain[2][0], undisturbed[0]):
        beginning = trial.root.parent.parent / "beginning"
        assert content_digest(beginning) == manifest.read(beginning).digest
        found.add(manifest.read(beginning).shared)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("world", "wanted", "precision", "same"),
    [
        (1, {"activation_checkpointing": "full"}, None, True),
        (2, {"activation_checkpointing": ["Sequential"]}, None, True),
        (2, {"gradient_compression": True}, "fp16", False),
        (2, {"gradient_compression": "bf16"}, "bf16", False),
        (2, {**POWERSGD, "compile": {"backend": "aot_eager"}}, None, False),
        (1, {"compile": True, "activation_checkpointing": ["Linear"]}, None, None),
    ],
    ids=["full", "classes", "fp16", "bf16", "powersgd", "inductor"],
)
def test_optimizations_leave_the_bits_of_a_trial_that_goes_on(
    plain: dict[int, tuple[TrialPaths, Result]],
    tmp_path: Path,
    world: int,
    wanted: dict[str, Any],
    precision: str | None,
    same: bool | None,
) -> None:
    """Begun again from the middle; those that only save memory have the bits of a plain one."""
    call = ranks.elsewhere if "compile" in wanted else _call
    call(_optimized, tmp_path / "EXP", world, wanted, precision, same, plain[world][1].digest)


def _call(call: Callable[..., None], *arguments: Any) -> None:
    call(*arguments)


def _optimized(
    root: Path,
    world: int,
    wanted: dict[str, Any],
    precision: str | None,
    same: bool | None,
    plain: str,
) -> None:
    if "compile" in wanted:
        importlib.import_module("torch._inductor.compile_fx")  # once for all ranks
    optimizations = {"aggregation_frequency": 2, **wanted}
    trial = sharded(
        root,
        world,
        distributed={},
        until=12,
        optimizations=optimizations,
        checkpoint_storage={"save_trial_latest": 9},
        min_checkpoint_period={"batches": 7},  # the gradients of one batch wait for the next one's
        hparams={**HPARAMS, "precision": precision},
    )
    attempt = ranks.run(trial, world)
    assert attempt.verdict() is not None, attempt.log()
    once = ranks.result(trial)
    Control("run", rewinds=[["00000007.g1", 2]]).write_once(trial.control(1))
    again = ranks.run(trial, world)
    assert again.lines()[0]["checkpoint"] == "00000007.g1", again.log()
    same_bits(ranks.result(trial), once)
    if same is not None:
        assert (once.digest == plain) is same
