"""Stop requests by user code, taken at a deterministic step.

When ranks hear of each other depends on how long steps take; two equal runs must end at the same
step all the same, whichever of their ranks asks, and whether they are interrupted in between.
"""

from __future__ import annotations

from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import Verdict
from hpcdet.train.comm.agreement import TOGETHER
from hpcdet.train.comm.collectives import Peers


class StopRequest:
    """The stop request of the user's code, as one rank knows it.

    Args:
        at_once: there is nobody to agree with; else all know of it ``TOGETHER`` steps later at
            the latest, having heard of the exchange that is made in any case.

    Attributes:
        asked: the first step after which somebody had asked, as far as is known here.
        obeyed: training has ended for it; what is saved now says so.
    """

    def __init__(self, *, at_once: bool) -> None:
        self.asked: int | None = None
        self.obeyed = False
        self._at_once = at_once

    def learn(self, step: int | None) -> None:
        """Take note of the step after which a rank had asked; None if no rank had."""
        if step is not None and (self.asked is None or step < self.asked):
            self.asked = step

    def anywhere(self, peers: Peers) -> int | None:
        """``asked``, as far as any rank knows; all call together."""
        for step in peers.allgather(self.asked):
            self.learn(step)
        return self.asked

    def obey(self) -> None:
        """End training here; no rank asks from now on."""
        self.asked, self.obeyed = None, True

    def close(self) -> None:
        """The attempt has ended: what is saved from now on does not record the stop."""
        self.obeyed = False

    def due(self, step: int) -> bool:
        """Whether training ends after this step."""
        if self.asked is None:
            return False
        if self._at_once:
            return True
        told = -(-self.asked // TOGETHER) * TOGETHER  # by an exchange that is read a step later
        return step > told


def told(trial: TrialPaths, checkpoint: str) -> bool:
    """Return True if a verdict of an attempt reports that a stop ended it with this checkpoint.

    One that was killed after its last save and before its verdict has not.
    """
    verdicts = (Verdict.read(attempt.verdict) for attempt in reversed(trial.attempts()))
    return any(
        one.verdict == "done" and one.cause == "stopped" and one.checkpoint == checkpoint
        for one in verdicts
        if one is not None
    )
