"""What the trainer does with a trial: schedules, reductions, periods, callbacks, refusals."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from hpcdet import pytorch
from hpcdet.checkpoint import load
from hpcdet.checkpoint.format import shard
from hpcdet.errors import ConfigError, UsageError
from hpcdet.process import signals
from hpcdet.process.location import ATTEMPT, EXPERIMENT, TRIAL, AttemptLocation
from hpcdet.pytorch.api.periods import TrainUnit
from hpcdet.pytorch.metrics.metrics import Tally, across_ranks
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import Verdict
from hpcdet.units import Length, Units
from tests import alone, ranks
from tests.alone import as_script

__all__ = ["as_script"]

OWN = str(Path(pytorch.__file__).parent.parent)
MOST_CALLS = 75
"""Of hpcdet's own functions, in a step of one rank."""

pytestmark = pytest.mark.usefixtures("as_script")


class Line(pytorch.PyTorchTrial):
    """A line through 20 points without any randomness; 16 a batch, then 4."""

    schedule: Any = None

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        model = nn.Linear(1, 1)
        nn.init.constant_(model.weight, 0.5)
        nn.init.zeros_(model.bias)
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.callbacks: dict[str, pytorch.PyTorchCallback] = {}
        self.rates: list[float] = []
        self.rate = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        if self.schedule is not None:
            mode, frequency = self.schedule
            context.wrap_lr_scheduler(self.rate, mode, frequency)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return self.callbacks

    def points(self) -> Any:
        x = torch.linspace(0, 1, 20).reshape(-1, 1)
        return torch.utils.data.TensorDataset(x, 3 * x + 1)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.points(), self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.points(), 8)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x, y = batch
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        loss = ((self.model(x) - y) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return {"validation_loss": ((self.model(x) - y) ** 2).mean(), "x": x.mean()}


def weights(storage: Path) -> list[float]:
    newest = alone.checkpoints(storage)[-1].name
    return [
        float(one) for one in load(storage / "checkpoints" / newest).shared["models"][0].values()
    ]


def test_aggregated_batches_equal_a_big_one(tmp_path: Path) -> None:
    small, big = {"global_batch_size": 5}, {"global_batch_size": 20}
    alone.train(Line, tmp_path / "small", 12, small, aggregation=4)
    alone.train(Line, tmp_path / "big", 3, big)
    assert weights(tmp_path / "small") == pytest.approx(weights(tmp_path / "big"), rel=1e-5)
    assert weights(tmp_path / "big") != pytest.approx([0.5, 0])


class Counted(Line):
    """Counts the calls of hpcdet's own functions in ten steps."""

    calls = 0

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx in (10, 20):
            sys.setprofile(self.count if batch_idx == 10 else None)
        return super().train_batch(batch, epoch_idx, batch_idx)

    @classmethod
    def count(cls, frame: Any, event: str, _: Any) -> None:
        cls.calls += event == "call" and frame.f_code.co_filename.startswith(OWN)


def test_a_step_has_few_calls_beyond_what_the_trial_does(tmp_path: Path) -> None:
    """After a long step nothing of them is in a cache: each takes 1 to 2 us."""
    alone.train(Counted, tmp_path, 30, {"global_batch_size": 4})
    assert 0 < Counted.calls / 10 <= MOST_CALLS


Mode = pytorch.LRScheduler.StepMode


@pytest.mark.parametrize(
    ("schedule", "halvings"),
    [
        # before each of six batches, three epochs of two, two batches per optimizer step
        ((Mode.STEP_EVERY_BATCH, 1), [0, 1, 2, 3, 4, 5]),
        ((Mode.STEP_EVERY_BATCH, 2), [0, 0, 1, 1, 2, 2]),
        ((Mode.STEP_EVERY_OPTIMIZER_STEP, 1), [0, 0, 1, 1, 2, 2]),
        ((Mode.STEP_EVERY_OPTIMIZER_STEP, 2), [0, 0, 0, 0, 1, 1]),
        ((Mode.STEP_EVERY_EPOCH, 1), [0, 0, 1, 1, 2, 2]),
        ((Mode.STEP_EVERY_EPOCH, 2), [0, 0, 0, 0, 1, 1]),
        ((Mode.MANUAL_STEP, 1), [0, 0, 0, 0, 0, 0]),
    ],
)
def test_learning_rates(tmp_path: Path, schedule: tuple[Any, int], halvings: list[int]) -> None:
    class Scheduled(Line):
        pass

    Scheduled.schedule = schedule
    trial = alone.train(Scheduled, tmp_path, 6, aggregation=2)
    assert trial.rates == pytest.approx([0.1 * 0.5**count for count in halvings])


def test_milestones_are_resumed(tmp_path: Path) -> None:
    """``MultiStepLR``, inside of another scheduler that begins it only after the restart."""

    class Scheduled(Line):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            kinds = torch.optim.lr_scheduler
            first = kinds.ConstantLR(self.optimizer, 0.5, 2)
            then = kinds.MultiStepLR(self.optimizer, [1, 2], gamma=0.5)
            context.wrap_lr_scheduler(kinds.SequentialLR(self.optimizer, [first, then], [2]))

    once = alone.train(Scheduled, tmp_path / "once", 6)
    alone.train(Scheduled, tmp_path / "twice", 1)
    twice = alone.train(Scheduled, tmp_path / "twice", 6)
    assert len(set(once.rates)) > 2
    assert twice.rates == once.rates[1:]
    digests = [alone.checkpoints(tmp_path / name)[-1].digest for name in ("once", "twice")]
    assert digests[0] == digests[1]


class FakePeers:
    """This rank's values beside those of another."""

    class ranks:  # noqa: N801
        chief = True

    def __init__(self, other: Any) -> None:
        self.other = other

    def allgather(self, value: Any, _: str = "") -> list[Any]:
        return [value, self.other]

    gather = allgather

    def broadcast(self, value: Any, _: str = "") -> Any:
        return value


def test_metrics_are_weighed_by_samples_over_batches_and_ranks() -> None:
    kinds = {
        "sum": pytorch.Reducer.SUM,
        "max": pytorch.Reducer.MAX,
        "min": pytorch.Reducer.MIN,
    }
    tallies = [Tally(lambda name: kinds.get(name, pytorch.Reducer.AVG)) for _ in range(2)]
    for tally, values in zip(tallies, [(1.0, 2.0), (6.0,)], strict=True):
        for value in values:
            names = ("avg", *kinds)
            tally.add(dict.fromkeys(names, value), weight=3 if value < 6 else 6)
    peers: Any = FakePeers(tallies[1].plain())
    assert tallies[0].reduced(peers) == {"avg": 3.75, "sum": 9.0, "max": 6.0, "min": 1.0}
    many = Tally(lambda name: kinds.get(name, pytorch.Reducer.AVG))
    many.add(dict.fromkeys(("avg", *kinds), torch.tensor([[1.0], [3.0]])), 2)
    assert [value for value, _ in many.plain().values()] == [4.0, 4.0, 3.0, 1.0]
    with pytest.raises(ConfigError, match="'m' is a str without a number"):
        many.add({"m": "good"}, 1)


def test_reducers_of_ones_own_see_all_ranks() -> None:
    class Spread(pytorch.MetricReducer):
        def reset(self) -> None:
            self.values: list[float] = []

        def per_slot_reduce(self) -> Any:
            return self.values

        def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
            values = [value for values in per_slot_metrics for value in values]
            return {"low": min(values), "high": max(values)}

    reducer = Spread()
    reducer.reset()
    reducer.values += [2.0, 3.0]
    peers: Any = FakePeers([1.0, 7.0])
    assert across_ranks({"spread": reducer}, peers) == {"low": 1.0, "high": 7.0}


def test_the_whole_validation_set_can_be_evaluated_at_once(tmp_path: Path) -> None:
    seen: list[int] = []

    class Whole(Line):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader: Any) -> Any:
            seen.extend(len(y) for _, y in data_loader)
            return {"validation_loss": 1.0}

    alone.train(Whole, tmp_path, 1)
    assert seen == [8, 8, 4]


