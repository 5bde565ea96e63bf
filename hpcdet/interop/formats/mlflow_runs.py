"""Runs in MLflow, one for each trial, found again by their tag ``hpcdet.id`` (needs mlflow)."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdet import __version__
from hpcdet.errors import UsageError
from hpcdet.interop.formats import exported
from hpcdet.interop.formats.exported import ExperimentExport, batches, epoch, flat
from hpcdet.interop.formats.exported_tables import as_json
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import GatheredTrial

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

ID = "hpcdet.id"
"""The tag that makes exports idempotent: of an experiment its id, of a run ``ID/TRIAL``."""
_STATUS = {
    "COMPLETED": "FINISHED",
    "STOPPED": "FINISHED",
    "ERROR": "FAILED",
    "CANCELED": "KILLED",
    "RUNNING": "RUNNING",
    "STOPPING": "RUNNING",
}
_LONGEST_KEY, _LONGEST_VALUE = 250, 6000
_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100
_LARGEST = 1.7976931348623157e308
"""MLflow stores it for infinity."""

Point = tuple[int, int, str]
"""Milliseconds, step and ``repr`` of a value: what makes a metric's point in MLflow."""


def export(what: ExperimentExport, to: str) -> str:
    """Write an MLflow experiment named ID; returns the tracking address.

    A run has the trial's hyperparameters, its metrics as ``GROUP/NAME`` with their times and steps,
    and structured metrics as JSON Lines among its artifacts. A run that is there is completed; one
    that has points which do not count any more is deleted and written anew.

    Args:
        to: the address of a server or store, or a file: an SQLite store, artifacts beside it.

    Raises:
        ImportError: there is no MLflow.
        Unavailable: the store does not take it.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    address, artifacts = _place(to)
    try:
        client = MlflowClient(tracking_uri=address)
        where = _experiment(client, what, artifacts)
        known = {run.data.tags.get(ID, ""): run for run in _runs(client, where)}
        for trial, points in what.each_trial():
            _Trial(client, where, what, trial).write(points, known.get(f"{what.id}/{trial.number}"))
    except (MlflowException, SQLAlchemyError) as error:
        raise exported.refused("MLflow", error, to) from error
    return address


def _place(to: str) -> tuple[str, str | None]:
    """Return the tracking address, and where artifacts go if that is for us to say."""
    if "://" in to:
        return to, None
    path = exported.sqlite_file(to, "mlflow.db")
    return f"sqlite:///{path}", (path.parent / f"{path.stem}-artifacts").as_uri()


def _experiment(client: MlflowClient, what: ExperimentExport, artifacts: str | None) -> str:
    """Return MLflow's id of the experiment, which is made if it is not there."""
    tags = {
        ID: what.id,
        "hpcdet.name": what.status.name,
        "hpcdet.state": what.status.state,
        "hpcdet.searcher": what.status.searcher,
        "hpcdet.metric": what.status.metric,
        "hpcdet.labels": ",".join(what.status.labels),
        "mlflow.note.content": what.gathered.config.description,
    }
    found = client.get_experiment_by_name(what.id)
    if found is None:
        below = f"{artifacts}/{what.id}" if artifacts else None
        made: str = client.create_experiment(what.id, artifact_location=below)
    elif found.lifecycle_stage != "active":
        hint = "restore it in MLflow, or delete it for good"
        raise UsageError("MLflow has a deleted experiment of that name", where=what.id, hint=hint)
    else:
        made = found.experiment_id
    for name, value in tags.items():
        client.set_experiment_tag(made, name, value)
    return made


def _runs(client: MlflowClient, experiment: str) -> Iterable[Run]:
    token = None
    while True:
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


