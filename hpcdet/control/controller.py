"""One turn of the crank: learn what happened, let the searcher decide, do what is decided.

Everything is recorded before it is done, and doing it again does nothing, so that a turn may
die at any instruction and the next one, by whomever, goes on as if nothing had happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpcdet.control import apply, closing, fleet
from hpcdet.control.decided import Plan
from hpcdet.control.ends import judge
from hpcdet.control.holder import Fenced, Holder
from hpcdet.control.notify import notify
from hpcdet.control.watch import Place, Seen
from hpcdet.errors import IntegrityError
from hpcdet.search import api
from hpcdet.store import files, trials
from hpcdet.store.layout import ExperimentPaths, numbers
from hpcdet.store.records import Closed, Command, ExperimentState, Verdict
from hpcdet.store.trials import Standing

__all__ = ["Holder", "Turn", "advance"]

SUCCESSES = frozenset({"target", "stopped", "user_exit"})


@dataclass(frozen=True)
class Turn:
    """What came of a turn.

    Attributes:
        held: the lease was ours; without it nothing was done.
        state: state of the experiment as last recorded.
        actions: what was done, one line each, for people.
        blind: why the scheduler could not be asked; "" if it could.
    """

    held: bool
    state: str = ""
    closed: bool = False
    actions: tuple[str, ...] = ()
    blind: str = ""


def advance(paths: ExperimentPaths, holder: Holder) -> Turn:
    """Turn the crank once, if the lease can be had.

    Raises:
        OSError: the file system refused something; nothing is lost, turn again.
    """
    closed = Closed.read(paths.closed)
    if closed is not None:
        holder.close()
        return Turn(False, closed.state, closed=True)
    try:
        if not holder.begin():
            return Turn(False)
        _turn(holder)
    except Fenced:
        return Turn(False, actions=tuple(holder.actions))
    except IntegrityError as error:
        holder.actions.append(str(error))
        holder.close()
        return Turn(False, actions=tuple(holder.actions))
    closed = Closed.read(paths.closed)
    state = closed.state if closed else holder.decided.state[0]
    turn = Turn(True, state, closed is not None, tuple(holder.actions), holder.watch.blind)
    if closed is not None:
        holder.close()
    return turn


def _turn(holder: Holder) -> None:
    _obey(holder)
    decided = holder.decided
    if not decided.started:
        holder.tell(api.Start())
    seen = holder.watch.look()
    closing.close_gone(holder, seen.gone)
    standings = _learn(holder)
    apply.apply(holder)
    _tell_failures(holder)
    busy = sum(bool(standing.open_attempt) for standing in standings.values())
    if not busy and _is_over(holder, standings):
        _close(holder, seen)
        return
    _say_state(holder, seen, busy)
    _provide(holder, seen, standings, busy)


def _obey(holder: Holder) -> None:
    """Take the user's commands, in their order."""
    for seq in numbers(holder.paths.commands, ".json"):
        if seq <= holder.decided.commands:
            continue
        command = Command.read(holder.paths.command(seq))
        if command is None:
            return
        refused = ""
        if command.trial and command.trial not in holder.decided.plans:
            refused = f"there is no trial {command.trial}"
        holder.record(
            "command",
            seq=seq,
            verb=command.verb,
            trial=command.trial,
            arguments=command.arguments,
            refused=refused,
            submissions=max(holder.paths.submissions(), default=0),
        )
        holder.actions.append(f"obey command {seq}: {command.verb}")
        if refused:
            continue
        if command.verb == "retry":
            _retry(holder, command.trial)
        if command.verb in ("resume", "retry"):
            holder.throttled_until = 0.0
            holder.unheeded_since = None
            if holder.decided.broken:
                holder.decided.ask_again()
                holder.settle()


