"""The rules for retrying a trial whose last attempts failed or brought no progress.

Faults of the user's code count against ``max_restarts``. Everything else may happen without
limit while the trial gets on; without progress, each cause has a budget of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from hpcdet import units
from hpcdet.store.folder.records import NO_FAULT, End, Reason, Verdict

BUDGETS: dict[Reason, int] = {
    "preempted": 50,
    "canceled": 20,
    "node_fail": 10,
    "lost": 20,
    "unproven": 100,
    "walltime": 3,
    "launch_failed": 3,
}
"""Ends in a row without progress, by cause, after which a trial is given up. An allocation that
is too short, or a program that never starts, will not get better by patience; an intruder may."""


@dataclass(frozen=True)
class Judgement:
    """The decision: try ``again``, or else the reason for the searcher and a line for the user."""

    again: bool
    why: str
    reason: Literal["failed", "invalid_hp"] = "failed"


def judge(ends: Sequence[End], verdict: Verdict | None, max_restarts: int) -> Judgement:
    """Decide whether a trial is tried again after these ends.

    Args:
        ends: ends of the trial's attempts that count, ascending, not empty.
        verdict: that of the last attempt.
    """
    last = ends[-1]
    if verdict is not None and verdict.verdict == "norestart":
        why = verdict.error or "trying again cannot help"
        return Judgement(False, why, "failed" if verdict.unrecoverable else "invalid_hp")
    if last.final and last.reason not in NO_FAULT:
        named = ", ".join(last.policies)
        return Judgement(False, f"log policy {named}: {last.error or last.reason}")
    faults = [end for end in ends if end.reason in ("user_error", "oom")]
    faults += launches_failed_elsewhere(ends)
    if len(faults) > max_restarts:
        error = last.error or last.reason
        failed = units.counted(len(faults), "time")
        return Judgement(False, f"failed {failed} (max_restarts {max_restarts}): {error}")
    idle = list(takewhile(_is_idle, reversed(ends)))
    for reason, budget in BUDGETS.items():
        count = sum(end.reason == reason for end in idle)
        if count >= budget:
            error = f": {last.error}" if last.error else ""
            why = f"no progress: {reason.replace('_', ' ')} {count} times in a row{error}"
            return Judgement(False, why)
    return Judgement(True, last.error or last.reason)


def launches_failed_elsewhere(ends: Sequence[End]) -> list[End]:
    """Return failed launches that follow one on other nodes: the nodes are not at fault."""
    found: list[End] = []
    before: set[str] = set()
    for end in ends:
        if end.reason == "launch_failed":
            if before and before.isdisjoint(end.nodes):
                found.append(end)
            before.update(end.nodes)
        elif end.first_step or end.progressed:
            before.clear()
    return found


def black_holes(ends: Sequence[End]) -> set[str]:
    """Return the nodes on which two launches in a row failed. ``ends``: of all trials, by time."""
    streak: dict[str, int] = {}
    bad: set[str] = set()
    for end in ends:
        for node in end.nodes:
            streak[node] = streak.get(node, 0) + 1 if end.reason == "launch_failed" else 0
            if streak[node] >= 2:
                bad.add(node)
    return bad


def _is_idle(end: End) -> bool:
    return end.reason in NO_FAULT and not end.progressed
