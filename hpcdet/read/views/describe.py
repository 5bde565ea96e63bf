"""How an experiment and its trials stand, in words: for the terminal and the report alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hpcdet import units
from hpcdet.read.experiment.states import ENDED
from hpcdet.read.usage.costs import SpentView
from hpcdet.read.views.items import text
from hpcdet.read.views.list_rows import TrialStatusView
from hpcdet.read.views.views import StatusView
from hpcdet.store.folder.names import slug

_WHY = 240
"""Characters of a message, at most, above a table."""
_RUNG = re.compile(r"(rung \d+) [^:]*: (rank \d+ of \d+)")


def shortened(why: str) -> str:
    """Shorten a message that may be long; ``explain`` and JSON have all of it."""
    said = text(why)
    return said if len(said) <= _WHY else f"{said[: _WHY - 2].rstrip()} …"


def headline(status: StatusView, name: str) -> list[str]:
    """Return the lines above the table of trials: state, health, cost, best value.

    Args:
        name: what stands for the experiment in a command.
    """
    lines = [f"{status.id}  {status.state}  {ended(status)}"]
    if said := about(status):
        lines.append(f"  {said}")
    if status.why:
        lines.append(f"  {shortened(status.why)}")
    if status.stuck and "hpcdet " not in status.why:
        lines.append(f"  next: {status.next}")
    if status.state not in ENDED:
        turn = status.last_turn_s
        age = "" if turn is None else f", last turn {units.duration(turn)} ago"
        why = f": {status.health_why}" if status.health_why else ""
        lines.append(f"  health {status.health}{age}{why}")
    lines += [f"  {line}" for line in (*_spent(status.spent), *_best(status))]
    lines += [f"  {line}; next: hpcdet explain {name}" for line in _not_finite(status)]
    lines += [f"  {line}" for line in _unsent(status, name)]
    if status.not_copied:
        lines.append(f"  not in the object store yet: {shortened(status.not_copied)}")
    lines.append(f"  seed {status.seed} (reproducibility.experiment_seed)")
    if same := same_for_all(status.trials):
        lines.append(f"  all trials: {text(same)}")
    return lines


def about(status: StatusView) -> str:
    """Return name, project and description, as far as the id does not say them; "" if it does."""
    named = status.id.startswith(f"{slug(status.name)}-")
    parts = ["" if named else status.name, status.project and f"project {status.project}"]
    head = ", ".join(filter(None, parts))
    said = shortened(status.description) if status.description else ""
    return ": ".join(filter(None, (head, said)))


def ended(status: StatusView) -> str:
    """Return how many trials have ended, as ``2/3 trials ended, 1 of them stopped early``.

    While the search goes on, also how many it may make, where these are more: ``of 8 planned``.
    """
    done = sum(trial.state in ENDED for trial in status.trials)
    early = sum(trial.state == "STOPPED" for trial in status.trials)
    more = f", {early} of them stopped early" if early else ""
    made, going = len(status.trials), status.state not in ENDED
    planned = f" of {status.max_trials} planned" if going and status.max_trials > made else ""
    return f"{done}/{made} trials ended{more}{planned}"


def brief(why: str) -> str:
    """Return the reason of a trial's state in few words: the rank at a rung."""
    rung = _RUNG.match(why)
    return f"{rung[2]} ({rung[1]})" if rung else shortened(why) if why else ""


def failures(status: StatusView) -> list[str]:
    """Return the causes of failed trials that are not in the headline already."""
    return [
        f"trial {one.trial}: {shortened(one.why)}"
        for one in status.trials
        if one.state == "ERROR" and one.why and text(one.why) not in text(status.why)
    ]


def constrained(status: StatusView) -> bool:
    """True if the search has constraints, and a trial to be compared by them."""
    return any(trial.compared and trial.compared.constraints for trial in status.trials)


