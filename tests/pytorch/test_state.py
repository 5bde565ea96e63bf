"""The state in a checkpoint is complete, and each part of it is needed."""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet import checkpoint, core, pytorch
from hpcdet.checkpoint import StateError
from hpcdet.data import rng
from hpcdet.errors import IntegrityError, Unrecoverable
from hpcdet.pytorch.loop import trial_state
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.trials import manifests
from tests import alone
from tests.alone import as_script
from tests.bits_model import BitsTrial

__all__ = ["as_script"]

pytestmark = pytest.mark.usefixtures("as_script")

UNTIL = 12
Metrics = dict[tuple[str, int], Any]
Tamper = Callable[[dict[str, Any], dict[str, Any]], None]


class Recorded(pytorch.PyTorchCallback):
    """Metrics by step; of repeated reports the last one counts, as in the journals."""

    def __init__(self, context: pytorch.PyTorchTrialContext, metrics: Metrics) -> None:
        self.context, self.metrics = context, metrics

    def on_training_workload_end(self, avg_metrics: dict[str, Any], _: list[Any]) -> None:
        self.metrics["training", self.context.current_train_batch() + 1] = avg_metrics

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        place = (self.context.current_train_epoch(), self.context.is_epoch_end())
        step = self.context.current_train_batch() + 1
        self.metrics["validation", step] = {**metrics, "place": place}


def recording(metrics: Metrics) -> type[BitsTrial]:
    class Trial(BitsTrial):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {**super().build_callbacks(), "recorded": Recorded(self.context, metrics)}

    return Trial


def run(storage: Path, metrics: Metrics, precision: str | None = None) -> None:
    alone.train(
        recording(metrics),
        storage,
        UNTIL,
        {"global_batch_size": 16, "precision": precision, "scaled": precision is None},
        aggregation=2,
        reporting_period=pytorch.Batch(3),
        validation_period=pytorch.Batch(5),
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Metrics]:
    storage = tmp_path_factory.mktemp("undisturbed")
    metrics: Metrics = {}
    before = rng.capture_cpu()
    run(storage, metrics)
    rng.restore_cpu(before)
    return alone.checkpoints(storage)[-1].digest, metrics


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Metrics]:
    """A run that was told to leave after seven batches, in the middle of everything."""
    storage = tmp_path_factory.mktemp("interrupted")
    metrics: Metrics = {}
    before = rng.capture_cpu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAVE", "train:6")
        run(storage, metrics)
    rng.restore_cpu(before)
    assert alone.checkpoints(storage)[-1].step == 7
    return storage, metrics


def resumed(
    interrupted: tuple[Path, Metrics],
    storage: Path,
    tamper: Tamper | None = None,
    precision: str | None = None,
) -> tuple[str, Metrics]:
    shutil.copytree(interrupted[0], storage)
    metrics = dict(interrupted[1])
    if tamper is not None:
        latest = alone.checkpoints(storage)[-1]
        loaded = checkpoint.load(storage / "checkpoints" / latest.name)
        tamper(loaded.shared, loaded.private)
        folder = TrialPaths(storage, 1).checkpoint(7, 50)
        checkpoint.save(folder, loaded.shared, loaded.private, meta=loaded.manifest.meta)
    run(storage, metrics, precision)
    return alone.checkpoints(storage)[-1].digest, metrics


@pytest.mark.parametrize("workers", ["0", "2"])
def test_resumed_in_the_middle_of_everything_nothing_differs(
    undisturbed: tuple[str, Metrics],
    interrupted: tuple[Path, Metrics],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: str,
) -> None:
    """Other workers of the loader, too: what they had prefetched is neither lost nor repeated."""
    monkeypatch.setenv("WORKERS", workers)
    assert resumed(interrupted, tmp_path / "copy") == undisturbed


