"""Collate functions that mix, sort or drop samples are found; those that pad or draw are spared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from hpcdet import pytorch
from hpcdet.guard.probing.collated import rows_are_samples
from hpcdet.policy.codes import PolicyRefused

Samples = list[dict[str, Any]]


class Texts:
    """Augmented vectors with texts of several lengths, and names."""

    def __init__(self, source: int) -> None:
        self.source = source

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        words = torch.arange(3 + (index * 7 + self.source) % 5) + 100 * self.source + index
        return {"x": torch.rand(6) + self.source, "words": words, "name": f"{self.source}-{index}"}


class Together(Texts):
    """Fetches a batch at once."""

    def __getitems__(self, indices: list[int]) -> Samples:
        return [self[index] for index in indices]


def padded(samples: Samples) -> dict[str, Any]:
    words = pad_sequence([one["words"] for one in samples], batch_first=True)
    return {
        "x": torch.stack([one["x"] for one in samples]),
        "words": words,
        "name": [one["name"] for one in samples],
        "length": words.shape[1],
        "array": np.stack([one["x"].numpy() for one in samples]),
    }


def of_x(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Samples], Any]:
    return lambda samples: {**padded(samples), "x": change(padded(samples)["x"])}


def masked(samples: Samples) -> dict[str, Any]:
    """One draw over the padded batch, as of masked language models."""
    found = padded(samples)
    return {**found, "mask": torch.rand(found["words"].shape) < 0.15}


def drawn_in_turn(samples: Samples) -> dict[str, Any]:
    """As many draws for a sample as it has words."""
    draws = [torch.rand(len(one["words"])) for one in samples]
    return {**padded(samples), "draws": pad_sequence(draws, batch_first=True)}


def permuted(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x + 0.5 * x[torch.randperm(len(x))]


CLEAN: dict[str, Any] = {
    "pads": padded,
    "masks": masked,
    "draws in turn": drawn_in_turn,
    "gives nothing": lambda samples: {**padded(samples), "boxes": torch.empty(len(samples), 0)},
    "gives no values at all": lambda samples: {**padded(samples), "none": torch.empty(0)},
    "gives two rows of each": of_x(lambda x: x.repeat_interleave(2, 0)),
    "adds noise": of_x(lambda x: x + torch.randn_like(x)),
}
MIXING: dict[str, Any] = {
    "sorts": lambda samples: padded(sorted(samples, key=lambda one: -float(one["x"].sum()))),
    "sorts by length": lambda samples: padded(sorted(samples, key=lambda one: len(one["words"]))),
    "turns around": lambda samples: padded(samples[::-1]),
    "turns on": lambda samples: padded([*samples[1:], samples[0]]),
    "takes half of them twice": lambda samples: padded(samples[: len(samples) // 2] * 2),
    "mixes": of_x(lambda x: 0.5 * x + 0.5 * x.flip(0)),
    "mixes by chance": of_x(permuted),
    "centres": of_x(lambda x: x - x.mean(0)),
    "divides by the greatest": of_x(lambda x: x / x.max()),
    "gives views behind each other": of_x(lambda x: torch.cat([x, x])),
    "gives the mean": of_x(lambda x: x.mean()),
}


def probe(collate: Any, kind: type[Texts] = Texts) -> None:
    data = pytorch.Sourced({name: kind(number) for number, name in enumerate("abc")})
    loader = pytorch.DataLoader(data, batch_size=12, collate_fn=collate)
    draw = np.random.Generator(np.random.PCG64(3))
    for _ in range(3):
        indices = draw.permutation(60)[:12]
        before = torch.get_rng_state()
        rows_are_samples(indices, indices // 20, "abc", lambda some: loader.collated(some, 7, 0))
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("kind", [Texts, Together])
def test_collating_that_keeps_samples_apart_is_spared(name: str, kind: type[Texts]) -> None:
    probe(CLEAN[name], kind)


@pytest.mark.parametrize("name", MIXING)
def test_collating_that_does_not_is_found(name: str) -> None:
    with pytest.raises(PolicyRefused, match="P12: the collate function"):
        probe(MIXING[name])


def test_samples_that_are_all_alike_are_spared() -> None:
    loader = pytorch.DataLoader(torch.ones(60, 6), batch_size=12)
    indices = np.arange(0, 60, 5)
    rows_are_samples(indices, indices // 20, "abc", lambda some: loader.collated(some, 7, 0))
