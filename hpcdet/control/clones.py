"""Giving a trial the checkpoint of its parent, before it can be claimed.

A link is made first, then the decision is recorded, then ``trial.json`` is written: killed at any
point, the next holder finds the link and goes on. Nothing that removes checkpoints of the parent
later can take it away.

A holder that was suspended between its fence and its link may add another one, of another step,
when a later term has given the child its parent's and somebody trains it. That one is nobody's:
``trial.json`` says which the child begins from, and who trains it removes what it does not name
(``checkpoint.remove.strays``). Where both choose the same step, one of them gets the name.
"""

from __future__ import annotations

import errno
from typing import Any

from hpcdet.control.holder import Holder
from hpcdet.control.plans import Plan
from hpcdet.errors import HpcdetError, IntegrityError, UsageError
from hpcdet.store import parents, scratch
from hpcdet.store.layout import TrialPaths
from hpcdet.store.parents import Donation, Parent
from hpcdet.store.trials import standing

_GONE = (errno.ENOENT, errno.ESTALE)
"""What opening a file says that was removed here, or by another client of NFS."""
_MAY_SAVE = ("running", "runnable", "doubtful")


def has_origin(holder: Holder, plan: Plan, child: TrialPaths) -> bool:
    """Whether a trial may be made now: it has what it begins from, or begins from nothing.

    A child whose parent has nothing to give, and will not have, begins from nothing, which the
    decision says; so does one that is not to train any more, which nobody need wait for.

    Raises:
        Fenced: the term ended meanwhile.
        IntegrityError: the folder on scratch cannot be used.
        OSError: the link cannot be made.
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
    if made is None:
        donor = parent.paths(holder.paths)
        found = parents.donations(donor, parent.length.unit if parent.length else "batches")
        if _about_to_save(holder, parent, donor, found):
            return False
        chosen = parents.choose(found, parent.length)
        if chosen is None:
            _record(holder, plan, {}, f"begins from nothing: {parent} has no checkpoint")
            return True
        holder.fence()
        _prepare(holder)
        try:
            made = parents.give(chosen, child)
        except (IntegrityError, UsageError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _GONE:
                raise
            parents.forget()
            return False  # it went, or came, this very moment: the next turn looks again
    origin = parents.origin_of(made)
    _record(holder, plan, origin, f"begins from {origin['checkpoint']} of trial {parent.trial}")
    return True


def _about_to_save(
    holder: Holder, parent: Parent, donor: TrialPaths, found: list[Donation]
) -> bool:
    """Whether to wait for a checkpoint that is nearer to what was asked for.

    A parent that trains is about to have it once it has reported, until it reports more. For one
    that does not, only a child waits that would begin from nothing. A pause by the user changes
    nothing of what the search has decided.
    """
    plan = None if parent.experiment else holder.decided.plans.get(parent.trial)
    stands = standing(donor)
    if not found and plan is not None and plan.parent and plan.origin is None:
        return True
    if not stands.open_attempt or parent.length is None:
        trains_again = stands.state == "paused" and plan is not None and plan.searcher == "run"
        return not found and (stands.state in _MAY_SAVE or trains_again)
    if plan is not None and plan.told > parent.length.value:
        return False
    return not any(each.at >= parent.length.value for each in found)


def _prepare(holder: Holder) -> None:
    """Where checkpoints are on scratch: see that they may be written there."""
    try:
        scratch.prepare(holder.paths)
    except HpcdetError as error:
        raise IntegrityError(error.what, where=error.where, hint=error.hint) from error


def _record(holder: Holder, plan: Plan, origin: dict[str, Any], why: str) -> None:
    holder.record("clone", trial=plan.number, parent=plan.parent, origin=origin, why=why)
    holder.actions.append(f"trial {plan.number} {why}")
