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


def run(command: str, folders: Sequence[Path], *, first: bool = False) -> list[dict[str, Any]]:
    """What ``python -m hpcdet.checkpoint COMMAND`` says: ``path, state, error, digest`` of each.

    Args:
        first: of each trial's checkpoints, none after the first one that is sound.

    Raises:
        HpcdetError: the process failed.
    """
    flags = ["--first"] if first else []
    argv = [sys.executable, "-m", "hpcdet.checkpoint", command, *flags, *map(str, folders)]
    with busy(f"reading {len(folders)} checkpoint{'s' if len(folders) > 1 else ''}"):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(rows) != len(folders) and not (first and rows):
        raise HpcdetError("the process that reads checkpoints failed", hint=done.stderr.strip())
    return [{"error": "", "digest": "", **row} for row in rows]
