"""What is wrong with a search space, and at which of its keys."""

from __future__ import annotations

Path = tuple[str | int, ...]
"""Where a node stands: ``("layers", 0, "units")``."""


def dotted(path: Path) -> str:
    """``layers.0.units``."""
    return ".".join(map(str, path))


class SpaceError(ValueError):
    """The space cannot mean what is written.

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
