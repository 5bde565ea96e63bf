"""Lines of hpcdet in a rank's log. A log that takes no more (disk full, quota) ends nothing."""

from __future__ import annotations

import contextlib
import sys
import traceback

from hpcdet.process.location import named


def say(text: str) -> None:
    """A line on standard error."""
    with contextlib.suppress(OSError):
        print(f"hpcdet: {text}", file=sys.stderr, flush=True)


def say_error(error: BaseException) -> None:
    """An error with its traceback, on standard error."""
    with contextlib.suppress(OSError):
        print(
            named("".join(traceback.format_exception(error))), end="", file=sys.stderr, flush=True
        )
