"""The controls of a trial, of which the last accepted one is in force."""

from __future__ import annotations

import dataclasses

from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import Control
from hpcdet.store.fs import packed

BY_USER = "paused by its user"
"""``why`` of a pause that a user asked for; any other pause is the search's."""


def in_force(trial: TrialPaths) -> Control | None:
    """Return the control in force for a trial, or None before the first."""
    return next(reversed(accepted(trial)), None)


def accepted(trial: TrialPaths) -> list[Control]:
    """Return a trial's accepted controls, each with the values in force when it was written.

    A control that a holder of an older term wrote after one of a newer term is ignored, and so
    is a file that cannot be read.
    """
    found: list[Control] = []
    for seq in packed.numbers(trial.controls, ".json"):
        control = Control.read(trial.control(seq))
        latest = found[-1] if found else None
        if control is None or (latest is not None and control.term < latest.term):
            continue
        until = control.until or (latest.until if latest else None)
        attempts = max(control.attempts, latest.attempts if latest else 0)
        since = max(control.since, latest.since if latest else 0)
        heard = max(control.heard, latest.heard if latest else 0)
        rewinds = max(control.rewinds, latest.rewinds if latest else [], key=len)
        found.append(
            dataclasses.replace(
                control, until=until, attempts=attempts, since=since, heard=heard, rewinds=rewinds
            )
        )
    return found
