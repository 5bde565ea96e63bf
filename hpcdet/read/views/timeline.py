"""The timeline of events: submissions, workers, attempts, checkpoints, decisions, commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcdet import units
from hpcdet.read.experiment import changes
from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, Line, gather
from hpcdet.store.config import overrides
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Command, Stuck
from hpcdet.store.fs import journal

_ASKED = 20


@dataclass(frozen=True)
class EventView:
    """Something that happened."""

    time: str
    """When."""
    kind: str
    """Of an experiment ``submitted refused stuck worker_started cold worker_ended decision clone
    retry failed lost throttle command state``; of an attempt ``started start first_step checkpoint
    checkpoint_staged checkpoint_copied checkpoint_failed checkpoint_skipped copy_failed
    drain_failed unregistered not_finite notice alert ended``."""
    trial: int
    """The trial's number; 0: it concerns the experiment."""
    attempt: int
    """The attempt's number; 0: it concerns no single attempt."""
    text: str
    """What happened, for people."""


def events(source: ExperimentPaths | Gathered, trial: int = 0) -> list[EventView]:
    """Return every event, by time.

    Args:
        trial: only what concerns this trial; 0 means everything.
    """
    gathered = gather(source)
    found = [
        *_submissions(gathered),
        *_workers(gathered),
        *_attempts(gathered, trial),
        *_decisions(gathered),
        *_commands(gathered),
    ]
    chosen = (event for event in found if trial in (0, event.trial))
    return sorted(chosen, key=lambda event: event.time)


def _event(time: str, kind: str, text: str, trial: int = 0, attempt: int = 0) -> EventView:
    return EventView(time, kind, trial, attempt, text)


def _submissions(gathered: Gathered) -> Iterator[EventView]:
    for job in gathered.jobs:
        if job.submitted is None:
            continue
        if job.submitted.error:
            yield _event(job.submitted.at, "refused", job.submitted.error)
        else:
            count, spares = job.intent.tasks - job.intent.spares, job.intent.spares
            tasks = f"{count} worker{'s' if count > 1 else ''}"
            tasks += f" and {spares} spare task{'s' if spares > 1 else ''}" if spares else ""
            yield _event(job.submitted.at, "submitted", f"job {job.submitted.job}: {tasks}")
        if (found := Stuck.read(gathered.paths.stuck(job.number))) is not None:
            yield _event(found.at, "stuck", f"{found.why}; next: {found.next}")


def _workers(gathered: Gathered) -> Iterator[EventView]:
    for worker in gathered.workers:
        name = worker.paths.name
        if worker.claim is not None:
            where = f"worker {name} on {worker.claim.host}, job {worker.claim.job}"
            yield _event(worker.claim.at, "worker_started", where)
        if worker.end is not None:
            yield _event(worker.end.at, "worker_ended", f"worker {name}: {worker.end.why}")
    for worker in gathered.workers[-_ASKED:]:
        for line in journal.Reader(worker.paths.journal).read("cold"):
            text = f"worker {worker.paths.name} starts each rank anew: {line.get('why', '')}"
            yield _event(line["t"], "cold", text)


def passed_over(gathered: Gathered, trial: int) -> Line | None:
    """Return the newest note of a worker that a trial did not fit into its remaining time.

    With the worker's name as ``worker``. Of the workers only the newest are asked.
    """
    newest = sorted(gathered.workers[-_ASKED:], key=lambda w: w.claim.at if w.claim else "")
    for worker in reversed(newest):
        for line in reversed(journal.Reader(worker.paths.journal).read("passed_over")):
            if line["trial"] == trial:
                return {**line, "worker": worker.paths.name}
    return None


def _attempts(gathered: Gathered, trial: int) -> Iterator[EventView]:
    for each in gathered.chosen(trial):
        for attempt in each.attempts:
            yield from _attempt(attempt)


def _attempt(attempt: GatheredAttempt) -> Iterator[EventView]:
    at = (attempt.paths.trial, attempt.number)
    if attempt.claim is not None:
        yield _event(attempt.claim.at, "started", f"by worker {attempt.claim.worker}", *at)
    for line in attempt.lines:
        text = _journal_text(line)
        if text:
            yield _event(line["t"], line["kind"], text, *at)
    if attempt.end is not None:
        error = f": {attempt.end.error}" if attempt.end.error else ""
        yield _event(attempt.end.at, "ended", f"{attempt.end.reason}{error}", *at)


_TEXTS = {
    "first_step": "first step done",
    "checkpoint": "{name} saved, {bytes} bytes",
    "checkpoint_staged": "{name} saved on {host}, not on scratch yet",
    "drain_failed": "{name} not copied from its node: {error}",
    "checkpoint_failed": "no checkpoint at step {step}: {error}",
    "checkpoint_skipped": "no time for one more save at step {step}; {instead} counts",
    "checkpoint_copied": "{name} copied to project storage",
    "copy_failed": "{name} not copied to project storage: {error}",
    "not_finite": "{group} after {step} batches: {names} not finite",
    "unregistered": "no checkpoint would have {found}",
    "notice": "{signal} heard",
    "alert": "{level}: {text}",
}
"""Texts in the timeline for lines of an attempt's journal, by their kind."""