def best(status: StatusView) -> tuple[str, str]:
    """Return what is best, as ``best feasible loss``, and where, as ``trial 3, step 100``.

    Where no trial is best yet, the second says why.
    """
    label = f"best {'feasible ' if constrained(status) else ''}{status.metric}"
    found, nearest = status.best, status.nearest
    if found is not None:
        return label, f"trial {found.trial}, step {found.step}"
    if nearest is None:
        return label, f"no trial has a value of {status.metric} yet"
    values = nearest.compared.objectives | nearest.compared.constraints
    said = ", ".join(f"{name} {text(value)}" for name, value in values.items())
    return label, f"no trial is feasible; nearest: trial {nearest.trial} ({said}), infeasible"


def _best(status: StatusView) -> list[str]:
    """Return lines on the best trial and the front; none before a trial has a value."""
    label, where = best(status)
    if status.best is None:
        return [where] if status.nearest else []
    lines = [f"{label} {text(status.best.value)} ({where})"]
    if len(status.objectives) > 1:
        front = _numbers([one.trial for one in status.front])
        lines.append(f"front of {', '.join(status.objectives)}: trials {front}")
    return lines


def _not_finite(status: StatusView) -> list[str]:
    """Return the shown trials that computed NaN or infinity and were not ended by it."""
    shown = {trial.trial for trial in status.trials}
    found = [one for one in status.not_finite if one.trial in shown]
    if len(found) > 1:
        return [f"metrics not finite in trials {_numbers([one.trial for one in found])}"]
    return [
        f"trial {one.trial}: {', '.join(one.names)} not finite since step {one.step}"
        for one in found
    ]


def _unsent(status: StatusView, name: str) -> list[str]:
    """Return a line on messages of which sending has failed."""
    failed = [one for one in status.unsent if one.tries]
    if not failed:
        return []
    count = f"{len(failed)} message{'s' if len(failed) > 1 else ''}"
    after = f"; next: hpcdet searcher run --once {name}" if status.state in ENDED else ""
    return [f"{count} not sent yet: {failed[-1].channel}: {failed[-1].why}{after}"]


def _numbers(trials: Sequence[int]) -> str:
    return ", ".join(map(str, trials[:20])) + (" …" if len(trials) > 20 else "")


def cost(spent: SpentView, amount: Callable[[float], str], idle: str = "overhead") -> str:
    """Return the parts of a cost; ``amount`` formats slot hours, ``idle`` names the overhead."""
    parts = [f"{amount(spent.overhead_slot_hours)} of it {idle}"]
    if spent.charged_slot_hours:
        parts.append(f"{amount(spent.charged_slot_hours)} charged by accounting")
    if spent.reserved_slot_hours:
        parts.append(f"{amount(spent.reserved_slot_hours)} more reserved")
    if spent.left_slot_hours is not None:
        parts.append(f"{amount(spent.left_slot_hours)} left")
    return ", ".join(parts)


def _spent(spent: SpentView) -> list[str]:
    """Return a line on the spent part of the budget; none without a budget."""
    budget, parts = spent.budget, []
    if budget.slot_hours is not None:
        whole = f"{spent.slot_hours:.3g} of {budget.slot_hours:g} slot hours"
        parts.append(f"{whole} ({cost(spent, '{:.3g}'.format)})")
    if budget.wall_s is not None:
        parts.append(f"{units.duration(spent.wall_s or 0)} of {units.duration(budget.wall_s)}")
    return [f"spent {', '.join(parts)}"] if parts else []


def begun_from(trial: TrialStatusView) -> str:
    """Return what a trial began from, as ``trial 3 at 400 batches``; "" if from nothing."""
    return trial.parent and f"trial {trial.parent.replace('@', ' at ')}"


def same_for_all(trials: Sequence[TrialStatusView]) -> dict[str, Any]:
    """Return the hyperparameters that have the same value in all of several trials."""
    first, *others = [trial.hyperparameters for trial in trials] or [{}]
    if not others:
        return {}
    return {
        name: value
        for name, value in first.items()
        if all(name in one and repr(one[name]) == repr(value) for one in others)
    }