def test_callbacks_are_called_in_order(tmp_path: Path) -> None:
    calls: list[str] = []

    class Spy(pytorch.PyTorchCallback):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name.startswith("on_"):
                calls.append(name.removeprefix("on_"))
            return found

    class Watched(Line):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"spy": Spy()}

    alone.train(Watched, tmp_path, 2, reporting_period=pytorch.Batch(2))
    written = ["checkpoint_end", "checkpoint_write_end"]
    save = ["checkpoint_save_start", *written, "checkpoint_upload_end"]
    assert calls == [
        "trial_startup",
        "training_start",
        *save,
        "training_epoch_start",
        "training_epoch_end",
        "training_workload_end",
        "validation_start",
        "validation_epoch_start",
        "validation_epoch_end",
        "validation_end",
        *save,
        "trial_shutdown",
    ]


@pytest.mark.parametrize(
    ("fit", "steps"),
    [
        ({"checkpoint_policy": "none"}, [0, 6]),
        ({"checkpoint_policy": "all"}, [0, 2, 4, 6]),
        ({"checkpoint_policy": "best"}, [0, 2, 4, 6]),
        ({"checkpoint_policy": "none", "checkpoint_period": pytorch.Batch(3)}, [0, 3, 6]),
        ({"checkpoint_policy": "none", "checkpoint_period": pytorch.Epoch(1)}, [0, 2, 4, 6]),
        ({"checkpoint_policy": "none", "checkpoint_period": pytorch.Record(30)}, [0, 3, 6]),
    ],
)
def test_checkpoints_are_made_when_asked_for(
    tmp_path: Path, fit: dict[str, Any], steps: list[int]
) -> None:
    alone.train(Line, tmp_path, 6, validation_period=pytorch.Batch(2), **fit)
    assert [one.step for one in alone.checkpoints(tmp_path)] == steps


