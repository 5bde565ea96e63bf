"""Records that an experiment's key chooses: their tests, and their entry in a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcdet.policy.memorization import twin_keys

Losses = NDArray[np.float64]
"""Of some records, float64[records]."""
Level = Callable[[int, int], float]
"""The level of a test, from the looks that the trial has had before and the tests of each."""
Verdict = TypeVar("Verdict")
"""Of the records of one source."""


class AbstractKeyedRecords(ABC, Generic[Verdict]):
    """Records chosen by a key, by which a trial's memorization is tested.

    Attributes:
        max_advantage: that the policy permits.
        commitment: to the key.
        level: of a test.
        looks: tests that the trial has had.
        verdicts: of the last test, by source.
        void: why the records say nothing of this trial's weights; "" if they do.
    """

    KIND: ClassVar[str]
    """What evidence and a checkpoint call them."""
    NAMED: ClassVar[str]
    """What a checkpoint calls the digest of the chosen records."""
    OTHERS: ClassVar[str]
    """What is wrong with weights that were trained with others."""

    def __init__(self, max_advantage: float, commitment: str, level: Level) -> None:
        self.max_advantage = max_advantage
        self.commitment = commitment
        self.level = level
        self.looks = 0
        self.verdicts: dict[str, Verdict] = {}
        self.void = ""

    @property
    @abstractmethod
    def digest(self) -> str:
        """The digest of the chosen records, which a checkpoint names without naming them."""

    @property
    @abstractmethod
    def tests(self) -> int:
        """Tests at each look: sources that have such records."""

    @abstractmethod
    def _judged(self, losses: Losses, alpha: float) -> dict[str, Verdict]:
        """The verdicts on a model by its losses, each at a level."""

    @staticmethod
    @abstractmethod
    def _figures(verdict: Verdict) -> dict[str, Any]:
        """A verdict as plain data."""

    def judge(self, losses: Losses, beside: int = 0) -> dict[str, Verdict]:
        """Judge a model by its losses on the records; nothing where they are void.

        Each call is a look, and is counted.

        Args:
            losses: of the records of ``indices``.
            beside: tests of other kinds at the same look, which share its level.
        """
        look, self.looks = self.looks, self.looks + 1
        if self.void:
            return {}
        self.verdicts = self._judged(losses, self.level(look, self.tests + beside))
        return self.verdicts

    def evidence(self) -> dict[str, Any]:
        """The evidence of the last look, as plain data: of each source the figures."""
        verdicts = {} if self.void else self.verdicts
        figures = {source: self._figures(one) for source, one in verdicts.items()}
        return {"look": self.looks, "void": self.void, self.KIND: figures}

    # -- state -------------------------------------------------------------------------------

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
