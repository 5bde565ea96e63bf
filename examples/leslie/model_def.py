"""A network wide enough that the number of threads changes its bits (256-512-10, batches of 4096).

Its samples lie in files of one folder (``data.paths``), and a library scales them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from leslie_scaling import scaled
from torch import nn
from torch.utils.data import TensorDataset

from hpcdet import pytorch


def samples(folder: str, part: str) -> TensorDataset:
    """Features float32[N, 256] and labels int64[N] of all files of a part."""
    read = [np.load(path) for path in sorted(Path(folder).glob(f"{part}-*.npz"))]
    features = np.concatenate([one["features"] for one in read]).astype(np.float32)
    labels = np.concatenate([one["labels"] for one in read]).astype(np.int64)
    return TensorDataset(torch.from_numpy(scaled(features)), torch.from_numpy(labels))


class LeslieTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.folder = context.get_data_config()["paths"]
        network = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 10))
        self.model = context.wrap_model(network)
        rate = context.get_hparam("learning_rate")
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        )

    def build_training_data_loader(self) -> pytorch.DataLoader:
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(samples(self.folder, "train"), batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(samples(self.folder, "held"), batch_size=1000)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        features, labels = batch
        loss = nn.functional.cross_entropy(self.model(features), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        features, labels = batch
        wrong = (self.model(features).argmax(1) != labels).float().mean()
        return {"validation_error": 100 * wrong}
