"""Entropies of weights, and what they say of memorization: three recipes on digits.

A network of three layers learns scikit-learn's digits as they are, learns random labels by heart,
or learns a fifth of wrong labels under dropout and weight decay. An entropy is that of a layer's
singular values (Roy and Vetterli 2007, ``hpcdet.policy.measures``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from governed.split_autoencoder import pictures
from hpcdet.policy import measures

BATCH, STEPS = 128, 2000


@dataclass(frozen=True)
class Setting:
    """A recipe.

    Attributes:
        reference: entropies of the three layers and accuracy, of an earlier program.
        wrong: the share of training labels that are drawn at random.
        dropout: of both hidden layers; ``decay``: of AdamW.
    """

    name: str
    reference: tuple[float, ...]
    wrong: float = 0.0
    dropout: float = 0.0
    decay: float = 0.0


SETTINGS = {
    "1": Setting("labels as they are", (0.9775, 0.9247, 0.9912, 0.978)),
    "2": Setting("random labels, learned by heart", (0.9771, 0.8969, 0.9882, 0.10), wrong=1.0),
    "3": Setting("a fifth wrong, dropout and weight decay", (0.943, 0.855, 0.993, 0.944),
                 wrong=0.2, dropout=0.5, decay=1.0),
}  # fmt: skip


def train(name: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train one recipe; entropies of its layers, and accuracies on training and test labels."""
    setting = SETTINGS[name]
    x, true, test, digits = pictures()
    draw = np.random.Generator(np.random.PCG64(seed))
    labels = true.clone()
    wrong = torch.from_numpy(np.flatnonzero(draw.random(len(x)) < setting.wrong))
    labels[wrong] = torch.from_numpy(draw.integers(0, 10, len(wrong)))
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 10)]
    hidden = [part for one in layers[:2] for part in (one, nn.ReLU(), nn.Dropout(setting.dropout))]
    model = nn.Sequential(*hidden, layers[2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=setting.decay)
    for _ in range(steps):
        rows = torch.from_numpy(draw.choice(len(x), BATCH, replace=False))
        optimizer.zero_grad()
        functional.cross_entropy(model(x[rows]), labels[rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        entropies = [measures.spectrum(one.weight.numpy()).entropy for one in layers]
        return {
            **{f"layer {number}": value for number, value in enumerate(entropies)},
            "fitted": float((model(x).argmax(1) == labels).float().mean()),
            "test accuracy": float((model(test).argmax(1) == digits).float().mean()),
        }
