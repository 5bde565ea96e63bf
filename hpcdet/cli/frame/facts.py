"""Lines for people, folded to the terminal's width; of what is known of one thing, a line each."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

_WHAT = 18
"""Columns of what a fact is about; its value begins after them."""


def folded(line: str, indent: str) -> str:
    """A line that may be longer than the terminal is wide; ``indent``: of what follows."""
    return _fill(line, "", indent)


def lines(facts: Iterable[tuple[str, str]]) -> str:
    """Facts, pairs of what they are about and a value; paths stay whole, however long."""
    return "\n".join(_fill(value, f"{what:<{_WHAT - 1}} ", " " * _WHAT) for what, value in facts)


def _fill(value: str, begin: str, indent: str) -> str:
    return textwrap.fill(
        value,
        max(shutil.get_terminal_size((80, 24)).columns, len(indent) + 20),
        initial_indent=begin,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
