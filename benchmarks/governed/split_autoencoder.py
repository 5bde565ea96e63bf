"""Split autoencoders: digits 0 to 4 in one half of an encoding, 5 to 9 in the other.

After Cloud et al. 2024 (arXiv:2410.04332), table 2, on scikit-learn's digits of 8 x 8 pixels. An
encoder gives 32 numbers. Routing lets digits 0 to 4 change it through the first 16 alone, 5 to 9
through the last 16. A decoder of the last 16, the certificate, is trained on all digits and
teaches the encoder nothing: what it cannot draw is not there. Losses are those of the published
code (github.com/kxcloud/gradient-routing, projects/mnist), means over 0 to 4 and over 5 to 9 with
penalties over all digits, but for ``Setting.drawn``. Batches are of 256 pictures, theirs of 2048.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from governed.routed_training import ActivationGate, Codes, Routed, policy
from hpcdet.policy.compiled import LayerGroup

HALF, BATCH, STEPS = 16, 256, 3000
OPEN = {"high": (1, 1, 1, 1), "low": (1, 1, 1, 1)}
ROUTED = {"high": (1, 1, 0, 1), "low": (1, 1, 1, 0)}
BOTH = {"high": (1, 1, 0, 1), "low": (1, 1, 1, 1)}
LAYERS = (
    LayerGroup("model", r"^(encoder|decoders)\."),
    LayerGroup("certificate", r"^certificate\."),
    LayerGroup("first half", "^ $"),
    LayerGroup("last half", "^ $"),
)
"""Of a policy's layers those of the halves hold no parameters: gates route activations there."""


@dataclass(frozen=True)
class Setting:
    """A row of the paper's table.

    Attributes:
        paper: certificate's loss on 0 to 4 and on 5 to 9, as published (of MNIST).
        may_change: weights of both kinds of digits in the layers.
        l1: weights of the penalty on the first and on the last half.
        correlation: weight of the penalty on what both halves have in common.
        apart: 0 to 4 and 5 to 9 have decoders of their own; each reads both halves.
        only_high: 5 to 9 alone are drawn; penalties are those of all digits, as published.
        drawn: weight of both means in the loss. Published is 1, and penalties are too weak then.
    """

    name: str
    paper: tuple[float, float]
    may_change: Any = None
    l1: tuple[float, float] = (3e-3, 3e-3)
    correlation: float = 0.1
    apart: bool = False
    only_high: bool = False
    drawn: float = 0.5


