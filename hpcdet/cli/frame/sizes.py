"""Amounts of memory and storage on the command line."""

from __future__ import annotations

import re
from typing import Any

import click

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, or as ``512M``, ``2G`` (powers of 1024)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no size; write 2G", param, ctx)
        return int(float(match[1]) * 1024 ** (" KMGT".index(match[2].upper() or " ")))
