"""Views of experiments as plain data: the items of ``-o json``, and the report's input.

Every view takes the experiment's paths, or a ``Gathered`` for several views of one reading.
Times are ISO 8601 UTC or "", lengths are batches, sizes bytes, durations seconds.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from hpcdet.read.experiment import changes, continuations, series, standings, states
from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, GatheredTrial, gather
from hpcdet.read.experiment.series import metrics
from hpcdet.read.experiment.standings import Standings
from hpcdet.read.views import costs, purged
from hpcdet.read.views.checkpoints import checkpoints
from hpcdet.read.views.timeline import events
from hpcdet.store.folder import home, scratch
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import packed

__all__ = [
    "Gathered",
    "attempts",
    "brief",
    "checkpoints",
    "events",
    "gather",
    "metrics",
    "show",
    "status",
    "trials",
]

View = dict[str, Any]
Source = ExperimentPaths | Gathered


def brief(source: Source) -> View:
    """Return a row of ``hpcdet ls``: id, name, state, trials, done, created, user, labels, path."""
    gathered = gather(source)
    config = gathered.config
    state, why = states.experiment_state(gathered)
    over = state if state in states.ENDED else ""
    done = sum(states.trial_state(t, over) in states.ENDED for t in gathered.trials)
    return {
        "id": gathered.id,
        "name": config.name,
        "state": state,
        "why": why,
        "trials": len(gathered.trials),
        "done": done,
        "created": _created(gathered),
        "user": str(gathered.provenance.get("user", "")),
        "labels": labels(gathered),
        "path": str(gathered.paths.root),
    }


def next_command(gathered: Gathered) -> str:
    """Return the command that resumes a paused experiment."""
    key = costs.exhausted(gathered)
    if key:
        return f"hpcdet set {home.called(gathered.paths)} {key}=MORE"
    return states.resuming(gathered)


def status(source: Source) -> View:
    """Return the overview of an experiment.

    Returns:
        ``id, name, state, why, stuck`` (paused by a failure), ``next`` (the command that resumes
        it then, else ""), ``health, health_why, last_turn_s``, ``waits`` (``states.waits``),
        ``searcher, metric, best {trial, value, step} or None (with
        constraints, a feasible one), objectives, compared_at, front, nearest`` (``standings``),
        ``max_length, max_trials, created, workers, labels, path, spent`` (``costs.spent``),
        ``purged`` (what a purge of scratch took, for people), ``not_finite`` (a
        ``{trial, group, step, names}`` for each trial whose newest attempt reported NaN or
        infinity: since when) and ``trials`` (see there).
    """
    gathered = gather(source)
    state, why = states.experiment_state(gathered)
    keepers, stuck = states.health(gathered), states.stuck(gathered)
    searcher = gathered.config.searcher
    stand = standings.standings(gathered)
    rows = _trials(gathered, stand)
    best = _best_trial(rows, searcher.smaller_is_better) if stand is None else _leader(stand)
    compared = stand.view() if stand else {"compared_at": None, "front": [], "nearest": None}
    return {
        "id": gathered.id,
        "name": gathered.config.name,
        "state": state,
        "why": why,
        "stuck": stuck,
        "next": next_command(gathered) if stuck else "",
        "health": keepers["health"],
        "health_why": keepers["why"],
        "last_turn_s": keepers["last_turn_s"],
        "waits": states.waits(gathered),
        "searcher": searcher.name,
        "metric": searcher.metric,
        "smaller_is_better": searcher.smaller_is_better,
        "best": best,
        "objectives": [one.metric for one in searcher.goals.objectives],
        **compared,
        "max_length": searcher.max_length.encode() if searcher.max_length else None,
        "max_trials": searcher.max_trials,
        "created": _created(gathered),
        "workers": sum(worker.end is None for worker in gathered.workers),
        "paused_bytes": _paused_bytes(gathered, rows),
        "max_paused_bytes": gathered.config.checkpoint_storage.max_paused_bytes,
        "labels": labels(gathered),
        "path": str(gathered.paths.root),
        "spent": costs.spent(gathered),
        "purged": purged.lines(gathered),
        "not_finite": _not_finite(gathered),
        "trials": rows,
    }


def _not_finite(gathered: Gathered) -> list[View]:
    newest = [(trial.number, trial.attempts[-1]) for trial in gathered.trials if trial.attempts]
    found = ((number, next(one.of_kind("not_finite"), None)) for number, one in newest)
    return [
        {"trial": number, **{key: line[key] for key in ("group", "step", "names")}}
        for number, line in found
        if line is not None
    ]


def trials(source: Source) -> list[View]:
    """Return every trial.

    Returns:
        ``id, trial, state, steps, best, best_step`` (the best feasible value of the first
        objective), ``restarts`` (attempts after one that was cut short), ``promotions`` (times the
        search let it go on after a pause or a target), ``failures, why, hyperparameters, seed,
        last_checkpoint, start, end, attempts``, ``parent`` (the trial that it began from, as
        ``3@400 batches``), ``origin`` (of its checkpoint), and with constraints or several
        objectives those of ``Standings.row``.
    """
    gathered = gather(source)
    return _trials(gathered, standings.standings(gathered))


def _trials(gathered: Gathered, stand: Standings | None) -> list[View]:
    state, _ = states.experiment_state(gathered)
    over = state if state in states.ENDED else ""
    searcher = gathered.config.searcher
    if stand is not None:
        found = {
            number: {"value": report.metrics[searcher.metric], "step": report.step}
            for number, report in stand.best.items()
        }
        return [
            {**_trial(gathered, each, found.get(each.number), over), **stand.row(each.number)}
            for each in gathered.trials
        ]
    rows = []
    for trial in gathered.trials:
        best = series.best_validation(trial, searcher.metric, searcher.smaller_is_better)
        report = {"value": best[1], "step": best[0]} if best else None
        rows.append(_trial(gathered, trial, report, over))
    return rows


def _trial(gathered: Gathered, trial: GatheredTrial, best: View | None, over: str) -> View:
    record, control = trial.record, trial.control
    claims = [a.claim for a in trial.attempts if a.claim is not None]
    end = trial.attempts[-1].end if trial.attempts else None
    return {
        "id": f"{gathered.id}/{trial.number}",
        "trial": trial.number,
        "state": states.trial_state(trial, over),
        "steps": trial.steps,
        "best": best["value"] if best else None,
        "best_step": best["step"] if best else None,
        "restarts": continuations.restarts(trial),
        "promotions": continuations.promotions(trial),
        "failures": trial.standing.failures,
        "attempts": len(trial.attempts),
        "why": (control.why if control else "") or (end.error if end else ""),
        "until": control.until.encode() if control and control.until else None,
        "hyperparameters": record.params if record else {},
        "seed": record.seed if record else None,
        "parent": record.parent if record else "",
        "origin": record.origin if record else {},
        "last_checkpoint": _last_checkpoint(trial),
        "start": claims[0].at if claims else "",
        "end": end.at if end else "",
    }


def _last_checkpoint(trial: GatheredTrial) -> View | None:
    for attempt in reversed(trial.attempts):
        for line in reversed([*attempt.of_kind("checkpoint")]):
            return {"name": line["name"], "step": line["step"], "time": line["t"]}
    return None


def _paused_bytes(gathered: Gathered, rows: list[View]) -> int | None:
    """Return the bytes of paused trials' checkpoints; None without ``max_paused_bytes``."""
    if gathered.config.checkpoint_storage.max_paused_bytes is None:
        return None
    paused = [row["trial"] for row in rows if row["state"] == "PAUSED"]
    held = (one for number in paused for one in checkpoints(gathered, number))
    return sum(int(one["bytes"]) for one in held if one["state"] == "complete")


