"""The state of an experiment in words: the headline, and the table of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcdet import units
from hpcdet.cli.frame import facts
from hpcdet.cli.frame.ids import called
from hpcdet.cli.frame.output import Column, text
from hpcdet.cli.observe import best, follow
from hpcdet.read.lookup.escapes import escaped
from hpcdet.read.views.costs import SpentView
from hpcdet.read.views.trials import TrialStatusView
from hpcdet.read.views.views import StatusView
from hpcdet.store.folder.layout import ExperimentPaths

_TRIAL = (
    Column("STATE", "state", cut=False),
    Column("STEPS", "steps", right=True),
    Column("BEST", "best", right=True),
    Column("AT", "best_step", right=True),
    Column("RESTARTS", "restarts", right=True),
    Column("PROMOTED", "promotions", right=True, wide=True),
    Column("HYPERPARAMETERS", "hyperparameters"),
    Column("PARENT", "parent", wide=True),
    Column("SEED", "seed", wide=True, right=True),
    Column("CHECKPOINT", lambda row: row.last_checkpoint and row.last_checkpoint.name, wide=True),
    Column("WHY", "why", wide=True),
)
TRIALS = (Column("TRIAL", "trial", right=True), *_TRIAL)
_WHY = 240
"""Characters of a message, at most, above the table."""
_YIELDS = {"BEST", "AT", "RESTARTS", "PROMOTED"}
LS_TRIALS = (Column("ID", "id", cut=False), *_TRIAL)


def trials(item: StatusView) -> tuple[Column, ...]:
    """Return the table's columns, without hyperparameters that are the same for all trials.

    How often a trial was promoted stands there where any was. Constraints and several objectives
    stand before them, in the place of what is left to the wide table then.
    """
    at = [column.title for column in TRIALS].index("HYPERPARAMETERS")
    same = _same(item.trials)
    before, values = TRIALS[:at], best.columns(item)
    if any(trial.promotions for trial in item.trials):
        before = tuple(replace(column, wide=False) for column in before)
    if values:
        before = tuple(replace(column, wide=column.title in _YIELDS) for column in before)

    def own(trial: TrialStatusView) -> dict[str, Any]:
        return {k: v for k, v in trial.hyperparameters.items() if k not in same}

    return (
        *before,
        *values,
        Column("HYPERPARAMETERS", own if same else "hyperparameters"),
        *TRIALS[at + 1 :],
    )


def _same(trials: Sequence[TrialStatusView]) -> dict[str, Any]:
    """Return the hyperparameters that have the same value in all of several trials."""
    first, *others = [trial.hyperparameters for trial in trials] or [{}]
    if not others:
        return {}
    return {
        name: value
        for name, value in first.items()
        if all(name in one and repr(one[name]) == repr(value) for one in others)
    }


def headline(item: StatusView) -> str:
    """Return the lines above the table of trials: state, health, best value."""
    done = sum(trial.state in follow.ENDED for trial in item.trials)
    lines = [f"{item.id}  {item.state}  {done}/{len(item.trials)} trials ended"]
    if item.why:
        lines.append(f"  {shortened(item.why)}")
    if item.stuck and "hpcdet " not in item.why:
        lines.append(f"  next: {item.next}")
    if item.state not in follow.ENDED:
        turn = item.last_turn_s
        age = "" if turn is None else f", last turn {units.duration(turn)} ago"
        why = f": {item.health_why}" if item.health_why else ""
        lines.append(f"  health {item.health}{age}{why}")
    if said := _spent(item.spent):
        lines.append(f"  {said}")
    lines += best.lines(item)
    lines += _not_finite(item)
    if same := _same(item.trials):
        lines.append(f"  all trials: {text(same)}")
    return escaped("\n".join(facts.folded(line, "    ") for line in lines))


def failures(item: StatusView) -> list[str]:
    """Return the causes of failed trials that are not in the headline already."""
    failed = [one for one in item.trials if one.state == "ERROR" and one.why]
    return [
        f"trial {one.trial}: {shortened(one.why)}"
        for one in failed
        if text(one.why) not in text(item.why)
    ]


def shortened(why: str) -> str:
    """Shorten a message that may be long; ``explain`` and JSON have all of it."""
    said = text(why)
    return said if len(said) <= _WHY else f"{said[: _WHY - 2].rstrip()} …"


def _not_finite(item: StatusView) -> list[str]:
    """Return the shown trials that computed NaN or infinity and were not ended by it."""
    shown = {trial.trial for trial in item.trials}
    found = [one for one in item.not_finite if one.trial in shown]
    name = called(ExperimentPaths(Path(item.path)))
    if len(found) > 1:
        trials = ", ".join(str(one.trial) for one in found[:20])
        more = " …" if len(found) > 20 else ""
        return [f"  metrics not finite in trials {trials}{more}; next: hpcdet explain {name}"]
    return [
        f"  trial {one.trial}: {', '.join(one.names)} not finite since step {one.step}; "
        f"next: hpcdet explain {name}"
        for one in found
    ]


def _spent(spent: SpentView) -> str:
    """Return the spent part of the budget; "" without a budget."""
    budget = spent.budget
    parts = []
    if budget.slot_hours is not None:
        more = f"{spent.overhead_slot_hours:.3g} of it overhead"
        if spent.charged_slot_hours:
            more += f", {spent.charged_slot_hours:.3g} charged by accounting"
        if spent.reserved_slot_hours:
            more += f", {spent.reserved_slot_hours:.3g} more reserved"
        more += f", {spent.left_slot_hours:.3g} left"
        parts.append(f"{spent.slot_hours:.3g} of {budget.slot_hours:g} slot hours ({more})")
    if budget.wall_s is not None:
        since = units.duration(spent.wall_s or 0)
        parts.append(f"{since} of {units.duration(budget.wall_s)}")
    return f"spent {', '.join(parts)}" if parts else ""
