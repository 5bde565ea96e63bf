"""The outcome of a check at a resume, and the error of one that stops a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcdet.policy.codes import GovernanceBroken

SCHEMA = 1
"""Of a governance state."""
State = dict[str, Any]
"""Of a guard in a checkpoint, as ``GovernanceState.encode`` makes it."""


@dataclass(frozen=True)
class Check:
    """A check of a resume.

    Attributes:
        number: in the reference; ``code``: its G code.
        outcome: ``passed``, ``recorded``, ``warned``, ``dropped`` (a source) or ``unknown``; what
            stops a trial is raised.
        detail: what was found.
    """

    number: int
    code: str
    outcome: str
    detail: str = ""


def broken(code: str, what: str, hint: str = "") -> GovernanceBroken:
    """The error of a check that stops a trial."""
    return GovernanceBroken(code, what, where="checkpoint", hint=hint)