def test_only_better_ones_are_kept_as_best(tmp_path: Path) -> None:
    class Worse(Line):
        def evaluate_batch(self, batch: Any) -> Any:  # type: ignore[override] # Determined lets the index be left out
            return {"validation_loss": [0.0, 3.0, 2.0, float("nan"), 1.0][self.turn()]}

        def turn(self) -> int:
            return int(self.context.core.train.units.batches)

    alone.train(Worse, tmp_path, 4, validation_period=pytorch.Batch(1))
    kept = {one.step: one.meta["kept"] for one in alone.checkpoints(tmp_path)}
    assert kept == {0: [], 1: ["best"], 2: ["best"], 4: ["best", "end"]}


@pytest.mark.parametrize(
    ("unit", "before", "after", "due"),
    [
        (pytorch.Batch(3), Units(2), Units(3), True),
        (pytorch.Batch(3), Units(3), Units(4), False),
        (pytorch.Record(100), Units(1, 64), Units(2, 128), True),
        (pytorch.Epoch(2), Units(5, 0, 1), Units(6, 0, 2), True),
        (pytorch.Batch([2, 5]), Units(4), Units(5), True),
        (pytorch.Batch([2, 5]), Units(9), Units(10), False),
    ],
)
def test_periods(unit: TrainUnit, before: Units, after: Units, due: bool) -> None:
    assert unit.due(before, after) is due
    assert TrainUnit.of(Length("batches", 0)) is None


