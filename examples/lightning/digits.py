"""scikit-learn's digits, float32[64] in 0 to 1, with noise for training."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

VALIDATION = 360


class Digits(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, training: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        part = slice(None, -VALIDATION) if training else slice(-VALIDATION, None)
        self.images = torch.from_numpy(images[part].astype(np.float32) / 16)
        self.labels = labels[part]
        self.noise = 0.05 if training else 0.0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index] + self.noise * torch.randn(64), int(self.labels[index])
