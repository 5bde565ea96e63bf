"""State that nobody saves: found, named, refused; and what is registered."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hpcdet import core, pytorch
from hpcdet.data import object_graph
from hpcdet.errors import UsageError
from tests import alone, ranks
from tests.alone import as_script
from tests.pytorch.streaming import OWN, Memory, Streaming

__all__ = ["as_script"]

pytestmark = pytest.mark.usefixtures("as_script")
RNG = np.random.default_rng(0)
SPLITS = np.random.default_rng(0)


def noise() -> float:
    return float(RNG.standard_normal())


class Noisy(nn.Linear):
    """A model that hides a generator, and a module from torch."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.noise = torch.Generator()
        self.branches = [nn.Linear(1, 1)]


class Slots:
    __slots__ = ("__dice",)

    def __init__(self) -> None:
        self.__dice = random.Random(1)


class Average(pytorch.PyTorchCallback):
    """An average of weights that is forgotten."""

    def __init__(self) -> None:
        self.average = torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1))


class Remembering(Average):
    """The same, saved by itself."""

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average.state_dict()}


class Forgetful(Streaming):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.teacher = nn.Linear(1, 1).requires_grad_(False).eval()
        self.loss = nn.CrossEntropyLoss(weight=torch.ones(2))
        self.parts = {"head": nn.Linear(1, 1), "same": self.model}
        self.own_optimizer = torch.optim.SGD(self.parts["head"].parameters(), 0.1)
        self.rate = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.dice = [random.Random(1)]
        self.memories = (Memory(), self.memory)
        self.helper = lambda: self.dice
        self.blocks = context.wrap_model(nn.Sequential(Noisy()))
        self.slots = Slots()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"average": Average(), "remembering": Remembering()}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        SPLITS.permutation(3)
        return super().build_training_data_loader()

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return super().evaluate_batch(batch + noise(), batch_idx)


MISSING = [
    "parts['head'] (Linear)",
    "own_optimizer (SGD)",
    "rate (StepLR)",
    "dice[0] (Random)",
    "memories[0] (Memory)",
    "blocks.0.noise (Generator)",
    "blocks.0.branches[0] (Linear)",
    "slots._Slots__dice (Random)",
]
ELSEWHERE = ["callbacks['average'].average (AveragedModel)", f"{__name__}.RNG (Generator)"]


def test_state_that_nobody_saves_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.train(Forgetful, tmp_path, 1)
    said = [line.removeprefix("hpcdet: ") for line in capsys.readouterr().err.splitlines()]
    first = said.index("a checkpoint would not have the state of") + 1
    missing = {*(f"trial.{name}" for name in MISSING), *ELSEWHERE}
    found = [line.strip() for line in said[first : first + len(missing)]]
    assert {one.split(": ")[0] for one in found} == missing
    alone.train(Streaming, tmp_path / "nothing", 1)
    assert "would not have" not in capsys.readouterr().err


class Answering:
    """Has an answer to any name, as the values of many a config and ``mock.call`` have."""

    def __getattr__(self, name: str) -> Answering:
        raise AssertionError(f"asked for {name}")


class Decorated:
    cfg = Answering()
    partial = functools.partialmethod(lambda self, _: MISSING, 1)

    @property
    def current(self) -> object:
        return RNG

    @functools.cached_property
    def once(self) -> object:
        return SPLITS

    @staticmethod
    @functools.cache
    def known() -> object:
        return ELSEWHERE

    @classmethod
    @contextlib.contextmanager
    def within(cls) -> Iterator[object]:
        yield OWN


def test_what_decorated_methods_name_is_found_and_nothing_of_the_users_is_asked() -> None:
    found = object_graph.named(Decorated)
    assert {name.rpartition(".")[2] for name in found} == {
        "RNG", "SPLITS", "MISSING", "ELSEWHERE", "OWN",
    }  # fmt: skip


def test_state_that_nobody_saves_is_refused_if_the_config_says_so(tmp_path: Path) -> None:
    trial = ranks.experiment(tmp_path / "EXP", code=REFUSED, on_unregistered="refuse", until=1)
    verdict = ranks.run(trial).verdict()
    assert verdict is not None and verdict.verdict == "fail"
    assert "trial.dice (Random): pass it to context.register_generator" in verdict.error


def test_what_is_registered_must_have_a_state(tmp_path: Path) -> None:
    with pytorch.init(checkpoint_storage=str(tmp_path)) as context:
        with pytest.raises(UsageError, match="a object has no state_dict"):
            context.register_state("thing", object())
        context.register_state("memory", Memory())
        with pytest.raises(UsageError, match="the name is taken"):
            context.register_state("memory", Memory())


def test_core_saves_and_restores_what_is_registered(tmp_path: Path) -> None:
    def run(steps: int) -> tuple[Any, float, float]:
        with core.init(checkpoint_storage=tmp_path) as context:
            memory, own, dice = Memory(), Memory(), random.Random(1)
            context.register_state("memory", memory)
            context.register_state("own", own, per_rank=True)
            context.register_state("dice", dice)
            state = context.checkpoint.latest() or {"step": 0}
            for step in range(state["step"] + 1, steps + 1):
                memory.mean, own.mean = memory.mean + 1, own.mean - dice.random()
                context.checkpoint.save({"step": step}, step)
            return float(memory.mean), float(own.mean), dice.random()

    run(2)
    assert run(5)[0] == 5
    again = run(5)
    expected = random.Random(1)
    drawn = sum(expected.random() for _ in range(5))
    assert again[1] == pytest.approx(-drawn) and again[2] == expected.random()


REFUSED = """
import random
import torch
from hpcdet import pytorch

class DigitsTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.dice = random.Random(1)
        model = context.wrap_model(torch.nn.Linear(1, 1))
        context.wrap_optimizer(torch.optim.SGD(model.parameters(), 0.1))
    def build_training_data_loader(self):
        return pytorch.DataLoader([1.0])
    build_validation_data_loader = build_training_data_loader
    def train_batch(self, batch, epoch_idx, batch_idx):
        raise AssertionError("not reached")
    def evaluate_batch(self, batch):
        return {}
"""
