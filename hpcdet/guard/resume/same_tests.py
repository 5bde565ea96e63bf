"""Withheld records and canaries beside those of a checkpoint's training: part of check 19."""

from __future__ import annotations

from typing import Any

from hpcdet.guard.memorization_tests import MemorizationTests
from hpcdet.guard.planted import PlantedCanaries
from hpcdet.guard.resume.resume_verdicts import NO_OVERRIDES, Check, Overrides, State, broken
from hpcdet.guard.withheld import WithheldTwins


def same_tests(
    tests: MemorizationTests, state: State, overrides: Overrides = NO_OVERRIDES, *, inherited: bool
) -> list[Check]:
    """Go on with the tests of memorization of a checkpoint, as ``same_records`` does with each.

    Args:
        tests: of this trial's data.
        state: of the checkpoint, with ``twins`` and ``canaries`` where it has any.
    """
    return [
        *same_records(tests.twins, state.get("twins"), overrides, inherited=inherited),
        *same_records(tests.canaries, state.get("canaries"), overrides, inherited=inherited),
    ]


def same_records(
    now: WithheldTwins | PlantedCanaries | None,
    saved: Any,
    overrides: Overrides = NO_OVERRIDES,
    *,
    inherited: bool,
) -> list[Check]:
    """Go on with the twins of a checkpoint, of which the withheld ones are in no batch.

    Or with its canaries, all of which are in each epoch. An heir of weights that may have seen
    others has twins and canaries that say nothing, and goes on.

    Args:
        now: of this trial's data; None: there are none.
        saved: of the checkpoint, as its ``encode`` makes it; None: it has none.

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
        what = (
            "other records were withheld from its training than are now"
            if isinstance(now, WithheldTwins)
            else "it was trained with other canaries than there are now"
        )
        wrong = broken(
            "G119", what, hint="put back the twin key and the data that were there at submission"
        )
        found = [overrides.settle(19, wrong)]
        now.inherit(saved)  # the weights may have seen what is withheld now
        return found
    now.load(saved)
    return []
