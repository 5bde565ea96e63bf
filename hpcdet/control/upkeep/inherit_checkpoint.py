"""The inheritance of a parent's checkpoint by a trial, before it can be claimed.

A link is made first, then the decision is recorded, then ``trial.json`` is written: killed at any
point, the next holder finds the link and goes on. Nothing that removes checkpoints of the parent
later can take it away.

A holder that was suspended between its fence and its link may add another one, of another step,
after a later term has given the child its parent's and a worker trains it. That one is unused:
``trial.json`` names the one that the child begins from, and its ranks remove any other
(``checkpoint.format.remove.strays``). Where both choose the same step, one of them gets the name.

A child never begins beyond the length that the search compared, nor where it is to come to: it
would be another trial than the one that was decided on, or would train nothing.
"""

from __future__ import annotations

import errno
from typing import Any

from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.errors import HpcdetError, IntegrityError, UsageError
from hpcdet.store.folder import scratch
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.trials import parents
from hpcdet.store.trials.parents import Donation, Parent
from hpcdet.store.trials.standing import standing
from hpcdet.units import Length

_GONE = (errno.ENOENT, errno.ESTALE)
"""What opening a file says that was removed here, or by another client of NFS."""
_MAY_SAVE = ("running", "runnable", "doubtful")


def has_origin(holder: Holder, plan: TrialPlan, child: TrialPaths) -> bool:
    """True if a trial may be made now: its first checkpoint is there, or it needs none.

    A child whose parent has no checkpoint to give, and will have none, begins from nothing, as
    the decision records; so does one that is not to train any more, so that nothing waits for it.

    Raises:
        Fenced: the term ended meanwhile.
        IntegrityError: the folder on scratch cannot be used, or the link not be made.
    """
    if not plan.parent or plan.origin is not None:
        return True
    parent = Parent.parse(plan.parent)
    if parent is None or (not parent.experiment and parent.trial >= plan.number):
        _record(holder, plan, {}, f"begins from nothing: {plan.parent!r} is no earlier trial")
        return True
    made = parents.given(child)
    if made is None and holder.decided.action(plan) in ("stop", "kill"):
        _record(holder, plan, {}, "begins from nothing: it is over before it had its parent's")
        return True
    goal = None if parent.experiment else plan.until
    unit = (parent.length or goal or Length("batches", 0)).unit
    if made is None:
        donor = parent.paths(holder.paths)
        found = parents.donations(donor, unit)
        chosen = parents.choose(found, parent.length, goal if goal and goal.unit == unit else None)
        if _about_to_save(holder.decided, parent, donor, found, chosen):
            return False
        if chosen is None:
            _record(holder, plan, {}, f"begins from nothing: {_lacks(parent, found, unit)}")
            return True
        holder.fence()
        _prepare(holder.paths)
        made = _link(chosen, child)
        if made is None:
            return False
    origin = parents.origin_of(made)
    why = f"begins from {origin['checkpoint']} of trial {parent.trial}"
    if parent.length is not None and (at := origin["units"][unit]) < parent.length.value:
        why += f", {at} {unit}: it has none of {parent.length}"
    _record(holder, plan, origin, why)
    return True


def _link(chosen: Donation, child: TrialPaths) -> dict[str, Any] | None:
    """Link the donated checkpoint into the child; None on a race, so that the next turn retries.

    An error of the file system concerns this child alone, so that it is no ``OSError``, which
    would end the turn. Its message is the same each time, so that the user is told once.
    """
    try:
        return parents.give(chosen, child)
    except (IntegrityError, UsageError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _GONE:
            why = error.strerror or str(error)
            raise IntegrityError(
                f"trial {child.number} cannot begin from this checkpoint: {why}",
                where=str(chosen.folder),
                hint="each turn tries again: check that there is space, and that the files of "
                "the checkpoint can be read; or cancel the trial",
            ) from error
        parents.forget()
        return None


def _lacks(parent: Parent, found: list[Donation], unit: str) -> str:
    if not found:
        return f"{parent} has no checkpoint"
    return f"{parent} has no checkpoint so short, its first is of {found[0].at} {unit}"


def _about_to_save(
    decided: Decided,
    parent: Parent,
    donor: TrialPaths,
    found: list[Donation],
    chosen: Donation | None,
) -> bool:
    """True if a child should wait for a checkpoint nearer to the requested length.

    A running parent is about to save it once it has reported, until it reports more. For one that
    does not run, only a child waits that would begin from nothing. A pause by the user changes
    nothing of what the search has decided.
    """
    plan = None if parent.experiment else decided.trials.plans.get(parent.trial)
    stands = standing(donor)
    if found and (chosen is None or (parent.length and found[-1].at >= parent.length.value)):
        return False  # what it has is there, or beyond
    if not found and plan is not None and plan.parent and plan.origin is None:
        return True
    if not stands.open_attempt or parent.length is None:
        trains_again = stands.state == "paused" and plan is not None and plan.searcher == "run"
        return chosen is None and (stands.state in _MAY_SAVE or trains_again)
    return plan is None or plan.told <= parent.length.value


def _prepare(paths: ExperimentPaths) -> None:
    """Ensure that checkpoints may be written on scratch, if they are kept there."""
    try:
        scratch.prepare(paths)
    except HpcdetError as error:
        raise IntegrityError(error.what, where=error.where, hint=error.hint) from error


def _record(holder: Holder, plan: TrialPlan, origin: dict[str, Any], why: str) -> None:
    holder.record("clone", trial=plan.number, parent=plan.parent, origin=origin, why=why)
    holder.actions.append(f"trial {plan.number} {why}")
