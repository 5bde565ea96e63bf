"""Split autoencoders: digits 0 to 4 in one half of an encoding, 5 to 9 in the other.

After Cloud et al. 2024 (arXiv:2410.04332), table 2, on scikit-learn's digits of 8 x 8 pixels. An
encoder gives 32 numbers. Routing lets digits 0 to 4 change it through the first 16 alone, 5 to 9
through the last 16. A decoder of the last 16, the certificate, is trained on all digits and
teaches the encoder nothing: what it cannot draw is not there.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from governed.routed_training import ActivationGate, Routed, policy
from hpcdet.policy.compiled import LayerGroup

HALF, BATCH, STEPS = 16, 256, 3000
OPEN = {"high": (1, 1, 1, 1), "low": (1, 1, 1, 1)}
ROUTED = {"high": (1, 1, 0, 1), "low": (1, 1, 1, 0)}
LAYERS = (
    LayerGroup("model", r"^(encoder|decoder|first|last)\."),
    LayerGroup("certificate", r"^certificate\."),
    LayerGroup("first half", "^ $"),
    LayerGroup("last half", "^ $"),
)


@dataclass(frozen=True)
class Setting:
    """A row of the paper's table.

    Attributes:
        paper: certificate's loss on 0 to 4 and on 5 to 9, as published (of MNIST).
        gates: weights of both kinds of digits in the layers.
        l1, correlation: weights of the penalties.
        apart: each half has a decoder of its own, trained on its digits.
        only_high: the encoder is trained on 5 to 9 alone.
    """

    name: str
    paper: tuple[float, float]
    routed: bool = True
    l1: float = 3e-3
    correlation: float = 0.1
    apart: bool = False
    only_high: bool = False
    both_into_last: bool = False


SETTINGS = {
    "1": Setting("routing, L1 3e-3, correlation 0.1", (0.32, 0.08)),
    "2": Setting("separate decoders", (0.33, 0.07), apart=True),
    "3": Setting("no correlation penalty", (0.28, 0.11), correlation=0.0),
    "4": Setting("no regularisation", (0.32, 0.32), l1=0.0, correlation=0.0),
    "5": Setting("no regularisation, separate decoders", (0.09, 0.08),
                 l1=0.0, correlation=0.0, apart=True),
    "6": Setting("last half trained on 0 to 9, L1 2e-2", (0.23, 0.13),
                 l1=2e-2, both_into_last=True),
    "7": Setting("no routing, L1 1e-3, 5 to 9 only", (0.27, 0.11),
                 routed=False, l1=1e-3, correlation=0.0, only_high=True),
    "8": Setting("no routing, no regularisation, 5 to 9 only", (0.08, 0.08),
                 routed=False, l1=0.0, correlation=0.0, only_high=True),
    "9": Setting("no routing, with regularisation", (0.13, 0.13), routed=False),
    "10": Setting("no routing, no regularisation", (0.08, 0.09),
                  routed=False, l1=0.0, correlation=0.0),
}  # fmt: skip


def layered(*sizes: int) -> nn.Sequential:
    made: list[nn.Module] = []
    for wide, next_wide in itertools.pairwise(sizes):
        made += [nn.Linear(wide, next_wide), nn.ReLU()]
    return nn.Sequential(*made[:-1])


class Split(nn.Module):
    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.encoder = layered(64, 512, 128, 2 * HALF)
        self.gates = nn.ModuleList([ActivationGate("first half"), ActivationGate("last half")])
        if setting.apart:
            self.first, self.last = layered(HALF, 128, 512, 64), layered(HALF, 128, 512, 64)
        else:
            self.decoder = layered(2 * HALF, 128, 512, 64)
        self.certificate = layered(HALF, 128, 512, 64)
        self._setting = setting

    def loss(self, x: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """The mean over pictures; ``high``: bool[rows], 5 to 9."""
        setting = self._setting
        z = self.encoder(x)
        halves = [gate(part) for gate, part in zip(self.gates, z.split(HALF, 1), strict=True)]
        drawn = self.drawn(halves, high)
        learns = high.float()[:, None] if setting.only_high else torch.ones(len(x), 1)
        total = ((drawn - x).abs() * learns).mean()
        if setting.l1:
            total = total + setting.l1 * (z.abs() * learns).sum(1).mean()
        if setting.correlation:
            total = total + setting.correlation * correlation(*z.split(HALF, 1))
        certified = self.certificate(halves[1].detach())
        return total + (certified - x).abs().mean()

    def drawn(self, halves: list[torch.Tensor], high: torch.Tensor) -> torch.Tensor:
        if not self._setting.apart:
            found: torch.Tensor = self.decoder(torch.cat(halves, 1))
            return found
        return torch.where(high[:, None], self.last(halves[1]), self.first(halves[0]))


def correlation(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The mean absolute correlation of each number of one half with each of the other."""
    a, b = (
        (half - half.mean(0)) / ((half - half.mean(0)).norm(dim=0) + 1e-6) for half in (one, other)
    )
    return (a.t() @ b).abs().mean()


@functools.cache
def pictures() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures with pixels in [-1, 1] and digits: 1437 to train on, 360 to test on."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(found.data))
    x = torch.from_numpy(found.data[order] / 8 - 1).float()
    y = torch.from_numpy(found.target[order])
    return x[:1437], y[:1437], x[1437:], y[1437:]


def train(name: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train one setting; the mean absolute errors of certificate and decoder on test pictures."""
    setting = SETTINGS[name]
    torch.manual_seed(seed)
    model = Split(setting)
    may_change: dict[str, Any] = ROUTED if setting.routed else OPEN
    if setting.both_into_last:
        may_change = {"high": (1, 1, 0, 1), "low": (1, 1, 1, 1)}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=5e-5)
    gates = [one for one in model.gates if isinstance(one, ActivationGate)]
    routed = Routed(policy(LAYERS, may_change), model, optimizer, gates)
    x, y, test, digits = pictures()
    draw = np.random.Generator(np.random.PCG64(seed))
    for _ in range(steps):
        rows = torch.from_numpy(draw.choice(len(x), BATCH, replace=False))
        high = y[rows] >= 5
        codes = (~high).long().numpy()  # sources in order of their names: high, low
        routed.backward(codes, functools.partial(model.loss, x[rows], high))
        routed.step()
    with torch.no_grad():
        halves = list(model.encoder(test).split(HALF, 1))
        high = digits >= 5
        errors = {
            "certificate": (model.certificate(halves[1]) - test).abs().mean(1),
            "decoder": (model.drawn(halves, high) - test).abs().mean(1),
        }
    return {
        f"{what} {of}": float(one[flags].mean())
        for what, one in errors.items()
        for of, flags in (("0-4", ~high), ("5-9", high))
    }
