"""The files that carry decisions to trials: their records and controls."""

from __future__ import annotations

import dataclasses

from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.control.turn import best_validation
from hpcdet.control.upkeep import inherit_checkpoint
from hpcdet.errors import IntegrityError
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.store.cost import limits
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import Control, Trial
from hpcdet.store.fs import files, packed
from hpcdet.store.trials.controls import in_force
from hpcdet.store.trials.parents import Parent


def apply(holder: Holder, *, copies: bool = True) -> None:
    """Bring the files of trials up to date with the decisions. Idempotent.

    Args:
        copies: also of trials that begin from the checkpoint of another one, and of that one.

    Raises:
        Fenced: the term ended meanwhile.
        IntegrityError: a trial's record is not what was decided, or an heir's checkpoint cannot
            be linked; all others were written, but that the heir's parent is to stop.
    """
    best_validation.write(holder)  # who leaves keeps checkpoints by it
    _write_limits(holder)
    wrong: list[IntegrityError] = []
    needed: set[int | None] = set()
    touched, search = holder.decided.trials.touched, holder.resolved.searcher
    for number in _in_turn(holder.decided, copies):
        holder.stay()
        plan = holder.decided.trials.plans[number]
        trial = holder.paths.trial(number)
        wanted = _wanted(holder.decided, search, plan)
        runs = wanted.action == "run"
        (holder.told_to_leave.discard if runs else holder.told_to_leave.add)(number)
        settled = plan.ended and holder.written.get(("control", number)) == wanted
        never = holder.decided.user.canceled and plan.killed and not trial.root.exists()
        if number in needed and wanted.action == "stop":
            continue  # stopped, it would remove what its heir is to begin from
        if not (settled or never):
            _write_control(holder, number, trial, wanted)
            try:
                if not _write_record(holder, plan, trial):
                    continue
            except IntegrityError as error:
                wrong.append(error)  # of this trial alone: the others hear what is decided of them
                needed.add(_donor(plan))
                continue
        touched.discard(number)
        holder.sight.settled.discard(number)  # what its news come to may be something else now
    if wrong:
        raise wrong[0]


def _wanted(decided: Decided, search: Searcher, plan: TrialPlan) -> Control:
    """Return a trial's wanted control, with the decided length where trials wait at rungs."""
    control = decided.control(plan)
    if not search.wait_at_rungs_s:
        return control
    rungs = [rung.value for rung in search.rungs if rung.value <= plan.told]
    return dataclasses.replace(control, heard=max(rungs, default=0))


def _in_turn(decided: Decided, copies: bool) -> list[int]:
    """Return the trials to write, heirs late, as they copy where there are no hard links.

    Only the donors of their checkpoints come after them: a checkpoint is linked before its owner
    is told that it may leave.
    """
    plans, touched = decided.trials.plans, decided.trials.touched
    heirs = {n for n in touched if _is_heir(plans[n])}
    donors = {_donor(plans[n]) for n in heirs}
    wanted = touched if copies else touched - heirs - donors
    return sorted(wanted, key=lambda n: (1 if n in heirs else 2 * (n in donors), n))


def _is_heir(plan: TrialPlan) -> bool:
    """True if a trial is still to be given the checkpoint of another trial."""
    return bool(plan.parent) and plan.origin is None


def _donor(plan: TrialPlan) -> int | None:
    """Return the trial of this experiment that is to give a trial its checkpoint; None if none."""
    parent = Parent.parse(plan.parent) if _is_heir(plan) else None
    return parent.trial if parent is not None and not parent.experiment else None


def _write_limits(holder: Holder) -> None:
    """Write the limits once a user has changed them; until then the config's hold."""
    resolved, changed = holder.resolved, holder.decided.user.overrides
    wanted = limits.wanted(resolved, changed, holder.decided.searcher.longer)
    if changed.keys().isdisjoint(limits.KEYS) or holder.written.get(("limits",)) == wanted:
        return
    if not limits.alike(limits.in_force(holder.paths, holder.hands.resolved), wanted):
        term, at = holder.lease.term, files.now()
        record = dataclasses.replace(wanted, term=term, at=at)
        seq = max(packed.numbers(holder.paths.limits(0).parent, ".json"), default=0)
        made = False
        while not made:
            seq += 1
            holder.fence()
            made = record.write_once(holder.paths.limits(seq))
    holder.written["limits",] = wanted


def _write_record(holder: Holder, plan: TrialPlan, trial: TrialPaths) -> bool:
    """Write a trial's record, after its first control: a trial with a record may be claimed.

    Returns:
        False if it has to wait for the checkpoint that it is to begin from.
    """
    if ("record", plan.number) in holder.written:
        return True
    there = Trial.read(trial.record)
    if there is None:
        if not inherit_checkpoint.has_origin(holder, plan, trial):
            return False
        holder.fence()
        term, origin = holder.lease.term, plan.origin or {}
        record = Trial(plan.number, plan.params, plan.seed, term, plan.parent, files.now(), origin)
        holder.sight.forget(plan.number)
        if record.write_once(trial.record):
            holder.actions.append(f"create trial {plan.number}")
        there = Trial.read(trial.record)
    if there is None or (there.params, there.seed) != (plan.params, plan.seed):
        raise IntegrityError(
            "the trial's record is not what the searcher decided",
            where=str(trial.record),
            hint="a former holder of the lease wrote it after its term; submit again",
        )
    holder.written["record", plan.number] = True
    return True


def _write_control(holder: Holder, number: int, trial: TrialPaths, wanted: Control) -> None:
    if holder.written.get(("control", number)) == wanted:
        return
    there = in_force(trial)
    if there is None or not _says(there, wanted):
        seq = max(packed.numbers(trial.controls, ".json"), default=0)
        term, at = holder.lease.term, files.now()
        holder.sight.forget(number)
        holder.packed.discard(number)
        control = dataclasses.replace(wanted, term=term, at=at)
        made = False
        while not made:
            seq += 1
            holder.fence()
            made = control.write_once(trial.control(seq))
        holder.actions.append(f"trial {number}: {wanted.action}")
    holder.written["control", number] = wanted


def _says(there: Control, wanted: Control) -> bool:
    same = (there.action, there.until, there.now) == (wanted.action, wanted.until, wanted.now)
    same = same and there.heard >= wanted.heard and len(there.rewinds) >= len(wanted.rewinds)
    return same and there.attempts >= wanted.attempts and there.since >= wanted.since
