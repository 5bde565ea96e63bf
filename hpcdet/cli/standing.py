"""How an experiment stands, in words: what is said above the table of its trials, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpcdet.cli import best, facts, follow, words
from hpcdet.cli.output import Column, Item, text

_TRIAL = (
    Column("STATE", "state", cut=False),
    Column("STEPS", "steps", right=True),
    Column("BEST", "best", right=True),
    Column("AT", "best_step", right=True),
    Column("RESTARTS", "restarts", right=True),
    Column("HYPERPARAMETERS", "hyperparameters"),
    Column("PARENT", "parent", wide=True),
    Column("SEED", "seed", wide=True, right=True),
    Column("CHECKPOINT", lambda row: (row["last_checkpoint"] or {}).get("name"), wide=True),
    Column("WHY", "why", wide=True),
)
TRIALS = (Column("TRIAL", "trial", right=True), *_TRIAL)
_YIELDS = {"BEST", "AT", "RESTARTS"}
LS_TRIALS = (Column("ID", "id", cut=False), *_TRIAL)


def trials(item: Item) -> tuple[Column, ...]:
    """The table's columns: hyperparameters that are the same for all are left out of it.

    Constraints and several objectives stand before them, in the place of what is left to the wide
    table then.
    """
    at = [column.title for column in TRIALS].index("HYPERPARAMETERS")
    same = _same(item["trials"])
    before, values = TRIALS[:at], best.columns(item)
    if values:
        before = tuple(replace(column, wide=column.title in _YIELDS) for column in before)

    def own(trial: Item) -> Item:
        return {k: v for k, v in trial["hyperparameters"].items() if k not in same}

    return (
        *before,
        *values,
        Column("HYPERPARAMETERS", own if same else "hyperparameters"),
        *TRIALS[at + 1 :],
    )


def _same(trials: Sequence[Item]) -> Item:
    """Hyperparameters that do not tell several trials apart."""
    first, *others = [trial["hyperparameters"] for trial in trials] or [{}]
    if not others:
        return {}
    return {
        name: value
        for name, value in first.items()
        if all(name in one and repr(one[name]) == repr(value) for one in others)
    }


def headline(item: dict[str, Any]) -> str:
    """The lines above the table of trials: state, health, best value."""
    done = sum(trial["state"] in follow.ENDED for trial in item["trials"])
    lines = [f"{item['id']}  {item['state']}  {done}/{len(item['trials'])} trials ended"]
    if item["why"]:
        lines.append(f"  {text(item['why'])}")
    if item["stuck"] and "hpcdet " not in item["why"]:
        lines.append(f"  next: hpcdet resume {item['id']}")
    if item["state"] not in follow.ENDED:
        turn = item["last_turn_s"]
        age = "" if turn is None else f", last turn {words.duration(turn)} ago"
        why = f": {item['health_why']}" if item["health_why"] else ""
        lines.append(f"  health {item['health']}{age}{why}")
    if said := _spent(item["spent"]):
        lines.append(f"  {said}")
    lines += best.lines(item)
    if same := _same(item["trials"]):
        lines.append(f"  all trials: {text(same)}")
    return "\n".join(facts.folded(line, "    ") for line in lines)


def _spent(spent: Item) -> str:
    """What of the budget is used, where there is one."""
    budget = spent["budget"]
    parts = []
    if budget["slot_hours"] is not None:
        more = f"{spent['overhead_slot_hours']:.3g} of it overhead"
        if spent["charged_slot_hours"]:
            more += f", {spent['charged_slot_hours']:.3g} charged by accounting"
        if spent["reserved_slot_hours"]:
            more += f", {spent['reserved_slot_hours']:.3g} more reserved"
        more += f", {spent['left_slot_hours']:.3g} left"
        parts.append(f"{spent['slot_hours']:.3g} of {budget['slot_hours']:g} slot hours ({more})")
    if budget["wall_s"] is not None:
        since = words.duration(spent["wall_s"] or 0)
        parts.append(f"{since} of {words.duration(budget['wall_s'])}")
    return f"spent {', '.join(parts)}" if parts else ""
