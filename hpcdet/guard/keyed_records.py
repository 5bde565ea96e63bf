"""Records that an experiment's key chooses: their entry in a checkpoint, and when it is void."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcdet.policy.memorization import twin_keys

Losses = NDArray[np.float64]
"""Of some records, float64[records]."""
Level = Callable[[int, int], float]
"""The level of a test, from the looks that the trial has had before and the tests of each."""


class AbstractKeyedRecords(ABC):
    """Records chosen by a key, by which a trial's memorization is tested.

    Attributes:
        commitment: to the key.
        level: of a test.
        looks: tests that the trial has had.
        void: why the records say nothing of this trial's weights; "" if they do.
    """

    NAMED: ClassVar[str]
    """What a checkpoint calls the digest of the chosen records."""
    OTHERS: ClassVar[str]
    """What is wrong with weights that were trained with others."""

    def __init__(self, commitment: str, level: Level) -> None:
        self.commitment = commitment
        self.level = level
        self.looks = 0
        self.void = ""

    @property
    @abstractmethod
    def digest(self) -> str:
        """The digest of the chosen records, which a checkpoint names without naming them."""

    def encode(self) -> dict[str, Any]:
        """Plain data for a checkpoint, equal on all ranks."""
        return {
            "commitment": self.commitment,
            self.NAMED: self.digest,
            "looks": self.looks,
            "void": self.void,
        }

    def are(self, saved: Mapping[str, Any] | None) -> bool:
        """True if a checkpoint was trained with the same choice."""
        mine = (self.commitment, self.digest)
        return saved is not None and (saved["commitment"], saved[self.NAMED]) == mine

    def inherit(self, saved: Mapping[str, Any] | None) -> None:
        """Begin with another trial's weights."""
        ancestors = [str(saved["commitment"]) if saved is not None else ""]
        self.void = str(saved["void"]) if saved is not None else ""
        self.void = self.void or twin_keys.void(self.commitment, ancestors)
        if not self.void and not self.are(saved):
            self.void = self.OTHERS

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on with this trial's own."""
        self.looks, self.void = int(saved["looks"]), str(saved["void"])