def test_a_full_disk_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = shard.persist

    def full_at_two(folder: Path, *args: Any) -> Any:
        if folder.name.startswith("00000002"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(folder, *args)

    monkeypatch.setattr(shard, "persist", full_at_two)
    alone.train(Line, tmp_path, 4, validation_period=pytorch.Batch(2))
    assert [one.step for one in alone.checkpoints(tmp_path)] == [0, 4]
    assert "no checkpoint at step 2" in capsys.readouterr().err


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its callbacks hear of it at the next boundary; the next save waits for it."""
    go = threading.Event()
    calls: list[str] = []
    real = shard.persist

    def held_at_two(folder: Path, *args: Any) -> Any:
        assert not folder.name.startswith("00000002") or go.wait(120)
        return real(folder, *args)

    class Told(pytorch.PyTorchCallback):
        def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
            assert Path(checkpoint_dir, "MANIFEST.json").exists()
            calls.append(Path(checkpoint_dir).name)

    class Watched(Line):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"told": Told()}

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            calls.append(f"batch {batch_idx}{' behind' if go.is_set() else ''}")
            if batch_idx == 3:
                go.set()
            return super().train_batch(batch, epoch_idx, batch_idx)

    monkeypatch.setattr(shard, "persist", held_at_two)
    alone.train(Watched, tmp_path, 6, checkpoint_period=pytorch.Batch([2, 4]))
    assert [one.step for one in alone.checkpoints(tmp_path)] == [0, 2, 4, 6]
    assert calls.index("00000002.g1") > calls.index("batch 3")
    assert [call for call in calls if "." in call] == [f"0000000{step}.g1" for step in (0, 2, 4, 6)]
    assert [call for call in calls if "batch" in call] == [
        *("batch 0", "batch 1", "batch 2", "batch 3", "batch 4 behind", "batch 5 behind")
    ]


def test_a_stop_that_was_asked_for_ends_well(tmp_path: Path) -> None:
    class Stopping(Line):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.set_stop_requested(batch_idx == 2)
            return super().train_batch(batch, epoch_idx, batch_idx)

    alone.train(Stopping, tmp_path / "step", 10)
    assert alone.checkpoints(tmp_path / "step")[-1].step == 3

    class Patience(pytorch.PyTorchCallback):
        """Asks where early stopping does: at the end of the second validation."""

        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context, self.seen = context, 0

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            self.seen += 1
            self.context.set_stop_requested(self.seen == 2)

    class Patient(Line):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"patience": Patience(self.context)}

    alone.train(Patient, tmp_path / "validation", 10, validation_period=pytorch.Batch(2))
    assert alone.checkpoints(tmp_path / "validation")[-1].step == 4


def test_a_stop_whose_verdict_is_lost_is_told_by_who_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the last save and the verdict; told at last, it can be made longer."""

    class Stopping(Line):
        asks = -1

        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.callbacks = {"patience": Patience(context)}

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.set_stop_requested(batch_idx == self.asks)
            return super().train_batch(batch, epoch_idx, batch_idx)

    class Patience(pytorch.PyTorchCallback):
        asks = False

        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context = context

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            self.context.set_stop_requested(self.asks)

    def attempt(trial: TrialPaths, number: int) -> tuple[str, int]:
        trial.attempt(number).root.mkdir(parents=True)
        signals.forget()
        AttemptLocation.of(trial.root.parent.parent, 1, number).announce(os.environ)
        with pytorch.init() as context:
            pytorch.Trainer(Stopping(context), context).fit(validation_period=pytorch.Batch(3))
        verdict = Verdict.read(trial.attempt(number).verdict)
        assert verdict is not None
        return verdict.cause, verdict.batches

    for name in (EXPERIMENT, TRIAL, ATTEMPT):
        monkeypatch.setenv(name, "")
    for where in (Stopping, Patience):
        trial = ranks.experiment(
            tmp_path / where.__name__,
            code="",
            hparams={"global_batch_size": 16},
            until=9,
        )
        with monkeypatch.context() as patch:
            patch.setattr(where, "asks", 2 if where is Stopping else True)
            assert attempt(trial, 1) == ("stopped", 3)
        trial.attempt(1).verdict.unlink()
        assert attempt(trial, 2) == ("stopped", 3)
        assert attempt(trial, 3) == ("completed", 9)


def test_what_cannot_be_resumed_is_refused(tmp_path: Path) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(())

    class Streaming(Line):
        def build_training_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(Stream())

    class Foreign(Line):
        def build_training_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(self.points())

    with pytest.raises(ConfigError, match="stream without state_dict"):
        alone.train(Streaming, tmp_path / "a", 1)
    with pytest.raises(ConfigError, match="whose position cannot be saved"):
        alone.train(Foreign, tmp_path / "b", 1)
    with pytest.raises(ConfigError, match="batch_sampler excludes"):
        pytorch.DataLoader([1], 2, batch_sampler=[[0]])
    twice = torch.utils.data.DistributedSampler([1, 2], num_replicas=2, rank=0)  # type: ignore[arg-type, var-annotated]
    with pytest.raises(ConfigError, match="cut the data twice"):
        pytorch.DataLoader([1, 2], sampler=twice)
    with (
        pytest.raises(ConfigError, match="no length of training is given"),
        pytorch.init(hparams={"global_batch_size": 4}, checkpoint_storage=str(tmp_path)) as context,
    ):
        pytorch.Trainer(Line(context), context).fit()


def test_a_trial_says_how_it_is_evaluated(tmp_path: Path) -> None:
    class Neither(Line):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    with pytest.raises(ConfigError, match="define one of evaluate_batch"):
        alone.train(Neither, tmp_path, 1)


def test_a_trial_reports_nothing_that_governance_measures(tmp_path: Path) -> None:
    class Praised(Line):
        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            return {**super().evaluate_batch(batch, batch_idx), "gov.memorization": 0.0}

    class Covered(Line):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            return {"loss": super().train_batch(batch, epoch_idx, batch_idx), "gov.coverage": 1.0}

    for n, kind in enumerate((Praised, Covered)):
        with pytest.raises(ConfigError, match=r"metrics named gov\.\* are measured by governance"):
            alone.train(kind, tmp_path / str(n), 1)


def test_a_parameter_that_would_not_be_saved_is_refused(tmp_path: Path) -> None:
    class Loose(Line):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.wrap_optimizer(torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=0.1))

    with pytest.raises(ConfigError, match=r"shape \[3\] is in no wrapped model"):
        alone.train(Loose, tmp_path, 1)


