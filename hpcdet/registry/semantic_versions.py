"""Semantic versions (semver.org 2.0.0) and the ranges that name the greatest of them.

``^1.4`` means at least 1.4.0 and below 2.0.0, ``~1.4`` below 1.5.0, ``1.4`` any 1.4.x. As in
Cargo and npm, ``^0.3`` stays below 0.4.0, and a pre-release fits only a range that names one of the
same three numbers.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from hpcdet.errors import UsageError

_NUMBER = r"(0|[1-9]\d{0,9})"
_PART = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_PRE = rf"(?:-({_PART}(?:\.{_PART})*))?"
_BUILD = r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
_WHOLE = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}{_PRE}{_BUILD}")
_RANGE = re.compile(rf"([\^~]?){_NUMBER}(?:\.{_NUMBER}(?:\.{_NUMBER}{_PRE}{_BUILD})?)?")
_LONGEST = 100
_HINT = "as 1.4.0, or 2.0.0-rc.1"


@functools.total_ordering
@dataclass(frozen=True, eq=False)
class SemanticVersion:
    """A semantic version; equal and ordered by precedence, in which builds do not count.

    Attributes:
        text: as it was given.
        numbers: major, minor, patch.
        pre: identifiers of a pre-release; empty for a release.
    """

    text: str
    numbers: tuple[int, int, int]
    pre: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> SemanticVersion:
        """Return the version that a text is. Raises UsageError: it is none."""
        match = _WHOLE.fullmatch(text) if len(text) <= _LONGEST else None
        if match is None:
            raise UsageError("it is not a semantic version", where=text[:_LONGEST], hint=_HINT)
        pre = tuple(match[4].split(".")) if match[4] else ()
        return SemanticVersion(text, (int(match[1]), int(match[2]), int(match[3])), pre)

    @property
    def precedence(self) -> tuple[object, ...]:
        """The key that versions are ordered by (semver.org 11)."""
        parts = tuple((0, int(x), "") if x.isdigit() else (1, 0, x) for x in self.pre)
        return (*self.numbers, not self.pre, parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SemanticVersion) and self.precedence == other.precedence

    def __hash__(self) -> int:
        return hash(self.precedence)

    def __lt__(self, other: SemanticVersion) -> bool:
        return self.precedence < other.precedence


@dataclass(frozen=True)
class VersionRange:
    """A range of versions: from ``least``, below ``numbers`` that are too great.

    Attributes:
        below: None for a range of one version.
    """

    least: SemanticVersion
    below: tuple[int, int, int] | None

    @staticmethod
    def parse(text: str) -> VersionRange | None:
        """Return the range that a text is; None if it is none."""
        match = _RANGE.fullmatch(text) if len(text) <= _LONGEST else None
        if match is None:
            return None
        sign, major, minor, patch = match[1], int(match[2]), match[3], match[4]
        numbers = (major, int(minor or 0), int(patch or 0))
        pre = tuple(match[5].split(".")) if match[5] else ()
        least = SemanticVersion(text.lstrip("^~"), numbers, pre)
        if not sign and patch is not None:
            return VersionRange(least, None)
        if minor is None:
            return VersionRange(least, (major + 1, 0, 0))
        if sign == "^" and major:
            return VersionRange(least, (major + 1, 0, 0))
        if sign == "^" and patch is not None and not numbers[1]:
            return VersionRange(least, (0, 0, numbers[2] + 1))
        return VersionRange(least, (major, numbers[1] + 1, 0))

    def __contains__(self, version: SemanticVersion) -> bool:
        if self.below is None:
            return version == self.least
        if version.pre and version.numbers != self.least.numbers:
            return False
        if version.pre and not self.least.pre:
            return False
        return self.least <= version and version.numbers < self.below
