"""The tables of exports: their columns, with units in the names, and their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdet.interop.formats import exported
from hpcdet.interop.formats.exported import ExperimentExport
from hpcdet.read.experiment import series

Row = dict[str, Any]


@dataclass(frozen=True)
class ExportedTable:
    """One table of an experiment.

    Attributes:
        columns: names and types: ``str``, ``int``, ``float``, or ``object`` for any JSON value.
        rows: makes them; each has a value, or None, for every column.
    """

    columns: Mapping[str, type]
    rows: Callable[[ExperimentExport], Iterator[Row]]


def _trials(what: ExperimentExport) -> Iterator[Row]:
    for row in what.status.trials:
        yield {
            "experiment": what.id,
            "trial": row.trial,
            "state": row.state,
            "trained_batches": row.steps,
            "metric": what.status.metric,
            "best": series.number(row.best),
            "best_at_batches": row.best_step,
            "attempts": row.attempts,
            "failures": row.failures,
            "seed": row.seed,
            "parent": row.parent,
            "start_utc": row.start or None,
            "end_utc": row.end or None,
            "why": row.why,
            "hyperparameters": row.hyperparameters,
        }


def _attempts(what: ExperimentExport) -> Iterator[Row]:
    for row in what.attempts:
        yield {
            "experiment": what.id,
            "trial": row.trial,
            "attempt": row.attempt,
            "job": row.job,
            "host": row.host,
            "ranks": row.world,
            "start_utc": row.start or None,
            "end_utc": row.end or None,
            "duration_s": row.duration_s if row.end else None,
            "from_batches": row.from_step,
            "to_batches": row.steps,
            "reason": row.reason,
            "exit_code": row.exit_code,
            "error": row.error,
        }


def _checkpoints(what: ExperimentExport) -> Iterator[Row]:
    for row in what.checkpoints:
        yield {
            "experiment": what.id,
            "trial": row.trial,
            "attempt": row.attempt,
            "step_batches": row.step,
            "name": row.name,
            "state": row.state,
            "size_bytes": row.bytes,
            "digest": row.digest,
            "metric": series.number(row.metric),
            "time_utc": row.time or None,
        }


def _metrics(what: ExperimentExport) -> Iterator[Row]:
    for _, points in what.each_trial():
        for row in points:
            value = row["value"]
            number = exported.number(value)
            yield {
                "experiment": what.id,
                "trial": row["trial"],
                "attempt": row["attempt"],
                "group": row["group"],
                "step_batches": row["step"],
                "epochs": series.number(row["units"].get("epochs")),
                "name": row["name"],
                "value": number,
                "structured": value if number is None else None,
                "time_utc": row["time"],
            }


_OF_TRIAL = {"experiment": str, "trial": int}
_OF_ATTEMPT = {**_OF_TRIAL, "attempt": int}

TABLES: Mapping[str, ExportedTable] = {
    "trials": ExportedTable(
        {
            **_OF_TRIAL,
            **{"state": str, "trained_batches": int, "metric": str, "best": float},
            **{"best_at_batches": int, "attempts": int, "failures": int, "seed": int},
            **dict.fromkeys(("parent", "start_utc", "end_utc", "why"), str),
            "hyperparameters": object,
        },
        _trials,
    ),
    "attempts": ExportedTable(
        {
            **_OF_ATTEMPT,
            **{"job": str, "host": str, "ranks": int, "start_utc": str, "end_utc": str},
            **{"duration_s": float, "from_batches": int, "to_batches": int, "reason": str},
            **{"exit_code": int, "error": str},
        },
        _attempts,
    ),
    "checkpoints": ExportedTable(
        {
            **_OF_ATTEMPT,
            **{"step_batches": int, "name": str, "state": str, "size_bytes": int, "digest": str},
            **{"metric": float, "time_utc": str},
        },
        _checkpoints,
    ),
    "metrics": ExportedTable(
        {
            **_OF_ATTEMPT,
            **{"group": str, "step_batches": int, "epochs": float, "name": str, "value": float},
            **{"structured": object, "time_utc": str},
        },
        _metrics,
    ),
}
"""In the order in which they are written; ``metrics``, which takes longest, is the last."""


def as_json(value: Any) -> str:
    """Return a value of a column of type ``object`` as JSON; "" for None."""
    return "" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def sound(text: str) -> str:
    """Return text that UTF-8 can hold: half of a surrogate pair becomes a question mark."""
    return text.encode(errors="replace").decode()
