"""Records: dataclasses that are stored as JSON files.

Unknown keys are ignored on reading, missing ones take their default: a folder written by
another version of hpcdet stays readable.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hpcdet.store.fs import files, packed, typed_fields
from hpcdet.units import Length

_TIMES = ("at", "created_at", "submitted_at", "started_at", "ended_at")
"""Fields of records that are the time of something, or "" before it has happened."""


@dataclass(frozen=True)
class JsonRecord:
    """A record with a file of its own."""

    def encode(self) -> bytes:
        fields = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return files.canonical({"schema": 1, **fields}) + b"\n"

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Self:
        """Build a record. Raises ValueError: a value is missing or has another type."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        given = {key: item for key, item in value.items() if key in known}
        for key in ("until", "length"):
            if isinstance(given.get(key), dict):
                given[key] = Length.decode(given[key])
        typed_fields.refuse_others(cls, given, lenient=False)
        for key in _TIMES:
            if (time := given.get(key, "")) != "" and not files.is_time(time):
                raise ValueError(f"{key} is {typed_fields.short(time)}, which is no time")
        try:
            return cls(**given)
        except TypeError as error:
            raise ValueError(str(error).partition(".__init__() ")[2]) from None

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the record in a file, packed or not; None if it is absent or incomplete.

        Raises:
            IntegrityError: it is no file, or holds a value that hpcdet never writes.
        """
        value = packed.read_json(path)
        try:
            return cls.decode(value) if isinstance(value, dict) else None
        except ValueError as error:
            raise files.damaged(path, str(error)) from error

    def write_once(self, path: Path) -> bool:
        """Create the file; False if it exists already."""
        return files.write_once(path, self.encode())


def plain(value: Any, leaf: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return JSON for a value; lengths as ``{"batches": 900}``. ``leaf``: converts scalars."""
    if isinstance(value, Length):
        return value.encode()
    if isinstance(value, Mapping):
        return {key: plain(item, leaf) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, leaf) for item in value]
    return leaf(value)


def number(value: float) -> float | str:
    """Return a metric's value as JSON: NaN and infinities as ``"NaN"``, ``"Infinity"``."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def finite(value: Any) -> Any:
    """Return strict JSON for plain data: every number in it as ``number`` has it."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return number(value) if isinstance(value, float) else value


def strict(value: Any, **options: Any) -> str:
    """Return the text of plain data as strict JSON, its numbers as ``finite`` has them."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except ValueError:  # a number is not finite: hardly ever
        return json.dumps(finite(value), ensure_ascii=False, allow_nan=False, **options)


def value(stored: float | str) -> float:
    """Return the inverse of ``number``."""
    return float(stored)