def _retry(holder: Holder, number: int) -> None:
    """Give failed trials another chance, with all their restarts."""
    for plan in list(holder.decided.plans.values()):
        wanted = plan.number == number or (not number and plan.failed)
        if not wanted or not (plan.failed or plan.killed):
            continue
        attempts = len(trials.claimed(holder.paths.trial(plan.number)))
        holder.record(
            "retry", trial=plan.number, attempts=attempts + 1, base=attempts, why="asked for"
        )


def _learn(holder: Holder) -> dict[int, Standing]:
    """Tell the searcher what is new of each trial; returns how those stand that go on."""
    standings: dict[int, Standing] = {}
    for number in sorted(holder.decided.plans):
        plan = holder.decided.plans[number]
        trial = holder.paths.trial(number)
        if plan.ended or not trial.record.exists():
            continue
        standing = trials.standing(trial)
        unit = plan.until.unit if plan.until else "batches"
        for report in holder.facts.reports(trial, unit, plan.told):
            if holder.decided.broken or holder.decided.canceled:
                # it is heard when the searcher can hear again
                holder.facts.forget(number)
                break
            holder.tell(report)
        judged = plan.failed or plan.allowed >= standing.next_attempt
        if standing.state == "doubtful" and not judged:
            _judge(holder, plan)
        if not standing.open_attempt:
            _end(holder, plan, standing)
        standings[number] = standing
    return standings


def _judge(holder: Holder, plan: Plan) -> None:
    found = [
        (attempt, end)
        for attempt, end in holder.facts.ends(holder.paths.trial(plan.number))
        if attempt.number > plan.base
    ]
    if not found:
        return
    attempt = found[-1][0]
    judgement = judge(
        [end for _, end in found],
        Verdict.read(attempt.verdict),
        holder.hands.resolved.max_restarts,
    )
    if judgement.again:
        attempts = attempt.number + 1
        holder.record("retry", trial=plan.number, attempts=attempts, why=judgement.why)
        holder.actions.append(f"trial {plan.number} again: {judgement.why}")
        return
    holder.record("fail", trial=plan.number, why=judgement.why, reason=judgement.reason)
    holder.actions.append(f"trial {plan.number} given up: {judgement.why}")


def _end(holder: Holder, plan: Plan, standing: Standing) -> None:
    """Tell the searcher that a trial will not train further by itself."""
    decided = holder.decided
    if decided.broken or decided.canceled:
        return
    reason: Literal["target", "stopped", "failed", "invalid_hp", "user_exit", "canceled"]
    if plan.failed:
        reason = "invalid_hp" if plan.given_up == "invalid_hp" else "failed"
    elif standing.state == "done":
        reason = _how_done(holder, plan, standing)
    elif standing.state == "stopped":
        reason = "canceled" if plan.killed else "stopped"
    else:
        return
    holder.tell(api.SegmentEnd(plan.number, reason), attempt=standing.attempts)


def _how_done(
    holder: Holder, plan: Plan, standing: Standing
) -> Literal["target", "stopped", "user_exit"]:
    if standing.last_end is not None and standing.last_end.reason == "stopped":
        return "stopped"
    last = holder.paths.trial(plan.number).attempt(standing.next_attempt - 1)
    verdict = Verdict.read(last.verdict)
    if verdict is None or verdict.until is not None:
        return "target"
    if plan.until is not None and plan.until.unit == "batches":
        return "target" if verdict.batches >= plan.until.value else "user_exit"
    return "target"


def _tell_failures(holder: Holder) -> None:
    for plan in holder.decided.plans.values():
        if plan.given_up == "failed":
            why = f"trial {plan.number}: {plan.failed}"
            notify(holder, f"failure {plan.number}.{plan.base}", "failure", why)


def _is_over(holder: Holder, standings: dict[int, Standing]) -> bool:
    """Whether nothing runs for the experiment and nothing can begin any more."""
    decided = holder.decided
    if decided.canceled:
        # only what a control has closed stays unclaimed
        return all(s.state in ("done", "stopped", "failed") for s in standings.values())
    if decided.shutdown is None or decided.broken:
        return False
    return all(plan.ended for plan in decided.plans.values())


