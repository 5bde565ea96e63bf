"""FSDP2, and what else the config does to a trial's model: the bits and the digests stay."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3

from hpcdet import checkpoint
from hpcdet.checkpoint import Sharded, content_digest, manifest
from hpcdet.store.layout import TrialPaths
from tests import ranks
from tests.experiments import same_bits
from tests.ranks import Result
from tests.test_bits_local import MODEL, interrupt, make, signals

pytestmark = pytest.mark.xdist_group("bits")

RANKS = 4
UNTIL = 16
FSDP = {"strategy": "fsdp2"}
SHARDED = (
    MODEL
    + """

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


def test_a_sharded_trial_that_is_interrupted_leaves_the_bits(
    undisturbed: tuple[TrialPaths, Result], tmp_path: Path
) -> None:
    trial = sharded(tmp_path / "EXP", checkpoint_every_s=0.1)
    first = interrupt(trial, tmp_path / "1", "train:5", signals(signal.SIGUSR2, 2))
    verdict = first.verdict()
    assert verdict is not None and verdict.batches == 7, first.log()
    left = checkpoint.load(trial.checkpoints / verdict.checkpoint, 0, RANKS, sharded=True)
    assert left.manifest.schema == 2
    # gradients wait for the next batch; no rank has more of them than its rows
    assert [len(one.local) for one in left.shared["gradients"].values()][:2] == [4, 4]
    interrupt(trial, tmp_path / "2", "train:11", signals(signal.SIGKILL))
    ranks.finish(trial, RANKS)
    same_bits(ranks.result(trial), undisturbed[1])


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_over_mpi_a_sharded_trial_has_the_bits_of_one_over_gloo(tmp_path: Path) -> None:
    """Two ranks, whose sums have one order only; interrupted over MPI."""
    short = {"world": 2, "until": 8, "min_validation_period": {"batches": 4}}
    gloo = sharded(tmp_path / "GLOO", **short)
    assert ranks.run(gloo, 2).verdict() is not None
    trial = sharded(tmp_path / "MPI", distributed={**FSDP, "backend": "mpi"}, **short)
    ranks.by_mpirun(trial, 2, LEAVE="train:4")
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


def test_a_sharded_trial_goes_on_with_half_of_its_ranks(tmp_path: Path) -> None:
    trial = sharded(tmp_path / "EXP")
    verdict = ranks.run(trial, RANKS, LEAVE="train:6").verdict()
    assert verdict is not None and verdict.verdict == "resume"
    saved = checkpoint.load(trial.checkpoints / verdict.checkpoint).shared
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


def test_a_state_has_one_digest_whatever_holds_it(tmp_path: Path) -> None:
    found = set()
    for name, world, how in (("a", 1, {}), ("b", 2, {}), ("c", 2, FSDP), ("d", 3, FSDP)):
        trial = make(tmp_path / name, world, distributed=how)
        attempt = ranks.run(trial, world, LEAVE="train:0")
        verdict = attempt.verdict()
        assert verdict is not None and verdict.verdict == "resume", attempt.log()
        assert content_digest(trial.checkpoints / verdict.checkpoint) == verdict.digest
        found.add(manifest.read(trial.checkpoint(0, 1)).shared)  # what it began with
    assert len(found) == 1


@pytest.mark.parametrize(
    ("world", "wanted", "same"),
    [
        (1, {"activation_checkpointing": "full"}, True),
        (2, {"activation_checkpointing": ["Sequential"]}, True),
        (2, {"gradient_compression": True}, False),
        (2, {"gradient_compression": "powersgd", "powersgd": {"start_step": 3}}, False),
        (2, {"compile": {"backend": "aot_eager"}}, None),
        (1, {"compile": True, "activation_checkpointing": ["Linear"]}, None),
    ],
    ids=["full", "classes", "fp16", "powersgd", "aot_eager", "inductor"],
)
def test_optimizations_leave_the_bits_of_an_interrupted_trial(
    plain: dict[int, str], tmp_path: Path, world: int, wanted: dict[str, Any], same: bool | None
) -> None:
    """Those that only save memory also have the bits of a trial without them."""
    settings = {"optimizations": {"aggregation_frequency": 2, **wanted}, "until": 12}
    once, twice = (make(tmp_path / name, world, **settings) for name in ("once", "twice"))
    attempt = ranks.run(once, world)
    assert attempt.verdict() is not None, attempt.log()
    ranks.run(twice, world, LEAVE="train:8")
    ranks.finish(twice, world)
    result = ranks.result(once)
    same_bits(ranks.result(twice), result)
    if same is not None:
        assert (result.digest == plain[world]) is same


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Digests of trials on one and two ranks without any optimization."""
    found = {}
    for world in (1, 2):
        trial = make(tmp_path_factory.mktemp("plain") / "EXP", world, until=12)
        ranks.run(trial, world)
        found[world] = ranks.result(trial).digest
    return found
