"""Formatting of times and lengths for people; durations and sizes are in ``units``."""

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


def length(value: dict[str, int] | None) -> str:
    """``{"batches": 900}`` as ``900 batches``."""
    return " ".join(f"{amount} {unit}" for unit, amount in (value or {}).items())


def time_of(name: str) -> Callable[[Any], str]:
    """Return a column's function that formats the time in a field as ``when`` does."""
    return lambda item: when(getattr(item, name))
