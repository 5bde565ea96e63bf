"""``index.sqlite``: an experiment as tables, for SQL and Datasette; derived, never the truth.

It is built in a temporary file on a local disk and replaces the old one at once: SQLite over
network file systems is not safe for writers, and readers open what never changes.

    experiments  trials  hyperparameters  attempts  metrics  checkpoints  events  jobs
    v_leaderboard  v_attempts  v_waste
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcdet.errors import NotFound
from hpcdet.read import gather, series, views
from hpcdet.store import files
from hpcdet.store.layout import ExperimentPaths

SCHEMA = 1

Row = dict[str, Any]

_VIEWS = {
    "v_leaderboard": """
        select t.experiment, t.trial, t.state, t.best, t.best_step, t.steps, t.restarts,
               t.hyperparameters_json
        from trials t join experiments e on e.id = t.experiment
        where t.best is not null
        order by case when e.smaller_is_better then t.best else -t.best end
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

_KEYS: dict[str, tuple[str, ...]] = {
    "experiments": ("id",),
    "trials": ("experiment", "trial"),
    "hyperparameters": ("experiment", "trial", "name"),
    "attempts": ("experiment", "trial", "attempt"),
    "metrics": ("experiment", "trial", "grp", "step", "name", "n"),
    "checkpoints": ("experiment", "trial", "name"),
    "events": ("experiment", "n"),
    "jobs": ("experiment", "number"),
}


def rebuild(paths: ExperimentPaths) -> Path:
    """Build the index of an experiment from its files; returns where it is."""
    snapshot(paths, paths.index)
    return paths.index


def snapshot(paths: ExperimentPaths, to: Path) -> None:
    """Build the index of an experiment from its files at ``to``, replacing what is there."""
    with _built(paths) as file:
        files.replace(to, file.read_bytes())


def differences(paths: ExperimentPaths) -> list[str]:
    """Tables and views of the index that are not what the experiment's files say.

    Raises:
        NotFound: there is no index.
    """
    if not paths.index.is_file():
        hint = f"make it: hpcdet index rebuild {paths.id}"
        raise NotFound("there is no index", where=str(paths.index), hint=hint)
    with _built(paths) as file:
        return [name for name in (*_KEYS, *_VIEWS) if _all(paths.index, name) != _all(file, name)]


def _all(file: Path, name: str) -> list[Row] | None:
    """Every row of a table or view; None if it is not there or cannot be read."""
    try:
        return _query(file, f"select * from {name}")
    except sqlite3.DatabaseError:
        return None


@contextmanager
def _built(paths: ExperimentPaths) -> Iterator[Path]:
    """The index made anew, for as long as the context lasts."""
    import sqlite_utils

    with tempfile.TemporaryDirectory(prefix="hpcdet-index-") as folder:
        file = Path(folder) / "index.sqlite"
        db = sqlite_utils.Database(file)
        for name, rows in tables(paths).items():
            db.table(name).insert_all(rows, pk=_KEYS[name], alter=True)
        for name, sql in _VIEWS.items():
            if all(db[table].exists() for table in _tables_of(sql)):
                db.create_view(name, sql)
        db.execute(f"pragma user_version = {SCHEMA}")
        db.close()
        yield file


def _tables_of(sql: str) -> list[str]:
    return [name for name in _KEYS if f" {name} " in sql.replace("\n", " ")]


def tables(paths: ExperimentPaths) -> dict[str, list[Row]]:
    """The rows of every table; equal files give equal rows."""
    gathered = gather.gather(paths)
    status = views.status(gathered)
    name = gathered.id
    own = {"experiment": name}
    # how long ago somebody turned the crank is true of a moment, not of the experiment
    passing = ("trials", "best", "last_turn_s", "health", "health_why", "workers", "path")
    trials = status["trials"]
    return {
        "experiments": [_flat({k: v for k, v in status.items() if k not in passing})],
        "trials": [_flat({**own, **{k: v for k, v in t.items() if k != "id"}}) for t in trials],
        "hyperparameters": [
            {**own, "trial": t["trial"], "name": key, "value_json": json.dumps(value)}
            for t in trials
            for key, value in sorted(t["hyperparameters"].items())
        ],
        "attempts": [
            _flat({**own, **{k: v for k, v in a.items() if k not in ("id", "log")}})
            for a in views.attempts(gathered)
        ],
        "metrics": [_metric(name, n, row) for n, row in enumerate(_metrics(gathered))],
        "checkpoints": [
            _flat({**own, **{k: v for k, v in c.items() if k != "path"}})
            for c in views.checkpoints(gathered, deleted=True)
        ],
        "events": [{**own, "n": n, **e} for n, e in enumerate(views.events(gathered))],
        "jobs": [
            _flat({**own, **{k: v for k, v in j.items() if k != "script"}})
            for j in views.jobs(gathered)
        ],
    }


def _metrics(gathered: gather.Gathered) -> Iterable[Row]:
    return views.metrics(gathered, superseded=True)


def _metric(experiment: str, n: int, row: Row) -> Row:
    """``value`` is null for what is no number; ``value_json`` always holds what was reported."""
    return {
        "experiment": experiment,
        "trial": row["trial"],
        "grp": row["group"],
        "step": row["step"],
        "name": row["name"],
        "n": n,
        "value": series.number(row["value"]),
        "value_json": json.dumps(row["value"]),
        "time": row["time"],
        "attempt": row["attempt"],
        "superseded": int(row["superseded"]),
    }


def _flat(row: Row) -> Row:
    """Lists and maps as JSON, in a column that says so."""
    flat: Row = {}
    for key, value in row.items():
        if isinstance(value, dict | list):
            flat[f"{key}_json"] = json.dumps(value, sort_keys=True)
        else:
            flat[key] = value
    return flat


def query(paths: ExperimentPaths, sql: str) -> list[Row]:
    """Rows of a query on the index, which is opened read-only and as unchanging.

    Raises:
        sqlite3.Error: the index is not there, or the query is wrong.
    """
    return _query(paths.index, sql)


def _query(file: Path, sql: str) -> list[Row]:
    db = sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)
    try:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(sql)]
    finally:
        db.close()
