"""Intents: submissions about to be made, each of them exactly once, and what refusals lead to.

An intent is written to a file before its job exists and names a tag that the job carries; an
intent whose job is unknown is looked up by that tag before it is submitted (again). So a
submission happens once, at whatever point the submitting process died.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcdet import units
from hpcdet.control.fleet import failed_submissions
from hpcdet.control.leader.decided_parts import ALL
from hpcdet.control.leader.leader import Holder
from hpcdet.errors import HpcdetError, Unavailable
from hpcdet.schedulers.calls import lost_submissions, submission_rate
from hpcdet.schedulers.common.base import PerHost, Refusal, Scheduler, SubmissionRefused
from hpcdet.store.config import overrides
from hpcdet.store.folder.records import Intent, Submitted
from hpcdet.store.fs import files

_PATIENT = ("submit", "command", "wait")
"""Holders that may wait for their turn to submit: a person does, and no trial."""
_PATIENCE_S = 120.0
_RETRY_S = 60.0
"""Least time before a scheduler that took no job is asked again, where polling is allowed so
seldom; otherwise its polling interval."""


class Later(Exception):
    """The scheduler accepts no more jobs until some have ended, or it can be asked."""


class Full(Later):
    """A limit of jobs is met; there may be room for one of another kind."""


def form(holder: Holder, number: int, script: Path, kind: str = "") -> Intent:
    """Return an intent of one task, with the config as it is now.

    Args:
        kind: of the job, where it is no worker: the end of its name.
    """
    name = f"{number}{kind}"
    return Intent(
        number=number,
        name=f"{holder.paths.id}-{name}",
        tag=f"hpcdet:{holder.paths.id}:{name}-{secrets.token_hex(4)}",
        tasks=1,
        throttle=1,
        term=holder.lease.term,
        script=str(script.relative_to(holder.paths.root)),
        overrides=holder.decided.user.overrides,
        at=files.now(),
    )


def of_workers(
    holder: Holder,
    tasks: int = 1,
    throttle: int = 1,
    *,
    spares: int = 0,
    behind: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Intent | None:
    """Write the next submission's intent; None: one of a former holder has taken its number.

    The next turn finds out what became of that one.
    """
    # records that a fork has taken over name workers of former submissions
    number = max([holder.decided.jobs.submissions, *holder.paths.submissions()]) + 1
    intent = dataclasses.replace(
        form(holder, number, holder.paths.script(number)),
        tasks=tasks,
        throttle=throttle,
        exclude=[*exclude],
        hold=holder.hold,
        held=holder.decided.user.held,
        # once a worker has begun, that is over
        after=[] if any(holder.paths.workers()) else holder.decided.user.after,
        host=_host(holder.hands.scheduler),
        spares=spares,
        behind=[*behind],
    )
    holder.record("intent", number=number, tasks=tasks, tag=intent.tag, exclude=intent.exclude)
    holder.fence()
    return intent if intent.write_once(holder.paths.intent(number)) else None


def of_unknown_jobs(holder: Holder) -> Iterator[Intent]:
    """Yield the intents of workers of which no job is known, nor that they were given up."""
    for number in holder.paths.submissions():
        intent, submitted = holder.watch.files.submission(number)
        lost = number <= holder.watch.left_behind
        if intent is not None and submitted is None and not (intent.hold or lost):
            yield intent


def settle(holder: Holder, intent: Intent, missing: int, *, fresh: bool) -> int:
    """Submit an intent's job or give it up; return the number of tasks that live now."""
    scheduler = holder.hands.scheduler
    if intent.host and intent.host != _host(scheduler):
        raise Unavailable(f"submission {intent.number} was begun on {intent.host}")
    script = holder.paths.script(intent.number)
    job = None if fresh else lost_submissions.find(scheduler, intent.name, intent.tag, script)
    if job is not None:
        holder.actions.append(f"found submission {intent.number} as job {job}")
        return _submitted(holder, intent, job)
    if missing <= 0:
        _give_up(holder, intent, "not needed any more")
        return 0
    try:
        job = send(holder, intent)
    except SubmissionRefused as refused:
        return _refused(holder, intent, refused.refusal)
    except Unavailable:
        raise
    except HpcdetError as error:
        return _refused(holder, intent, Refusal("invalid", str(error)))
    if not job:
        return intent.tasks
    holder.actions.append(f"submit {units.counted(intent.tasks, 'worker')} as job {job}")
    if intent.tasks >= holder.pace.width:
        holder.pace.width = 2 * intent.tasks  # there is room again
    return _submitted(holder, intent, job)


def send(holder: Holder, intent: Intent) -> str:
    """Render an intent's script and submit it; returns the job's id, "" if a person submits it.

    Raises:
        SubmissionRefused: as ``Scheduler.submit``, or ``submission_rate.wait``.
        Fenced: the term has ended meanwhile.
        HpcdetError: the script cannot be rendered.
    """
    hands = holder.hands
    resolved = overrides.lay(hands.resolved, intent.overrides)
    submission = hands.build(holder.paths, intent, resolved, hands.site)
    if intent.hold:
        return ""
    per_min = hands.site.limits.submit_per_min
    if holder.kind in _PATIENT:
        with holder.lease.kept(_PATIENCE_S):
            submission_rate.wait(per_min, _PATIENCE_S)
    else:
        submission_rate.wait(per_min)
    holder.fence()
    return hands.scheduler.submit(submission)