_NO_L1 = (0.0, 0.0)
SETTINGS = {
    "1": Setting("routing, L1 3e-3, correlation 0.1", (0.32, 0.08), ROUTED),
    "2": Setting("separate decoders", (0.33, 0.07), ROUTED, apart=True),
    "3": Setting("no correlation penalty", (0.28, 0.11), ROUTED, correlation=0.0),
    "4": Setting("no regularisation", (0.32, 0.32), ROUTED, _NO_L1, 0.0),
    "5": Setting("no regularisation, separate decoders", (0.09, 0.08), ROUTED, _NO_L1, 0.0,
                 apart=True),
    "6": Setting("last half trained on 0 to 9, L1 2e-2", (0.23, 0.13), BOTH, (3e-3, 2e-2)),
    "7": Setting("no routing, L1 1e-3, 5 to 9 only", (0.27, 0.11), OPEN, (1e-3, 1e-3), 0.0,
                 only_high=True),
    "8": Setting("no routing, no regularisation, 5 to 9 only", (0.08, 0.08), OPEN, _NO_L1, 0.0,
                 only_high=True),
    "9": Setting("no routing, with regularisation", (0.13, 0.13), OPEN),
    "10": Setting("no routing, no regularisation", (0.08, 0.09), OPEN, _NO_L1, 0.0),
    "1p": Setting("1, the weight of drawing as published", (0.32, 0.08), ROUTED, drawn=1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """The pictures of a batch, on all of ``world`` ranks together."""

    low: int
    high: int
    world: int = 1

    @staticmethod
    def of(high: torch.Tensor, world: int = 1) -> Batch:
        """By the flags of all rows, bool[rows]."""
        return Batch(int((~high).sum()), int(high.sum()), world)


def layered(*sizes: int, bias: bool = True) -> nn.Sequential:
    """Linear layers with ReLU between them; ``bias``: the last one has one."""
    made: list[nn.Module] = []
    for wide, next_wide in itertools.pairwise(sizes[:-1]):
        made += [nn.Linear(wide, next_wide), nn.ReLU()]
    return nn.Sequential(*made, nn.Linear(*sizes[-2:], bias=bias))


class Split(nn.Module):
    """An encoder in two halves, its decoder or two of them, and the certificate.

    Attributes:
        everyone: the encodings of the whole batch from those of a rank's rows.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.encoder = layered(64, 512, 128, 2 * HALF, bias=False)
        self.gates = nn.ModuleList([ActivationGate("first half"), ActivationGate("last half")])
        self.decoders = nn.ModuleList(
            layered(2 * HALF, 128, 512, 64) for _ in range(2 if setting.apart else 1)
        )
        self.certificate = layered(HALF, 128, 512, 64)
        self.everyone: Callable[[torch.Tensor], torch.Tensor] = lambda z: z
        self._setting = setting

    def loss(self, x: torch.Tensor, high: torch.Tensor, batch: Batch) -> torch.Tensor:
        """A rank's part of the loss; the mean over ranks is the batch's.

        Args:
            x: float[rows, 64]; ``high``: bool[rows], 5 to 9.
        """
        setting = self._setting
        z = self.encoder(x)
        halves = [gate(part) for gate, part in zip(self.gates, z.split(HALF, 1), strict=True)]
        scale = setting.drawn * batch.world
        of_low = 0.0 if setting.only_high else scale / batch.low
        weight = torch.where(high, scale / batch.high, of_low)
        total = (error(self.drawn(halves, high), x) * weight).sum()
        rows = (batch.low + batch.high) / batch.world
        total = total + error(self.certificate(halves[1].detach()), x).sum() / rows
        for one, half in zip(setting.l1, z.split(HALF, 1), strict=True):
            total = total + one * half.abs().sum() / rows
        if setting.correlation:
            total = total + setting.correlation * correlation(*self.everyone(z).split(HALF, 1))
        return total

    def drawn(self, halves: list[torch.Tensor], high: torch.Tensor) -> torch.Tensor:
        """Pictures from both halves, float[rows, 64]."""
        z = torch.cat(halves, 1)
        drawn = [decoder(z) for decoder in self.decoders]
        return torch.where(high[:, None], drawn[-1], drawn[0])


def error(drawn: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The mean absolute error of each picture, float[rows]."""
    return (drawn - x).abs().mean(1)


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


def floor() -> dict[str, float]:
    """Errors of the best picture that is the same for all: the median of each pixel."""
    x, _, test, digits = pictures()
    return _by_kind("certificate", x.median(0).values.expand(test.shape), test, digits >= 5)


def sources(high: torch.Tensor) -> Codes:
    """Places of the rows' sources in the order of their names: high, low."""
    codes: Codes = (~high).long().numpy()
    return codes


def train(name: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train one setting; the errors of certificate and decoder on test pictures."""
    setting = SETTINGS[name]
    torch.manual_seed(seed)
    model = Split(setting)
    routed = route(model, setting)
    x, y, test, digits = pictures()
    draw = np.random.Generator(np.random.PCG64(seed))
    for _ in range(steps):
        rows = torch.from_numpy(draw.choice(len(x), BATCH, replace=False))
        high = y[rows] >= 5
        loss = functools.partial(model.loss, x[rows], high, Batch.of(high))
        routed.backward(sources(high), loss)
        routed.step()
    with torch.no_grad():
        halves = list(model.encoder(test).split(HALF, 1))
        high = digits >= 5
        return {
            **_by_kind("certificate", model.certificate(halves[1]), test, high),
            **_by_kind("decoder", model.drawn(halves, high), test, high),
        }


def route(model: Split, setting: Setting) -> Routed:
    """The model, its optimizer (as published) and its gates under the setting's policy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=5e-5, fused=True)
    gates = [one for one in model.gates if isinstance(one, ActivationGate)]
    return Routed(policy(LAYERS, setting.may_change), model, optimizer, gates)


def _by_kind(
    what: str, drawn: torch.Tensor, x: torch.Tensor, high: torch.Tensor
) -> dict[str, float]:
    """Mean absolute and mean squared errors on 0 to 4 and on 5 to 9."""
    found = {}
    for of, rows in (("0-4", ~high), ("5-9", high)):
        found[f"{what} {of}"] = float(error(drawn[rows], x[rows]).mean())
        found[f"{what} {of} squared"] = float((drawn[rows] - x[rows]).square().mean())
    return found
