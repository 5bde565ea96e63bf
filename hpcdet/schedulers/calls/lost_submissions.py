"""Search for a job whose id was lost: its process died, or the answer did not arrive."""

from __future__ import annotations

from pathlib import Path

from hpcdet.schedulers.common.base import Scheduler, SendsElsewhere


def find(scheduler: Scheduler, name: str, tag: str, script: Path) -> str | None:
    """Return the id of the job of that name and tag; None if there is none.

    Args:
        script: that was submitted, or was about to be.

    Raises:
        Unavailable: as ``Scheduler.find``.
    """
    if isinstance(scheduler, SendsElsewhere):
        return scheduler.find_sent(name, tag, script)
    return scheduler.find(name, tag)
