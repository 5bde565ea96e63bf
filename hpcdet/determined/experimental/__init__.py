"""``determined.experimental``: ``core_v2``; ``client`` says what there is in its place."""

from __future__ import annotations

import importlib
from typing import Any

from hpcdet.determined._absent import absent


def __getattr__(name: str) -> Any:
    if name in ("client", "core_v2"):
        return importlib.import_module(f"{__name__}.{name}")
    absent(__name__, name)
