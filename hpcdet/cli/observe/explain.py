"""``explain``: the causes of an experiment's state, with evidence and the next command."""

from __future__ import annotations

import itertools
import shlex
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from hpcdet import units
from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.ids import called, id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import HpcdetError
from hpcdet.read.experiment import changes, gather, states, timing
from hpcdet.read.lookup import find, lineage
from hpcdet.read.lookup.escapes import escaped
from hpcdet.read.usage import beyond_rungs, spans
from hpcdet.read.views import describe, logs, timeline, views
from hpcdet.read.views.items import text
from hpcdet.read.views.trials import AttemptView, TrialStatusView, seconds
from hpcdet.read.views.views import StatusView
from hpcdet.store.folder import home

Kind = Literal["state", "pending", "failure", "restart", "progress", "slow", "origin", "decision"]


@dataclass(frozen=True)
class FindingView:
    """A finding on an experiment or one of its trials."""

    about: str
    """The experiment, or the trial as ``ID/3``."""
    finding: str
    """What was found."""
    evidence: list[str]
    """Lines that show it."""
    next: str
    """What to do: a command, or a change of the config; "" for nothing."""
    kind: Kind
    """Its kind."""


COLUMNS = (Column("ABOUT", "about"), Column("FINDING", "finding"))

_WORDS = {
    "oom": "it ran out of memory; ask for more by resources.memory_per_slot",
    "user_error": "the code raised an error",
    "launch_failed": "it never reached its first step",
    "lost": "a rank or its worker vanished without a word",
    "node_fail": "a node failed",
    "unproven": "its ranks could not verify that they were connected to each other only",
    "refused": "a node does not attest what the policy requires",
    "preempted": "the scheduler took the nodes back",
    "walltime": "the allocation's time was over",
    "resized": "it had fewer nodes than it may have, and left for a job with all of them",
}

_WAITS = {
    "held": "its owner holds it: hpcdet release",
    "launch": "the scheduler holds it after a failed launch: the next turn replaces it",
    "never": "it cannot start as it is: the next turn removes it and names the remedy",
    "limit": "it passes when others of its user, account or QOS have ended",
    "outage": "it starts when the partition or node is back; the scheduler shows why it is down",
    "begin_time": "it passes by itself: a requeued task waits two minutes",
}
"""What a kind of waiting means (``schedulers.common.base.Wait``)."""
_PASSES = ("preempted", "walltime", "resized", "lost", "node_fail", "unproven", "refused")
"""Ends after which a trial only goes on."""


@click.command("explain", short_help="Why it is pending, slow or failed, and what to do.")
@id_argument()
@click.option("--pending", is_flag=True, help="Only why nothing runs.")
@click.option("--failure", is_flag=True, help="Only why something failed.")
@output("explain", FindingView)
def explain_command(out: Output, id: str, pending: bool, failure: bool) -> None:
    """Why an experiment is pending, slow, stuck or failed: evidence, and the next command.

    \b
    Example: hpcdet explain digits-7f3a
    """
    found = find.reference(id, settings().root)
    asked = {kind for kind, flag in (("pending", pending), ("failure", failure)) if flag}
    findings = [
        finding
        for finding in _in_order(_explain(gather.gather(found.paths), found.trial))
        if not asked or finding.kind in {"state", *asked}
    ]
    if asked and not any(finding.kind in asked for finding in findings):
        settings().note("nothing else is known")
    if not out.for_people or out.fields:
        out.emit(findings, COLUMNS, key="about")
        return
    for finding, others in _alike(findings):
        many = "trials" if others > 1 else "trial"
        more = f" (and {others} more {many} likewise)" if others else ""
        what = f"{finding.about}: {finding.finding}{more}"
        click.echo(escaped(text_format.folded(what, "  ")))
        for line in finding.evidence:
            click.echo(escaped(f"    {line}"))
        if finding.next:
            click.echo(escaped(f"  next: {finding.next}"))


_ORDER = {"failure": 1, "pending": 2, "slow": 4}


def _in_order(findings: Iterator[FindingView]) -> list[FindingView]:
    """Return the experiment's state, failures, what waits, the rest, and what is slow."""
    first, *others = findings
    return [first, *sorted(others, key=lambda finding: _ORDER.get(finding.kind, 3))]


