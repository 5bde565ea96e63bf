"""``data.stage``: files and folders that each node copies to its own disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from hpcdet.config.check.problems import Problem


def errors(sources: Any) -> Iterator[Problem]:
    """Yield every problem of what stands there."""
    if sources is None:
        return
    if not isinstance(sources, list) or not all(isinstance(one, str) and one for one in sources):
        yield Problem("data.stage", "expected a list of paths", "stage: [/scratch/data/images]")
        return
    names = [PurePath(one).name for one in sources]
    if twice := next((name for name in names if not name or names.count(name) > 1), None):
        what = f"two of the paths end with {twice!r}, which is their name in $HPCDET_DATA"
        yield Problem("data.stage", what, "rename one, or name the folder above them")
    for one in sources:
        if not one.startswith(("/", "~", "$")):
            yield Problem("data.stage", f"{one} is no absolute path", "/scratch/..., $HOME/...")