def _best_trial(rows: list[View], smaller_is_better: bool) -> View | None:
    values = [(series.number(row["best"]), row) for row in rows if row["best"] is not None]
    ordered = [(value, row) for value, row in values if value is not None]
    if not ordered:
        return None
    pick = min if smaller_is_better else max
    value, row = pick(ordered, key=lambda pair: pair[0])
    return {"trial": row["trial"], "value": value, "step": row["best_step"]}


def _leader(stand: Standings) -> View | None:
    """Return the best feasible trial, by the first objective, at the compared length."""
    if not stand.front:
        return None
    trial = stand.front[0]
    report, metric = stand.at[trial], stand.goals.objectives[0].metric
    return {"trial": trial, "value": report.metrics[metric], "step": report.step}


def attempts(source: Source, trial: int = 0) -> list[View]:
    """Return every attempt of one trial, or of all of them.

    Returns:
        ``id, trial, attempt, job, worker, host, nodes, start, end, reason`` ("" while it runs),
        ``steps`` (batches of the trial at its end or now), ``from_step`` (where it began),
        ``checkpoint`` (resumed from), ``exit_code, error, duration_s`` (so far, if it runs),
        ``log`` (of rank 0), ``traces`` (what torch's profiler recorded, a file for each rank).
    """
    gathered = gather(source)
    one = gathered.trial(trial) if trial else None
    chosen = gathered.trials if not trial else [one] if one is not None else []
    return [_attempt(gathered, attempt) for each in chosen for attempt in each.attempts]


