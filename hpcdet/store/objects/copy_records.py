"""The records of an experiment's copies in its object store, in ``EXP/stored``.

``0003-00000300.g2.json`` is written once the copy of that checkpoint has been verified. Beside it
``0003-00000300.g2.begun`` is there while the store may have a part of one: before the first object
is sent, and from before its removal begins until its end. So a process may be killed at any point,
and the next one knows of every object that there may be.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import JsonRecord

Key = tuple[int, str]
"""Trial and name of a checkpoint."""

_NAME = re.compile(r"(\d+)-(.+)\.(json|begun)")


@dataclass(frozen=True)
class Copied(JsonRecord):
    """A checkpoint of which the store has a copy that was verified.

    Attributes:
        url: of its folder there.
        root: of its manifest.
        metric: the searcher's at its step; None if it was not validated there.
    """

    url: str
    root: str
    bytes: int
    metric: float | str | None = None
    resume: bool = False
    at: str = ""


@dataclass(frozen=True)
class Whole(JsonRecord):
    """An object that is replaced as a whole: the capsule, the report.

    Attributes:
        digest: of what it was made from, by which a change is seen.
    """

    url: str
    digest: str
    at: str = ""


@dataclass(frozen=True)
class CopyState(JsonRecord):
    """How copying stands, ``EXP/stored/state.json``; the holder of the lease replaces it.

    Attributes:
        why: why something waits; "" if nothing does.
        waiting: names of what waits.
        host: where that was found.
    """

    why: str = ""
    waiting: list[str] = field(default_factory=list)
    host: str = ""
    at: str = ""


@dataclass(frozen=True)
class CopyRecords:
    """The records of one experiment.

    Attributes:
        root: ``EXP/stored``.
    """

    root: Path

    @classmethod
    def of(cls, paths: ExperimentPaths) -> CopyRecords:
        return cls(paths.stored)

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    def whole(self, name: str) -> Path:
        """The record of an object that is replaced as a whole (``Whole``)."""
        return self.root / f"{name}.whole"

    def copied(self) -> dict[Key, Copied]:
        """Return the checkpoints that the store has whole."""
        found = {key: Copied.read(self._path(key, "json")) for key in self._keys("json")}
        return {key: one for key, one in found.items() if one is not None}

    def begun(self) -> list[Key]:
        """Return the checkpoints of which the store may have a part."""
        return self._keys("begun")

    def begin(self, key: Key) -> None:
        """Note that the store may have a part of a copy."""
        files.make_folder(self.root)
        files.write_once(self._path(key, "begun"), b"{}\n")

    def finish(self, key: Key, copied: Copied | None) -> None:
        """Note that the store has a copy as a whole, or with None that it has nothing of it."""
        if copied is None:
            self._path(key, "json").unlink(missing_ok=True)
        else:
            copied.write_once(self._path(key, "json"))
        self._path(key, "begun").unlink(missing_ok=True)

    def forget(self, key: Key) -> None:
        """Note that a copy is about to be removed."""
        self.begin(key)
        self._path(key, "json").unlink(missing_ok=True)
        files.sync_folder(self.root)

    def _keys(self, kind: str) -> list[Key]:
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        matches = (_NAME.fullmatch(name) for name in sorted(names))
        return [(int(m[1]), m[2]) for m in matches if m is not None and m[3] == kind]

    def _path(self, key: Key, kind: str) -> Path:
        return self.root / f"{key[0]:04d}-{key[1]}.{kind}"


def state(paths: ExperimentPaths) -> CopyState:
    """Return how copying stands, as last recorded."""
    return CopyState.read(CopyRecords.of(paths).state) or CopyState()


def folder(experiment: str, key: Key) -> str:
    """Return the folder of a checkpoint in a store, below the place of its config or URL."""
    return f"{experiment}/trials/{key[0]:04d}/checkpoints/{key[1]}"
