"""Incremental updates of the index's database, which open only changed files.

An update remembers how far each journal was read, and the signature of each trial's files, and
results in the same tables as a rebuild.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Any

from hpcdet.read.experiment.gather import Gathered, GatheredTrial, watched
from hpcdet.read.experiment.journals import (
    Compared,
    JournalPosition,
    Journals,
    Line,
    TermJournal,
    encode,
)
from hpcdet.read.index import already_read, tables
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.fs import files
from hpcdet.store.fs.freshness import Seen
from hpcdet.store.trials.standing import Lineage

SCHEMA = 5

clock = time.time
"""Seconds that other processes and hosts know, too."""


def bring_up_to_date(file: Path, paths: ExperimentPaths) -> None:
    """Update a database from the experiment's files; rebuild it if it is another experiment's.

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
        _Update(db, paths).run()
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

    def __init__(self, db: sqlite3.Connection, paths: ExperimentPaths) -> None:
        self.db = db
        self.paths = paths
        self.changed = False
        self.journals = Journals(paths)
        self.compared = Compared.of(Gathered(paths).config)

    def run(self) -> None:
        known = [trial.number for trial in self.paths.trials()]
        self._forget_all_but(known)
        trials: list[GatheredTrial] = []
        fresh: list[int] = []
        for number in known:
            paths = self.paths.trial(number)
            trial, new = self._trial(paths)
            trials.append(trial)
            if new:
                fresh.append(number)
        gathered = Gathered(self.paths)
        vars(gathered).update(trials=trials, decisions=self._decisions())
        whole = tables.of_experiment(gathered)
        if self._differs("experiment", whole["experiments"]):
            fresh = known  # it may be over, and with it trials that never ended
        for name, rows in tables.of_trials(gathered, fresh).items():
            for number in fresh:
                self.db.execute(f"delete from {name} where trial = ?", (number,))
            self._insert(name, rows)
        for name, rows in whole.items():
            if self._differs(name, rows):
                self.db.execute(f"delete from {name}")
                self._insert(name, rows)
        if self.changed or fresh:
            self._remember("version", "", secrets.token_hex(8))

    def _trial(self, paths: TrialPaths) -> tuple[GatheredTrial, bool]:
        """Return a trial as it is now, and True if anything in it is new."""
        key = f"trials/{paths.number}"
        row, now = self._recalled(key), clock()
        before = already_read.recall(paths, self.journals, row[1]) if row else None
        seen = already_read.decode_seen(row[0]) if row else None
        if seen is not None and (not seen.paths or seen.paths[0] != str(paths.root)):
            seen = None  # the folder was copied: these are the files of the original
        if before is not None and seen is not None and seen.holds(now):
            return before, False
        known = {one.number for one in before.attempts} if before else set()
        trial = GatheredTrial(paths, self.journals)
        # before any file is read: what is written meanwhile looks new to the next update
        looked = Seen.now(watched(trial), now, seen, may_rest=True)
        news = already_read.read_on(trial, before, self.compared)
        text = already_read.remember(trial)
        self._remember(key, encode(looked), text)
        # checkpoints are not in the text: they are known by how their folders look
        if row is not None and row[1] == text and looked.like(seen):
            return trial, False
        gone = known - {one.attempt for one in news}
        self._metrics(paths.number, news, gone)
        if trial.lineage.rewinds:
            self._leave_behind(paths.number, trial.lineage)
        for number in gone:
            self._unmark(paths.attempt(number).journal)
        for one in trial.attempts:
            self._mark(one.paths.journal, one.journal.mark)
        return trial, True

    def _metrics(self, trial: int, news: list[already_read.News], gone: set[int]) -> None:
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

    def _decisions(self) -> list[Line]:
        read: dict[Path, list[Line]] = {}
        for path in already_read.decision_paths(self.paths):
            key = f"decisions/{path.name}"
            row = self._recalled(key)
            memory = TermJournal.decode(json.loads(row[1])) if row else TermJournal()
            if memory.read(path):
                self.changed = True  # even if no table shows it: the index says how far it read
                self._mark(path, memory.mark)
                self._remember(key, "", encode(memory))
            read[path] = memory.all
        return chain.read(self.paths, lambda path: read.get(path, []))

    def _forget_all_but(self, trials: list[int]) -> None:
        """Forget trials and journals of terms whose files are gone."""
        keys = {f"trials/{number}" for number in trials}
        keys |= {f"decisions/{path.name}" for path in already_read.decision_paths(self.paths)}
        like = "key like 'trials/%' or key like 'decisions/%'"
        found = self.db.execute(f"select key from remembered where {like}").fetchall()
        for [key] in found:
            if key in keys:
                continue
            self.changed = True
            self.db.execute("delete from remembered where key = ?", (key,))
            if key.startswith("decisions/"):
                self._unmark(self.paths.root / key)
            else:
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
        name = str(path.relative_to(self.paths.root))
        self.db.execute("delete from journals where journal like ?", (name,))

    def _mark(self, path: Path, mark: JournalPosition) -> None:
        name = str(path.relative_to(self.paths.root))
        row = (name, mark.offset, mark.n, mark.crc)
        self.db.execute("insert or replace into journals values (?, ?, ?, ?)", row)
