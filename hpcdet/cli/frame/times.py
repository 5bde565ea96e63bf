"""Types of click for times on the command line."""

from __future__ import annotations

from typing import Any

import click

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
