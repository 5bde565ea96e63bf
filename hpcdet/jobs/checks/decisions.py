"""Estimates of decision delays and of the training beyond rungs meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpcdet.read.experiment.gather import gather
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import UNREADABLE
from hpcdet.read.usage.beyond_rungs import beyond, wait_s
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved

LOOK_S = 2.0
"""Seconds between two looks of a trial for what is wanted of it."""
_TURN_S = 10.0
_FORMER = 20
"""Of so many experiments the journals are read; older ones say little of the present cluster."""


@dataclass(frozen=True)
class Decisions:
    """Seconds from a report until its decision reaches the trial; ``source`` names the origin."""

    seconds: float
    source: str


def former(root: Path, wanted: Resolved) -> Decisions | None:
    """The mean in the newest experiment of that name with such data, among the last 20.

    None: none of them does.
    """
    newest = reversed(find.experiments(root))
    named = (paths for paths in newest if paths.id.rpartition("-")[0] == wanted.name)
    for paths in itertools.islice(named, _FORMER):
        with contextlib.suppress(*UNREADABLE):
            gathered = gather(paths)
            search = gathered.config.searcher
            if search.wait_at_rungs_s or not search.rungs:
                continue  # who waits hears sooner
            if found := [one.seconds for one in beyond(gathered) if one.heard]:
                return Decisions(round(statistics.mean(found), 3), paths.id)
    return None


def assumed(site: Site) -> Decisions:
    """One turn of the decider plus one poll of the trial, where there is no data."""
    turn_s = 1.0 if site.scheduler == "local" else min(_TURN_S, max(1.0, site.limits.poll_min_s))
    source = f"a turn every {turn_s:g} s, a look of the trial every {LOOK_S:g} s"
    return Decisions(turn_s + LOOK_S, source)


def estimate(
    resolved: Resolved, decisions: Decisions, unit_s: float | None, pace: str | None
) -> dict[str, Any] | None:
    """Estimate the training beyond rungs; None where no trial leaves at a rung.

    Of each bracket, so many trials leave at each rung as ``Bracket.expected`` says; each trains
    ``min(decision_s / unit_s, top - rung)`` more meanwhile, or nothing where it waits for the
    decision (``searcher.wait_at_rungs_s``).

    Returns:
        ``units`` (None where ``unit_s`` is), ``trials`` that leave at rungs, ``decision_s``,
        ``decision_by``, ``unit_s``, ``pace_by``, and ``too_fast``: neighbouring rungs between
        which less time passes than a decision takes, where trials do not wait.
    """
    search = resolved.searcher
    leaving = [
        (rung, after, count, bracket.rungs[-1])
        for bracket in search.brackets
        for (rung, after), count in zip(
            pairwise(bracket.rungs), bracket.expected(search.divisor), strict=False
        )
        if count
    ]
    if not leaving or search.time_metric is not None:
        return None
    units: int | None = None
    too_fast: list[list[int]] = []
    if unit_s is not None:
        units = 0
        for rung, after, count, top in leaving:
            if (after - rung) * unit_s <= search.wait_at_rungs_s:
                continue
            units += round(count * min(decisions.seconds / max(unit_s, 1e-9), top - rung))
            if (after - rung) * unit_s < decisions.seconds:
                too_fast.append([rung, after])
    return {
        "units": units,
        "trials": sum(count for _, _, count, _ in leaving),
        "decision_s": decisions.seconds,
        "decision_by": decisions.source,
        "unit_s": unit_s,
        "pace_by": pace,
        "too_fast": sorted(map(list, set(map(tuple, too_fast)))),
    }


def warning(found: dict[str, Any] | None, unit: str | None) -> str:
    """A warning that rungs come faster than decisions; "" where they do not, or without data."""
    if found is None or not found["too_fast"]:
        return ""
    first, second = found["too_fast"][0]
    takes = (second - first) * found["unit_s"]
    return (
        f"rungs come faster than decisions: from {first} to {second} {unit} takes about "
        f"{takes:.2g} s, a decision {found['decision_s']:.2g} s ({found['decision_by']}), so that "
        f"trials train beyond rungs; searcher.wait_at_rungs_s: {wait_s(found['decision_s'])} lets "
        "them wait, rungs farther apart avoid it"
    )
