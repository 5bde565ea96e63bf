"""Text for people: times, lengths, folded lines, labelled facts; durations are in ``units``."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from hpcdet.cli.frame.settings import settings

_WHAT = 18
"""Columns of what a fact is about; its value begins after them."""


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


def short(value: Any) -> Any:
    """Return the beginning of a SHA-256, and any other value as it is."""
    digest = value.removeprefix("sha256:") if isinstance(value, str) else ""
    return digest[:12] if re.fullmatch("[0-9a-f]{64}", digest) else value


def folded(line: str, indent: str) -> str:
    """Fold a line to the terminal's width; ``indent`` begins all lines but the first."""
    return _fill(line, "", indent)


def facts(known: Iterable[tuple[str, str]]) -> str:
    """Format facts, pairs of a label and a value, one a line; long paths are not broken."""
    return "\n".join(_fill(value, f"{what:<{_WHAT - 1}} ", " " * _WHAT) for what, value in known)


def _fill(value: str, begin: str, indent: str) -> str:
    return textwrap.fill(
        value,
        max(shutil.get_terminal_size((80, 24)).columns, len(indent) + 20),
        initial_indent=begin,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
