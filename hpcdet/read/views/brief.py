"""What an experiment's row in a list says, from its files."""

from __future__ import annotations

from datetime import UTC, datetime

from hpcdet.read.experiment import changes, standings, states
from hpcdet.read.experiment.digests import digests
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.views.list_rows import ExperimentView, TrialStatusView, age_s
from hpcdet.read.views.trials import best_trial, compared, leader
from hpcdet.store.folder import trust
from hpcdet.store.folder.layout import ExperimentPaths


def brief(source: ExperimentPaths | Gathered) -> ExperimentView:
    """Return an experiment's row in a list."""
    gathered = gather(source)
    state, why = states.experiment_state(gathered)
    config, stand = gathered.config, standings.standings(gathered)
    rows = compared(gathered, stand, digests(gathered))
    best = leader(stand) if stand else best_trial(rows, config.searcher.smaller_is_better)
    made = created(gathered)
    return ExperimentView(
        id=gathered.id,
        name=config.name,
        description=config.description,
        state=state,
        why=why,
        trials=len(rows),
        done=sum(row.state in states.ENDED for row in rows),
        progress=1.0 if state == "COMPLETED" else _progress(gathered, rows),
        metric=config.searcher.metric,
        best=best.value if best else None,
        best_trial=best.trial if best else None,
        created=made,
        age_s=age_s(made),
        project=project(gathered),
        user=user(gathered),
        owner=owner(gathered),
        labels=changes.labels(gathered),
        path=str(gathered.paths.root),
    )


def project(gathered: Gathered) -> str:
    """Return the project of an experiment, with its workspace; "" without one."""
    return "/".join(filter(None, (gathered.config.workspace, gathered.config.project)))


def user(gathered: Gathered) -> str:
    """Return who made an experiment."""
    return str(gathered.provenance.get("user", ""))


def owner(gathered: Gathered) -> str:
    """Return the user that the folder of an experiment belongs to."""
    return trust.user(gathered.paths.root.stat().st_uid)


def _progress(gathered: Gathered, rows: list[TrialStatusView]) -> float:
    searcher = gathered.config.searcher
    done = 0.0
    for trial, row in zip(gathered.trials, rows, strict=True):
        until = row.until or searcher.max_length
        if row.state in states.ENDED:
            done += 1
        elif until is not None and until.value:
            reports = trial.validations(searcher.metric)
            reached = max((length for _, length, _ in reports), default=0)
            reached = max(reached, row.steps) if until.unit == "batches" else reached
            done += min(1.0, reached / until.value)
    return round(done / max(searcher.max_trials, len(rows), 1), 4)


def created(gathered: Gathered) -> str:
    """Return when an experiment was made."""
    for key in ("created_at", "created", "at"):
        value = gathered.provenance.get(key)
        if isinstance(value, str):
            return value
    at = gathered.paths.config.stat().st_mtime
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
