"""A snapshot of an experiment's index for Datasette: keys between tables, search, and metadata.

``datasette FILE --metadata FILE.metadata.json`` shows it; any program that reads SQLite can.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from hpcdet.errors import NotFound
from hpcdet.read.index import database, tables
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

_PIECE = 1 << 20
_TYPES = {str: "text", int: "integer", float: "real"}
_OF_TRIALS = ("hyperparameters", "attempts", "metrics", "checkpoints")

_TABLES = {
    "experiments": "The experiment.",
    "trials": "Trials; best is the best value of the searcher's metric, steps are batches.",
    "hyperparameters": "Hyperparameters of trials by their dotted names; values are JSON.",
    "attempts": "Attempts of trials: one stretch in one allocation; duration_s is in seconds.",
    "metrics": "Values that trials reported; superseded is 1 where an attempt trained it again.",
    "checkpoints": "Checkpoints; size in bytes, step in batches.",
    "events": "What happened, in order.",
    "jobs": "Submissions to the scheduler.",
    "v_leaderboard": "Trials with a value, the best first.",
    "v_attempts": "Attempts by the reason of their end.",
    "v_waste": "Batches that were trained after the last checkpoint and had to be repeated.",
}
_QUERIES = {
    "curve": {
        "title": "A metric of a trial over its steps",
        "sql": "select step, value, time from metrics where trial = :trial and name = :name "
        "and superseded = 0 order by step",
    },
    "failures": {
        "title": "Attempts that ended by an error",
        "sql": 'select trial, attempt, reason, error, host, "end" from attempts '
        "where error <> '' order by trial, attempt",
    },
}


def snapshot(paths: ExperimentPaths, to: Path) -> Path:
    """Write the index, made anew, to ``to`` and its metadata beside it; returns the latter.

    The experiment itself is not touched. Both files are replaced as a whole.

    Raises:
        NotFound: there is no folder for it.
    """
    if not (folder_of_it := to.absolute().parent).is_dir():
        raise NotFound("no such folder", where=str(folder_of_it), hint="make it first: mkdir -p")
    with tempfile.TemporaryDirectory(dir=database.local_folder()) as folder:
        index, made = Path(folder) / "index.sqlite", Path(folder) / "snapshot.sqlite"
        database.snapshot(paths, index)
        db = sqlite3.connect(made, isolation_level=None)
        try:
            db.execute("attach ? as source", (str(index),))
            db.execute("begin")
            for name, table in tables.TABLES.items():
                db.execute(_ddl(name, table))
                db.execute(f"insert into main.{name} select * from source.{name}")
            db.execute("create index of_metric on metrics (trial, name, grp, step)")
            for name, sql in tables.VIEWS.items():
                db.execute(f"create view {name} as {sql}")
            with contextlib.suppress(sqlite3.OperationalError):  # an SQLite without FTS5
                db.execute("create virtual table events_fts using fts5(text, content='events')")
                db.execute("insert into events_fts (rowid, text) select rowid, text from events")
            db.execute("commit")
            db.execute("detach source")
            db.execute("vacuum")
        finally:
            db.close()
        with made.open("rb") as file:
            files.replace(to, iter(lambda: file.read(_PIECE), b""))
    metadata = to.with_name(f"{to.name}.metadata.json")
    files.replace(metadata, json.dumps(_metadata(paths.id, to), indent=1).encode())
    return metadata


def _ddl(name: str, table: tables.Table) -> str:
    parts = [f'"{column}" {_TYPES[kind]}' for column, kind in table.columns.items()]
    parts.append(f"primary key ({', '.join(table.keys)})")
    if name in _OF_TRIALS:
        parts.append("foreign key (experiment, trial) references trials (experiment, trial)")
    if name != "experiments":
        parts.append("foreign key (experiment) references experiments (id)")
    return f"create table main.{name} ({', '.join(parts)})"


def _metadata(id: str, to: Path) -> dict[str, Any]:
    about = {name: {"description": text} for name, text in _TABLES.items()}
    return {
        "title": id,
        "description": f"The experiment {id} of hpcdet. Times are UTC, steps batches.",
        "databases": {to.stem: {"tables": about, "queries": _QUERIES}},
    }
