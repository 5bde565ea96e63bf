"""Snapshots of the decided state at a point of the decisions: a shortcut for a new holder.

Never needed: the decisions themselves are the truth, and a snapshot that is damaged, made by
another version, or of records that no later term has accepted is ignored. It is a header line of
JSON, which has the checksum of the second line, the state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdet.errors import IntegrityError
from hpcdet.store.decisions.chain import Point
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

KEEP = 3
"""Snapshots that stay; older ones are removed."""

_LARGEST = 256 << 20
"""Bytes of one; a larger one is passed over."""

_NAME = re.compile(r"(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class Snapshot:
    """``state``: plain JSON, after all records up to ``point``."""

    point: Point
    state: dict[str, Any]


def write(
    paths: ExperimentPaths,
    snapshot: Snapshot,
    of: Mapping[str, Any],
    fence: Callable[[], None] = lambda: None,
) -> None:
    """Write a snapshot and remove those that are too old to be of use.

    Args:
        of: the program whose state it is; only an equal one reads it.
        fence: called before any change that others see; raises to stop there.

    Raises:
        OSError: the file system refused something. Nothing is lost by that.
    """
    # a user's searcher may keep NaN, which Python reads back
    body = json.dumps(snapshot.state, separators=(",", ":")).encode()
    point = snapshot.point
    about = {
        "schema": 1,
        "of": dict(of),
        "term": point.term,
        "n": point.n,
        "offset": point.offset,
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    fence()
    files.write_once(
        paths.snapshot(point.term, point.n), b"\n".join((files.canonical(about), body, b""))
    )
    for old in _points(paths)[KEEP:]:
        with contextlib.suppress(FileNotFoundError):
            paths.snapshot(*old).unlink()


def read(paths: ExperimentPaths, of: Mapping[str, Any]) -> Iterator[Snapshot]:
    """Yield the intact snapshots of this program, the newest first."""
    for where in _points(paths):
        found = _read(paths, where, of)
        if found is not None:
            yield found


def _points(paths: ExperimentPaths) -> list[tuple[int, int]]:
    """Return the term and record number of each snapshot, the newest first."""
    folder = paths.snapshots
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(((int(m[1]), int(m[2])) for m in matches if m), reverse=True)


def _read(paths: ExperimentPaths, where: tuple[int, int], of: Mapping[str, Any]) -> Snapshot | None:
    try:
        head, _, rest = files.read(paths.snapshot(*where), _LARGEST).partition(b"\n")
        about, body = json.loads(head), rest.rstrip(b"\n")
        whole = hashlib.sha256(body).hexdigest() == about["sha256"]
        if not whole or about["of"] != dict(of) or (about["term"], about["n"]) != where:
            return None
        return Snapshot(Point(*where, int(about["offset"])), json.loads(body))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, IntegrityError):
        return None
