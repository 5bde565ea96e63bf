"""Handwritten digits from three sources, of which a policy says what each may change.

GroupNorm, since BatchNorm mixes the examples of a batch: what one source's images are would
change what another one's teach.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from hpcdet import pytorch

DATA = Path(__file__).parent / "data"
SOURCES = ("public", "licensed", "restricted")
VALIDATION = 360


def dataset(rows: NDArray[np.float32]) -> TensorDataset:
    """Images float32[n, 1, 8, 8] in 0 to 1 with their labels, from float32[n, label and pixels]."""
    labels, pixels = rows[:, 0], rows[:, 1:]
    images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8) / 16)
    return TensorDataset(images, torch.from_numpy(labels.astype(np.int64)))


def source(name: str) -> TensorDataset:
    """The images of a source; its manifest has the digest of the file."""
    return dataset(np.loadtxt(DATA / name / "digits.csv", np.float32, delimiter=","))


def validation() -> TensorDataset:
    """Images that no source has."""
    pixels, labels = load_digits(return_X_y=True)
    return dataset(np.column_stack([labels, pixels]).astype(np.float32)[-VALIDATION:])


class GovernedDigits(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        hidden = context.get_hparam("hidden")
        network = nn.Sequential()
        network.add_module("conv", nn.Conv2d(1, 16, 3, padding=1))
        network.add_module("norm", nn.GroupNorm(4, 16))
        network.add_module("relu", nn.ReLU())
        network.add_module("pool", nn.MaxPool2d(2))
        network.add_module("flat", nn.Flatten())
        network.add_module("body", nn.Linear(16 * 16, hidden))
        network.add_module("tanh", nn.Tanh())
        network.add_module("head", nn.Linear(hidden, 10))
        self.model = context.wrap_model(network)
        rate = context.get_hparam("learning_rate")
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=rate))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        names = self.context.get_data_config().get("sources", SOURCES)
        return pytorch.DataLoader(
            pytorch.Sourced({name: source(name) for name in names}),
            batch_size=self.context.get_per_slot_batch_size(),
            shuffle=True,
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(validation(), batch_size=120)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        images, labels = batch
        output = self.model(images)
        return {
            "validation_loss": nn.functional.cross_entropy(output, labels),
            "accuracy": (output.argmax(1) == labels).float().mean(),
        }
