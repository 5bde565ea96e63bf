"""Data sets of the right shapes whose classes can be told apart; nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

SIZE = int(os.environ.get("STUB_SIZE", "1024"))
"""Images to train on; a fourth of it to validate with."""


class _Images:
    shape: tuple[int, ...] = ()

    def __init__(
        self,
        root: Any,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        download: bool = False,
        **_: Any,
    ) -> None:
        draw = np.random.default_rng(7 if train else 8)
        count = SIZE if train else SIZE // 4
        self.targets = [int(one) for one in draw.integers(0, 10, count)]
        self.data = draw.integers(0, 256, (count, *self.shape), dtype=np.uint8)
        for image, label in zip(self.data, self.targets, strict=True):
            image[label * 2 : label * 2 + 3] = 255
        self.transform = transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.data[index]
        return (self.transform(image) if self.transform else image), self.targets[index]


class MNIST(_Images):
    shape = (28, 28)


class CIFAR10(_Images):
    shape = (32, 32, 3)
