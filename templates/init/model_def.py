"""Which of two spirals does a point lie on? Replace data and network by yours."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from hpcdet import pytorch


def spirals(points: int, seed: int) -> TensorDataset:
    """Points float32[points, 2] and the spiral (0 or 1) that each lies on."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (points,), generator=draw)
    turn = 3 * math.pi * torch.rand(points, generator=draw).sqrt()
    angle = turn + math.pi * label
    place = torch.stack((angle.cos(), angle.sin()), 1) * turn[:, None] / 10
    return TensorDataset(place + 0.02 * torch.randn(points, 2, generator=draw), label)


class SpiralsTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        hidden = context.get_hparam("hidden")
        network = nn.Sequential(
            nn.Linear(2, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 2),
        )
        self.model = context.wrap_model(network)
        rate = context.get_hparam("learning_rate")
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=rate))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(spirals(2048, seed=1), batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(spirals(512, seed=2), batch_size=128)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        places, labels = batch
        loss = nn.functional.cross_entropy(self.model(places), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        places, labels = batch
        output = self.model(places)
        return {
            "validation_loss": nn.functional.cross_entropy(output, labels),
            "accuracy": (output.argmax(1) == labels).float().mean(),
        }
