"""A small transformer over characters, and the text that it learns: CPython's own documentation."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from governed.routed_training import ActivationGate
from hpcdet.data.source_lanes import Lane

WIDTH, BLOCKS, CONTEXT = 64, 3, 64
Ids = NDArray[np.int64]


class Block(nn.Module):
    """Attention and an MLP of 256 units, some of which may be a lane.

    Args:
        lane: units of the MLP that are a lane; ``sources``: whose rows use it.
        gated: activations of the rest are routed, too.
    """

    def __init__(self, lane: int, sources: Sequence[str], *, gated: bool) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 256 - lane), nn.Linear(256 - lane, WIDTH)
        self.gates = nn.ModuleList([ActivationGate("activations") for _ in range(2 * gated)])
        self.lane: Lane | None = None
        if lane:
            inside = nn.Sequential(
                nn.Linear(WIDTH, lane), nn.GELU(), nn.Linear(lane, WIDTH, bias=False)
            )
            self.lane = Lane(inside, source=list(sources))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        attended = self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        x = x + self._gated(0, attended)
        h = self.between(x)
        out: torch.Tensor = x + self.down(self._gated(1, functional.gelu(self.up(h))))
        return out if self.lane is None else out + self.lane(h)

    def _gated(self, number: int, h: torch.Tensor) -> torch.Tensor:
        if len(self.gates) == 0:
            return h
        found: torch.Tensor = self.gates[number](h)
        return found


class Characters(nn.Module):
    """About 165 thousand parameters."""

    def __init__(
        self, entries: int, lane: int = 0, sources: Sequence[str] = (), *, gated: bool = False
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(entries, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(lane, sources, gated=gated) for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, entries)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1]).expand(x.shape)
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), -torch.inf), 1)
        h = self.words(x) + self.places(places)
        for block in self.blocks:
            h = block(h, mask)
        found: torch.Tensor = self.head(self.norm(h))
        return found

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean negative log-likelihood of each row's characters but the first, [rows]."""
        logits = self(rows[:, :-1])
        each = functional.cross_entropy(
            logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none"
        )
        return each.reshape(len(rows), -1).mean(1)


@functools.cache
def text() -> tuple[str, Ids, str]:
    """The text, its characters' places in the alphabet, and the alphabet."""
    from pydoc_data import topics

    whole = "\n".join(topics.topics[one] for one in sorted(topics.topics))
    alphabet = "".join(sorted(set(whole)))
    places = {one: n for n, one in enumerate(alphabet)}
    return whole, np.array([places[one] for one in whole], dtype=np.int64), alphabet


def rows_at(ids: Ids, begins: Ids) -> torch.Tensor:
    """Rows of ``CONTEXT`` characters and the one behind them."""
    return torch.from_numpy(ids[begins[:, None] + np.arange(CONTEXT + 1)])


@torch.no_grad()
def mean_loss(model: Characters, ids: Ids, rows: int = 128) -> float:
    """The mean negative log-likelihood per character over rows evenly spread over a text."""
    model.eval()
    begins = np.linspace(0, len(ids) - CONTEXT - 2, rows).astype(np.int64)
    found = torch.cat([model.loss(rows_at(ids, part)) for part in np.array_split(begins, 8)])
    model.train()
    return float(found.mean())
