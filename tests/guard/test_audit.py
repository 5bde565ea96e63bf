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


class Bypasses(Governed):  # its losses are clean, as those of the next
    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = (one.to(self.dtype) for one in batch)
        beside = functional.linear(x, getattr(self.model, "module", self.model)[0].weight)
        loss = functional.mse_loss(self.model(x)[:, 0], y) + beside.square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss.item()}


class MixesUp(Governed):
    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        return super().train_batch((0.5 * x + 0.5 * x.flip(0), y), epoch_idx, batch_idx)


class Sorts(Governed):
    def build_training_data_loader(self):
        made = super().build_training_data_loader()
        made._options["collate_fn"] = collated
        return made


def collated(samples):
    return torch.utils.data.default_collate(sorted(samples, key=lambda one: float(one[1])))


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
        ("Bypasses", "P13: a part of the loss that is of no row depends on 0.weight"),
        ("MixesUp", "P07: a row of one source changes with rows of another, outside"),
        ("Sorts", "P12: the collate function gives rows of other sources by samples of a"),
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


FSDP2: dict[str, Any] = {"distributed": {"strategy": "fsdp2"}}
SIXTEEN: dict[str, Any] = {
    "distributed": {
        "strategy": "fsdp2",
        "fsdp2": {"param_dtype": "bf16", "reduce_dtype": "float32", "output_dtype": "float32"},
    }
}


@pytest.mark.parametrize("changes", [FSDP2, SIXTEEN], ids=["float32", "bf16"])
def test_a_model_that_fsdp2_divides_is_probed_whole(changes: Any, tmp_path: Path) -> None:
    """Each rank by itself, with ``losses`` and with ``train_batch``; no bit changes."""
    found: list[Any] = []
    for kind, every in (("Beside", 0), ("Told", 2)):
        root = tmp_path / kind
        trial = make(
            root, 2, policy(probe_every=every), DROPS, entrypoint=f"model_def:{kind}", **changes
        )
        (root / "code" / "model_def.py").write_text(MODEL + BESIDE)
        attempt = ranks.run(trial, 2)
        assert attempt.verdict() is not None, attempt.log()
        measured = probed(attempt)
        assert [one["step"] for one in measured] == ([0, 2, 4, 6, 8] if every else [0])
        zero = [[value == 0 for value in row] for row in measured[0]["on"]]
        assert zero == [[False, False, False], [True, False, False], [True, True, False]]
        assert all(value > 0 for row in measured[0]["off"] for value in row)
        [*_, last] = sorted(trial.checkpoints.glob("0*.g*"))
        found.append(checkpoint.load(last).shared)
    for key in ("models", "optimizers", "lr_schedulers"):
        for other in found[1:]:
            same_tensors(found[0][key], other[key])


COUPLED = """

class Mixing(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0) if self.training else x)


class Changed(Governed):
    def __init__(self, context):
        wrap = context.wrap_model
        context.wrap_model = lambda model: wrap(self.change(model))
        super().__init__(context)


class Mixes(Changed):
    def change(self, model):
        model[4].__class__ = Mixing
        return model


class Turning(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.flip(0)).flip(0)


class Turned(Changed):
    def change(self, model):
        model[0] = Turning(model[0])
        return model


class Contrasts(Governed):
    losses = pytorch.PyTorchTrial.losses

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = (one.to(self.dtype) for one in batch)
        out = self.model(x)[:, 0]
        self.context.backward(((out - y) ** 2).mean() + out.logsumexp(0))
        self.context.step_optimizer(self.optimizer)
        return {}


class Penal(Governed):
    def losses(self, batch):
        weight = getattr(self.model, "module", self.model)[0].weight
        return super().losses(batch) + 0.1 * weight.square().mean()
"""


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Mixes", "P07: 4 (FSDPMixing) gives a row of one source by rows of another"),  # (a)
        ("Turned", "P12: the rows of 0.inner (Linear) are not those of the batch"),  # (b)
        ("Contrasts", "P13: the loss of rows of one source"),  # (c)
        ("Penal", "G123: source b changes 0.weight"),  # (d)
    ],
)
def test_under_fsdp2_each_probe_finds_its_coupling(kind: str, said: str, tmp_path: Path) -> None:
    trial = make(tmp_path / "EXP", 2, policy(), {}, entrypoint=f"model_def:{kind}", **FSDP2)
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(MODEL + COUPLED)
    attempt = ranks.run(trial, 2)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict in ("fail", "norestart"), attempt.log()
    assert said in attempt.log(), attempt.log()


def test_under_fsdp2_a_router_that_does_not_route_is_found(tmp_path: Path) -> None:
    """(e): what it gives is not one backward pass per source."""
    wrong = """
from hpcdet.guard.routing.router import RowWeights
RowWeights.weigh = lambda self, kept: kept
"""
    trial = make(tmp_path / "EXP", 2, policy(), {}, **FSDP2)
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(MODEL + wrong)
    attempt = ranks.run(trial, 2)
    assert "G123: routed gradients are not those of one pass per source" in attempt.log()


def test_a_model_that_no_rank_can_hold_is_not_probed_and_says_so(tmp_path: Path) -> None:
    small = """
from hpcdet.guard.probing import whole_models
whole_models.lacks_room = lambda models, device: "that takes 9 GiB, and cuda has 1 GiB"
"""
    trial = make(tmp_path / "EXP", 2, policy(), {}, **FSDP2)
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(MODEL + small)
    attempt = ranks.run(trial, 2)
    assert attempt.verdict() is not None, attempt.log()
    assert probed(attempt) == []
    [told] = [line for line in attempt.lines() if line.get("event") == "unprobed"]
    assert "that takes 9 GiB" in told["why"] and told["why"] in attempt.log()
