"""``determined.experimental``: ``core_v2``; ``client`` names the replacement of each function."""

from __future__ import annotations

import importlib
from typing import Any

from hpcdet.determined._absent import absent


def __getattr__(name: str) -> Any:
    if name in ("client", "core_v2"):
        return importlib.import_module(f"{__name__}.{name}")
    absent(__name__, name)
