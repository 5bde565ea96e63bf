"""Digests of trials: what lists and overviews say of each, from its records and journals.

A digest is kept (``kept``) with how the trial's files and the journals of its attempts looked, so
that an overview of thousands of trials opens none of them, makes no record and orders no values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpcdet.read.experiment import continuations, series
from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.read.experiment.kept import NOT_READABLE, holds, rests, sight, sights
from hpcdet.store.cost import spending
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import TrialState
from hpcdet.units import Length

_BY_STANDING: dict[str, TrialState] = {
    "running": "RUNNING",
    "paused": "PAUSED",
    "stopped": "STOPPED",
    "failed": "ERROR",
    "done": "COMPLETED",
    "doubtful": "PENDING",
    "runnable": "PENDING",
}


@dataclass(frozen=True)
class TrialDigest:
    """A trial in an overview; most fields are those of ``views.trials.TrialStatusView``.

    Attributes:
        state: as if the experiment went on.
        best, best_step: of the searcher's metric alone; None without a value.
        last_checkpoint: its name, step and time; None without one.
        not_finite: group, step and names of the first report of the newest attempt that held
            NaN or infinity; None without one.
        runs: of the attempts that ran, what they cost (``store.cost.spending.Run``).
    """

    trial: int
    state: TrialState
    steps: int
    best: Any
    best_step: int | None
    restarts: int
    promotions: int
    failures: int
    attempts: int
    why: str
    until: Length | None
    hyperparameters: dict[str, Any]
    seed: int | None
    parent: str
    origin: dict[str, Any]
    last_checkpoint: Sequence[Any] | None
    start: str
    end: str
    not_finite: Sequence[Any] | None
    runs: Sequence[Sequence[Any]]


def digests(gathered: Gathered) -> list[TrialDigest]:
    """Return the digest of every trial."""
    searcher = gathered.config.searcher
    metric, smaller = searcher.metric, searcher.smaller_is_better
    by = f"{'least' if smaller else 'greatest'} {metric}"
    for trial in gathered.trials:
        if ("digest", by) not in trial.derived:
            trial.derived["digest", by] = _of(trial, metric, smaller, by)
    return [trial.derived["digest", by] for trial in gathered.trials]


def _of(trial: GatheredTrial, metric: str, smaller: bool, by: str) -> TrialDigest:
    kept, number = trial.kept, trial.number
    if kept is None:
        return _made(trial, metric, smaller)
    now = kept.clock()
    try:
        known = kept.of_trial("digests", number)
        if known is not None and known["by"] == by and _holds(trial.paths, known):
            return _restored(known["value"])
    except NOT_READABLE:
        pass  # another version has kept it
    if trial.recalled is None:
        return _made(trial, metric, smaller)
    attempts = [one.number for one in trial.attempts]
    journals = _journals(trial.paths, attempts)
    digest = _made(trial, metric, smaller)
    records = kept.of_trial("trials", number)
    if records is not None and rests(journals, now):
        value = {**asdict(digest), "until": digest.until and digest.until.encode()}
        about = {"by": by, "attempts": attempts, "journals": journals, "value": value}
        kept.put_of_trial("digests", number, {**_without_checkpoints(records), **about})
    return digest


def _without_checkpoints(records: dict[str, Any]) -> dict[str, Any]:
    """Return how a trial's files looked, but for its checkpoints, of which no digest is made."""
    folders, seen = records["folders"], records["seen"]
    kept = [n for n, name in enumerate(folders) if not name.startswith(("/checkpoints", "~"))]
    looks = [look for n in kept for look in seen[3 * n : 3 * n + 3]]
    return {
        "folders": [folders[n] for n in kept],
        "records": records["records"],
        "seen": looks + seen[3 * len(folders) :],
        "changed": records["changed"],
        "read": records["read"],
    }


def _holds(paths: TrialPaths, known: dict[str, Any]) -> bool:
    same: bool = _journals(paths, known["attempts"]) == known["journals"]
    return same and holds(paths, known)


def _journals(paths: TrialPaths, attempts: Sequence[int]) -> list[int]:
    """Return how the journals of attempts look."""
    places = [f"{paths.root}/attempts/{number}/journal.jsonl" for number in attempts]
    found = sights(places)
    if -1 in found[2::3]:  # it is packed, or not begun
        return [look for number in attempts for look in sight(paths.attempt(number).journal)]
    return found


def _restored(value: dict[str, Any]) -> TrialDigest:
    until = value["until"]
    return TrialDigest(**{**value, "until": until and Length.decode(until)})


def _made(trial: GatheredTrial, metric: str, smaller: bool) -> TrialDigest:
    record, control = trial.record, trial.control
    claims = [a.claim for a in trial.attempts if a.claim is not None]
    end = trial.attempts[-1].end if trial.attempts else None
    step, value = series.best_validation(trial, metric, smaller) or (None, None)
    return TrialDigest(
        trial=trial.number,
        state=state(trial),
        steps=trial.steps,
        best=value,
        best_step=step,
        restarts=continuations.restarts(trial),
        promotions=continuations.promotions(trial),
        failures=trial.standing.failures,
        attempts=len(trial.attempts),
        why=(control.why if control else "") or (end.error if end else ""),
        until=control.until if control else None,
        hyperparameters=record.params if record else {},
        seed=record.seed if record and record.seed >= 0 else None,
        parent=record.parent if record else "",
        origin=record.origin if record else {},
        last_checkpoint=_last_checkpoint(trial),
        start=claims[0].at if claims else "",
        end=end.at if end else "",
        not_finite=_not_finite(trial),
        runs=[run for one in trial.attempts if (run := spending.run(one.claim, one.end))],
    )


def state(trial: GatheredTrial) -> TrialState:
    """Return the state of a trial of an experiment that goes on."""
    control = trial.control
    action = control.action if control else "run"
    found = _BY_STANDING[trial.standing.state]
    if found == "RUNNING":
        return "STOPPING" if action != "run" else "RUNNING"
    if action == "kill":
        return "CANCELED"
    return "STOPPED" if found == "COMPLETED" and _left_early(trial) else found


def _left_early(trial: GatheredTrial) -> bool:
    """True if the newest attempt ended because the search asked for it, not by its own code."""
    end, control = trial.standing.last_end, trial.control
    return (
        end is not None
        and end.reason == "stopped"
        and control is not None
        and control.action != "run"
    )


def _last_checkpoint(trial: GatheredTrial) -> list[Any] | None:
    for attempt in reversed(trial.attempts):
        for line in reversed([*attempt.of_kind("checkpoint")]):
            return [line["name"], line["step"], line["t"]]
    return None


def _not_finite(trial: GatheredTrial) -> list[Any] | None:
    lines = trial.attempts[-1].of_kind("not_finite") if trial.attempts else iter(())
    found = next(lines, None)
    return [found["group"], found["step"], found["names"]] if found is not None else None
