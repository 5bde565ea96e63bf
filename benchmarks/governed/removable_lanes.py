"""Data that can be taken out again: two languages, one of which is to be forgotten.

After Shilov et al. 2025 (arXiv:2512.05648) on a small scale. Language A is one half of a text,
language B the other half with its letters exchanged. 32 of the 256 units of each MLP are a lane
(``pytorch.Lane``) that B may change; embeddings and head are both languages'. Afterwards the
lanes are switched off: A should be known as well as without B, and B as little.
"""

from __future__ import annotations

import functools
import string
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from governed.character_model import CONTEXT, Characters, Ids, mean_loss, rows_at, text
from governed.routed_training import ActivationGate, Routed, policy
from hpcdet.guard.routing.row_sources import RowSources
from hpcdet.policy.compiled import LayerGroup

STEPS, HALF, UNITS = 300, 16, 32
"""So many steps give the losses that the other program has after 900."""
UNDISCOVERED = 0.1
LAYERS = (
    LayerGroup("joint", r"^(words|places|norm|head)\."),
    LayerGroup("trunk", r"^blocks\.\d+\.(before|between|attention|up|down)\."),
    LayerGroup("lane", r"\.lane\.", lane=True),
    LayerGroup("activations", "^ $"),
)
FORGET, RETAIN, UNLABELLED = 0, 1, 2


@dataclass(frozen=True)
class Setting:
    """A way to keep language B apart.

    Attributes:
        reference: losses of A and of B without lanes, and of B with them, by another program.
        forget, retain: weights in joint layers, the trunk, the lane, and of activations.
        users: sources whose rows use the lane; none: there is none, all units are the trunk's.
        labelled: the share of A's rows that are known to be A; others are unlabelled.
        drops: rows of B that are known to be B are left out.
        hidden: B's rows of a tenth of its text are not known to be B: they are unlabelled where
            such rows use the lane, and else pass as A's.
    """

    name: str
    reference: tuple[float | None, ...]
    forget: tuple[float, ...] = (1, 0, 1, 1)
    retain: tuple[float, ...] = (1, 1, 0, 1)
    users: tuple[str, ...] = ("forget",)
    labelled: float = 1.0
    drops: bool = False
    hidden: bool = False


_SGTM: Any = {"users": ("forget", "unlabelled"), "labelled": 0.25}
_CLOUD: Any = {**_SGTM, "forget": (1, 1, 1, 0)}
SETTINGS = {
    "1": Setting("0 %, no filter", (2.194, 1.999, 1.999), forget=(1, 1, 1, 1), users=()),
    "2": Setting("0 %, perfect filter", (2.118, 3.842, None), drops=True),
    "3": Setting("0 %, lane isolated", (2.119, 3.830, 2.066)),
    "4": Setting("0 %, SGTM, a quarter labelled", (2.627, 3.276, 2.488), **_SGTM),
    "5": Setting("0 %, activation routing, the same", (2.275, 3.245, 2.105), **_CLOUD),
    "6": Setting("10 %, filter", (2.161, 2.398, None), drops=True, hidden=True),
    "7": Setting("10 %, lane isolated", (2.113, 3.771, 2.052), hidden=True,
                 users=("forget", "unlabelled")),
    "7a": Setting("10 %, lane isolated, undiscovered as A", (None, None, None), hidden=True),
    "8": Setting("10 %, SGTM, a quarter labelled", (2.498, 3.404, 2.277), hidden=True, **_SGTM),
    "9": Setting("10 %, activation routing, the same", (2.256, 3.206, 2.090), hidden=True,
                 **_CLOUD),
}  # fmt: skip


def train(name: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train one setting; losses per character of both languages without lanes, and of B with them.

    Where rows of B are left out its lane has learned nothing, and the last loss is None.
    """
    setting = SETTINGS[name]
    first, other, entries = languages(seed)
    ends = [int(0.9 * len(one)) for one in (first, other)]
    torch.manual_seed(seed)
    gated = min(setting.forget[-1], setting.retain[-1]) < 1
    model = Characters(entries, UNITS if setting.users else 0, setting.users, gated=gated)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, fused=True)
    others = (1, 1, float("unlabelled" in setting.users), 1)
    may_change = {"forget": setting.forget, "retain": setting.retain, "unlabelled": others}
    gates = [one for one in model.modules() if isinstance(one, ActivationGate)]
    routed = Routed(policy(LAYERS, may_change), model, optimizer, gates)
    draw = np.random.Generator(np.random.PCG64(seed))
    for _ in range(steps):
        begins = [draw.integers(0, end - CONTEXT - 1, HALF) for end in ends]
        codes = _codes(setting, begins[1], ends[1], draw)
        rows = [
            rows_at(ids[:end], at)
            for ids, end, at in zip((first, other), ends, begins, strict=True)
        ]
        batch = torch.cat(rows)
        if setting.drops:
            kept = np.flatnonzero(codes != FORGET)
            batch, codes = batch[kept], codes[kept]
        routed.backward(codes, functools.partial(_mean, model, batch))
        routed.step()
    found = {
        "retain": mean_loss(model, first[ends[0] :]),
        "forget": mean_loss(model, other[ends[1] :]),
    }
    with routed.router.evaluated(RowSources([frozenset(setting.users)], np.zeros(1, np.int64))):
        before = None if setting.drops else mean_loss(model, other[ends[1] :])
    return {**found, "forget before": before}


def _mean(model: Characters, batch: torch.Tensor) -> torch.Tensor:
    return model.loss(batch).mean()


def _codes(setting: Setting, of_other: Ids, end: int, draw: np.random.Generator) -> Ids:
    """The sources of the rows of a batch, as far as they are known."""
    hidden = np.flatnonzero(setting.hidden & (of_other < UNDISCOVERED * end))
    codes = np.repeat([RETAIN, FORGET], HALF)
    codes[HALF + hidden] = UNLABELLED if "unlabelled" in setting.users else RETAIN
    unknown = (codes == RETAIN) & (draw.random(2 * HALF) >= setting.labelled)
    codes[unknown] = UNLABELLED
    return codes


@functools.cache
def languages(seed: int) -> tuple[Ids, Ids, int]:
    """Both languages' texts, and the number of characters."""
    _, ids, alphabet = text()
    half = len(ids) // 2
    draw = np.random.Generator(np.random.PCG64(1000 + seed))
    exchanged = np.arange(len(alphabet))
    for letters in (string.ascii_lowercase, string.ascii_uppercase):
        places = np.array([alphabet.index(one) for one in letters if one in alphabet])
        exchanged[places] = draw.permutation(places)
    return ids[:half], exchanged[ids[half:]], len(alphabet)
