"""All experiments of a root, each as its row in a list, of which unchanged ones are not read again.

A row is kept in the derived store of this host (``read.experiment.kept``) with how the files and
folders looked that it was read from. Of an experiment that has ended those are few: its folder,
its commands, and the folders of its trials' attempts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdet.read.experiment import kept
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.lookup import find
from hpcdet.read.views import brief
from hpcdet.read.views.brief import ExperimentView
from hpcdet.read.views.items import encode
from hpcdet.store.folder import derived_store
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import packed

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
            if before and _holds(paths, before):
                known = before["row"]
                age_s = brief.age_s(known["created"])
                own = {"id": paths.id, "path": str(paths.root), "age_s": age_s}
                return ExperimentView(**{**known, **own})
        except kept.NOT_READABLE:
            before = {}
        folders, records = _watched(paths)
        seen = kept.sights(_placed(paths, folders), _placed(paths, records))
        # of one that goes on, the row is soon asked for again: then only what is new is read
        row = brief.brief(Gathered(paths, afresh=paths.closed.exists()))
        value = {"folders": folders, "records": records, "seen": seen, "row": encode(row)}
        del value["row"]["id"], value["row"]["path"]
        self._store.put(self._home, paths.id, json.dumps(kept.dated(value, before, now)).encode())
        return row


def appearance(paths: ExperimentPaths) -> str:
    """Return a text that is another one once anything has changed of what a row is read from."""
    folders, records = _watched(paths)
    seen = kept.sights(_placed(paths, folders), _placed(paths, records))
    return hashlib.blake2b(repr(seen).encode(), digest_size=16).hexdigest()


def _holds(paths: ExperimentPaths, value: Plain) -> bool:
    if not kept.settled(value):
        return False
    places = _placed(paths, value["folders"]), _placed(paths, value["records"])
    same: bool = kept.sights(*places) == value["seen"]
    return same


def _placed(paths: ExperimentPaths, names: list[str]) -> list[str]:
    root = str(paths.root)
    return [root + name for name in names]


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
