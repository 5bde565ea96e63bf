"""Models of three kinds with a batch each, and a policy of four layers over any of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcdet.policy.compiled import LayerGroup

LAYERS = 4


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(512, 256), nn.Embedding(64, 256)
        block = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1]).expand(x.shape)
        found: torch.Tensor = self.head(self.norm(self.blocks(self.words(x) + self.places(places))))
        return found


def mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if after > before else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


Made = tuple[nn.Module, torch.Tensor, torch.Tensor]

MODELS: dict[str, Callable[[], Made]] = {
    "mlp": lambda: (mlp(), torch.randn(256, 512), torch.randint(0, 10, (256,))),
    "cnn": lambda: (cnn(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))),
    "transformer": lambda: (
        Transformer(),
        torch.randint(0, 512, (16, 64)),
        torch.randint(0, 512, (16, 64)),
    ),
}


def losses(y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The loss of each row, [rows]."""
    found = functional.cross_entropy(y.flatten(0, -2), wanted.flatten(), reduction="none")
    return found.reshape(len(wanted), -1).mean(1)


def groups(model: nn.Module) -> list[LayerGroup]:
    """Modules with parameters dealt to layers in the order of the model."""
    owners = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_parameters()))
    parts = np.array_split(np.array(owners), LAYERS)
    return [
        LayerGroup(f"l{n}", "|".join(f"^{one}\\.[^.]+$" for one in part))
        for n, part in enumerate(parts)
    ]


def matrix(sources: int) -> np.ndarray:
    return np.array([[float((s + n) % 2 or s == n) for n in range(LAYERS)] for s in range(sources)])


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of this thread's processor: other processes stretch them least."""
    begin = time.thread_time()
    call()
    return 1000 * (time.thread_time() - begin)
