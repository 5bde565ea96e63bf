"""Trials that are probed: what is measured, what is refused, and that nothing is left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from hpcdet import checkpoint
from tests import ranks
from tests.guard.test_governed import DROPS, MODEL, make, policy

pytestmark = pytest.mark.xdist_group("governed")

# what train_batch does beside: a scheduler, a metric reducer, and gradients set to zero by hand
BESIDE = """
class Beside(Governed):
    losses = pytorch.PyTorchTrial.losses

    def __init__(self, context):
        super().__init__(context)
        self.rate = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9),
            pytorch.LRScheduler.StepMode.MANUAL_STEP,
        )
        self.seen = context.wrap_reducer(Seen(), "seen", for_validation=False)

    def train_batch(self, batch, epoch_idx, batch_idx):
        self.seen.update(len(batch[0]))
        found = super().train_batch(batch, epoch_idx, batch_idx)
        self.rate.step()
        return found


class Told(Beside):
    losses = Governed.losses


class Seen(pytorch.MetricReducer):
    def reset(self):
        self.count = 0

    def update(self, count):
        self.count += count

    def per_slot_reduce(self):
        return self.count

    def cross_slot_reduce(self, parts):
        return sum(parts)


class Averaged(Governed):
    losses = pytorch.PyTorchTrial.losses

    def train_batch(self, batch, epoch_idx, batch_idx):
        with torch.no_grad():
            getattr(self.model, "module", self.model)[6].bias.mul_(0.5)
        return super().train_batch(batch, epoch_idx, batch_idx)


class Centred(Governed):
    def losses(self, batch):
        found = super().losses(batch)
        return found - found.mean() + found.detach()


class Gan(Governed):
    losses = pytorch.PyTorchTrial.losses

    def __init__(self, context):
        super().__init__(context)
        maker = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Identity())
        maker.append(nn.Linear(8, 6))
        self.maker = context.wrap_model(maker)
        self.makes = context.wrap_optimizer(torch.optim.SGD(self.maker.parameters(), 0.01))

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, _ = (one.to(self.dtype) for one in batch)
        fake = self.maker(torch.randn(len(x), 3))
        real = functional.softplus(-self.model(x)).mean()
        loss = real + functional.softplus(self.model(fake.detach())).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        made = functional.softplus(-self.model(fake)).mean()
        self.context.backward(made)
        self.context.step_optimizer(self.makes)
        return {"loss": loss.item()}


class Views(Governed):
    losses = pytorch.PyTorchTrial.losses

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = (one.to(self.dtype) for one in batch)
        rows = [row for row in range(len(x)) for _ in range(2)]
        with self.context.rows(rows):
            loss = functional.mse_loss(self.model(x[rows])[:, 0], y[rows])
            self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss.item()}
"""


def trained(root: Path, kind: str, world: int, hparams: Any = None, **changes: Any) -> Any:
    trial = make(root, world, policy(), hparams, **{"entrypoint": f"model_def:{kind}", **changes})
    (root / "code" / "model_def.py").write_text(MODEL + BESIDE)
    return trial, ranks.run(trial, world)


def same_tensors(one: Any, other: Any) -> None:
    mine, theirs = tree_leaves(one), tree_leaves(other)
    assert len(mine) == len(theirs)
    for left, right in zip(mine, theirs, strict=True):
        same = torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
        assert same, (left, right)


def probed(attempt: ranks.Attempt) -> list[dict[str, Any]]:
    return [line for line in attempt.lines() if line.get("event") == "probe"]


@pytest.mark.parametrize("world", [1, 2])
def test_each_sources_own_gradient_is_measured_in_each_layer(world: int, tmp_path: Path) -> None:
    _, attempt = trained(tmp_path / "EXP", "Governed", world)
    [found] = probed(attempt)
    assert found["step"] == 0
    assert found["layers"] == ["low", "high", "head"]
    assert found["sources"] == ["a", "b", "c"]
    zero = [[value == 0 for value in row] for row in found["on"]]
    assert zero == [[False, False, False], [True, False, False], [True, True, False]]
    assert all(value > 0 for row in found["off"] for value in row)
    assert found["on"][2][2] == pytest.approx(found["off"][2][2] / 2)
    assert found["on"][0] == found["off"][0]


def test_probes_leave_nothing_behind(tmp_path: Path) -> None:
    """Of ``train_batch`` run again and again, of ``losses``, and at every second batch."""
    found: list[Any] = []
    for name, kind, every in (("one", "Beside", 0), ("two", "Told", 0), ("three", "Beside", 2)):
        root = tmp_path / name
        trial = make(root, 2, policy(probe_every=every), DROPS, entrypoint=f"model_def:{kind}")
        (root / "code" / "model_def.py").write_text(MODEL + BESIDE)
        attempt = ranks.run(trial, 2)
        assert attempt.verdict() is not None, attempt.log()
        [*_, last] = sorted(trial.checkpoints.glob("0*.g*"))
        found.append(checkpoint.load(last).shared)
        assert [one["step"] for one in probed(attempt)] == ([0, 2, 4, 6, 8] if every else [0])
        [*_, report] = [line for line in attempt.lines() if "seen" in line.get("metrics", {})]
        assert report["metrics"]["seen"] <= 62 + 3 * 12
    for key in ("models", "optimizers", "lr_schedulers"):
        for other in found[1:]:
            same_tensors(found[0][key], other[key])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Averaged", "P12: train_batch changes 6.bias itself"),
        ("Centred", "P07: a row of one source changes with rows of another, outside"),
    ],
)
def test_what_cannot_be_probed_or_mixes_rows_is_refused(
    kind: str, said: str, tmp_path: Path
) -> None:
    _, attempt = trained(tmp_path / "EXP", kind, 1)
    assert attempt.verdict() is None or said in str(attempt.verdict())
    assert said in attempt.log() or said in str(attempt.verdict())


def test_rows_that_code_names_are_probed_by_their_gradients(tmp_path: Path) -> None:
    _, attempt = trained(tmp_path / "EXP", "Views", 1)
    [found] = probed(attempt)
    assert [value == 0 for value in found["on"][2]] == [True, True, False]


def test_two_models_with_an_optimizer_each_are_probed_together(tmp_path: Path) -> None:
    _, attempt = trained(tmp_path / "EXP", "Gan", 1, until=3)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.cause == "completed", attempt.log()
    [found] = probed(attempt)
    assert [value == 0 for value in found["on"][1]] == [True, False, False]


def test_a_model_that_fsdp2_divides_is_not_probed_and_says_so(tmp_path: Path) -> None:
    _, attempt = trained(tmp_path / "EXP", "Governed", 2, distributed={"strategy": "fsdp2"})
    assert probed(attempt) == []
    assert "rows are not probed" in attempt.log()
