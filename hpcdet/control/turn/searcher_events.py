"""The searcher's events: reports and ends of trials, and the judgement of failed ones."""

from __future__ import annotations

from typing import Literal

from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.retry_rules import judge
from hpcdet.control.leader.trial_cache import TrialView
from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.control.turn import best_validation
from hpcdet.control.upkeep.notify import notify
from hpcdet.errors import IntegrityError
from hpcdet.search.api import events
from hpcdet.store.folder.records import Control
from hpcdet.store.trials import standing as trials
from hpcdet.store.trials.standing import Standing


def tell_start_and_limits(holder: Holder) -> None:
    """Tell the searcher that the search begins, or that its user has changed the limits."""
    decided = holder.decided
    if not decided.searcher.started:
        holder.tell(events.Start())
    if decided.searcher.unsaid and not (decided.searcher.deaf or decided.user.canceled):
        now = holder.resolved.searcher
        holder.tell(events.Limits(now.max_trials, now.max_concurrent_trials, now.max_length))


def learn(holder: Holder) -> dict[int, Standing]:
    """Pass each trial's news to the searcher; return the standings of trials that go on.

    A trial of which nothing was read or decided since it was learnt is passed over.
    """
    trials, sight = holder.decided.trials, holder.sight
    for number in sorted(trials.open):
        if number not in sight.settled or number in trials.touched:
            learn_of(holder, number)
    sight.leave_out(sight.standings.keys() - trials.open)
    return sight.standings


def learn_of(holder: Holder, number: int) -> None:
    """Pass the news of a trial to the searcher."""
    holder.stay()
    decided, sight = holder.decided, holder.sight
    plan = decided.trials.plans[number]
    known = ("record", number) in holder.written
    if not (known or holder.paths.trial(number).record.exists()):
        return
    seen = sight.trial(number)
    standing = seen.standing
    if seen.fresh:
        decided.trials.touched.add(number)
        holder.written.pop(("control", number), None)  # perhaps it heard another one
    if seen.fresh or (seen.watched and standing.open_attempt):
        _tell_reports(holder, plan, seen)
    judged = plan.failed or plan.allowed >= standing.next_attempt
    if standing.state == "doubtful" and not judged:
        _judge(holder, plan, seen)
    if not standing.open_attempt:
        _end(holder, plan, seen)
    sight.rest(number, at_rest=not standing.open_attempt and decided.action(plan) != "run")
    sight.learnt(number)


def _tell_reports(holder: Holder, plan: TrialPlan, seen: TrialView) -> None:
    """Pass on a trial's new reports, from all of its attempts if the trial is new."""
    unit = plan.until.unit if plan.until else "batches"
    running = seen.standing.open_attempt
    reports = holder.facts.reports(
        seen.paths, unit, plan.told, running, only_running=not seen.fresh
    )
    try:
        for report in reports:
            if holder.decided.searcher.deaf or holder.decided.user.canceled:
                # it is heard when the searcher can hear again
                holder.facts.forget(plan.number)
                holder.sight.forget(plan.number)
                return
            best_validation.remember(holder, report)
            holder.tell(report)
    except IntegrityError:
        # the turn fails, and what was read and not told is read again: by length, nothing is twice
        holder.facts.forget(plan.number)
        holder.sight.forget(plan.number)
        raise


def _judge(holder: Holder, plan: TrialPlan, seen: TrialView) -> None:
    """Decide whether a doubtful trial may have another attempt, or is given up."""
    found = [(attempt, end) for attempt, end in seen.files.ended if attempt.number > plan.base]
    if not found:
        return
    ends, last = [end for _, end in found], found[-1][0]
    judgement = judge(ends, last.verdict, holder.resolved.max_restarts)
    if judgement.again:
        attempts = seen.standing.next_attempt
        holder.record("retry", trial=plan.number, attempts=attempts, why=judgement.why)
        holder.actions.append(f"trial {plan.number} again: {judgement.why}")
        return
    holder.record("fail", trial=plan.number, why=judgement.why, reason=judgement.reason)
    holder.actions.append(f"trial {plan.number} given up: {judgement.why}")


def _end(holder: Holder, plan: TrialPlan, seen: TrialView) -> None:
    """Pass the end of a trial's segment to the searcher: it will not train further by itself."""
    decided, standing = holder.decided, seen.standing
    if decided.searcher.deaf or decided.user.canceled:
        return
    reason: Literal["target", "stopped", "failed", "invalid_hp", "user_exit", "canceled"]
    if plan.failed:
        reason = "invalid_hp" if plan.given_up == "invalid_hp" else "failed"
    elif standing.state == "done" and (how := _how_done(plan, seen)):
        reason = how
    elif standing.state == "stopped" and decided.control(plan).action in ("stop", "kill"):
        reason = "canceled" if plan.killed else "stopped"
    else:
        return  # also where its control is to be taken back in this turn
    holder.tell(events.SegmentEnd(plan.number, reason), attempt=standing.attempts)


def _how_done(plan: TrialPlan, seen: TrialView) -> Literal["target", "stopped", "user_exit", ""]:
    """Return how a trial ended that is done by its files; "" if this turn has asked for more."""
    if not seen.files.ended:
        return ""
    last, end = seen.files.ended[-1]
    verdict = last.verdict
    if not trials.finished(end, verdict, Control("run", plan.until)):
        return ""
    if end.reason == "stopped":
        return "stopped"
    if verdict is None or verdict.until is not None or plan.until is None:
        return "target"
    # attempts compare lengths in the unit that they were asked in, and would have said it
    batches = verdict.batches if plan.until.unit == "batches" else 0
    return "target" if max(batches, plan.told) >= plan.until.value else "user_exit"


def notify_failures(holder: Holder) -> None:
    """Run the user's hook once for each trial that was given up."""
    for number in holder.decided.trials.given_up:
        plan = holder.decided.trials.plans[number]
        if plan.given_up == "failed":
            why = f"trial {plan.number}: {plan.failed}"
            notify(holder, f"failure {plan.number}.{plan.base}", "failure", why)
