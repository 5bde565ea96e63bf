"""``/table`` of a rank's file, validated completely before anything in it is believed.

Its text is canonical JSON of one shape, so a regular expression reads it, row by row: what has
another key, type or number in it does not match, and no text takes more memory than its rows do.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
from dataclasses import dataclass

import numpy as np
import torch

from hpcdet.checkpoint.state.tree import NUMPY_KINDS, Leaf, Part

_NUMBERS = r"\d{1,18}(?:,\d{1,18})*+"
_HEAD = re.compile(r'\{"frame":"([0-9a-f]{64})","leaves":\[')
_ROW = re.compile(
    r'\["((?:[^"\\\x00-\x1f]|\\.)++)","(tensor|array|scalar|bytes)","([^"\\\x00-\x1f]{1,40})"'
    rf",\[({_NUMBERS})?\],(\d{{1,18}}),(\d{{1,18}})"
    rf'(?:,\{{"shape":\[({_NUMBERS})\],"start":(\d{{1,18}})\}})?,"([0-9a-f]{{64}})"\](,|\]\}}\Z)'
)
_EMPTY = "]}"
_NUMPY = re.compile(r"[<>|][%s]\d{1,10}(?:\[\w{1,10}\])?" % NUMPY_KINDS)  # noqa: UP031
_MOST_AXES = 32
"""As HDF5 has them."""


@dataclass(frozen=True)
class TableRow:
    """One row of the table: a range of bytes that is a leaf with its digest, or a hole."""

    start: int
    end: int
    leaf: Leaf | None = None
    digest: str = ""


@dataclass(frozen=True)
class RankTable:
    """The table of one rank's file.

    Attributes:
        frame: BLAKE3 of the bytes that are in no dataset.
        rows: the leaves, and the holes between them, ascending; they cover the file but the table.
    """

    frame: str
    rows: tuple[TableRow, ...]


def parse(text: bytes, place: tuple[int, int], size: int) -> RankTable:
    """Parse the text of a table.

    Args:
        place: offset and length of the table in the file.
        size: of the file in bytes.

    Raises:
        ValueError: it says what no hpcdet writes: another type, ranges that overlap or leave the
            file, shapes that do not fit their bytes, a name twice.
    """
    said = text.decode()
    head = _HEAD.match(said)
    if head is None:
        raise ValueError("the table has no such beginning")
    found: list[tuple[int, int, Leaf | None, str]] = []
    names: set[str] = set()
    end = head.end()
    while match := _ROW.match(said, end):
        end = match.end()
        leaf, start = _leaf(match, size)
        if leaf.name in names:
            raise ValueError(f"{leaf.name} is there twice")
        names.add(leaf.name)
        found.append((start, start + leaf.nbytes, leaf, match[9]))
        if match[10] != ",":
            break
    complete = match is not None and end == len(said)
    if not (complete or (not found and said[end:] == _EMPTY)):
        raise ValueError(f"row {len(found) + 1} of the table is none")
    found += [(place[0], sum(place), None, ""), (size, size, None, "")]
    found.sort(key=operator.itemgetter(0, 1))
    rows: list[TableRow] = []
    reached = 0
    for start, stop, one, digest in found:
        if start < reached and stop > start:
            raise ValueError(f"{one.name if one else 'the table'} overlaps what is before it")
        if start > reached:
            rows.append(TableRow(reached, start))
        reached = max(reached, stop)
        if one is not None:
            rows.append(TableRow(start, stop, one, digest))
    if reached > size:
        raise ValueError("a dataset ends behind the file")
    return RankTable(head[1], tuple(rows))


def _leaf(match: re.Match[str], size: int) -> tuple[Leaf, int]:
    """The leaf of a row, and its offset. Raises ValueError."""
    name, kind, dtype, axes, offset, nbytes, whole, first, _, _ = match.groups()
    if "\\" in name:
        name = json.loads(f'"{name}"')
    if "\0" in name:
        raise ValueError("a name has a NUL in it")
    shape = tuple(map(int, axes.split(","))) if axes else ()
    start, length = int(offset), int(nbytes)
    count = math.prod(shape)
    try:
        size_of_one = item_size(kind, dtype)
    except ValueError:
        raise ValueError(f"dataset {name} cannot be a {kind} of {dtype}") from None
    if count * size_of_one != length or len(shape) > _MOST_AXES:
        raise ValueError(f"{name} of shape {list(shape)} has not {length} bytes")
    if start + length > size:
        raise ValueError(f"{name} ends behind the file")
    if count > size:
        raise ValueError(f"{name} has {count} values without bytes")
    if (kind == "scalar" and shape) or (kind == "bytes" and len(shape) != 1):
        raise ValueError(f"{name} is a {kind} of shape {list(shape)}")
    part = None
    if whole is not None:
        part = Part(tuple(map(int, whole.split(","))), int(first))
        inside = bool(shape) and part.start + shape[0] <= part.shape[0]
        if kind != "tensor" or not inside or part.shape[1:] != shape[1:]:
            raise ValueError(f"{name} of shape {list(shape)} is no part of {list(part.shape)}")
    return Leaf(name, kind, dtype, shape, length, part=part), start


@functools.lru_cache(maxsize=1 << 10)
def item_size(kind: str, dtype: str) -> int:
    """Bytes of one value. Raises ValueError: no hpcdet writes such a type."""
    if kind == "bytes" and dtype == "bytes":
        return 1
    if kind == "tensor":
        found = getattr(torch, dtype, None)
        if isinstance(found, torch.dtype) and str(found) == f"torch.{dtype}":
            return found.itemsize
    elif kind in ("array", "scalar") and _NUMPY.fullmatch(dtype):
        try:
            made = np.dtype(dtype)
        except (TypeError, OverflowError):
            made = np.dtype("O")
        if made.str == dtype:
            return int(made.itemsize)
    raise ValueError(f"there is no {kind} of {dtype}")