def _close(holder: Holder, seen: Seen) -> None:
    """The experiment is over: say so, tell the user, leave nothing in the queue."""
    decided = holder.decided
    good = sum(plan.ended in SUCCESSES for plan in decided.plans.values())
    state: Literal["COMPLETED", "CANCELED", "ERROR"]
    if decided.canceled:
        state, why = "CANCELED", "canceled by its user"
    elif good:
        state, why = "COMPLETED", f"{good} of {len(decided.plans)} trials succeeded"
    else:
        state, why = "ERROR", _first_failure(holder)
    if decided.state[0] != state:
        holder.record("state", state=state, why=why)
    fleet.cancel_all(holder, _waiting_jobs(seen))
    notify(holder, "end", "end", f"{state}: {why}")
    holder.fence()
    Closed(state, why, holder.lease.term, files.now()).write_once(holder.paths.closed)
    holder.actions.append(f"closed: {state}")


def _first_failure(holder: Holder) -> str:
    failures = [plan.failed for plan in holder.decided.plans.values() if plan.failed]
    shutdown = holder.decided.shutdown
    return failures[0] if failures else (shutdown.why if shutdown and shutdown.why else "no trial")


def _waiting_jobs(seen: Seen) -> list[Place]:
    """Places of jobs of which nothing runs; workers that run see for themselves that it ended."""
    running = {place.job for place in seen.live if place.phase == "running"}
    return [place for place in seen.live if place.job not in running]


def _say_state(holder: Holder, seen: Seen, busy: int) -> None:
    decided = holder.decided
    state: ExperimentState
    why, by = "", ""
    if decided.canceled:
        state, why = "STOPPING", "canceled by its user"
    elif decided.broken:
        state, why, by = "PAUSED", decided.broken, "searcher"
    elif decided.halted:
        state, why, by = "PAUSED", decided.halted, "scheduler"
    elif decided.paused:
        state, why = ("STOPPING" if busy else "PAUSED"), "paused by its user"
    else:
        begun = decided.state[0] not in ("", "PENDING")
        runs = busy or any(place.phase == "running" for place in seen.live)
        state = "RUNNING" if begun or runs else "PENDING"
    if (state, why) != decided.state:
        holder.record("state", state=state, why=why, by=by)
        holder.actions.append(f"state {state}" + (f": {why}" if why else ""))
    if by:
        notify(holder, f"stuck {decided.resumed_after} {why}", "stuck", why)


def _provide(holder: Holder, seen: Seen, standings: dict[int, Standing], busy: int) -> None:
    """Have the workers that the trials need; free what a pause or a cancel leaves idle."""
    decided = holder.decided
    if decided.paused or decided.canceled:
        _free(holder, seen, busy)
        return
    holder.unheeded_since = None
    wanted = busy + sum(
        _waits(holder, plan, standings.get(number)) for number, plan in decided.plans.items()
    )
    most = fleet.concurrency(holder)
    fleet.provide(holder, seen, min(wanted, most) if most else wanted)


def _waits(holder: Holder, plan: Plan, standing: Standing | None) -> bool:
    """Whether a trial needs a worker that it has not got."""
    if plan.ended or holder.decided.control(plan).action != "run":
        return False
    if standing is not None and standing.state not in ("runnable", "doubtful", "running"):
        # as it stood before this turn's controls
        standing = trials.standing(holder.paths.trial(plan.number))
    return standing is None or standing.state in ("runnable", "doubtful")


def _free(holder: Holder, seen: Seen, busy: int) -> None:
    """Let running trials save themselves, then give all allocations back.

    Code that does not listen is ended through the scheduler, as at a time limit.
    """
    limits, now = holder.hands.site.limits, holder.hands.clock()
    if holder.unheeded_since is None:
        holder.unheeded_since = now
    patience = limits.signal_lead_s + limits.kill_wait_s
    if not busy or now - holder.unheeded_since > patience:
        fleet.cancel_all(holder, seen.live)
    else:
        fleet.cancel_all(holder, _waiting_jobs(seen))
