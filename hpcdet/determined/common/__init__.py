"""``determined.common``: what code of trials uses of it."""

from __future__ import annotations

import logging
from typing import Any

from hpcdet.determined._absent import absent
from hpcdet.determined.common import util

__all__ = ["set_logger", "util"]


def set_logger(debug_enabled: bool) -> None:
    """How much of ``logging`` is shown."""
    logging.getLogger().setLevel(logging.DEBUG if debug_enabled else logging.INFO)


def __getattr__(name: str) -> Any:
    absent(__name__, name)
