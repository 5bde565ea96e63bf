"""Contents of an experiment that processes of this host have read, kept in the derived store.

A trial's records are kept with how its folders and records looked when they were read. While they
look the same, none of them is opened. How files look is decided as in ``store.fs.freshness``, but
without its hours: what was read stays known until something looks different.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpcdet.errors import HpcdetError
from hpcdet.store.folder import derived_store
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, Control, End, Trial, Verdict
from hpcdet.store.fs import freshness, packed
from hpcdet.store.fs.json_record import JsonRecord
from hpcdet.store.trials.standing import Standing
from hpcdet.units import Length

if TYPE_CHECKING:
    from hpcdet.read.experiment.gather import GatheredAttempt, GatheredTrial

T = TypeVar("T")
R = TypeVar("R", bound=JsonRecord)

Sight = list[int]
"""How files and folders look, one after the other: three numbers as in ``freshness.Look``."""

_ABSENT = (-1, -1, -1)

NOT_READABLE = (HpcdetError, OSError, ValueError, TypeError, LookupError, AttributeError)
"""What reading a damaged record, or a value that another version has kept, may raise."""

_FEW = 64
"""Parts that are asked for one by one; then all of the experiment are read at once."""

_TOGETHER = 100
"""Trials whose records and digests are one part: read, and written, together."""


def clock() -> float:
    """Return epoch seconds, which other processes and hosts know, too."""
    return time.time()


class Kept:
    """The store's values of one experiment, keyed by its folder's number and its config's time.

    The number of a folder that is gone is given to another one, but not with the same time.

    Args:
        afresh: nothing is taken from there, nor put.
    """

    def __init__(self, paths: ExperimentPaths, *, afresh: bool = False) -> None:
        self._paths = paths
        self._home = "" if afresh else None
        self._every: dict[str, bytes] | None = None
        self._asked = 0
        self._groups: dict[str, dict[str, Any]] = {}
        self._store = derived_store.opened()

    @property
    def home(self) -> str:
        if self._home is None:
            try:
                folder = derived_store.identity(os.stat(self._paths.root))
                made = os.lstat(self._paths.config).st_mtime_ns
                self._home = f"experiment {folder} {made}"
            except OSError:
                self._home = ""
        return self._home

    def clock(self) -> float:
        return clock()

    def get(self, part: str) -> bytes | None:
        """Return what is kept under a name; None without it."""
        if not self.home:
            return None
        self._asked += 1
        if self._every is None and self._asked > _FEW:
            self._every = self._store.every(self.home)
        if self._every is not None:
            return self._every.get(part)
        return self._store.get(self.home, part)

    def decoded(self, part: str, decode: Callable[[bytes], T]) -> T | None:
        """Return what ``decode`` makes of it; None also if that cannot be read."""
        data = self.get(part)
        try:
            return decode(data) if data is not None else None
        except NOT_READABLE:
            return None

    def put(self, part: str, value: bytes) -> None:
        if self.home:
            self._store.put(self.home, part, value)
            if self._every is not None:
                self._every[part] = value

    def of_trial(self, kind: str, number: int) -> dict[str, Any] | None:
        """Return what is kept of a trial, and may not be changed; None if nothing is.

        Args:
            kind: ``trials`` for its records, ``digests`` for its digest.
        """
        value = self._group(kind, number).get(str(number))
        return value if isinstance(value, dict) else None

    def put_of_trial(self, kind: str, number: int, value: dict[str, Any]) -> None:
        if self.home:
            group = self._group(kind, number)
            group[str(number)] = value
            part = f"{kind} {number // _TOGETHER}"
            self._store.put(self.home, part, lambda: json.dumps(dict(group)).encode())

    def _group(self, kind: str, number: int) -> dict[str, Any]:
        """Return what is kept of the trials that are in one part with this one."""
        part = f"{kind} {number // _TOGETHER}"
        if part not in self._groups:
            found = self.decoded(part, json.loads)
            self._groups[part] = found if isinstance(found, dict) else {}
        return self._groups[part]


# -- how files look ----------------------------------------------------------------------------


def sights(folders: Sequence[str], records: Sequence[str] = ()) -> Sight:
    """Return how folders and records look.

    Folders are opened, so that the file server is asked. Records are written once, and are in
    folders that change when one comes or goes: a cached answer of up to a minute will do.
    """
    found: Sight = []
    for look in freshness.looks(folders):
        found += look or _ABSENT
    for path in records:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            found += _ABSENT
        else:
            found += (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def sight(journal: Path) -> Sight:
    """Return how the journal of an attempt looks, or the archives of its trial that may have it."""
    found = sights([str(journal)])
    if found == [*_ABSENT]:
        for number in itertools.count(1):
            found += sights([str(packed.archive(journal.parents[2], number))])
            if found[-1] == _ABSENT[-1]:
                break
    return found


def rests(seen: Sight, now: float) -> bool:
    """True if what looks so was written long enough ago to look different after a change."""
    return now - max(seen[::3], default=0) / 1e9 > freshness.SKEW_S


def dated(value: dict[str, Any], before: dict[str, Any], now: float) -> dict[str, Any]:
    """Return a value to keep, with the times since and until which it looked as in ``seen``."""
    changed = before["changed"] if before.get("seen") == value["seen"] else now
    if rests(value["seen"], now):
        changed = now - freshness.TICK_S
    return {**value, "changed": changed, "read": now}


def settled(value: dict[str, Any]) -> bool:
    """True if what was read would look different after a change since; else it is read again."""
    since: float = value["read"] - value["changed"]
    return since >= freshness.TICK_S


# -- trials ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recalled:
    """The records of a trial as they were read before, each made of plain values at its use.

    Attributes:
        signature: text that differs once they do.
    """

    signature: str
    _plain: dict[str, Any]

    @property
    def record(self) -> Trial | None:
        return _record(Trial, self._plain["record"])

    @property
    def controls(self) -> list[Control]:
        found = (_record(Control, one) for one in self._plain["controls"])
        return [control for control in found if control is not None]

    @property
    def standing(self) -> Standing:
        fields = self._plain["standing"]
        return Standing(**{**fields, "last_end": _record(End, fields["last_end"])})

    def attempts(self, trial: GatheredTrial) -> list[GatheredAttempt]:
        found = []
        for number, claim, end, verdict in self._plain["attempts"]:
            attempt = trial.attempt_of(trial.paths.attempt(number))
            records = (_record(Claim, claim), _record(End, end), _record(Verdict, verdict))
            vars(attempt).update(zip(("claim", "end", "verdict"), records, strict=True))
            found.append(attempt)
        return found


def recall(trial: GatheredTrial, kept: Kept) -> Recalled | None:
    """Return a trial's records, from the store or read now.

    None if one is damaged: who asks for that one is told so.
    """
    now, before = kept.clock(), kept.of_trial("trials", trial.paths.number)
    try:
        if before is not None and holds(trial.paths, before):
            return _whole(before)
    except NOT_READABLE:
        before = None
    fresh = type(trial)(trial.paths, trial.journals)
    try:
        folders, records = _watched(trial.paths)
        seen = sights(_placed(trial.paths, folders), _placed(trial.paths, records))
        text = json.dumps(_plain(fresh), default=Length.encode)
    except NOT_READABLE:
        return None
    signature = hashlib.sha256(f"{folders} {seen} {text}".encode()).hexdigest()
    about = {"folders": folders, "records": records, "seen": seen, "signature": signature}
    value = dated({**about, "plain": json.loads(text)}, before or {}, now)
    kept.put_of_trial("trials", trial.paths.number, value)
    return _whole(value)


def _whole(value: dict[str, Any]) -> Recalled:
    """Return what a value holds, of which every part was made once."""
    return Recalled(value["signature"], value["plain"])


def holds(paths: TrialPaths, value: dict[str, Any]) -> bool:
    """True if the trial's folders and records look as when a value was read from them."""
    if not settled(value):
        return False
    found = sights(_placed(paths, value["folders"]), _placed(paths, value["records"]))
    same: bool = found == value["seen"]
    return same


