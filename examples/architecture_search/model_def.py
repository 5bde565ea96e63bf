"""Handwritten digits with a network that is built as the hyperparameters describe it.

``context.get_hparams()`` gives the tree that the search space describes: ``blocks`` is a list with
an item for each layer, and each item is a map with the ``name`` of its type and what that has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from hpcdet import pytorch

VALIDATION = 360
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


def digits(training: bool) -> TensorDataset:
    """scikit-learn's images, float32[1, 8, 8] in 0 to 1, with labels."""
    images, labels = load_digits(return_X_y=True)
    part = slice(None, -VALIDATION) if training else slice(-VALIDATION, None)
    scaled = images[part].reshape(-1, 1, 8, 8).astype(np.float32) / 16
    return TensorDataset(torch.from_numpy(scaled), torch.from_numpy(labels[part]))


class Residual(nn.Module):
    """Adds its input to what its layers make of it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def convolution(channels: int, block: dict[str, Any], act: Callable[[], nn.Module]) -> nn.Module:
    out, kernel = block["channels"], block["kernel"]
    layer = nn.Conv2d(channels, out, kernel, padding=kernel // 2)
    return nn.Sequential(layer, nn.BatchNorm2d(out), act())


def residual(channels: int, block: dict[str, Any], act: Callable[[], nn.Module]) -> nn.Module:
    inner = channels * block["expansion"]
    return Residual(
        nn.Conv2d(channels, inner, 3, padding=1),
        nn.BatchNorm2d(inner),
        act(),
        nn.Conv2d(inner, channels, 1),
    )


def pooling(channels: int, block: dict[str, Any], act: Callable[[], nn.Module]) -> nn.Module:
    return nn.MaxPool2d(2) if block["kind"] == "max" else nn.AvgPool2d(2)


BLOCKS = {"convolution": convolution, "residual": residual, "pooling": pooling}


def head(features: int, wanted: dict[str, Any], act: Callable[[], nn.Module]) -> nn.Module:
    """From the last block to ten classes."""
    if wanted["name"] == "linear":
        return nn.Linear(features, 10)
    hidden = wanted["hidden"]
    dropout = nn.Dropout(wanted["dropout"])
    return nn.Sequential(nn.Linear(features, hidden), act(), dropout, nn.Linear(hidden, 10))


def network(hparams: dict[str, Any]) -> nn.Module:
    """The network that one sample of the search space describes."""
    act = ACTIVATIONS[hparams["activation"]]
    channels, size = hparams["stem"], 8
    layers: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=1)]
    for block in hparams["blocks"]:
        layers.append(BLOCKS[block["name"]](channels, block, act))
        channels = block.get("channels", channels)
        size //= 2 if block["name"] == "pooling" else 1
    return nn.Sequential(*layers, nn.Flatten(), head(channels * size**2, hparams["head"], act))


class ArchitectureTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        hparams = context.get_hparams()
        self.model = context.wrap_model(network(hparams))
        rate = hparams["learning_rate"]
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=rate))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(digits(training=True), batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(digits(training=False), batch_size=120)

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