class _Trial:
    """A trial on its way into a run."""

    def __init__(
        self, client: MlflowClient, experiment: str, what: ExperimentExport, trial: GatheredTrial
    ) -> None:
        self._client = client
        self._experiment = experiment
        self._what = what
        self._row = what.row(trial.number)
        self._id = f"{what.id}/{trial.number}"

    def write(self, points: Iterable[series.Row], run: Run | None) -> None:
        wanted, structured = _sorted(points)
        there = self._there(run)
        if run is not None and any(not wanted.get(key, {}).keys() >= known for key, known in there):
            self._client.delete_run(run.info.run_id)
            run, there = None, []
        if run is None:
            run = self._made()
        number = run.info.run_id
        known = dict(there)
        self._log(number, {k: _without(v, known.get(k, set())) for k, v in wanted.items()})
        for key, rows in structured.items():
            text = "".join(f"{json.dumps(row)}\n" for row in rows)
            self._client.log_text(number, text, f"structured/{key}.jsonl")
        self._end(number)

    def _there(self, run: Run | None) -> list[tuple[str, set[Point]]]:
        """Return the points that a run has, by metric."""
        if run is None:
            return []
        history = self._client.get_metric_history
        return [
            (key, {(m.timestamp, m.step, repr(m.value)) for m in history(run.info.run_id, key)})
            for key in run.data.metrics
        ]

    def _made(self) -> Run:
        tags = {
            ID: self._id,
            "hpcdet.version": __version__,
            "hpcdet.seed": str(self._row.seed),
            "mlflow.user": str(self._what.gathered.provenance.get("user", "")),
        }
        start = _ms(self._row.start or self._what.created)
        run = self._client.create_run(self._experiment, start, tags, run_name=self._id)
        self._log_params(run.info.run_id)
        return run

    def _log_params(self, run: str) -> None:
        from mlflow.entities import Param

        params = []
        for name, value in flat(self._row.hyperparameters):
            text = value if isinstance(value, str) else as_json(value)
            if len(text) > _LONGEST_VALUE:
                self._what.warn(f"{self._id}: the value of {name} is cut for MLflow")
            params.append(Param(_key(name), text[:_LONGEST_VALUE]))
        for batch in batches(params, _PARAMS_AT_ONCE):
            self._client.log_batch(run, params=batch)

    def _log(self, run: str, points: Mapping[str, Sequence[Metric]]) -> None:
        for batch in batches(itertools.chain(*points.values()), _AT_ONCE):
            self._client.log_batch(run, metrics=batch)

    def _end(self, run: str) -> None:
        status = _STATUS.get(self._row.state, "SCHEDULED")
        self._client.set_tag(run, "hpcdet.state", self._row.state)
        if status in ("RUNNING", "SCHEDULED"):
            self._client.update_run(run, status)
        else:
            end = self._row.end or self._row.start or self._what.created
            self._client.set_terminated(run, status, _ms(end))


def _sorted(
    points: Iterable[series.Row],
) -> tuple[dict[str, dict[Point, Metric]], dict[str, list[dict[str, Any]]]]:
    """Return what MLflow has metrics for, and structured values, each by key."""
    from mlflow.entities import Metric

    plain: dict[str, dict[Point, Metric]] = {}
    structured: dict[str, list[dict[str, Any]]] = {}
    for row in points:
        key = _key(f"{row['group']}/{row['name']}")
        number = exported.number(row["value"])
        if number is None:
            kept = {name: row[name] for name in ("step", "time", "value")}
            structured.setdefault(key, []).append(kept)
            continue
        number = max(-_LARGEST, min(_LARGEST, number)) if number == number else number
        point = (_ms(row["time"]), row["step"], repr(number))
        plain.setdefault(key, {})[point] = Metric(key, number, point[0], point[1])
    return plain, structured


def _without(points: Mapping[Point, Metric], known: set[Point]) -> list[Metric]:
    return [metric for point, metric in points.items() if point not in known]


def _ms(time: str) -> int:
    return round(1000 * epoch(time))


def _key(name: str) -> str:
    """Return a name that MLflow takes, another one for each name: ``:24:`` stands for ``$``."""
    key = re.sub(r"[^/\w.\- ]", lambda found: f":{ord(found[0]):x}:", name)
    if posixpath.normpath(key) != key or key.startswith(("/", "..")) or key == ".":
        key = key.replace("/", ":2f:").replace(".", ":2e:")
    if len(key) > _LONGEST_KEY:
        digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:16]
        key = f"{key[: _LONGEST_KEY - 17]}:{digest}"
    return key or ":"