def _alike(findings: list[FindingView]) -> Iterator[tuple[FindingView, int]]:
    """Merge findings for people: the first slow trial of each advice and the number of others."""
    slow = Counter(finding.next for finding in findings if finding.kind == "slow")
    for finding in findings:
        if finding.kind != "slow":
            yield finding, 0
        elif count := slow.pop(finding.next, 0):
            yield finding, count - 1


def _finding(
    kind: Kind, about: str, finding: str, next: str = "", evidence: Sequence[str] = ()
) -> FindingView:
    return FindingView(about, finding, list(evidence), next, kind)


def _explain(gathered: gather.Gathered, trial: int) -> Iterator[FindingView]:
    item = views.status(gathered)
    why = text(item.why)
    if any(row.why and text(row.why) in why for row in item.trials):
        why = describe.shortened(why)  # that trial tells all of it
    yield _finding("state", item.id, item.state + (f": {why}" if item.why else ""))
    if item.state == "PAUSED":
        next = views.next_command(gathered)
        mends = why.startswith("searcher custom: ")
        where = [f"the program runs in {gathered.paths.code}: mend it there"] if mends else []
        if "has shown a finite number" in why:
            where = ["if searcher.metric is misspelt: hpcdet cancel it, and submit it anew"]
        yield _finding("pending", item.id, "it waits for a person", next, where)
    yield from _queue(gathered, item)
    yield from _avoided(gathered)
    yield from _rungs(gathered)
    yield from _starting(gathered, trial)
    for row in item.trials:
        if trial in (0, row.trial):
            yield from _trial(gathered, row)
            if (found := gathered.trial(row.trial)) is not None:
                yield from _said(found, row)
                for one in timing.findings(found):
                    yield _finding("slow", row.id, f"slow: {one.finding}", one.next)
            if trial and (said := timeline.decided(gathered).get(trial)):
                yield _finding("decision", row.id, f"the searcher decided: {said}")


def _avoided(gathered: gather.Gathered) -> Iterator[FindingView]:
    """Find workers that left hosts which the scheduler could not leave out."""
    left = [
        f"worker {worker.paths.name} on {', '.join(worker.claim.nodes)}"
        for worker in gathered.workers
        if worker.end is not None and worker.end.why == "avoided" and worker.claim is not None
    ]
    if left:
        said = "the scheduler cannot leave hosts out: workers on those to be avoided took nothing, "
        said += "and left once their replacements ran elsewhere"
        yield _finding("slow", gathered.id, said, "", left)


def _rungs(gathered: gather.Gathered) -> Iterator[FindingView]:
    """Find rungs that trials reached faster than decisions were made."""
    left = beyond_rungs.beyond(gathered)
    passed = [one for one in left if one.passed]
    if not passed:
        return
    batches = sum(one.batches for one in left)
    took = statistics.median(one.seconds for one in passed)
    said = f"rungs came faster than decisions: {len(passed)} of {len(left)} times a trial reported"
    said += f" at further rungs before it left, typically {took:.2g} s after the report"
    trials = sorted({one.trial for one in passed})
    evidence = [f"{batches} batches in all were trained beyond rungs (hpcdet eff)"]
    evidence.append(f"trials {', '.join(map(str, trials[:20]))}{' …' if len(trials) > 20 else ''}")
    next = f"searcher.wait_at_rungs_s: {beyond_rungs.wait_s(took)}, or rungs farther apart"
    yield _finding("slow", gathered.id, said, next, evidence)


def _starting(gathered: gather.Gathered, trial: int) -> Iterator[FindingView]:
    """Find that trials, or one, took longer to start than to train."""
    found = [s for s in spans.spans(gathered, time.time()) if trial in (0, s.trial)]
    sums = spans.totals(found)
    held = sums["starting"] + sums["training"] + sums["lost"]
    if not sums["training"] or sums["starting"] <= held / 2:
        return
    starts = [span for span in found if span.kind == "starting"]
    each = units.duration(statistics.median(span.end - span.start for span in starts))
    said = f"slow: starting: {sums['starting'] / held:.0%} of the time that trials held their slots"
    said += f" (typically {each} from claim to first step, {len(starts)} times)"
    name = called(find.Reference(gathered.paths, trial))
    next = f"hpcdet eff {name} --waste; docs/guides/slow.md; or more training in each attempt"
    yield _finding("slow", f"{gathered.id}/{trial}" if trial else gathered.id, said, next)


