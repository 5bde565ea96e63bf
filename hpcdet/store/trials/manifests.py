"""A checkpoint's ``MANIFEST.json`` as both towers read it: validated once, completely."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from hpcdet.errors import IntegrityError
from hpcdet.store.fs import bounded_json, files, sealed_json
from hpcdet.store.trials.standing import MANIFEST

SCHEMAS = (1, 2)
"""Versions of the format, every one of which stays readable. Two is one with tensors that lie in
parts in the files of several ranks; what has none is written as version one."""
HINT = "an older checkpoint is used where there is one; `hpcdet ckpt verify` checks them all"
LARGEST = 64 << 20
"""Bytes; what a writer remembers beside may be metrics that are not told yet."""

_FORMAT = "hpcdet-checkpoint"
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 1 << 62


class Linked(TypedDict):
    """The checkpoint that another one is a copy of: its name, and the root of its manifest."""

    name: str
    root: str


class ManifestMeta(TypedDict, total=False):
    """The metadata of a manifest; keys of users and of newer versions are kept.

    Keys:
        kind: ``kept`` if the rules of retention see it, for the reasons in ``kept``; ``resume``;
            ``import`` of a foreign file.
        metric: the searcher's at this step, if it was validated there; not a number is text.
        batches, records, epochs: trained so far; ``validated``: as far as the last validation.
        save_s: seconds of the save before.
        journal_bytes: length of the attempt's journal; ``untold``: lines that it did not hold yet.
        fingerprint: the environment; ``metadata``: the user's.
        global_batch: samples of a step; None if their number is not fixed, and then
            ``starts_epoch`` tells if the last batch began an epoch.
        linked: where another trial's checkpoint came from.
        governance: what the policy has let which layer learn from, as of this step.
    """

    kind: str
    kept: list[str]
    metric: float | str | None
    trial: int
    batches: int
    records: int
    epochs: int
    validated: dict[str, int] | None
    save_s: float
    journal_bytes: int
    untold: list[dict[str, Any]]
    fingerprint: dict[str, Any]
    metadata: dict[str, Any]
    global_batch: int | None
    starts_epoch: bool
    linked: Linked
    governance: dict[str, Any]


class NewerFormat(IntegrityError):
    """A checkpoint that a newer hpcdet made, which this version cannot validate.

    It is neither skipped, which would lose training, nor renamed nor removed.
    """

    code = "NEWER_FORMAT"


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint as plain JSON with valid keys, types and numbers.

    Raises:
        NewerFormat: a newer hpcdet made it.
        IntegrityError: there is none, or it is not what hpcdet writes.
    """
    path = folder / MANIFEST
    try:
        text = files.read(path, LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        raise IntegrityError("there is no checkpoint here", where=str(path)) from None
    try:
        return _sound(text, path)
    except (ValueError, RecursionError) as error:
        what = (
            str(error)
            if isinstance(error, _Refused | bounded_json.Unreasonable)
            else "it is damaged"
        )
        raise IntegrityError(what, where=str(path), hint=HINT) from None


def outline(folder: Path) -> dict[str, Any]:
    """Return a manifest, validated as far as linking needs; loading a copy validates all of it.

    Raises:
        IntegrityError: there is none, it is not what was written, or names files elsewhere.
    """
    path = folder / MANIFEST
    raw = files.read_json(path, large=True)
    if not isinstance(raw, dict) or sealed_json.digest(raw) != raw.get(sealed_json.ROOT):
        raise IntegrityError("it is not what was written", where=str(path), hint=HINT)
    rows = raw.get("shards")
    shards: list[Any] = rows if isinstance(rows, list) else [None]
    if _lead_elsewhere(shards):
        raise IntegrityError("it names files outside of its folder", where=str(path), hint=HINT)
    named = all(_map(one) and _FILE.fullmatch(str(one.get("file"))) for one in shards)
    sized = named and all(_whole(one.get("bytes")) for one in shards)
    if not (sized and _map(raw.get("meta")) and _text(raw.get("name"))):
        raise IntegrityError("it is not a checkpoint's manifest", where=str(path), hint=HINT)
    return raw


class _Refused(ValueError):
    """The error that a JSON value is not what hpcdet writes."""


def _sound(text: bytes, path: Path) -> dict[str, Any]:
    raw = bounded_json.json_value(text)
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
        raise _Refused("it is not a checkpoint's manifest")
    schema, root = raw.get("schema"), raw.get(sealed_json.ROOT)
    flipped = any(sealed_json.digest(raw | {"schema": known}) == root for known in SCHEMAS)
    if type(schema) is int and schema > SCHEMAS[-1] and not flipped:
        raise NewerFormat(
            f"it was made by a newer hpcdet ({raw.get('writer')}, format {schema}; "
            f"this one reads up to {SCHEMAS[-1]})",
            where=str(path),
            hint="use that version of hpcdet or a later one; nothing of it was changed",
        )
    known = type(schema) is int and schema in SCHEMAS
    if not known or sealed_json.text(raw) != text or sealed_json.digest(raw) != root:
        raise _Refused("it is not what was written")
    if _lead_elsewhere(raw.get("shards")):
        raise _Refused("it names files outside of its folder")
    for key, fits in _KEYS.items():
        if key not in raw or not fits(raw[key]):
            raise _Refused(f"{key} is not what a manifest has there")
    for key, fits in _META.items():
        if key in raw["meta"] and not fits(raw["meta"][key]):
            raise _Refused(f"meta.{key} is not what a manifest has there")
    shards, world = raw["shards"], raw["world"]
    if not (len(raw["private"]) == world <= len(shards) <= 2 * world):
        raise _Refused(f"it has {len(shards)} files of {world} ranks")
    if len({shard["file"] for shard in shards}) < len(shards):
        raise _Refused("it names a file twice")
    return raw


def _whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < _MOST_BYTES


def _number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _digest_or_none(value: Any) -> bool:
    return value == "" or _digest(value)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _map(value: Any) -> bool:
    return isinstance(value, dict)


def _lead_elsewhere(shards: Any) -> bool:
    found = [one.get("file") for one in shards if isinstance(one, dict)] if _rows(shards) else []
    return any(isinstance(name, str) and ("/" in name or not name.strip(".")) for name in found)


def _rows(value: Any) -> bool:
    return isinstance(value, list)


def _shard(value: Any) -> bool:
    """True if it describes a rank's file: a plain name, and where its table lies in the file."""
    if not isinstance(value, dict) or value.keys() != {"file", "bytes", "table", "root"}:
        return False
    name, size, table = value["file"], value["bytes"], value["table"]
    if not (isinstance(name, str) and _FILE.fullmatch(name) and name != MANIFEST):
        return False
    if not (_whole(size) and _digest(value["root"])):
        return False
    inside = isinstance(table, list) and len(table) == 2 and all(map(_whole, table))
    return inside and sum(table) <= size


_KEYS: Mapping[str, Callable[[Any], bool]] = {
    "name": _text,
    "writer": _text,
    "world": lambda value: _whole(value, 1),
    "digest": _digest,
    "shared": _digest,
    "private": _list_of(_digest_or_none),
    "shards": _list_of(_shard),
    "meta": _map,
    "prev_root": _text,
}
_META: Mapping[str, Callable[[Any], bool]] = {
    "save_s": _number,
    "journal_bytes": _whole,
    "kept": _list_of(_text),
    "metric": lambda value: value is None or isinstance(value, str) or _number(value),
    "untold": _rows,
    "fingerprint": _map,
    "metadata": _map,
    "linked": _map,
    "governance": _map,
    "validated": lambda value: value is None or (_map(value) and all(map(_number, value.values()))),
    "batches": _number,
    "records": _number,
    "epochs": _number,
}
"""What readers rely on, where it is there; a writer may remember anything else beside."""
