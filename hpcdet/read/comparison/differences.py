"""The differences of two experiments or trials, the code's as unified diffs."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from hpcdet.errors import IntegrityError
from hpcdet.read.comparison.facts import Facts, What, collect, data_entries, mapping
from hpcdet.read.lookup.find import Reference
from hpcdet.read.views.items import OPTIONAL
from hpcdet.store.fs import files

Difference = Literal["added", "removed", "changed"]
PARTS: tuple[What, ...] = (
    "data", "hyperparameters", "code", "libraries", "config", "resources",
)  # fmt: skip
"""What ``diff`` looks at; metrics are what comes of it."""
_LARGEST = 1 << 20
"""Bytes of a file, at most, whose lines are compared."""


@dataclass(frozen=True)
class DifferenceView:
    """A difference between two experiments or trials, the first A, the second B."""

    what: What
    """What differs."""
    key: str
    """Which: a file of the data or the code, a hyperparameter, a package, a key of the config."""
    change: Difference
    """``added``: B alone has it. ``removed``: A alone has it."""
    a: Any
    """A's value, of a file its SHA-256; null if A has none."""
    b: Any
    """B's value; null if B has none."""
    diff: str | None = field(default=None, metadata=OPTIONAL)
    """Only of code: the unified diff, or why there is none."""


def diff(
    a: Reference, b: Reference, what: Collection[What] = PARTS
) -> tuple[list[DifferenceView], list[str]]:
    """Return what differs between two, by ``PARTS`` and key, and warnings on what is not known."""
    one, other = collect(a), collect(b)
    rows = []
    for part in PARTS:
        if part not in what:
            continue
        before, after = _of(one, part, other), _of(other, part, one)
        for key in sorted(before.keys() | after.keys()):
            if key in before and key in after and before[key] == after[key]:
                continue
            change: Difference = "changed" if key in before and key in after else "added"
            change = "removed" if key not in after else change
            text = _lines(one, other, key) if part == "code" else None
            rows.append(DifferenceView(part, key, change, before.get(key), after.get(key), text))
    return rows, [*one.warnings, *other.warnings]


def _of(side: Facts, part: What, beside: Facts) -> Mapping[str, Any]:
    """Return a side's values; of data that differ, the digest of each file."""
    values = side.of[part]
    if part != "data":
        return values
    found = dict(values)
    for entry in data_entries(side.gathered):
        given = str(entry.get("given"))
        if given in beside.of["data"] and beside.of["data"][given] == values.get(given):
            continue
        if (listed := _files(side, entry)) is not None:
            del found[given]
            one_file = len(listed) == 1 and PurePosixPath(given).name in listed
            for name, digest in listed.items():
                found[given if one_file else f"{given}/{name}"] = digest
    return found


def _files(side: Facts, entry: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the digest of each file of a data path; None if its manifest is not readable."""
    path = side.gathered.paths.root / _inside(str(entry.get("manifest", "")))
    try:
        manifest = mapping(files.read_json(path, large=True))
    except (IntegrityError, OSError):
        return None
    listed = manifest.get("files")
    if not isinstance(listed, list):
        return None
    return {str(mapping(one).get("name")): str(mapping(one).get("sha256")) for one in listed}


def _lines(one: Facts, other: Facts, name: str) -> str:
    """Return the unified diff of a file of the code, or a line on why there is none."""
    try:
        before, after = _text(one, name), _text(other, name)
    except UnicodeDecodeError:
        return "binary"
    except (IntegrityError, OSError) as error:
        return f"not compared: {error}".partition("\n")[0]
    found = difflib.unified_diff(before, after, f"{one.name}:{name}", f"{other.name}:{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found
    )


def _text(side: Facts, name: str) -> list[str]:
    """Return the lines of a file of the code; none if it is not part of it."""
    if name not in side.of["code"]:
        return []
    data = files.read(side.gathered.paths.code / _inside(name), _LARGEST)
    return data.decode().splitlines(keepends=True)


def _inside(name: str) -> PurePosixPath:
    """Return a relative path that never leaves its folder, for any recorded name."""
    path = PurePosixPath(name)
    safe = not path.is_absolute() and ".." not in path.parts
    return path if safe else PurePosixPath(path.name)
