"""Regular expressions of people: those that may take long on some text are refused.

Python's ``re`` tries all ways in which an expression can fit a text. How many these are at most
follows from the expression alone: alternatives add up, what stands one behind the other
multiplies, and k repeats over a text of n characters end in at most n over k ways. A repeat of
what itself can fit in several ways has exponentially many.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_LONGEST = 128
"""Characters of a parameter's name for which the ways are counted."""
_MOST = 10**8
"""Ways of which trying all takes about a second."""
_WIDE = 16
"""Repeats from which on their number is taken as bounded by the name alone."""
_ENDLESS = 1e300
"""Ways that are counted as no more, since numbers end at 1e308."""
_BEGINNINGS = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_HINT = r"write it with fewer repeats, and none within another: '^blocks\.\d+\.'"
_parser: Any = importlib.import_module("re._parser")  # the tree that ``re`` itself compiles


@dataclass(frozen=True)
class _Ways:
    """Ways in which a part can fit: ``choices``, times those in which ``wide`` repeats can end."""

    choices: float = 1.0
    wide: int = 0

    @property
    def one(self) -> bool:
        return self.choices <= 1 and not self.wide

    def then(self, other: _Ways) -> _Ways:
        return _Ways(min(self.choices * other.choices, _ENDLESS), self.wide + other.wide)

    def either(self, other: _Ways) -> _Ways:
        return _Ways(self.choices + other.choices, max(self.wide, other.wide))


def expression(text: str, longest: int = _LONGEST) -> str:
    """Return a regular expression as it is given.

    Args:
        longest: characters of the texts in which it is searched for, at least ``_LONGEST``.

    Raises:
        ValueError: it is none, or may take long on some text; with a hint as second argument.
    """
    try:
        tree = _parser.parse(text)
        re.compile(text)
        ways = _sequence(tree)
    except (re.error, RecursionError, OverflowError) as error:
        hint = r"one for names that begin with body. is '^body\.'"
        raise ValueError(f"it is no regular expression: {error}", hint) from None
    anchored = bool(len(tree)) and str(tree[0][1]) in _BEGINNINGS
    ends = min(ways.wide + (not anchored), longest // 2)
    if math.comb(longest, ends) > _MOST / ways.choices:
        what = "it has repeats that fit a text in so many ways that trying them may take for ever"
        raise ValueError(what, _HINT)
    return text


def _sequence(items: Iterable[tuple[Any, Any]]) -> _Ways:
    return functools.reduce(_Ways.then, (_of(str(kind), value) for kind, value in items), _Ways())


def _of(kind: str, value: Any) -> _Ways:
    match kind:
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _repeated(*value)
        case "BRANCH":
            return _alternatives(value[1])
        case "SUBPATTERN":
            return _sequence(value[3])
        case "ASSERT" | "ASSERT_NOT":
            return _sequence(value[1])
        case "ATOMIC_GROUP":
            return _sequence(value)
        case "GROUPREF_EXISTS":
            return _alternatives([value[1], value[2] or []])
    return _Ways()  # a character, a class of them, a place, what a group has matched


def _alternatives(branches: Iterable[Any]) -> _Ways:
    return functools.reduce(_Ways.either, map(_sequence, branches))


def _repeated(least: int, most: int, body: Any) -> _Ways:
    inner = _sequence(body)
    if inner.one:
        varies = int(most) - int(least) + 1
        return _Ways(wide=1) if varies >= _WIDE else _Ways(varies)
    if most == 1:
        return inner.either(_Ways()) if least == 0 else inner
    times = min(int(most), _LONGEST)
    logarithm = min(times * math.log(inner.choices), math.log(_ENDLESS))
    return _Ways(math.exp(logarithm), inner.wide * times)
