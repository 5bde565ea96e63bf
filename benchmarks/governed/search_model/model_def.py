"""Handwritten digits, of which a fifth of the training labels is wrong, and three recipes.

The memorizer is wide, knows no regularisation and learns the wrong labels by heart; the honest
recipe does not; the timid one is too small to learn much. What judges them is a hyperparameter:
the loss of training, or the loss on noisy copies of training records with the same labels. A clean
validation set, which the search never sees, is measured beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import ConcatDataset, TensorDataset

from hpcdet import pytorch

CLEAN = 360
WRONG = 0.2
NOISE = 0.03


@dataclass(frozen=True)
class Recipe:
    """A network and how it is regularised."""

    hidden: int
    dropout: float
    weight_decay: float


RECIPES = {
    "memorizer": Recipe(512, 0.0, 0.0),
    "honest": Recipe(64, 0.5, 0.3),
    "timid": Recipe(6, 0.2, 0.3),
}


@dataclass(frozen=True)
class Digits:
    """Images float32[n, 64] in [0, 1] with labels int64[n], and which of them are wrong."""

    training: TensorDataset
    copies: TensorDataset
    clean: TensorDataset
    wrong: torch.Tensor


def digits(seed: int) -> Digits:
    """Return the data of a seed: split, wrong labels and noise of the copies."""
    draws = np.random.default_rng(seed)
    pixels, labels = load_digits(return_X_y=True)
    order = draws.permutation(len(labels))
    images = torch.from_numpy((pixels[order] / 16).astype(np.float32))
    true = torch.from_numpy(labels[order])
    last = len(order) - CLEAN
    wrong = torch.from_numpy(draws.random(last) < WRONG)
    shifts = torch.from_numpy(draws.integers(1, 10, last))
    taught = torch.where(wrong, (true[:last] + shifts) % 10, true[:last])
    noise = torch.from_numpy(draws.normal(0, NOISE, (last, images.shape[1])).astype(np.float32))
    return Digits(
        TensorDataset(images[:last], taught),
        TensorDataset(images[:last] + noise, taught),
        TensorDataset(images[last:], true[last:]),
        wrong,
    )


def network(recipe: Recipe) -> nn.Sequential:
    """Return the perceptron of a recipe, with two hidden layers."""
    hidden = recipe.hidden
    return nn.Sequential(
        *(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(recipe.dropout)),
        *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(recipe.dropout)),
        nn.Linear(hidden, 10),
    )


class RecentLoss(pytorch.PyTorchCallback):
    """The mean loss of the batches that were trained since the last validation."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else float("nan")

    def add(self, loss: torch.Tensor) -> None:
        self.total, self.count = self.total + float(loss), self.count + 1

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.total, self.count = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.total, self.count = state_dict["total"], state_dict["count"]


class Memorizing(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.data = digits(context.get_hparam("data_seed"))
        recipe = RECIPES[context.get_hparam("recipe")]
        self.recent = RecentLoss()
        self.model = context.wrap_model(network(recipe))
        rate = context.get_hparam("learning_rate")
        decay = recipe.weight_decay
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=decay)
        self.optimizer = context.wrap_optimizer(optimizer)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recent_loss": self.recent}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            pytorch.Sourced({"digits": self.data.training}),
            batch_size=self.context.get_per_slot_batch_size(),
            shuffle=True,
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        judged = ConcatDataset([self.data.copies, self.data.clean])
        return pytorch.DataLoader(judged, batch_size=600)

    def losses(self, batch: Any) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels, reduction="none")

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        loss = self.losses(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.recent.add(loss.detach())
        return {"loss": loss}

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, float]:
        outputs, labels = [], []
        for images, taught in data_loader:
            outputs.append(self.model(images))
            labels.append(taught)
        scores, targets = torch.cat(outputs), torch.cat(labels)
        losses = nn.functional.cross_entropy(scores, targets, reduction="none")
        right = (scores.argmax(1) == targets).double()
        fitted = right[:-CLEAN][self.data.wrong]
        return {
            "training_loss": self.recent.mean,
            "validation_loss": float(losses[:-CLEAN].mean()),
            "clean_loss": float(losses[-CLEAN:].mean()),
            "clean_accuracy": float(right[-CLEAN:].mean()),
            "wrong_labels_fitted": float(fitted.mean()),
        }