def _journal_text(line: Line) -> str:
    """Return the text in the timeline for a line of an attempt's journal; "" if none."""
    if line["kind"] == "start":
        one, going = line["world"] == 1, line.get("checkpoint")
        ranks = "1 rank" if one else f"{line['world']} ranks"
        if going:
            return f"{ranks} {'goes' if one else 'go'} on from {going}"
        return f"{ranks} {'begins' if one else 'begin'}"
    lists = {"names": ", ".join(line.get("names", ())), "found": "; ".join(line.get("found", ()))}
    return _TEXTS.get(line["kind"], "").format_map(line | lists)


def _decisions(gathered: Gathered) -> Iterator[EventView]:
    for line in gathered.decisions:
        match line["kind"]:
            case "action":
                action = line["action"]
                yield _event(line["t"], "decision", _action_text(action), action.get("trial", 0))
            case "clone":
                yield _event(line["t"], "clone", str(line["why"]), line["trial"])
            case "retry":
                text = f"allowed attempts up to {line['attempts']}: {line.get('why', '')}"
                yield _event(line["t"], "retry", text, line["trial"])
            case "fail":
                yield _event(line["t"], "failed", str(line.get("why", "")), line["trial"])
            case "lost":
                yield _event(line["t"], "lost", f"worker {line['worker']} is gone")
            case "throttle":
                tasks = units.counted(line["running"], "task")
                text = f"job {line['job']}: at most {tasks} at once"
                yield _event(line["t"], "throttle", text)
            case "stored":
                yield _event(line["t"], "stored", "; ".join(_stored(line)))
            case "state":
                why = f": {line['why']}" if line.get("why") else ""
                yield _event(line["t"], "state", f"{line['state']}{why}")
    states = [line["state"] for line in gathered.decisions if line["kind"] == "state"]
    if gathered.closed is not None and states[-1:] != [gathered.closed.state]:
        why = f": {gathered.closed.why}" if gathered.closed.why else ""
        yield _event(gathered.closed.at, "state", f"{gathered.closed.state}{why}")


def _stored(line: Line) -> Iterator[str]:
    """Yield what a round of copying to the object store did."""
    if line["copied"]:
        yield f"copied to the object store: {', '.join(line['copied'])}"
    if line["dropped"]:
        yield f"removed from it: {', '.join(line['dropped'])}"
    if line["why"]:
        yield f"not copied to the object store: {', '.join(line['waiting'])}: {line['why']}"
    elif not (line["copied"] or line["dropped"]):
        yield "nothing waits to be copied to the object store any more"


def decided(gathered: Gathered) -> dict[int, str]:
    """Return by trial the searcher's last decision with a reason, or why the trial is a copy."""
    found: dict[int, str] = {}
    made: dict[int, str] = {}
    ended = {one.number: one.standing for one in gathered.trials if one.standing.state == "done"}
    deaf = {n for n, one in ended.items() if one.last_end and one.last_end.reason == "completed"}
    for line in gathered.decisions:
        action = line["action"] if line["kind"] == "action" else {}
        trial = action.get("trial", 0)
        if action.get("kind") == "create":
            made[trial] = found[trial] = action.get("why", "") if action.get("parent") else ""
        elif trial:
            found[trial] = _action_text(action) if action.get("why") else made.get(trial, "")
            if found[trial] and action["kind"] in ("pause", "stop") and trial in deaf:
                found[trial] += "; it had come to its end before it heard"
    return {trial: text for trial, text in found.items() if text}


def _action_text(action: dict[str, Any]) -> str:
    until = action.get("until")
    length = " ".join(f"{value} {unit}" for unit, value in until.items()) if until else ""
    why = f": {action['why']}" if action.get("why") else ""
    match action.get("kind"):
        case "create":
            parent = f" from trial {action['parent']}" if action.get("parent") else ""
            return f"made{parent}, to train {length or 'as long as the code says'}{why}"
        case "continue":
            return f"to go on{f' until {length}' if length else ''}{why}"
        case "ask":
            return f"asks its user{why}"
        case "halt":
            return f"pauses for its user to look at it{why}"
        case kind:
            return f"{kind}{why}"


def _commands(gathered: Gathered) -> Iterator[EventView]:
    refused = changes.refusals(gathered)
    for seq, command in gathered.commands:
        by = f" by {command.user}" if command.user else ""
        said = ", ".join(_said(command))
        text = f"{command.verb}{by}" + (f": {said}" if said else "")
        if refused.get(seq):
            text += f"; refused: {refused[seq]}"
        yield _event(command.at, "command", text, command.trial)


def _said(command: Command) -> Iterator[str]:
    """Yield a command's arguments as text."""
    given = command.arguments
    if given.get("reason"):
        yield str(given["reason"])
    if given.get("now"):
        yield "without saving"
    if given.get("from"):
        yield f"from {given['from']}"
    if given.get("reasons"):
        yield f"what ended by {' or '.join(given['reasons'])}"
    asked = given if command.verb == "set" else given.get("set", {})
    yield from changes.assigned(asked)
    yield from changes.assigned(overrides.about(command.verb, given))
