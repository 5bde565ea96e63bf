"""Times on the command line: lengths and moments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from hpcdet.errors import UsageError
from hpcdet.units import seconds


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """Seconds, or as ``5m``, ``2h``, ``12:00:00``.

    Args:
        least: the shortest time that makes sense, in seconds.
    """

    name = "time"

    def __init__(self, least: float = 0) -> None:
        self.least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            found = float(value)
        except ValueError:
            try:
                found = float(seconds(value))
            except ValueError as error:
                self.fail(str(error), param, ctx)
        if not found >= self.least:
            self.fail(f"{value} is less than {self.least:g} seconds", param, ctx)
        return found


def moment(since: str) -> str:
    """Convert ``7d``, ``12h``, ``30m``, ``45s`` (ago), a date or a time to ISO in UTC.

    Raises:
        UsageError: it is none of these.
    """
    unit = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}.get(since[-1:])
    try:
        if unit and since[:-1].replace(".", "", 1).isdigit():
            at = datetime.now(UTC) - timedelta(**{unit: float(since[:-1])})
        else:
            at = datetime.fromisoformat(since).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        hint = "write 7d, 12h, 30m, or 2026-11-21"
        raise UsageError(f"{since!r} is no time", hint=hint) from error
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
