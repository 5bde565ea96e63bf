"""The age of a beat: a file that its writer replaces every few seconds while it lives.

Two clocks date it: the file server's stamps the file, and the writer's wrote ``at`` into it. Either
may be minutes off, so that the younger date counts: nobody who lives is taken for dead because one
of them is late. A date in the future is another sign of a wrong clock, and counts only if both are.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError
from hpcdet.store.fs import files, packed
from hpcdet.store.fs.freshness import SKEW_S


def age_s(path: Path, now: float | None = None) -> float | None:
    """Return the seconds since a beat was written, not negative; None if there is no such file.

    Args:
        now: epoch seconds by this host's clock; None: at this moment.
    """
    now = time.time() if now is None else now
    try:
        stamped = path.stat().st_mtime
    except OSError:
        return None
    try:
        written = _written(packed.read_json(path))
    except (IntegrityError, OSError):
        written = None
    ages = [now - stamped] if written is None else [now - stamped, now - written]
    likely = [age for age in ages if age >= -SKEW_S]
    return max(0.0, min(likely or ages))


def _written(beat: Any) -> float | None:
    """Return the epoch seconds that a beat names; None if it names none."""
    at = beat.get("at") if isinstance(beat, dict) else None
    if not isinstance(at, str) or not files.is_time(at):
        return None
    return datetime.fromisoformat(at).timestamp()
