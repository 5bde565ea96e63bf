"""Formatting of times, durations and sizes for people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hpcdet.cli.frame.settings import settings


def when(time: str) -> str:
    """Format an ISO time as ``2026-11-21 14:02:11`` in local time, or UTC; "" stays ""."""
    if not time:
        return ""
    zone = UTC if settings().utc else None
    return datetime.fromisoformat(time).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float | None) -> str:
    """``4 s``, ``3 min``, ``2 h 05 min``, ``3 d 4 h``; "" for None."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def size(count: int | None) -> str:
    """Bytes as ``312 B``, ``4.1 kB``, ``2.0 GB`` (powers of 1000)."""
    if count is None:
        return ""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def length(value: dict[str, int] | None) -> str:
    """``{"batches": 900}`` as ``900 batches``."""
    return " ".join(f"{amount} {unit}" for unit, amount in (value or {}).items())


def time_of(key: str) -> Callable[[dict[str, Any]], str]:
    """Return a column's function that formats the time under ``key`` as ``when`` does."""
    return lambda item: when(item[key])
