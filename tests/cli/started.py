"""The command line as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def hpcdet(*argv: str, **more: Any) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "hpcdet", *argv], **more)
