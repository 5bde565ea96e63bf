"""Retries of actions that fail while the storage is unavailable for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from hpcdet.errors import HpcdetError

T = TypeVar("T")

AGAIN_S = 2.0
"""Seconds after which what the storage refused is tried again."""

START_S = 180.0
"""Seconds that a task retries at its start: a failed one is lost if none replaces it."""


def insist(action: Callable[[], T], left_s: Callable[[], float]) -> T:
    """Return an action's result; retry it while the storage is unavailable or full.

    Args:
        left_s: seconds left for retries.

    Raises:
        OSError: the last one.
        HpcdetError: the last one, if it was raised from an OSError; any other one at once.
    """
    while True:
        try:
            return action()
        except (OSError, HpcdetError) as error:
            refused = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
            if not refused or left_s() <= 0:
                raise
            time.sleep(AGAIN_S)


def within(seconds: float, heard: Callable[[], str] = str) -> Callable[[], float]:
    """Return a function that counts ``seconds`` down from now, or to 0 after a notice."""
    limit = time.monotonic() + seconds
    return lambda: 0.0 if heard() else limit - time.monotonic()
