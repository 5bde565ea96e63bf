"""What is known of one thing, for people: a line for each fact, folded to the terminal's width."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

_WHAT = 18
"""Columns of what a fact is about; its value begins after them."""


def lines(facts: Iterable[tuple[str, str]]) -> str:
    """Facts, pairs of what they are about and a value; paths stay whole, however long."""
    width = max(shutil.get_terminal_size((80, 24)).columns, _WHAT + 20)
    return "\n".join(
        textwrap.fill(
            value,
            width,
            initial_indent=f"{what:<{_WHAT - 1}} ",
            subsequent_indent=" " * _WHAT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for what, value in facts
    )
