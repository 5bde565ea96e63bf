"""Checkpoints' bytes, read by the node tower in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdet.cli.progress import busy
from hpcdet.errors import HpcdetError


def run(command: str, folders: Sequence[Path]) -> list[dict[str, Any]]:
    """What ``python -m hpcdet.checkpoint COMMAND`` says of each folder: ``state, error, digest``.

    Raises:
        HpcdetError: the process failed.
    """
    argv = [sys.executable, "-m", "hpcdet.checkpoint", command, *map(str, folders)]
    with busy(f"reading {len(folders)} checkpoint{'s' if len(folders) > 1 else ''}"):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(rows) != len(folders):
        raise HpcdetError("the process that reads checkpoints failed", hint=done.stderr.strip())
    return [{"error": "", "digest": "", **row} for row in rows]
