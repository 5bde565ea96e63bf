"""Errors of a search space, with the path of the key."""

from __future__ import annotations

Path = tuple[str | int, ...]
"""Where a node stands: ``("layers", 0, "units")``."""


def dotted(path: Path) -> str:
    """Join a path to a dotted name: ``layers.0.units``."""
    return ".".join(map(str, path))


class SpaceError(ValueError):
    """The search space, or a sample of it, is invalid.

    Args:
        path: keys from ``hyperparameters`` down to the wrong one.
        what: one sentence, without a full stop at its end.
        hint: what to write instead.
    """

    def __init__(self, path: Path, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.path = path
        self.what = what
        self.hint = hint
