"""Findings as data, and the commands that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpcdet.store.folder import home
from hpcdet.store.folder.layout import ExperimentPaths

Kind = Literal["state", "pending", "failure", "restart", "progress", "slow", "origin", "decision"]


@dataclass(frozen=True)
class FindingView:
    """A finding on an experiment or one of its trials."""

    about: str
    """The experiment, or the trial as ``ID/3``."""
    finding: str
    """What was found."""
    evidence: list[str]
    """Lines that show it."""
    next: str
    """What to do: a command, or a change of the config; "" for nothing."""
    kind: Kind
    """Its kind."""


class Commands:
    """Words of commands in findings, for a reader who knows nothing of the site."""

    def called(self, paths: ExperimentPaths, trial: int = 0) -> str:
        """Return the words for an experiment or trial in a command."""
        return home.called(paths, trial)

    def may_decide(self) -> str:
        """Return which verb of ``searcher`` is welcome on this site's login nodes."""
        return "run --once"

    def look(self, jobs: list[str]) -> str:
        """Return the scheduler's command that shows when jobs may start; "" without one."""
        return ""

    def by_hand(self, script: str) -> str:
        """Return the command that submits a prepared job; the script alone if it is not known."""
        return script


def finding(
    kind: Kind, about: str, finding: str, next: str = "", evidence: Sequence[str] = ()
) -> FindingView:
    """Return a finding."""
    return FindingView(about, finding, list(evidence), next, kind)
