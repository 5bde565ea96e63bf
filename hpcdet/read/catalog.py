"""All experiments of a root, each as its row in a list, of which unchanged ones are not read again.

A row is kept in the derived store of this host (``read.experiment.kept``) with how the files and
folders looked that it was read from. Of an experiment that has ended those are few: its folder,
its commands, and the folders of its trials' attempts. The process that ended it has left its row
in its folder, too (``read.left_row``), for hosts that know none. What makes rows is imported where
one is to be made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdet.read import left_row
from hpcdet.read.experiment import kept
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import UNREADABLE
from hpcdet.read.views.items import encode
from hpcdet.read.views.list_rows import ExperimentView, age_s
from hpcdet.store.folder import derived_store, trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files, freshness, packed, typed_fields

Plain = dict[str, Any]


class Catalog:
    """The experiments below a root.

    Attributes:
        experiments: all of them, oldest first.
    """

    def __init__(self, root: Path) -> None:
        self.experiments = find.experiments(root)
        self._store = derived_store.opened()
        self._home = ""
        self._kept: dict[str, bytes] = {}
        if self.experiments:
            self._home = f"root {derived_store.identity(os.stat(root))}"
            self._kept = self._store.every(self._home)

    def alive(self, newest: int) -> list[ExperimentPaths]:
        """Return those that have not ended, and the newest ones."""
        first = len(self.experiments) - newest
        return [
            paths
            for place, paths in enumerate(self.experiments)
            if place >= first or not paths.closed.exists()
        ]

    def row(self, paths: ExperimentPaths) -> ExperimentView:
        """Return the row of an experiment. Raises as ``views.brief``."""
        now, data = kept.clock(), self._kept.get(paths.id)
        before: Plain = {}
        try:
            before = json.loads(data) if data is not None else {}
            if before and kept.settled(before) and _looks_as(paths, before):
                return _view(paths, before["row"])
        except kept.NOT_READABLE:
            before = {}
        left = _left(paths)
        if left is not None:
            value, row = left
            value |= {"changed": now - freshness.TICK_S, "read": now}
        else:
            value = _look(paths)
            row = _read(paths)
            value = kept.dated({**value, "row": _plain(row)}, before, now)
        self._store.put(self._home, paths.id, json.dumps(value).encode())
        return row


def leave_row(paths: ExperimentPaths) -> None:
    """Leave the row of an experiment that has ended in its folder. Best effort."""
    with contextlib.suppress(*UNREADABLE):
        if paths.rehearsal or not (trust.is_own(paths.root) and paths.closed.exists()):
            return
        files.make_folder(paths.row.parent)
        value = _look(paths)
        newest = max(value["seen"][::3])
        if left_row.await_tick(paths, newest):
            value = _look(paths)
            if max(value["seen"][::3]) == newest:
                left_row.write(paths, {**value, "row": _plain(_read(paths))})


def appearance(paths: ExperimentPaths) -> str:
    """Return a text that is another one once anything has changed of what a row is read from."""
    return hashlib.blake2b(repr(_look(paths)["seen"]).encode(), digest_size=16).hexdigest()


def _read(paths: ExperimentPaths) -> ExperimentView:
    from hpcdet.read.experiment.gather import Gathered
    from hpcdet.read.views import brief

    # of one that goes on, the row is soon asked for again: then only what is new is read
    return brief.brief(Gathered(paths, afresh=paths.closed.exists()))


_PASSING = ("id", "path", "age_s")
"""Keys of a row that are told anew each time."""


def _plain(row: ExperimentView) -> Plain:
    found: Plain = encode(row)
    return {key: value for key, value in found.items() if key not in _PASSING}


def _view(paths: ExperimentPaths, row: Plain) -> ExperimentView:
    own = {"id": paths.id, "path": str(paths.root), "age_s": age_s(row["created"])}
    return ExperimentView(**{**row, **own})


def _left(paths: ExperimentPaths) -> tuple[Plain, ExperimentView] | None:
    """Return what was left in the experiment's folder, and the row; None if nothing holds."""
    try:
        owner = os.stat(paths.root).st_uid
        value = left_row.recall(paths, owner)
        if value is None or not _looks_as(paths, value):
            return None
        row = {**value["row"], "owner": trust.user(owner)}
        typed_fields.refuse_others(ExperimentView, row, lenient=False)
        return {**value, "row": row}, _view(paths, row)
    except UNREADABLE:
        return None


def _look(paths: ExperimentPaths) -> Plain:
    """Return the folders and records on which a row depends, and how they look."""
    folders, records = _watched(paths)
    value: Plain = {"folders": folders, "records": records}
    return {**value, "seen": _seen(paths, value)}


def _seen(paths: ExperimentPaths, value: Plain) -> kept.Sight:
    root = str(paths.root)
    folders = [root + name for name in value["folders"]]
    return kept.sights(folders, [root + name for name in value["records"]])


def _looks_as(paths: ExperimentPaths, value: Plain) -> bool:
    same: bool = _seen(paths, value) == value["seen"]
    return same


def _watched(paths: ExperimentPaths) -> tuple[list[str], list[str]]:
    """Return the folders and the records on which a row depends, by their names in the experiment.

    Of an experiment that is closed, all that can change without a file in its own folder, or a
    command, is whether an attempt runs.
    """
    closed = paths.closed
    folders = ["", "/commands"]
    records = ["/experiment.yaml", "/provenance.json", f"/{closed.name}"]
    trials = [f"/trials/{trial.root.name}" for trial in paths.trials()]
    attempts = [name for trial in trials for name in _attempts(str(paths.root), trial)]
    if closed.exists():
        return folders, [*records, "/trials", *attempts]
    terms = packed.names(paths.decisions(0).parent)
    folders += ("/trials", "/decisions", *(f"/decisions/{name}" for name in sorted(terms)))
    folders += (name for trial in trials for name in (trial, f"{trial}/control"))
    records += (f"{trial}/trial.json" for trial in trials)
    begun = [name for name in attempts if name.rpartition("/")[2].isdecimal()]
    return [*folders, *attempts, *(f"{name}/journal.jsonl" for name in begun)], records


def _attempts(root: str, trial: str) -> Iterator[str]:
    """Yield the folders in which a file appears when an attempt of a trial begins or ends."""
    folder = f"{trial}/attempts"
    yield folder
    try:
        numbers = [int(name) for name in os.listdir(root + folder) if name.isdecimal()]
    except FileNotFoundError:
        yield trial  # they are packed, or there are none
        return
    if numbers:
        yield f"{folder}/{max(numbers)}"
