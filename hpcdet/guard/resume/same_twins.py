"""The withheld records beside those that a checkpoint was trained without: part of check 19."""

from __future__ import annotations

from typing import Any

from hpcdet.guard.resume.verdicts import NO_OVERRIDES, Check, Overrides, broken
from hpcdet.guard.withheld import WithheldTwins


def same_twins(
    now: WithheldTwins | None, saved: Any, overrides: Overrides = NO_OVERRIDES, *, inherited: bool
) -> list[Check]:
    """Go on with the twins of a checkpoint, of which the withheld ones are in no batch.

    An heir of weights that may have seen them has twins that say nothing, and goes on.

    Args:
        now: of this trial's data; None: there are none.
        saved: of the checkpoint, as ``WithheldTwins.encode`` makes it; None: it has none.

    Raises:
        GovernanceBroken: a trial's own were others (G119).
    """
    if now is None:
        return []
    if inherited:
        now.inherit(saved)
        outcome = "recorded" if now.void else "passed"
        return [Check(19, "G119", outcome, now.void)]
    if not now.are(saved):
        wrong = broken(
            "G119",
            "other records were withheld from its training than are now",
            hint="put back the key of the twins and the data that were there at submission",
        )
        found = [overrides.settle(19, wrong)]
        now.inherit(saved)  # the weights may have seen what is withheld now
        return found
    now.load(saved)
    return []
