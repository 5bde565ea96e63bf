"""What a trial reads and what it registers is resumed exactly, by the trainer and by ``core``."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    random_split,
)

from hpcdet import checkpoint, pytorch
from hpcdet.store.folder.layout import TrialPaths
from tests import alone, ranks
from tests.alone import as_script
from tests.pytorch.streaming import OWN, Streaming, lines, samples

__all__ = ["as_script"]

pytestmark = pytest.mark.usefixtures("as_script")


UNTIL, LEAVE = 14, 5


class Leaving(Streaming):
    leave_at = LEAVE


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[float]]:
    storage = tmp_path_factory.mktemp("undisturbed")
    trial = alone.train(Streaming, storage, UNTIL)
    return alone.checkpoints(storage)[-1].digest, trial.seen


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    storage = tmp_path_factory.mktemp("left")
    return storage, alone.train(Leaving, storage, UNTIL).seen


Tamper = Callable[[dict[str, Any], dict[str, Any]], None]


def resumed(left: Path, storage: Path, tamper: Tamper) -> tuple[str, list[float]]:
    shutil.copytree(left, storage)
    latest = alone.checkpoints(storage)[-1]
    assert latest.step == LEAVE + 1
    loaded = checkpoint.load(storage / "checkpoints" / latest.name)
    tamper(loaded.shared, loaded.private)
    folder = TrialPaths(storage, 1).checkpoint(latest.step, 50)
    checkpoint.save(folder, loaded.shared, loaded.private, meta=loaded.manifest.meta)
    trial = alone.train(Streaming, storage, UNTIL)
    return alone.checkpoints(storage)[-1].digest, trial.seen


def test_a_stream_and_what_is_registered_go_on_exactly(
    undisturbed: tuple[str, list[float]], left: tuple[Path, list[float]], tmp_path: Path
) -> None:
    digest, seen = resumed(left[0], tmp_path / "copy", lambda _shared, _private: None)
    assert left[1] + seen == undisturbed[1]
    assert digest == undisturbed[0]
    passed = [value // 1 for value in undisturbed[1][:37]]
    assert len(passed) == 37 and max(passed) <= 39, "a pass, then the next one"


def _forget_position(_: dict[str, Any], private: dict[str, Any]) -> None:
    private["data"]["workers"] = [None]


def _forget_drawn(_: dict[str, Any], private: dict[str, Any]) -> None:
    private["data"]["workers"][0]["drawn"] = 0


def _forget_average(shared: dict[str, Any], _: dict[str, Any]) -> None:
    shared["registered"]["average"]["n_averaged"].zero_()


def _forget_memory(_: dict[str, Any], private: dict[str, Any]) -> None:
    private["registered"]["memory"]["mean"] = torch.zeros(())


def _forget_noise(_: dict[str, Any], private: dict[str, Any]) -> None:
    private["rng"]["registered"]["noise"]["state"]["pos"] = 0


@pytest.mark.parametrize(
    "tamper", [_forget_position, _forget_drawn, _forget_average, _forget_memory, _forget_noise]
)
def test_each_part_of_it_is_needed(
    undisturbed: tuple[str, list[float]],
    left: tuple[Path, list[float]],
    tmp_path: Path,
    tamper: Tamper,
) -> None:
    assert resumed(left[0], tmp_path / "copy", tamper)[0] != undisturbed[0]


def test_a_stream_read_by_workers_goes_on_exactly(tmp_path: Path) -> None:
    """What they have read ahead is neither lost nor repeated."""

    class Ahead(Streaming):
        workers = 2

    class AheadLeaving(Ahead):
        leave_at = LEAVE

    whole = alone.train(Ahead, tmp_path / "1", UNTIL).seen
    first = alone.train(AheadLeaving, tmp_path / "2", UNTIL).seen
    assert first + alone.train(Ahead, tmp_path / "2", UNTIL).seen == whole
    one, two = (alone.checkpoints(tmp_path / name)[-1].digest for name in "12")
    assert one == two


class Plain(Streaming):
    """The same on data with indices."""

    data: Any = None
    drawn: Any = None

    def build_training_data_loader(self) -> Any:
        return self.data(self)

    def build_validation_data_loader(self) -> Any:
        # a random split is the same in every attempt and on every rank
        type(self).drawn, _ = random_split(range(40), [8, 32])  # type: ignore[arg-type]
        points = [torch.tensor([float(index)]) for index in self.drawn]
        return pytorch.DataLoader(points, 4)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        return super().train_batch(batch.float().reshape(-1, 1), epoch_idx, batch_idx)


def both_ways(trial: type[Plain], tmp_path: Path) -> tuple[list[float], list[list[int]]]:
    """What was seen with and without an interruption, which are checked to be equal."""

    class Left(trial):  # type: ignore[valid-type]
        leave_at = LEAVE

    whole = alone.train(trial, tmp_path / "1", UNTIL).seen
    splits = [list(trial.drawn)]
    first = alone.train(Left, tmp_path / "2", UNTIL).seen
    second = alone.train(trial, tmp_path / "2", UNTIL).seen
    splits.append(list(trial.drawn))
    assert first + second == whole
    digests = {alone.checkpoints(tmp_path / name)[-1].digest for name in "12"}
    assert len(digests) == 1
    return whole, splits


def test_a_batch_sampler_is_resumed_and_a_split_is_drawn_alike(tmp_path: Path) -> None:
    class Sampled(Plain):
        data = staticmethod(
            lambda _: pytorch.DataLoader(
                list(range(22)), batch_sampler=BatchSampler(RandomSampler(range(22)), 4, False)
            )
        )

    seen, splits = both_ways(Sampled, tmp_path)
    assert sorted(seen[:22]) == sorted(seen[22:44]) == list(range(22)) and seen[:22] != seen[22:44]
    assert splits[0] == splits[1]


def test_a_validation_that_was_left_knows_whether_its_batch_began_an_epoch(tmp_path: Path) -> None:
    """Also where a batch sampler's batches are of no fixed size."""

    class Asked(pytorch.PyTorchCallback):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context = context

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            at = self.context.current_train_batch(), self.context.is_epoch_start()
            places.append((*at, self.context.is_epoch_end()))

    class Asking(Plain):
        leaves = False
        data = staticmethod(
            lambda _: pytorch.DataLoader(
                list(range(6)), batch_sampler=BatchSampler(RandomSampler(range(6)), 4, False)
            )
        )

        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"asked": Asked(self.context)}

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            if self.leaves:
                signal.raise_signal(signal.SIGUSR2)
            return super().evaluate_batch(batch, batch_idx)

    class Left(Asking):
        leaves = True

    def train(trial: type[Asking], name: str) -> None:
        alone.train(trial, tmp_path / name, 3, validation_period=pytorch.Batch(1))

    places: list[tuple[int, bool, bool]] = []
    train(Asking, "once")
    assert places == [(0, True, False), (1, False, True), (2, True, False)]
    whole, places = places, []
    train(Left, "twice")
    assert places == []
    train(Asking, "twice")
    assert places == whole
    one, two = (alone.checkpoints(tmp_path / name)[-1].digest for name in ("once", "twice"))
    assert one == two


