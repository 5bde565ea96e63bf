"""Lines of hpcdet in a rank's log. A log that takes no more (disk full, quota) ends nothing."""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path

from hpcdet.process.location import named

_OWN = f"{Path(__file__).parents[1]}/"


def say(text: str) -> None:
    """A line on standard error."""
    with contextlib.suppress(OSError):
        print(f"hpcdet: {text}", file=sys.stderr, flush=True)


def say_error(error: BaseException, *, own_frames: bool = True) -> None:
    """An error with its traceback, on standard error.

    Args:
        own_frames: with frames of hpcdet and of the interpreter's start; without them, and
            without any other, there is the error alone.
    """
    told = traceback.TracebackException.from_exception(error)
    if not own_frames:
        foreign = [one for one in told.stack if not one.filename.startswith((_OWN, "<frozen "))]
        told.stack = traceback.StackSummary.from_list(foreign)
    lines = told.format() if told.stack or own_frames else told.format_exception_only()
    with contextlib.suppress(OSError):
        print(named("".join(lines)), end="", file=sys.stderr, flush=True)
