"""The tables of an experiment's index: their columns, and their rows from the views.

Equal files give equal rows: what is true of a moment only (how long something has been running,
who was alive) is in no table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from hpcdet.read.experiment import changes, series, states
from hpcdet.read.experiment.gather import Gathered, Line
from hpcdet.read.views import views
from hpcdet.read.views.brief import created
from hpcdet.read.views.items import encode

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table. ``columns``: names and types; one in ``_json`` holds the view's value as JSON."""

    keys: tuple[str, ...]
    columns: dict[str, type]

    def row(self, view: Row) -> tuple[Any, ...]:
        """Return a row as values for SQLite."""
        return tuple(_cell(view, name) for name in self.columns)


def _cell(view: Row, name: str) -> Any:
    if not name.endswith("_json") or name in view:
        return view[name]
    value = view[name.removesuffix("_json")]
    return None if value is None else json.dumps(value, sort_keys=True)


TABLES = {
    "experiments": Table(
        ("id",),
        {
            **dict.fromkeys(("id", "name", "state", "why"), str),
            "stuck": int,
            **dict.fromkeys(("searcher", "metric"), str),
            **{"smaller_is_better": int, "max_length_json": str, "max_trials": int},
            **dict.fromkeys(("created", "labels_json"), str),
        },
    ),
    "trials": Table(
        ("experiment", "trial"),
        {
            **{"experiment": str, "trial": int, "state": str, "steps": int, "best": float},
            **dict.fromkeys(("best_step", "restarts", "promotions", "failures", "attempts"), int),
            **{"why": str, "until_json": str, "hyperparameters_json": str, "seed": int},
            **dict.fromkeys(("last_checkpoint_json", "start", "end"), str),
        },
    ),
    "hyperparameters": Table(
        ("experiment", "trial", "name"),
        {"experiment": str, "trial": int, "name": str, "value_json": str},
    ),
    "attempts": Table(
        ("experiment", "trial", "attempt"),
        {
            **{"experiment": str, "trial": int, "attempt": int},
            **dict.fromkeys(("job", "worker", "host", "nodes_json", "start", "end", "reason"), str),
            **{"steps": int, "from_step": int, "checkpoint": str, "world": int},
            **{"exit_code": int, "error": str, "duration_s": float, "last_heard": str},
        },
    ),
    "metrics": Table(
        ("experiment", "trial", "attempt", "n"),
        {
            **{"experiment": str, "trial": int, "attempt": int, "n": int},
            **{"grp": str, "step": int, "name": str, "value": float, "value_json": str},
            **{"time": str, "superseded": int},
        },
    ),
    "checkpoints": Table(
        ("experiment", "trial", "name"),
        {
            **{"experiment": str, "trial": int, "name": str, "step": int, "attempt": int},
            **{"bytes": int, "digest": str, "state": str, "metric": float},
            **{"kept_json": str, "time": str},
        },
    ),
    "events": Table(
        ("experiment", "n"),
        {
            **{"experiment": str, "n": int, "time": str, "kind": str},
            **{"trial": int, "attempt": int, "text": str},
        },
    ),
    "jobs": Table(
        ("experiment", "number"),
        {
            **{"experiment": str, "number": int, "name": str, "job": str, "scheduler": str},
            **{"tasks": int, "throttle": int, "hold": int, "at": str, "error": str},
        },
    ),
}

OF_A_TRIAL = ("trials", "hyperparameters", "attempts", "checkpoints")
"""Tables whose rows say something of one trial, from its own files alone (and metrics)."""

VIEWS = {
    "v_leaderboard": """
        select t.experiment, t.trial, t.state, t.best, t.best_step, t.steps, t.restarts,
               t.hyperparameters_json
        from trials t join experiments e on e.id = t.experiment
        where t.best is not null
        order by case when e.smaller_is_better then t.best else -t.best end, t.trial
    """,
    "v_attempts": """
        select experiment, reason, count(*) as attempts, sum(duration_s) as duration_s
        from attempts group by experiment, reason order by attempts desc
    """,
    "v_waste": """
        select a.experiment, a.trial, a.attempt, a.reason, a.steps - b.from_step as lost_steps
        from attempts a join attempts b
        on b.experiment = a.experiment and b.trial = a.trial and b.attempt = a.attempt + 1
        where a.steps > b.from_step
    """,
}


def of_experiment(gathered: Gathered) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the tables about the experiment as a whole."""
    own = {"experiment": gathered.id}
    searcher = gathered.config.searcher
    state, why = states.experiment_state(gathered)
    about = {
        **{"id": gathered.id, "name": gathered.config.name, "state": state, "why": why},
        **{"created": created(gathered), "labels": changes.labels(gathered)},
        "stuck": states.stuck(gathered),
        "searcher": searcher.name,
        "metric": searcher.metric,
        "smaller_is_better": searcher.smaller_is_better,
        "max_length": searcher.max_length.encode() if searcher.max_length else None,
        "max_trials": searcher.max_trials,
    }
    events = enumerate(views.events(gathered))
    found = {
        "experiments": [about],
        "events": [{**own, "n": n, **encode(event)} for n, event in events],
        "jobs": [{**own, **encode(job)} for job in views.jobs(gathered)],
    }
    return _rows(found)


def of_trials(gathered: Gathered, chosen: Sequence[int]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the tables ``OF_A_TRIAL`` for some trials."""
    if not chosen:
        return {}
    own, wanted = {"experiment": gathered.id}, frozenset(chosen)
    trials = [row for row in views.trials(gathered) if row.trial in wanted]
    found = {
        # as a number: a text, as infinities are written, would be the last in any order
        "trials": [{**own, **encode(row), "best": series.number(row.best)} for row in trials],
        "hyperparameters": [
            {**own, "trial": row.trial, "name": key, "value_json": json.dumps(value)}
            for row in trials
            for key, value in sorted(row.hyperparameters.items())
        ],
        "attempts": [
            {**own, **encode(row), "duration_s": row.duration_s if row.end else None}
            for number in chosen
            for row in views.attempts(gathered, number)
        ],
        "checkpoints": [
            {**own, **encode(row)}
            for number in chosen
            for row in views.checkpoints(gathered, number, deleted=True)
        ],
    }
    return _rows(found)


def of_line(
    experiment: str, trial: int, attempt: int, line: Line, n: int
) -> Iterator[tuple[Any, ...]]:
    """Return the rows of ``metrics`` in a line of an attempt's journal, after ``n`` earlier ones.

    ``value`` is null for what is no number; ``value_json`` always holds what was reported.
    """
    for row in series.told(trial, attempt, line):
        value = row["value"]
        # there are many; and journals hold finite numbers only, whose JSON is their repr
        text = repr(value) if type(value) in (int, float) else json.dumps(value)
        at = (row["group"], row["step"], row["name"])
        yield experiment, trial, attempt, n, *at, series.number(value), text, row["time"], 0
        n += 1


_METRIC = tuple(TABLES["metrics"].columns)
_KEY = itemgetter(*(_METRIC.index(name) for name in ("grp", "step", "name")))


def key_of_metric(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key that a row of a trial's ``metrics`` shares with the rows it supersedes."""
    key: tuple[Any, ...] = _KEY(row)
    return key


def superseding(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return a trial's rows, by attempt, marked superseded unless they are the last of a key."""
    last = {_KEY(row): place for place, row in enumerate(rows)}
    return [(*row[:-1], int(last[_KEY(row)] != place)) for place, row in enumerate(rows)]


def _rows(found: dict[str, list[Row]]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: [TABLES[name].row(view) for view in rows] for name, rows in found.items()}