def _host(scheduler: Scheduler) -> str:
    """Return this machine's name where jobs of other machines cannot be seen; else ""."""
    return scheduler.host if isinstance(scheduler, PerHost) else ""


def _submitted(holder: Holder, intent: Intent, job: str) -> int:
    record = Submitted(job, holder.hands.scheduler.name, at=files.now())
    keep(holder, record, holder.paths.submitted(intent.number))
    holder.sent += intent.tasks
    return intent.tasks


def keep(holder: Holder, record: Submitted, path: Path) -> None:
    """Write an intent's result; cancel its job if a newer term has settled it in another way."""
    if not record.write_once(path):
        there = Submitted.read(path)
        if record.job and there is not None and there.job != record.job:
            holder.hands.scheduler.cancel(record.job)


def _refused(holder: Holder, intent: Intent, refusal: Refusal) -> int:
    if refusal.kind in ("limit", "width") and intent.tasks > 1:
        holder.pace.width = max(1, intent.tasks // 2)
        if refusal.kind == "width":
            holder.pace.widest = holder.pace.width
        _give_up(holder, intent, f"too wide: {refusal.message}")
        return 0
    if intent.is_spare and refusal.kind != "unavailable":
        # the queue is full, or the job before it is over: the others go on without it
        _give_up(holder, intent, refusal.message)
        return 0
    if refusal.kind in ("limit", "unavailable"):
        raise later_for(refusal)
    refused = failed_submissions.refused(holder)  # what too few nodes lack is the cause, then
    cause = "".join(f"; {node} was left out: {why}" for node, why in sorted(refused.items()))
    _give_up(holder, intent, refusal.message)
    halt(holder, refusal.message + cause)
    raise Later(refusal.message)


def _give_up(holder: Holder, intent: Intent, why: str) -> None:
    holder.fence()
    record = Submitted("", holder.hands.scheduler.name, why, files.now())
    record.write_once(holder.paths.submitted(intent.number))
    holder.actions.append(f"submission {intent.number} given up: {why}")


def halt(holder: Holder, why: str, change: str = "") -> None:
    """Pause the experiment: submit nothing more until the user resumes it, and record why.

    Args:
        change: of the config, as ``--set`` takes it, with which to resume it.
    """
    holder.record("state", state="PAUSED", why=why, by="scheduler", change=change)
    holder.actions.append(f"paused: {why}")


def cancel(holder: Holder, job: str, *index: int) -> bool:
    """Cancel a job, or one of its tasks; False if that was asked for lately.

    It is recorded: later terms have to tell it from a launch that failed.

    Raises:
        Fenced: the term is over.
    """
    if lately(holder, "cancel", job, *index):
        return False
    task = index[0] if index else ALL
    if task not in holder.decided.jobs.cancels.get(job, ()):
        holder.log.note("canceled", job=job, task=task)
    holder.fence()
    holder.hands.scheduler.cancel(job, *index)
    note(holder, "cancel", job, *index)
    return True


def lately(holder: Holder, *request: object) -> bool:
    """True if a request was noted so lately that the scheduler may still be at it.

    One that it has taken and does not carry out is made again.
    """
    limits = holder.hands.site.limits
    at: float = holder.written.get(request, -math.inf)
    return holder.hands.clock() < at + limits.kill_wait_s + max(_RETRY_S, 2 * limits.poll_min_s)


def note(holder: Holder, *request: object) -> None:
    """Note that the scheduler has taken a request."""
    holder.written[request] = holder.hands.clock()


def later_for(refusal: Refusal) -> Later:
    """Return what a refusal means that will pass."""
    return Full(refusal.message) if refusal.kind == "limit" else Later(refusal.message)


def rests(holder: Holder, kind: str = "") -> bool:
    """True if the scheduler is not to be asked for jobs yet: of any kind, or of this one."""
    until = max(holder.pace.throttled_until, holder.pace.full_until.get(kind, 0.0))
    return holder.hands.clock() < until


def later(holder: Holder, why: str, kind: str = "") -> None:
    """Submit nothing for a while, or nothing of a kind, as the scheduler refuses."""
    wait = min(_RETRY_S, max(1.0, holder.hands.site.limits.poll_min_s))
    until = holder.hands.clock() + wait
    if kind:
        holder.pace.full_until[kind] = until
    else:
        holder.pace.throttled_until = until
    holder.actions.append(f"scheduler asked again later: {why}")


@contextlib.contextmanager
def patience(holder: Holder, kind: str = "") -> Iterator[None]:
    """Ask as much of the scheduler as it takes, of jobs of a kind; the rest is for later."""
    try:
        yield
    except Full as full:
        later(holder, str(full), kind)
    except Later as reason:
        later(holder, str(reason))
    except Unavailable as error:
        later(holder, error.what)
