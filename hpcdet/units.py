"""Lengths of training in batches, records or epochs, as Determined names them; times and sizes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["batches", "records", "epochs"]
UNITS: tuple[Unit, ...] = ("batches", "records", "epochs")


@dataclass(frozen=True, order=True)
class Length:
    """A length of training: ``Length("batches", 900)``.

    Lengths compare only with lengths of the same unit.
    """

    unit: Unit
    value: int

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit is {self.unit!r}; use batches, records or epochs")
        if self.value < 0:
            raise ValueError(f"length is {self.value}; it cannot be negative")

    def __str__(self) -> str:
        return f"{self.value} {self.unit}"

    def encode(self) -> dict[str, int]:
        """``{"batches": 900}``, the form of config files and records."""
        return {self.unit: self.value}

    @staticmethod
    def decode(value: Any) -> Length:
        """The length written as ``{"batches": 900}``, or as a bare number of batches."""
        if isinstance(value, bool) or not isinstance(value, int | dict):
            raise ValueError(f"{value!r} is not a length; write {{batches: 100}}")
        if isinstance(value, int):
            return Length("batches", value)
        if len(value) != 1:
            raise ValueError(f"{value!r} is not a length; write one of batches, records, epochs")
        [(unit, amount)] = value.items()
        if isinstance(amount, bool) or not isinstance(amount, int):
            raise ValueError(f"{unit} is {amount!r}; a length is a whole number")
        return Length(unit, amount)


@dataclass(frozen=True)
class Units:
    """How far a trial is, in all three units; ``epochs`` counts completed ones."""

    batches: int = 0
    records: int = 0
    epochs: int = 0

    def reached(self, length: Length) -> bool:
        """True if a length of training is behind."""
        return bool(getattr(self, length.unit) >= length.value)

    def of(self, unit: Unit) -> int:
        """Return the progress in one of the units."""
        return int(getattr(self, unit))


def seconds(text: str) -> int:
    """The time in ``5m``, ``2h``, or ``[days-]hours:minutes:seconds``, in seconds.

    Raises:
        ValueError: it is none of these.
    """
    days, dash, clock = text.strip().rpartition("-")
    if re.fullmatch(r"\d+(:\d+){0,2}" if dash else r"\d+(:\d+){1,2}", clock) and (
        not dash or days.isdecimal()
    ):
        parts = [int(part) for part in clock.split(":")]
        if dash:  # days-hours[:minutes[:seconds]], but minutes:seconds
            parts = [*parts, 0, 0][:3]
        elif len(parts) == 2:
            parts = [0, *parts]
        return int(days or 0) * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]
    if match := re.fullmatch(r"(\d+)\s*([smhd])", text.strip()):
        return int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    raise ValueError(f"{text!r} is no time; write seconds, '2h' or '12:00:00'")


def duration(seconds: float | None, units: int = 2) -> str:
    """Format ``1 d 2 h``, ``4 min 10 s``, ``5 s``: the ``units`` largest ones; "" for None."""
    if seconds is None:
        return ""
    whole = round(seconds)
    parts: list[str] = []
    for name, of_name in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, whole = divmod(whole, of_name)
        if amount or (name == "s" and not parts):
            parts.append(f"{amount} {name}")
    return " ".join(parts[:units])


def size(count: float | None) -> str:
    """Format bytes as ``312 B``, ``4.1 kB``, ``2.0 GB`` (powers of 1000); "" for None."""
    if count is None:
        return ""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def counted(count: int, one: str, many: str = "") -> str:
    """Format ``1 trial``, ``1,200 trials``; ``many`` where it is not ``one`` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def percent(share: float | None) -> str:
    """Format a share as ``12 %``; "" for None."""
    return "" if share is None else f"{100 * share:.0f} %"


def clock_time(seconds: float) -> str:
    """Format ``D-HH:MM:SS``, rounded up."""
    minutes, s = divmod(math.ceil(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{days}-{h:02d}:{m:02d}:{s:02d}"
