"""``determined.experimental.client``: refused by name when it is used, not when imported.

Code that imports it and does not use it runs; what is used of it says why it cannot be.
"""

from __future__ import annotations

from typing import Any

from hpcdet.determined._absent import absent, why_absent
from hpcdet.process.console import say

_WHY = why_absent("determined.experimental.client")
say(f"determined.experimental.client can be imported, not used: {_WHY}")


def __getattr__(name: str) -> Any:
    absent(__name__, name)