def _set(path: str, change: Callable[[Any], Any]) -> Tamper:
    """Change the item at a path, which begins with ``shared`` or ``private``."""

    def tamper(shared: dict[str, Any], private: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        place: Any = {"shared": shared, "private": private}
        for name in parents:
            place = place[int(name) if isinstance(place, list) else name]
        place[last] = change(place[last])

    return tamper


def _fresh_words(state: list[Any]) -> list[Any]:
    version, words, gauss = state
    return [version, np.append(words[:-1][::-1], words[-1]), gauss]


def _fresh_numpy(state: list[Any]) -> list[Any]:
    return [state[0], state[1][::-1].copy(), *state[2:]]


def _fresh_philox(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "state": {**state["state"], "counter": state["state"]["counter"] + 1}}


PARTS: dict[str, Callable[[Any], Any]] = {
    "shared/models/0/0.weight": torch.zeros_like,
    "shared/models/0/1.mean": torch.zeros_like,  # a buffer
    "shared/other_buffers/0/1.steps": torch.zeros_like,
    "shared/optimizers/0/state": lambda _: {},
    "shared/optimizers/0/param_groups/0/lr": lambda rate: 2 * rate,
    "shared/scaler": lambda _: None,
    "shared/lr_schedulers/0/last_epoch": lambda _: 0,
    "shared/progress/units/batches": lambda batches: batches + 1,
    "shared/progress/units/records": lambda records: records + 16,
    "shared/progress/owed": lambda owed: not owed,
    "shared/progress/best": lambda _: -1.0,
    "shared/gradients": lambda _: {},
    "private/callbacks/counter/epochs": lambda _: 0,
    "private/rng/python": _fresh_words,
    "private/rng/numpy": _fresh_numpy,
    "private/rng/torch": lambda _: torch.Generator().manual_seed(1).get_state(),
    "private/rng/registered/noise": _fresh_philox,
    "private/training_metrics/values/loss": torch.zeros_like,
    "private/training_metrics/weights/loss": lambda weight: weight + 1,
    "private/reducers/seen/updates": lambda _: [],
}
NOT_THERE = {
    "shared/progress/units/epochs": "follows from records",
    "shared/callbacks": "for another number of ranks: tests/pytorch/test_bits_elastic.py",
    "private/gradients": "what the code itself sums up: tests/pytorch/test_bits_local.py",
}
INNER = (
    *("shared/optimizers", "shared/progress", "shared/progress/units"),
    *("private/rng", "private/training_metrics"),
)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_of_the_state_is_needed(
    undisturbed: tuple[str, Metrics], interrupted: tuple[Path, Metrics], tmp_path: Path, part: str
) -> None:
    assert resumed(interrupted, tmp_path / "copy", _set(part, PARTS[part])) != undisturbed


def test_no_part_of_the_state_is_missing_there(interrupted: tuple[Path, Metrics]) -> None:
    """Of what hpcdet itself gives names to; what models, callbacks … call theirs is their own."""
    latest = alone.checkpoints(interrupted[0])[-1]
    loaded = checkpoint.load(interrupted[0] / "checkpoints" / latest.name)
    state: Any = {"shared": loaded.shared, "private": loaded.private}
    state["shared"]["optimizers"] = state["shared"]["optimizers"][0]
    found = {f"{whose}/{name}" for whose in ("shared", "private") for name in state[whose]}
    for inner in INNER:
        found.remove(inner)
        of_it = functools.reduce(lambda place, name: place[name], inner.split("/"), state)
        found |= {f"{inner}/{name}" for name in of_it}
    named = [part.replace("optimizers/0", "optimizers") for part in (*PARTS, *NOT_THERE)]
    assert not {one for one in found if not any(f"{part}/".startswith(f"{one}/") for part in named)}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_mixed_precision_nothing_differs_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """The scale that fp16 wants overflows every few steps, and those steps are left out."""
    metrics: Metrics = {}
    run(tmp_path / "once", metrics, precision)
    left: tuple[Path, Metrics] = (tmp_path / "left", {})
    with monkeypatch.context() as patch:
        patch.setenv("LEAVE", "train:6")
        run(*left, precision)
    once = alone.checkpoints(tmp_path / "once")[-1]
    assert resumed(left, tmp_path / "again", None, precision) == (once.digest, metrics)
    if precision == "fp16":
        steps = next(iter(_final(tmp_path / "once")["optimizers"][0]["state"].values()))["step"]
        assert 0 < steps < UNTIL // 2
        scale = _set("shared/scaler/scale", lambda scale: scale * 4)
        _, others = resumed(left, tmp_path / "other", scale, precision)
        assert others != metrics  # not the scale alone, which is in the digest


def _final(storage: Path) -> dict[str, Any]:
    latest = alone.checkpoints(storage)[-1]
    return checkpoint.load(storage / "checkpoints" / latest.name).shared


def test_gradients_outlive_a_validation_that_was_owed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven batches, aggregated by two; the checkpoint after the validation has them, too."""

    def until_seven(storage: Path) -> Metrics:
        periods: dict[str, Any] = {
            "validation_period": pytorch.Batch(7),
            "checkpoint_policy": "all",
        }
        metrics: Metrics = {}
        alone.train(recording(metrics), storage, 12, aggregation=2, **periods)
        return metrics

    once = until_seven(tmp_path / "once")
    with monkeypatch.context() as patch:
        patch.setenv("LEAVE", "validate:7:1")
        assert ("validation", 7) not in until_seven(tmp_path / "twice")
    # who goes on with a validation is asked for the batch before it, as any other is
    assert until_seven(tmp_path / "twice")["validation", 7] == once["validation", 7]
    seven = [
        [one for one in alone.checkpoints(tmp_path / name) if one.step == 7][-1]
        for name in ("once", "twice")
    ]
    assert [one.attempt for one in seven] == [1, 2]
    assert seven[0].digest == seven[1].digest
    assert checkpoint.load(tmp_path / "once" / "checkpoints" / seven[0].name).shared["gradients"]


def test_a_state_of_another_model_is_never_tried_again(tmp_path: Path) -> None:
    alone.train(BitsTrial, tmp_path, 1, {"global_batch_size": 16, "width": 16})
    with pytest.raises(Unrecoverable, match="does not fit this trial's models") as caught:
        alone.train(BitsTrial, tmp_path, 2, {"global_batch_size": 16, "width": 8})
    assert "size mismatch" in str(caught.value) and len(caught.value.what) < 400


def test_a_state_of_another_kind_of_training_is_named(tmp_path: Path) -> None:
    with core.init(checkpoint_storage=tmp_path / "own") as context:
        context.checkpoint.save({"step": 1}, 1)
    with pytest.raises(Unrecoverable, match="custom loop, and this is a PyTorchTrial"):
        alone.train(BitsTrial, tmp_path / "own", 2)
    alone.train(BitsTrial, tmp_path / "trial", 1)
    with core.init(checkpoint_storage=tmp_path / "trial") as context:
        with pytest.raises(Unrecoverable, match="PyTorchTrial, and this is a custom loop"):
            context.checkpoint.latest()
        with pytest.raises(Unrecoverable, match=r"00000001\.g1"):
            context.checkpoint.load("00000001.g1")


def test_a_device_that_fails_while_a_state_is_put_back_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Linear(2, 2)
    others: dict[str, Any] = {"optimizers": [], "lr_schedulers": [], "scaler": None}
    reducer = SimpleNamespace(plain=lambda: [model], settle=lambda: None)
    context: Any = SimpleNamespace(reducer=reducer, **others)
    state = {"models": [model.state_dict()], "other_buffers": [{}], **others}
    trial_state.load_shared(context, state)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    for owner, name in ((torch.nn.Linear, "load_state_dict"), (torch.Tensor, "copy_")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(IntegrityError, match="CUDA out of memory") as caught:
                trial_state.load_shared(context, state)
            assert not isinstance(caught.value, Unrecoverable)
    for models in ([], [{}], [torch.nn.Linear(3, 2).state_dict()]):  # type: ignore[var-annotated]
        with pytest.raises(Unrecoverable):
            trial_state.load_shared(context, {**state, "models": models})
    context.scaler = torch.amp.GradScaler("cpu")
    off = torch.amp.GradScaler("cpu", enabled=False).state_dict()
    with pytest.raises(Unrecoverable, match="state dict is empty"):
        trial_state.load_shared(context, {**state, "scaler": off})


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    trained = itertools.count()

    class Trial(BitsTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.counter.epochs = object()  # type: ignore[assignment]

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            next(trained)
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(StateError, match="callbacks/counter/epochs"):
        alone.train(Trial, tmp_path, 2)
    assert next(trained) == 0


def test_a_manifest_remembers_what_is_declared(interrupted: tuple[Path, Metrics]) -> None:
    storage, _ = interrupted
    declared = manifests.ManifestMeta.__annotations__.keys()
    assert manifests._META.keys() <= declared
    found = alone.checkpoints(storage)
    assert found and all(one.meta.keys() <= declared for one in found)
