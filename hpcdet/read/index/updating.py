"""Incremental updates of the index's database, as a view of what ``read.experiment`` has read.

An update remembers how far the rows of metrics reach in each journal, and the signature of each
trial at its last rows, and results in the same tables as a rebuild.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.read.experiment.summary import JournalPosition, Line
from hpcdet.read.index import tables
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.trials.standing import Lineage

SCHEMA = 6


@dataclass(frozen=True)
class News:
    """The new lines of one attempt.

    Attributes:
        same: True if its journal continues the one read before; else all its rows are void.
        before: the number of rows of metrics it had before.
    """

    attempt: int
    lines: list[Line]
    same: bool
    before: int


def bring_up_to_date(file: Path, paths: ExperimentPaths, *, afresh: bool = False) -> None:
    """Update a database from the experiment's files; rebuild it if it is another experiment's.

    Args:
        afresh: from the files alone, and not from what earlier processes have read.

    Raises:
        sqlite3.DatabaseError: it is damaged.
    """
    db = sqlite3.connect(file, isolation_level=None)
    try:
        file.chmod(files.FILE_MODE)
        db.execute("pragma synchronous = normal")
        [version] = db.execute("pragma user_version").fetchone()
        if version != SCHEMA or _identity(db) != paths.id:
            db.execute("pragma synchronous = off")  # what is cut off here is not even begun
            _empty(db, paths)
        db.execute("begin immediate")
        _Update(db, Gathered(paths, afresh=afresh)).run()
        db.execute("commit")
    finally:
        db.close()


def _identity(db: sqlite3.Connection) -> str:
    [[count]] = db.execute("select count(*) from sqlite_master where name = 'remembered'")
    row = count and db.execute("select value_json from remembered where key = 'id'").fetchone()
    return str(row[0]) if row else ""


def _empty(db: sqlite3.Connection, paths: ExperimentPaths) -> None:
    """Replace the contents of a database by empty tables."""
    import sqlite_utils

    made = sqlite_utils.Database(db)
    for old_view in made.views:
        old_view.drop()
    for old_table in made.tables:
        old_table.drop()
    for name, table in tables.TABLES.items():
        made.table(name).create(dict(table.columns), pk=table.keys)
    made.table("metrics").create_index(["trial", "grp", "step", "name"])
    made.table("journals").create({"journal": str, "offset": int, "n": int, "crc": str}, "journal")
    made.table("remembered").create({"key": str, "signature": str, "value_json": str}, pk="key")
    for name, sql in tables.VIEWS.items():
        made.create_view(name, sql)
    made.table("remembered").insert({"key": "id", "signature": "", "value_json": paths.id})
    db.execute(f"pragma user_version = {SCHEMA}")


class _Update:
    """One update, inside one transaction."""

    def __init__(self, db: sqlite3.Connection, gathered: Gathered) -> None:
        self.db = db
        self.paths = gathered.paths
        self.changed = False
        self.gathered = gathered

    def run(self) -> None:
        trials = self.gathered.trials
        known = [trial.number for trial in trials]
        self._forget_all_but(known)
        fresh = [trial.number for trial in trials if self._trial(trial)]
        self._decisions()
        whole = tables.of_experiment(self.gathered)
        if self._differs("experiment", whole["experiments"]):
            fresh = known  # it may be over, and with it trials that never ended
        for name, rows in tables.of_trials(self.gathered, fresh).items():
            for number in fresh:
                self.db.execute(f"delete from {name} where trial = ?", (number,))
            self._insert(name, rows)
        for name, rows in whole.items():
            if self._differs(name, rows):
                self.db.execute(f"delete from {name}")
                self._insert(name, rows)
        if self.changed or fresh:
            self._remember("version", "", secrets.token_hex(8))

    def _trial(self, trial: GatheredTrial) -> bool:
        """Bring the rows of a trial's metrics up to date; return True if it has anything new."""
        row = self._recalled(f"trials/{trial.number}")
        if row is not None and row[0] == trial.signature != "":
            return False
        marks = self._marks(trial)
        news, after = [], dict[int, JournalPosition]()
        for attempt in trial.attempts:
            before = marks.pop(attempt.number, JournalPosition())
            lines, after[attempt.number], same = trial.journals.since(attempt.paths, before)
            news.append(News(attempt.number, lines, same, self._rows(attempt.number, trial.number)))
        self._metrics(trial.number, news, set(marks))
        if trial.lineage.rewinds:
            self._leave_behind(trial.number, trial.lineage)
        for number in marks:  # attempts that are gone
            self._unmark(trial.paths.attempt(number).journal)
        for number, mark in after.items():
            self._mark(trial.paths.attempt(number).journal, mark)
        self._remember(f"trials/{trial.number}", trial.signature, "")
        return True

    def _marks(self, trial: GatheredTrial) -> dict[int, JournalPosition]:
        """Return up to where the journals of a trial were read, by attempt."""
        folder = self._name(trial.paths.root / "attempts")
        sql = "select journal, offset, n, crc from journals where journal like ?"
        rows = self.db.execute(sql, (f"{folder}/%",)).fetchall()
        return {int(name.split("/")[-2]): JournalPosition(*mark) for name, *mark in rows}

    def _rows(self, attempt: int, trial: int) -> int:
        """Return the number of rows of an attempt's metrics."""
        sql = "select max(n) from metrics where experiment = ? and trial = ? and attempt = ?"
        [(last,)] = self.db.execute(sql, (self.paths.id, trial, attempt))
        return 0 if last is None else int(last) + 1

    def _metrics(self, trial: int, news: list[News], gone: set[int]) -> None:
        """Add the rows of new lines; for each value the highest attempt's newest row counts."""
        void = gone | {one.attempt for one in news if not one.same}
        for attempt in sorted(void):
            where = "trial = ? and attempt = ?"
            self.db.execute(f"delete from metrics where {where}", (trial, attempt))
        rows: list[tuple[Any, ...]] = []
        for one in news:
            count = one.before
            for line in one.lines:
                if line["kind"] == "metrics":
                    found = list(tables.of_line(self.paths.id, trial, one.attempt, line, count))
                    rows += found
                    count += len(found)
        if all(one.attempt in void or not one.before for one in news):
            self._insert("metrics", tables.superseding(rows))  # these are all there are
            return
        self._insert("metrics", rows)
        only = ""
        if not void:
            self.db.execute("create temp table if not exists touched (grp, step, name)")
            self.db.execute("delete from touched")
            keys = {tables.key_of_metric(row) for row in rows}
            self.db.executemany("insert into touched values (?, ?, ?)", keys)
            only = "and (grp, step, name) in (select grp, step, name from touched)"
        self.db.execute(
            f"""
            update metrics set superseded = exists (
                select 1 from metrics later
                where later.trial = metrics.trial and later.grp = metrics.grp
                and later.step = metrics.step and later.name = metrics.name
                and (later.attempt, later.n) > (metrics.attempt, metrics.n)
            ) where trial = ? {only}
            """,
            (trial,),
        )

    def _leave_behind(self, trial: int, line: Lineage) -> None:
        """Mark a trial's superseded rows again after a user rewound it: later rows do not count."""
        columns = "rowid, grp, step, name, attempt"
        sql = f"select {columns} from metrics where trial = ? order by attempt, n"
        rows = self.db.execute(sql, (trial,)).fetchall()
        last = {
            (grp, step, name): row
            for row, grp, step, name, attempt in rows
            if line.has(step, attempt)
        }
        self.db.execute("update metrics set superseded = 1 where trial = ?", (trial,))
        counts = ((row,) for row in last.values())
        self.db.executemany("update metrics set superseded = 0 where rowid = ?", counts)

    def _decisions(self) -> None:
        """Record how far the journals of the terms were read."""
        marks = self.gathered.terms
        for path, mark in marks.items():
            row = (self._name(path), mark.offset, mark.n, mark.crc)
            sql = "select 1 from journals where (journal, offset, n, crc) = (?, ?, ?, ?)"
            if mark.n and not self.db.execute(sql, row).fetchone():
                self.changed = True  # even if no table shows it: the index says how far it read
                self._mark(path, mark)
        for [name] in self.db.execute(
            "select journal from journals where journal like 'decisions/%'"
        ).fetchall():
            if self.paths.root / name not in marks:
                self.changed = True
                self._unmark(self.paths.root / name)

    def _forget_all_but(self, trials: list[int]) -> None:
        """Forget trials whose files are gone."""
        keys = {f"trials/{number}" for number in trials}
        found = self.db.execute("select key from remembered where key like 'trials/%'").fetchall()
        for [key] in found:
            if key in keys:
                continue
            self.changed = True
            self.db.execute("delete from remembered where key = ?", (key,))
            number = int(key.partition("/")[2])
            self._unmark(self.paths.trial(number).root / "%")
            for name in (*tables.OF_A_TRIAL, "metrics"):
                self.db.execute(f"delete from {name} where trial = ?", (number,))

    def _differs(self, key: str, rows: list[tuple[Any, ...]]) -> bool:
        """True if rows differ from those of the last update."""
        digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        row = self._recalled(f"rows/{key}")
        if row is not None and row[0] == digest:
            return False
        self._remember(f"rows/{key}", digest, "")
        self.changed = True
        return True

    def _insert(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        places = ", ".join("?" * len(tables.TABLES[name].columns))
        self.db.executemany(f"insert into {name} values ({places})", rows)

    def _recalled(self, key: str) -> tuple[str, str] | None:
        sql = "select signature, value_json from remembered where key = ?"
        row: tuple[str, str] | None = self.db.execute(sql, (key,)).fetchone()
        return row

    def _remember(self, key: str, signature: str, value: str) -> None:
        self.db.execute(
            "insert or replace into remembered values (?, ?, ?)", (key, signature, value)
        )

    def _unmark(self, path: Path) -> None:
        name = self._name(path)
        self.db.execute("delete from journals where journal like ?", (name,))

    def _mark(self, path: Path, mark: JournalPosition) -> None:
        name = self._name(path)
        row = (name, mark.offset, mark.n, mark.crc)
        self.db.execute("insert or replace into journals values (?, ?, ?, ?)", row)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.paths.root))
