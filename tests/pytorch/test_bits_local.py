"""However a trial of four ranks is interrupted, it ends with the bits of one that never was.

Four, because the order in which two ranks add is always the same.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from hpcdet import checkpoint
from hpcdet.data import rng
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Control
from hpcdet.store.trials.standing import checkpoints, latest_checkpoint
from tests import TESTS, ranks, trees
from tests.dose import dice
from tests.experiments import same_bits
from tests.ranks import Attempt, Result

RANKS = 4
UNTIL = 20
MODEL = (TESTS / "bits_model.py").read_text()
HPARAMS = {"global_batch_size": 16}

pytestmark = pytest.mark.xdist_group("bits")


def make(root: Path, world: int = RANKS, **changes: object) -> TrialPaths:
    settings: dict[str, Any] = {
        "code": MODEL,
        "entrypoint": "model_def:BitsTrial",
        "hparams": HPARAMS,
        "until": UNTIL,
        "scheduling_unit": 3,
        "min_validation_period": {"batches": 8},
        "optimizations": {"aggregation_frequency": 2},
    }
    return ranks.experiment(root, ranks=world, **{**settings, **changes})


def interrupt(
    trial: TrialPaths,
    folder: Path,
    where: str,
    act: Callable[[Attempt], None],
    world: int = RANKS,
    **environment: str,
) -> Attempt:
    """Run an attempt up to a gate, do something to it, open the gate and wait for its end."""
    folder.mkdir()
    with ranks.start(trial, world, GATE=where, GATES=str(folder), **environment) as attempt:
        attempt.wait_for(lambda: len(list(folder.glob("reached-*"))) == world)
        act(attempt)
        (folder / "open").touch()
        attempt.wait()
        return attempt


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    trial = make(tmp_path_factory.mktemp("undisturbed") / "EXP")
    attempt = ranks.run(trial, RANKS)
    assert attempt.verdict() is not None, attempt.log()
    return ranks.result(trial)


def signals(number: signal.Signals, *which: int) -> Callable[[Attempt], None]:
    return lambda attempt: attempt.signal(number, *which)


def to_everything(attempt: Attempt) -> None:
    """TERM for ranks and loader workers alike: Slurm makes no difference."""
    for process in attempt.processes:
        for one in [*psutil.Process(process.pid).children(), psutil.Process(process.pid)]:
            one.terminate()


def test_any_interruption_leaves_the_bits(undisturbed: Result, tmp_path: Path) -> None:
    """Told to leave with loader workers, killed without; what was undisturbed had none."""
    draw = dice("interruption")
    trial = make(tmp_path / "EXP", checkpoint_every_s=0.1)
    # between two steps of the optimizer: gradients of one batch wait for those of the next
    notice = signals(signal.SIGUSR2, 2)
    slow: dict[str, Any] = {
        "WORKERS": "1",
        "PACE": "0.03",
    }  # so that ranks hear of it after the next step
    first = interrupt(trial, tmp_path / "1", "train:5", notice, **slow)
    verdict = first.verdict()
    assert verdict is not None, first.log()
    assert (verdict.verdict, verdict.cause, verdict.batches) == ("resume", "signal", 7)
    # inside a validation, which is owed then
    where = "validate:8:2"
    second = interrupt(trial, tmp_path / "2", where, to_everything, WORKERS="1")
    verdict = second.verdict()
    assert verdict is not None, second.log()
    assert (verdict.verdict, verdict.batches) == ("resume", 8)
    assert [process.exitcode for process in second.processes] == [0] * RANKS
    # one rank dies: the others notice and blame nobody
    third = interrupt(
        trial, tmp_path / "3", "train:11", signals(signal.SIGKILL, draw.randrange(RANKS))
    )
    assert third.verdict() is None
    # all die
    step = draw.randrange(12, UNTIL)
    interrupt(trial, tmp_path / "4", f"train:{step}", signals(signal.SIGKILL))
    ranks.finish(trial, RANKS)
    same_bits(ranks.result(trial), undisturbed)


def test_gradients_that_the_code_itself_sums_up_are_state(tmp_path: Path) -> None:
    """Told to leave between two steps of an optimizer that only the code knows of."""
    settings: dict[str, Any] = {
        "hparams": {**HPARAMS, "own_accumulation": 4},
        "until": 8,
        "optimizations": {},
    }
    once, twice = (make(tmp_path / name, **settings) for name in ("once", "twice"))
    ranks.run(once, RANKS)
    left = ranks.run(twice, RANKS, LEAVE="train:4").verdict()
    assert left is not None and left.verdict == "resume" and left.batches in (5, 6)
    folder = twice.checkpoints / left.checkpoint
    own = [checkpoint.load(folder, rank, RANKS).private["gradients"] for rank in range(RANKS)]
    name = "0.0.weight"
    assert not torch.equal(own[0][name], own[1][name])
    # for another number of ranks
    mean = checkpoint.load(folder).shared["gradients"][name]
    assert torch.allclose(mean, sum(one[name] for one in own) / RANKS)
    ranks.finish(twice, RANKS)
    same_bits(ranks.result(twice), ranks.result(once))


def _left_out(path: str) -> Callable[[dict[str, Any]], None]:
    """Makes a part of a rank's state as it is in a trial that begins."""

    def leave_out(state: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for name in parents:
            state = state[name]
        state[last] = {} if last == "gradients" else fresh[last]

    generators = {"noise": np.random.Generator(np.random.Philox(3))}
    captured = rng.capture(generators)
    fresh = {**captured, **captured["registered"]}
    return leave_out


def test_each_part_that_a_rank_has_for_itself_is_needed(tmp_path: Path) -> None:
    """Rank 1 alone goes on without it, and both without what PowerSGD remembers."""
    powersgd = {"gradient_compression": "powersgd", "powersgd": {"start_step": 2}}
    settings: dict[str, Any] = {
        "hparams": {**HPARAMS, "own_accumulation": 4},
        "optimizations": powersgd,
    }
    trial = make(tmp_path / "EXP", world=2, until=16, **settings)
    # two steps were not compressed, the third was; the gradients of the fourth wait
    left = ranks.run(trial, 2, LEAVE="train:12").verdict()
    assert left is not None and left.verdict == "resume" and left.batches > 12, left

    def ended(name: str, leave_out: Callable[[dict[str, Any]], None] | None, *whose: int) -> Result:
        root = shutil.copytree(tmp_path / "EXP", tmp_path / name)
        copy = ExperimentPaths(root).trial(1)
        if leave_out is not None:
            _saved_again(copy, leave_out, whose)
        ranks.finish(copy, 2)
        return ranks.result(copy)

    whole = ended("whole", None)
    for part in ("rng/python", "rng/numpy", "rng/torch", "rng/registered/noise", "gradients"):
        assert ended(part.replace("/", "-"), _left_out(part), 1) != whole, part
    assert ended("compression", lambda own: own.pop("compression"), 0, 1) != whole


def _saved_again(
    trial: TrialPaths, change: Callable[[dict[str, Any]], None], whose: Collection[int]
) -> None:
    """A newer checkpoint of the same step, of which some ranks have another state of their own."""
    newest = checkpoint.committed(trial.checkpoints)[-1]

    def save(rank: int, exchange: checkpoint.Exchange) -> None:
        loaded = checkpoint.load(trial.checkpoints / newest.name, rank, 2)
        if rank in whose:
            change(loaded.private)
        folder = trial.checkpoint(newest.step, 50)
        both: dict[str, Any] = {"rank": rank, "world": 2, "exchange": exchange}
        checkpoint.save(folder, loaded.shared, loaded.private, meta=newest.meta, **both)

    trees.ranks(2, save)


def test_a_trial_that_begins_again_from_an_older_checkpoint_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    keep = {"save_trial_latest": 9}
    settings: dict[str, Any] = {
        "min_checkpoint_period": {"batches": 3},
        "checkpoint_storage": keep,
        "until": 8,
    }
    trial = make(tmp_path / "EXP", world=1, **settings)
    ranks.run(trial)
    once = ranks.result(trial)
    Control("run", rewinds=[["00000003.g1", 2]]).write_once(trial.control(1))
    again = ranks.run(trial)
    assert again.lines()[0]["checkpoint"] == "00000003.g1"
    same_bits(ranks.result(trial), once)
    assert latest_checkpoint(trial) == "00000008.g2"
    assert {"00000006.g1", "00000008.g1"} < set(checkpoints(trial))


def test_without_settled_buckets_the_bits_change(tmp_path: Path) -> None:
    """The cure for DDP's second order of summation is needed, and this model shows it."""
    hparams = {**HPARAMS, "width": 700}
    settings: dict[str, Any] = {
        "hparams": hparams,
        "until": 8,
        "min_validation_period": {"batches": 0},
    }
    results = []
    for cured in ("2", "0"):
        trials = [make(tmp_path / f"{cured}{n}", **settings) for n in range(2)]
        ranks.run(trials[0], RANKS, WARM_UPS=cured)
        ranks.run(trials[1], RANKS, WARM_UPS=cured, LEAVE="train:3")
        ranks.run(trials[1], RANKS, WARM_UPS=cured)
        results.append(ranks.result(trials[0]).digest == ranks.result(trials[1]).digest)
    assert results == [True, False]