def _said(trial: gather.GatheredTrial, row: TrialStatusView) -> Iterator[FindingView]:
    """Find warnings in the journal of a trial's newest attempt that did not end it."""
    lines = trial.attempts[-1].lines if trial.attempts else ()
    first = {line["kind"]: line for line in reversed(lines)}
    if (line := first.get("unregistered")) is not None:
        said = "what was not registered begins anew with each attempt"
        yield _finding("state", row.id, said, "", line["found"])
    if (line := first.get("not_finite")) is not None:
        what = f"not finite since step {line['step']}: {', '.join(line['names'])}"
        cure = "a lower learning rate, clipped gradients; searcher.stopping.nan ends such trials"
        yield _finding("state", row.id, what, cure)


def _queue(gathered: gather.Gathered, item: StatusView) -> Iterator[FindingView]:
    name, command = item.id, called(gathered.paths)
    for job in views.jobs(gathered):
        if job.error:
            hint = f"hpcdet show {command} --section jobs"
            refused = f"submission {job.number} was refused"
            evidence = [job.error] if job.error not in item.why else []
            yield _finding("pending", name, refused, hint, evidence)
        elif job.hold and not job.job and not gathered.closed:
            hint = _by_hand(gathered, job.script)
            prepared = "the experiment is prepared and waits to be submitted by hand"
            yield _finding("pending", name, prepared, hint)
    if item.health == "queued":
        waiting = states.waiting_jobs(gathered)
        hint = _look(gathered, waiting) or f"hpcdet resume {command}"
        shared = []
        if item.state == "STOPPING":
            hint = f"hpcdet searcher run {command}"
        elif states.held(gathered):
            hint = f"hpcdet release {command}"
        elif not waiting and any(wait.kind == "limit" for wait in item.waits):
            hint = f"hpcdet searcher {_may_decide(gathered)} {command}"  # if nobody else does
        elif any(job.startswith("local-") for job in waiting):
            hint = f"hpcdet status -w {command}"
            shared = ["all experiments share this machine's slots: one per accelerator or core,"]
            shared += ["or as many as the site file's 'slots' says"]
        shared += [_WAITS[wait.kind] for wait in item.waits if wait.kind in _WAITS]
        yield _finding("pending", name, item.health_why, hint, shared)
    if item.health == "stalled":
        said = logs.of_jobs(gathered.paths)
        why, next = item.health_why, f"hpcdet searcher {_may_decide(gathered)} {command}"
        if (found := gathered.sentinel) is not None:
            why, next = found.why, found.next
        if home.original(gathered.paths) is not None:
            next = f"hpcdet move {gathered.paths.root} --here"
        yield _finding("pending", name, why, next, said)


def _may_decide(gathered: gather.Gathered) -> str:
    """Return which verb of ``searcher`` is welcome on this site's login nodes."""
    from hpcdet.site_files.load_site import from_resolved

    try:
        forbidden = from_resolved(gathered.paths.site).capabilities.login_daemon == "forbidden"
    except HpcdetError:
        return "start"
    return "run --once" if forbidden else "start"


def _look(gathered: gather.Gathered, jobs: list[str]) -> str:
    """Return the scheduler's command that shows when jobs may start; "" without one."""
    from hpcdet.schedulers import opening
    from hpcdet.site_files.load_site import from_resolved

    try:
        return opening.of(from_resolved(gathered.paths.site)).names.look(jobs) if jobs else ""
    except HpcdetError:
        return ""


def _by_hand(gathered: gather.Gathered, script: str) -> str:
    """Return the command that submits a prepared job; the script alone if no site can be read."""
    from hpcdet.jobs.script import submission
    from hpcdet.site_files.load_site import from_resolved

    try:
        return shlex.join(submission.argv(from_resolved(gathered.paths.site), Path(script)))
    except HpcdetError:
        return script


