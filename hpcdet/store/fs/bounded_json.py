"""JSON from untrusted writers, refused by bounds before it costs time or memory.

A few bytes can cost much: a bracket is one more level of recursion, a digit one more step of
arithmetic that is quadratic in their number. Documents that hpcdet writes stay far below all bounds
here.
"""

from __future__ import annotations

import json
import re
from typing import Any

DEEPEST = 120
"""Levels of mappings and lists within each other: some more than a config may have."""
NODES = 500_000
"""Values, mappings and lists of one document."""
MANY_NODES = 20_000_000
"""The same of a document that grows with the trials of a search or the tensors of a model."""
DIGITS = 300
"""Digits of one number: more than any float has, which ends at 309."""
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{%d}" % (DIGITS + 1))


class Unreasonable(ValueError):
    """A document beyond all bounds that a genuine one keeps.

    Attributes:
        line: of the document, from 1; 0 if it is not known.
    """

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.line = line


def too_deep(deepest: int = DEEPEST, line: int = 0) -> Unreasonable:
    """Return the error for a document that is nested more deeply."""
    return Unreasonable(f"nested more than {deepest} deep", line)


def json_value(data: bytes, most: int = NODES) -> Any:
    """Return the value of a JSON document of at most ``most`` values.

    Raises:
        Unreasonable: it is too deep, has too many values, or too long a number.
        ValueError: it is not JSON.
    """
    opened = data.count(b"[") + data.count(b"{")
    if opened + data.count(b",") > most:  # never less than there are; commas in texts count, too
        raise Unreasonable(f"it holds more than {most} values")
    if len(data) > DIGITS and _LONG_NUMBER.search(data):
        raise Unreasonable(f"it holds a number of more than {DIGITS} digits")
    try:
        value = json.loads(data)
    except RecursionError:
        raise too_deep() from None
    if opened > DEEPEST:
        _refuse_depth(value)
    return value


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, list):
                inner.extend(one)
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return
    raise too_deep()
