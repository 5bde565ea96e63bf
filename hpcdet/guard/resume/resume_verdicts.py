"""The outcome of a check at a resume: passed, recorded, stopped with an error, or overridden."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdet.policy.codes import GovernanceBroken

SCHEMA = 1
"""Of a governance state."""
State = dict[str, Any]
"""Of a guard in a checkpoint, as ``GovernanceState.encode`` makes it."""
_OF_HISTORY = ("G114", "G116", "G119")
"""Checks that tie weights to what they were trained on."""


@dataclass(frozen=True)
class Check:
    """A check of a resume.

    Attributes:
        number: in the reference; ``code``: its G code.
        outcome: ``passed``, ``recorded``, ``warned``, ``dropped`` (a source), ``overridden`` (it
            has failed, and somebody answers for it) or ``unknown``; what stops a trial is raised.
        detail: what was found.
    """

    number: int
    code: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Overrides:
    """The overrides that apply at one resume.

    Attributes:
        acts: by G code, ``{"number", "by", "reason", ...}`` of the record that overrides it.
        others: numbers of records that override it for other checkpoints only.
    """

    acts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)

    def settle(self, number: int, error: GovernanceBroken) -> Check:
        """A check has failed: return that it is overridden.

        Raises:
            GovernanceBroken: it is not.
        """
        act = self.acts.get(error.check)
        what = error.what.removeprefix(f"{error.check}: ")
        if act is None and (other := self.others.get(error.check)):
            hint = f"override {other:04d} is for other checkpoints: hpcdet policy override --help"
            raise GovernanceBroken(error.check, what, where=error.where, hint=hint)
        if act is None:
            raise error
        return Check(number, error.check, "overridden", f"{what}; {_answered(act)}")

    def warn(self, number: int, code: str, found: str) -> Check:
        """A check that never stops a trial: it has found this; "" if nothing is wrong."""
        if not found:
            return Check(number, code, "passed")
        act = self.acts.get(code)
        if act is None:
            return Check(number, code, "warned", found)
        return Check(number, code, "overridden", f"{found}; {_answered(act)}")


NO_OVERRIDES = Overrides()


def unproven(checks: Iterable[Check]) -> bool:
    """Whether the history of the weights is not known after these checks.

    An override lets training go on; what a failed check would have shown it does not show.
    """
    return any(
        (one.code == "G105" and one.outcome == "unknown")
        or (one.code in _OF_HISTORY and one.outcome == "overridden")
        for one in checks
    )


def broken(code: str, what: str, hint: str = "") -> GovernanceBroken:
    """The error of a check that stops a trial."""
    return GovernanceBroken(code, what, where="checkpoint", hint=hint)


def _answered(act: Mapping[str, Any]) -> str:
    return f"override {act['number']:04d} by {act['by']}: {act['reason']}"
