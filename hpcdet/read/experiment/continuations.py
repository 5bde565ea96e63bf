"""Causes of a trial's further attempts: restarts after interruptions, and promotions."""

from __future__ import annotations

from itertools import pairwise

from hpcdet.read.experiment.gather import GatheredTrial
from hpcdet.store.trials.controls import BY_USER

_WANTED = ("completed", "paused", "stopped")
"""Ends that were asked for: what goes on after one was not cut short."""


def restarts(trial: GatheredTrial) -> int:
    """Return how many attempts followed one that had not reached its target.

    Claims that were given back before anything ran are no attempts.
    """
    return sum(reason not in _WANTED for reason, _ in pairwise(_ends(trial)))


def promotions(trial: GatheredTrial) -> int:
    """Return how often the search continued a trial, after a pause or at its target."""
    paused, found = False, 0
    for control in trial.controls:
        if control.action == "run":
            found += paused
            paused = False
        elif control.action == "pause" and control.why != BY_USER:
            paused = True
    return found + sum(reason == "completed" for reason, _ in pairwise(_ends(trial)))


def _ends(trial: GatheredTrial) -> list[str]:
    """Return the reasons of the attempts' ends; "" for one that has not ended."""
    reasons = (attempt.end.reason if attempt.end is not None else "" for attempt in trial.attempts)
    return [reason for reason in reasons if reason != "released"]