@pytest.mark.parametrize("kind", OWN)
def test_a_sampler_with_a_generator_of_its_own_is_resumed(tmp_path: Path, kind: str) -> None:
    class Sampled(Plain):
        @staticmethod
        def data(_: Any) -> Any:
            asked = OWN[kind]()
            sizes: dict[str, Any] = {"batch_size": 4} if "sampler" in asked else {}
            return pytorch.DataLoader(list(range(22)), **sizes, **asked)

    seen, _ = both_ways(Sampled, tmp_path)
    epoch = 20 if kind == "batches" else 22
    assert len(set(seen[:epoch])) == epoch and seen[:epoch] != seen[epoch : 2 * epoch]


def test_the_seed_of_a_loaders_generator_orders_its_samples(tmp_path: Path) -> None:
    def seen(folder: str, seed: int) -> list[float]:
        class Seeded(Plain):
            data = staticmethod(
                lambda _: pytorch.DataLoader(
                    list(range(22)), 4, shuffle=True, generator=torch.Generator().manual_seed(seed)
                )
            )

        return list(alone.train(Seeded, tmp_path / folder, 6).seen)

    assert seen("a", 1) == seen("b", 1) != seen("c", 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_of_torchdata_is_resumed(tmp_path: Path, workers: int) -> None:
    from torchdata import stateful_dataloader as stateful

    class Stateful(Plain):
        data = staticmethod(
            lambda _: stateful.StatefulDataLoader(
                list(range(22)), batch_size=4, shuffle=True, num_workers=workers
            )
        )

    seen, _ = both_ways(Stateful, tmp_path)
    assert sorted(seen[:22]) == sorted(seen[22:44]) == list(range(22)) and seen[:22] != seen[22:44]


def test_a_loader_that_does_all_by_itself_may_be_used_if_that_is_said(tmp_path: Path) -> None:
    class Own(Plain):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.experimental.disable_dataset_reproducibility_checks()

        @staticmethod
        def data(trial: Any) -> Any:
            sampler = pytorch.samplers.RepeatSampler(range(22))
            batches = BatchSampler(sampler, 4, drop_last=False)
            skipping = pytorch.samplers.SkipBatchSampler(batches, trial.context.get_initial_batch())
            return torch.utils.data.DataLoader(range(22), batch_sampler=skipping)  # type: ignore[arg-type]

    seen, _ = both_ways(Own, tmp_path)
    assert seen == [float(number % 22) for number in range(4 * UNTIL)]


LOGGED = """
import os, random
import numpy as np
import torch
from torch import nn
from hpcdet import pytorch

class Points:
    def __init__(self):
        self.noise = np.random.default_rng(1)
    def __len__(self):
        return 50
    def __getitem__(self, index):
        shift = random.random() + self.noise.random() + float(torch.rand(()))
        return torch.tensor([float(index) + shift]), index

def noisy(samples):
    return torch.utils.data.default_collate(samples), np.random.rand()

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        layers = nn.Linear(1, 4), nn.Dropout(), nn.Linear(4, 1)
        self.model = context.wrap_model(nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))
    def loader(self):
        workers = int(os.environ["WORKERS"])
        ahead = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
        size = self.context.get_per_slot_batch_size()
        ahead |= {"num_workers": workers, "collate_fn": noisy, "multiprocessing_context": "fork"}
        ahead = ahead if workers else {"collate_fn": noisy}
        return pytorch.DataLoader(Points(), size, True, **ahead)
    build_training_data_loader = build_validation_data_loader = loader
    def train_batch(self, batch, epoch_idx, batch_idx):
        (x, ids), noise = batch
        with open(os.environ["LOG"] + str(self.context.distributed.rank), "a") as log:
            print(batch_idx, epoch_idx, *ids.tolist(), file=log, flush=True)
        loss = (self.model(x / 50) + noise).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss
    def evaluate_batch(self, batch, batch_idx):
        (x, _), noise = batch
        return {"validation_loss": self.model(x / 50).mean() + noise}
"""


@pytest.mark.xdist_group("data")
def test_every_sample_comes_once_per_epoch_whatever_is_killed(tmp_path: Path) -> None:
    """Two ranks; workers 0, then 2 with prefetching killed in an epoch, then 1: the same bits."""

    def trial(name: str) -> TrialPaths:
        return ranks.experiment(
            tmp_path / name,
            code=LOGGED,
            ranks=2,
            entrypoint="model_def:Trial",
            hparams={"global_batch_size": 8},
            until=24,
            checkpoint_every_s=0.2,
            min_validation_period={"batches": 9},
        )

    once = trial("1")
    ranks.run(once, 2, WORKERS="0", LOG=str(tmp_path / "once-"))
    killed, log = trial("2"), tmp_path / "killed-"
    for workers, until in (("2", 8), ("1", 16)):
        with ranks.start(killed, 2, WORKERS=workers, LOG=str(log)) as attempt:
            attempt.wait_for(lambda until=until: reached(log, until))
            attempt.signal(signal.SIGKILL)
    with ranks.start(killed, 2, WORKERS="0", LOG=str(log)) as attempt:
        attempt.wait()
    assert ranks.result(killed) == ranks.result(once)
    assert samples(log) == samples(tmp_path / "once-")
    whole = [epoch for epoch in samples(log).values() if len(epoch) == 50]
    assert len(whole) == 3 and all(sorted(one) == list(range(50)) for one in whole)


def reached(log: Path, batch: int) -> bool:
    return all(
        log.with_name(f"{log.name}{rank}").exists() and lines(log, rank)[-1:][0][0] >= batch
        for rank in range(2)
    )