def _watched(paths: TrialPaths) -> tuple[list[str], list[str]]:
    """Return folders, and records and archives, by their names in the trial's folder.

    A name on scratch begins with ``~``.
    """
    folders, records = ["", "/control", "/attempts"], ["/trial.json"]
    home = "~" if paths.scratch else ""
    places = [f"{home}/checkpoints", *(["/checkpoints"] if paths.scratch else [])]
    for place, folder in zip(places, paths.checkpoint_places, strict=True):
        folders += [place, *(f"{place}/{name}" for name in sorted(packed.names(folder)))]
    records += (f"/control/{name}" for name in sorted(packed.names(paths.controls)))
    for number in paths.numbers():
        folders.append(f"/attempts/{number}")
        records += (f"/attempts/{number}/{name}.json" for name in ("claim", "end", "verdict"))
    records += (f"/{archive.path.name}" for archive in packed.archives(paths.root))
    return folders, records


def _placed(paths: TrialPaths, names: Sequence[str]) -> list[str]:
    root, scratch = str(paths.root), str(paths.scratch)
    return [scratch + name[1:] if name[:1] == "~" else root + name for name in names]


def _plain(trial: GatheredTrial) -> dict[str, Any]:
    """Read all records of a trial; return them as plain values and lengths."""
    last = trial.standing.last_end
    return {
        "record": _fields(trial.record),
        "controls": [vars(control) for control in trial.controls],
        "attempts": [
            [one.number, *map(_fields, (one.claim, one.end, one.verdict))] for one in trial.attempts
        ],
        "standing": {**vars(trial.standing), "last_end": _fields(last)},
    }


def _fields(record: JsonRecord | None) -> dict[str, Any] | None:
    return None if record is None else vars(record)


def _record(kind: type[R], fields: dict[str, Any] | None) -> R | None:
    """Return a record of fields that were checked when its file was read."""
    if fields is None:
        return None
    record = object.__new__(kind)
    known = vars(record)
    known.update(fields)
    for key in ("until", "length"):
        if isinstance(length := known.get(key), dict):
            known[key] = Length.decode(length)
    return record