def _attempt(gathered: Gathered, attempt: GatheredAttempt) -> View:
    claim, end = attempt.claim, attempt.end
    begin: View = next(attempt.of_kind("start"), {})
    nodes = (end.nodes if end else []) or (claim.nodes if claim else [])
    started, ended = claim.at if claim else "", end.at if end else ""
    return {
        "id": f"{gathered.id}/{attempt.paths.trial}.{attempt.number}",
        "trial": attempt.paths.trial,
        "attempt": attempt.number,
        "job": claim.job if claim else "",
        "worker": claim.worker if claim else "",
        "host": claim.host if claim else "",
        "nodes": nodes,
        "start": started,
        "end": ended,
        "reason": end.reason if end else "",
        "steps": attempt.position,
        "from_step": begin.get("batches"),
        "checkpoint": begin.get("checkpoint", ""),
        "world": begin.get("world"),
        "exit_code": end.exit_code if end else None,
        "error": (end.error if end else "") or (attempt.verdict.error if attempt.verdict else ""),
        "duration_s": seconds(started, ended),
        "last_heard": attempt.heard,
        "log": packed.where(attempt.paths.log(0)),
        "traces": _traces(gathered, attempt),
    }


def _traces(gathered: Gathered, attempt: GatheredAttempt) -> list[str]:
    if not gathered.config.profiling.enabled:
        return []
    folder = attempt.paths.traces
    return [packed.where(folder / name) for name in sorted(packed.names(folder))]


def show(source: Source) -> View:
    """Return ``status`` and everything else that is known of the experiment.

    Keys: ``config, changes, attempts, jobs, allocations`` (``costs``), ``checkpoints, provenance,
    files``.

    ``config`` is what holds now: what was submitted, with ``changes`` laid over it.
    """
    gathered = gather(source)
    return {
        **status(gathered),
        "config": dict(changes.effective(gathered).raw),
        "changes": changes.changes(gathered),
        "attempts": attempts(gathered),
        "jobs": jobs(gathered),
        "allocations": costs.allocations(gathered),
        "checkpoints": checkpoints(gathered),
        "provenance": gathered.provenance,
        "files": _files(gathered),
    }


def _files(gathered: Gathered) -> dict[str, Any]:
    paths = gathered.paths
    traces = [file for row in attempts(gathered) for file in row["traces"]]
    found: dict[str, Any] = {
        "code": str(paths.code),
        "config": str(paths.config),
        "site": str(paths.site),
    }
    folder = scratch.target(paths)
    if folder is not None:
        found["scratch"] = str(folder)
    return {**found, "traces": traces} if traces else found


def jobs(source: Source) -> list[View]:
    """All submissions: ``number, name, job, tasks, throttle, spares, hold, script, at, error``."""
    gathered = gather(source)
    changed = {d["job"]: d["running"] for d in gathered.decisions if d["kind"] == "throttle"}
    return [
        {
            "number": job.number,
            "name": job.intent.name,
            "job": job.submitted.job if job.submitted else "",
            "scheduler": job.submitted.scheduler if job.submitted else "",
            "tasks": job.intent.tasks,
            "throttle": changed.get(
                job.submitted.job if job.submitted else "", job.intent.throttle
            ),
            "spares": job.intent.spares,
            "hold": job.intent.hold,
            "script": str(gathered.paths.script(job.number)),
            "at": job.submitted.at if job.submitted else job.intent.at,
            "error": job.submitted.error if job.submitted else "",
        }
        for job in gathered.jobs
    ]


def labels(source: Source) -> list[str]:
    """Return the config's labels with the later changes of ``hpcdet tag``."""
    gathered = gather(source)
    found = dict.fromkeys(str(label) for label in gathered.config.labels)
    for _, command in gathered.commands:
        if command.verb == "tag":
            for label in command.arguments.get("add", []):
                found[label] = None
            for label in command.arguments.get("rm", []):
                found.pop(label, None)
    return list(found)


def seconds(start: str, end: str) -> float | None:
    """Return the seconds between two ISO times; to now if ``end`` is ""; None if ``start`` is."""
    if not start:
        return None
    finish = datetime.fromisoformat(end).timestamp() if end else time.time()
    return round(max(0.0, finish - datetime.fromisoformat(start).timestamp()), 3)


def _created(gathered: Gathered) -> str:
    for key in ("created_at", "created", "at"):
        value = gathered.provenance.get(key)
        if isinstance(value, str):
            return value
    at = gathered.paths.config.stat().st_mtime
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
