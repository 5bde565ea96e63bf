"""Handwritten digits (scikit-learn's, 8 x 8 pixels) with a small convolutional network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

from hpcdet import pytorch

VALIDATION = 360


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """Images float32[1, 8, 8] in 0 to 1 with labels; moved about at random for training."""

    def __init__(self, training: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        part = slice(None, -VALIDATION) if training else slice(-VALIDATION, None)
        self.images = torch.from_numpy(images[part].reshape(-1, 1, 8, 8).astype(np.float32) / 16)
        self.labels = labels[part]
        self.training = training

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        if self.training:
            shift = torch.randint(-1, 2, (2,)).tolist()
            image = torch.roll(image, shift, dims=(1, 2)) + 0.05 * torch.randn(1, 8, 8)
        return image, int(self.labels[index])


class DigitsTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        hidden = context.get_hparam("hidden")
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 16, hidden),
            nn.ReLU(),
            nn.Dropout(context.get_hparam("dropout")),
            nn.Linear(hidden, 10),
        )
        self.model = context.wrap_model(network)
        rate = context.get_hparam("learning_rate")
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=rate))
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=100, gamma=0.7)
        context.wrap_lr_scheduler(schedule, step_mode=pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(Digits(training=True), batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(Digits(training=False), batch_size=120)

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
