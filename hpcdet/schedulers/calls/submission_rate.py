"""Submissions per minute, counted over all processes of a user on all hosts that share the cache.

A token bucket as large as a minute's submissions: those of the last minute lie in a file of the
user's cache folder, and one more is allowed while they are fewer than the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError
from hpcdet.schedulers.calls.polling import LOCK_S, cache_folder, lock
from hpcdet.schedulers.common.base import Refusal, Scheduler, Submission, SubmissionRefused
from hpcdet.store.fs import files

_MINUTE_S = 60.0
_FILE = "submissions.json"


def submit(
    scheduler: Scheduler, submission: Submission, per_min: float | None, patience_s: float = 0.0
) -> str:
    """Submit a job once its turn has come; returns its id.

    Raises:
        SubmissionRefused: as ``Scheduler.submit``, or ``wait``.
    """
    wait(per_min, patience_s)
    return scheduler.submit(submission)


def wait(per_min: float | None, patience_s: float = 0.0) -> None:
    """Wait for the turn to submit a job, and take it.

    Args:
        per_min: submissions that a user may make in a minute; None: any number.
        patience_s: seconds to wait at most.

    Raises:
        SubmissionRefused: ``unavailable``, if the turn does not come in time, or submissions
            cannot be counted.
    """
    if per_min is not None:
        limit = time.monotonic() + patience_s
        while (wait_s := _taken(per_min)) > 0:
            if time.monotonic() + wait_s > limit:
                what = (
                    f"{per_min:g} submissions a minute are allowed here; one more in {wait_s:.0f} s"
                )
                raise SubmissionRefused(Refusal("unavailable", what))
            time.sleep(wait_s)


def _taken(per_min: float) -> float:
    try:
        return take(per_min)
    except OSError as error:
        what = (
            f"submissions of this minute cannot be counted in {cache_folder()}: {error.strerror}; "
            "make room there, or let HPCDET_CACHE name another folder"
        )
        raise SubmissionRefused(Refusal("unavailable", what)) from error


def take(per_min: float, clock: Callable[[], float] = time.time) -> float:
    """Take one submission of this minute's; returns 0, or the seconds until there is one."""
    folder, most = cache_folder(), max(1, int(per_min))
    within_s = _MINUTE_S * most / per_min  # longer than a minute for less than one in it
    with lock(folder / f"{_FILE}.lock", LOCK_S) as mine:
        if not mine:
            return 1.0
        now, known = clock(), _known(folder / _FILE)
        # of a clock that was set back later ones are none
        last = [at for at in known if isinstance(at, int | float) and 0 <= now - at < within_s]
        if len(last) >= most:
            return max(0.001, within_s - (now - sorted(last)[-most]))
        files.replace(folder / _FILE, files.canonical([*last, now]))
    return 0.0


def _known(path: Path) -> list[Any]:
    """Return the times of the file; none if it is damaged: it is written anew."""
    try:
        said = files.read_json(path)
    except IntegrityError:
        return []
    return said if isinstance(said, list) else []