def test_a_test_is_one_batch(tmp_path: Path) -> None:
    alone.train(Line, tmp_path, 9, test_mode=True)
    alone.train(Line, tmp_path, 9, test_mode=True)
    assert alone.checkpoints(tmp_path)[-1].step == 2


def test_a_trial_is_validated_at_every_rung(tmp_path: Path) -> None:
    """Whatever periods there are; and once more each time a schedule's horizon stays the same."""
    seen: list[tuple[int, Length | None]] = []
    asked = Searcher(
        "adaptive_asha", max_length=Length("batches", 9), max_trials=9, divisor=3, max_rungs=3
    )

    class Compared(Line):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            session = context.core.session
            session.config = dataclasses.replace(session.config, searcher=asked)
            session.length.rungs = asked.rungs
            super().__init__(context)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            if not batch_idx:
                seen.append((self.context.core.train.units.batches, self.context.horizon))
            return super().evaluate_batch(batch, batch_idx)

    for until in (3, 7):  # as if it was stopped and promoted
        alone.train(Compared, tmp_path, until, validation_period=pytorch.Batch(5))
    assert seen == [(n, asked.max_length) for n in (1, 3, 5, 7)]


def test_a_missing_hyperparameter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no hyperparameter 'global_batch_size'"):
        alone.train(Line, tmp_path, 1, {"lr": 1})


def test_a_scaler_of_ones_own_is_resumed(tmp_path: Path) -> None:
    """It doubles its scale every second step, which changes no weight."""

    class Scaled(Line):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
            self.scaler = context.wrap_scaler(scaler)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            x, y = batch
            loss = ((self.model(x) - y) ** 2).mean()
            self.context.backward(self.scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, scaler=self.scaler)
            self.scaler.update()
            return loss

    alone.train(Scaled, tmp_path / "scaled", 3)
    trial = alone.train(Scaled, tmp_path / "scaled", 4)
    assert trial.scaler.get_scale() == 16.0
    alone.train(Line, tmp_path / "plain", 4)
    assert weights(tmp_path / "scaled") == weights(tmp_path / "plain")


def test_two_reducers_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytorch.init(checkpoint_storage=str(tmp_path)) as context:
        context.wrap_reducer(sum, name="a")
        with pytest.raises(UsageError, match="two reducers 'a'"):
            context.wrap_reducer(max, name="a")
