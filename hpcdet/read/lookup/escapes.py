"""Escaping of control characters in untrusted text, so that terminals show but not obey them."""

from __future__ import annotations

import re

_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def escaped(text: str) -> str:
    r"""Text in which control characters are written as ``\u001b``; tabs and ends of lines stay.

    Those from U+0080 to U+009F (C1) are among them: U+009B moves a terminal's cursor, as ESC ``[``
    does, and JSON leaves it as it is. So are those that turn the direction of text, as U+202E
    does: people would read other words than programs. In JSON what is written stands for the same
    text.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def inert(text: str) -> str:
    """Return text for a cell of CSV: escaped, and no formula for a spreadsheet."""
    return ("'" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else "") + escaped(text)
