"""Text for people: lines folded to the terminal's width, and labelled facts, one a line."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

_WHAT = 18
"""Columns of what a fact is about; its value begins after them."""


def folded(line: str, indent: str) -> str:
    """Fold a line to the terminal's width; ``indent`` begins all lines but the first."""
    return _fill(line, "", indent)


def lines(facts: Iterable[tuple[str, str]]) -> str:
    """Format facts, pairs of a label and a value, one a line; long paths are not broken."""
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
