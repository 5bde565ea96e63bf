"""Canaries in a text: how well a model knows codes that it has seen, by where they may change it.

Ten invented codes of four digits are trained, ten others of the same kind are not. The exposure
of a code (Carlini et al. 2019) is ``log2(10^4) - log2(rank of its likelihood among all codes)``:
1.44 in the mean where nothing is known, 13.29 at most.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from governed.character_model import CONTEXT, Characters, Ids, mean_loss, rows_at, text
from governed.routed_training import Routed, policy
from hpcdet.policy.compiled import LayerGroup

STEPS, BATCH, CANARIES = 300, 32, 10
"""So many steps give the loss on other text that the other program has after 900."""
LAYERS = (
    LayerGroup("embedding", r"^(words|places)\."),
    LayerGroup("block 0", r"^blocks\.0\."),
    LayerGroup("block 1", r"^blocks\.1\."),
    LayerGroup("block 2", r"^blocks\.2\."),
    LayerGroup("head", r"^(norm|head)\."),
)


@dataclass(frozen=True)
class Setting:
    """How often each canary is trained, and which layers it may change.

    Attributes:
        reference: exposure of the trained, of others, AUC and loss, by another program.
    """

    name: str
    repeats: int
    layers: tuple[float, ...]
    reference: tuple[float, float, float, float]


_ALL = (1.0, 1.0, 1.0, 1.0, 1.0)
SETTINGS = {
    "1": Setting("1 x, all", 1, _ALL, (1.23, 1.28, 0.44, 1.910)),
    "2": Setting("4 x, all", 4, _ALL, (1.73, 1.23, 0.62, 1.910)),
    "3": Setting("16 x, all", 16, _ALL, (4.74, 0.99, 0.96, 1.912)),
    "4": Setting("64 x, all", 64, _ALL, (7.66, 0.87, 1.00, 1.944)),
    "5": Setting("64 x, last block and head", 64, (0, 0, 0, 1, 1), (6.35, 1.06, 1.00, 2.021)),
    "6": Setting("64 x, head only", 64, (0, 0, 0, 0, 1), (4.92, 1.13, 0.93, 1.918)),
    "7": Setting("64 x, embedding and block 0", 64, (1, 1, 0, 0, 0), (3.01, 1.01, 0.83, 2.027)),
    "8": Setting("64 x, filtered", 64, (0, 0, 0, 0, 0), (1.09, 1.31, 0.39, 1.911)),
}


@dataclass(frozen=True)
class Canary:
    """``prefix`` and a code of four digits."""

    prefix: str
    code: str


def train(name: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train one setting; exposures of trained and other canaries, their AUC, and the loss."""
    setting = SETTINGS[name]
    _whole, ids, alphabet = text()
    begin_of_test = int(0.9 * len(ids))
    draw = np.random.Generator(np.random.PCG64(seed))
    canaries = _invented(draw, 2 * CANARIES)
    trained, others = canaries[:CANARIES], canaries[CANARIES:]
    torch.manual_seed(seed)
    model = Characters(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, fused=True)
    may_change = {"canary": setting.layers, "text": _ALL}
    routed = Routed(policy(LAYERS, may_change), model, optimizer)
    due = draw.permutation(np.repeat(np.arange(CANARIES), setting.repeats))
    at = np.sort(draw.integers(0, steps, len(due)))
    for step in range(steps):
        rows = [rows_at(ids[:begin_of_test], draw.integers(0, begin_of_test - CONTEXT - 1, BATCH))]
        now = due[at == step]
        rows += [_row(trained[one], ids[:begin_of_test], alphabet, draw) for one in now]
        batch = torch.cat(rows)
        codes = np.array([1] * BATCH + [0] * len(now), dtype=np.int64)
        routed.backward(codes, functools.partial(_mean, model, batch))
        routed.step()
    inside, outside = ([_exposure(model, c, alphabet) for c in some] for some in (trained, others))
    wins = [(a > b) + 0.5 * (a == b) for a, b in itertools.product(inside, outside)]
    return {
        "exposure": float(np.mean(inside)),
        "exposures": inside,
        "exposure of others": float(np.mean(outside)),
        "auc": float(np.mean(wins)),
        "loss": mean_loss(model, ids[begin_of_test:]),
    }


def _mean(model: Characters, batch: torch.Tensor) -> torch.Tensor:
    return model.loss(batch).mean()


def _invented(draw: np.random.Generator, count: int) -> list[Canary]:
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return [
        Canary(f"The code of {''.join(draw.choice(letters, 5))} is ", f"{draw.integers(10**4):04}")
        for _ in range(count)
    ]


def _row(canary: Canary, ids: Ids, alphabet: str, draw: np.random.Generator) -> torch.Tensor:
    """The canary, and some text behind it."""
    ours = np.array([alphabet.index(one) for one in f"{canary.prefix}{canary.code}.\n"])
    begin = int(draw.integers(0, len(ids) - CONTEXT - 1))
    row = np.concatenate([ours, ids[begin : begin + CONTEXT + 1 - len(ours)]])
    return torch.from_numpy(row[None].astype(np.int64))


@torch.no_grad()
def _exposure(model: Characters, canary: Canary, alphabet: str) -> float:
    """Bits by which the code is more likely than a code at random would be."""
    digits = torch.tensor([alphabet.index(one) for one in "0123456789"])
    begin = torch.tensor([[alphabet.index(one) for one in canary.prefix]])
    total, before = torch.zeros(1), torch.empty((1, 0), dtype=torch.int64)
    model.eval()
    for _length in range(4):
        rows = torch.cat([begin.expand(len(before), -1), before], 1)
        found = functional.log_softmax(model(rows)[:, -1], 1)[:, digits]
        total = (total[:, None] + found).reshape(-1)
        again = before.repeat_interleave(10, 0)
        before = torch.cat([again, digits.repeat(len(before))[:, None]], 1)
    model.train()
    ours = total[int(canary.code)]
    return math.log2(10**4) - math.log2(1 + int((total > ours).sum()))
