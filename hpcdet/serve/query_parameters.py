"""Parameters of requests: read, checked, and refused by name."""

from __future__ import annotations

from collections.abc import Collection

from starlette.requests import Request

from hpcdet.errors import UsageError

LONGEST = 1000
"""Characters of one value."""


class Query:
    """The parameters of one request.

    Args:
        known: names that this address has.

    Raises:
        UsageError: another name is given, or a value is too long.
    """

    def __init__(self, request: Request, known: Collection[str]) -> None:
        self._given = request.query_params
        for name, value in self._given.multi_items():
            if name not in known:
                hint = f"there are: {', '.join(known)}" if known else "there are none here"
                raise UsageError("no such parameter", where=name[:100], hint=hint)
            if len(value) > LONGEST:
                raise UsageError(f"it has more than {LONGEST} characters", where=name)

    def text(self, name: str, default: str = "") -> str:
        """Return a value, the last one given."""
        return self._given.get(name, default)

    def words(self, name: str) -> list[str]:
        """Return values that are given several times, or with commas between them.

        Raises:
            UsageError: there is nothing in one of them.
        """
        found: list[str] = []
        for value in self._given.getlist(name):
            words = [word.strip(" ") for word in value.split(",") if word.strip(" ")]
            if not words:
                raise UsageError("it has no value", where=name, hint="name one, or leave it out")
            found += words
        return found

    def number(self, name: str, default: int, most: int, least: int = 0) -> int:
        """Return a whole number from ``least`` to ``most``. Raises UsageError: it is none."""
        text = self._given.get(name)
        if text is None:
            return default
        digits = text.isascii() and text.isdigit() and len(text) <= 10
        if not digits or not least <= int(text) <= most:
            raise UsageError(f"{text[:40]!r} is no whole number from {least} to {most}", where=name)
        return int(text)

    def numbers(self, name: str, most: int) -> list[int]:
        """Return whole numbers from 0 to ``most``, as ``words``. Raises UsageError: one is none."""
        found = []
        for word in self.words(name):
            if not (word.isascii() and word.isdigit()) or len(word) > 10 or int(word) > most:
                raise UsageError(f"{word[:40]!r} is no whole number from 0 to {most}", where=name)
            found.append(int(word))
        return found

    def one_of(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of the choices. Raises UsageError: it is none."""
        value = self._given.get(name, default)
        if value not in choices:
            hint = f"there are: {', '.join(choices)}"
            raise UsageError(f"{value[:40]!r} is not possible", where=name, hint=hint)
        return value