def _trial(gathered: gather.Gathered, row: TrialStatusView) -> Iterator[FindingView]:
    attempts = views.attempts(gathered, row.trial)
    failed = [a for a in attempts if a.reason in ("user_error", "oom", "launch_failed")]
    if row.state == "ERROR" or failed:
        last = (failed or attempts)[-1:]
        reason, error = (last[0].reason, last[0].error) if last else ("", "")
        error = text(error) if error else ""
        said, why = _WORDS.get(reason, reason), text(row.why)
        traces = logs.errors(gathered.paths, row.trial, last[0].attempt) if last else []
        ranks = [[line.text for line in trace] for trace in traces]
        # other ranks complain of the one that failed
        its = [trace for trace in ranks if error in text(" ".join(trace))]
        evidence = logs.folded((its or ranks or [[]])[0])
        if its:
            why = why.removesuffix(error).rstrip(": ")  # it is its last line
        elif error not in why:
            evidence.append(error)
        if not said:
            said = why
        elif why not in ("", "-"):
            evidence.insert(0, why)
        if reason == "launch_failed" and gathered.config.distributed.backend == "mpi":
            evidence.append(
                "MPI has to support the site file's launcher: docs/guides/sites.md, Keys"
            )
        next = _after_failure(gathered, row, reason)
        yield _finding("failure", row.id, f"{row.state}: {said}", next, evidence)
    if counts := Counter(a.reason for a in attempts if a.reason in _PASSES):
        lost = sum(_redone(a, b) for a, b in itertools.pairwise(attempts))
        whys = [f"{_WORDS[reason]} ({n} times)" for reason, n in counts.items()]
        whys += [f"promoted ({row.promotions} times)"] if row.promotions else []
        again = f"it began {len(attempts)} times: {', '.join(whys)}; {lost} steps again"
        yield _finding("restart", row.id, again)
    line = timeline.passed_over(gathered, row.trial) if row.state == "PENDING" else None
    if line is not None and (not attempts or line["t"] > attempts[-1].end):
        needs = [
            f"about {units.duration(line['start_s'])} to begin",
            f"{units.duration(line['useful_s'])} to get anywhere",
            f"{units.duration(line['leave_s'])} to save and leave",
        ]
        left = units.duration(line["left_s"])
        said = f"the trial waits for another allocation: worker {line['worker']} had {left} left"
        yield _finding("pending", row.id, said, "", needs)
    if row.origin:
        *parents, _ = lineage.chain(gathered, row.trial)
        ends = [f"trial {one.trial} at {one.to} {one.unit}" for one in reversed(parents)]
        said = f"it began from {row.origin['checkpoint']} of {describe.begun_from(row)}"
        evidence = [f"its parents: {', '.join(ends)}"] if parents else []
        next = f"hpcdet schedule {_called(gathered, row)}"
        yield _finding("origin", row.id, said, next, evidence)
    elif row.parent:
        yield _finding("origin", row.id, f"it began from nothing: {row.parent} had nothing")
    if row.state == "RUNNING" and attempts and (heard := attempts[-1].last_heard):
        age = units.duration(seconds(heard, ""))
        yield _finding("progress", row.id, f"at step {row.steps}, last heard {age} ago")


def _after_failure(gathered: gather.Gathered, row: TrialStatusView, reason: str) -> str:
    """Return the next command after a failure; only lack of memory has a remedy of its own."""
    canceled = gathered.closed is not None and gathered.closed.state == "CANCELED"
    if row.state == "ERROR" and reason == "oom" and not canceled:
        memory = changes.effective(gathered).resources.memory_per_slot
        return f"hpcdet retry {_called(gathered, row)} --mem {'x2' if memory else '8G'}"
    if row.state == "ERROR" and gathered.closed is None:
        return f"hpcdet retry {_called(gathered, row)}"
    return f"hpcdet logs {_called(gathered, row)} --errors"


def _called(gathered: gather.Gathered, row: TrialStatusView) -> str:
    return called(find.Reference(gathered.paths, row.trial))


def _redone(attempt: AttemptView, following: AttemptView) -> int:
    reached, begun = attempt.steps, following.from_step
    return max(0, reached - begun) if reached is not None and begun is not None else 0
