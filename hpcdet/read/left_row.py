"""The row of an ended experiment in lists, left in its folder by the process that ended it.

Who lists thousands of experiments for the first time on a host then reads one file of each, in
place of all their records. It is derived: removing it changes no answer. It is used if it belongs
to the owner of the experiment, nobody else may write it, and every file and folder that it was
made from looks as it did (``read.catalog``).

A change within a tick of the file system's clock would leave a file's time as it was. So the row
is made after the clock has moved on: a file written before has a later time than all of them.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

from hpcdet.read.lookup.all_experiments import UNREADABLE
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files, freshness

FORM = 1
"""Raised whenever a row says something else."""

_LONGEST = 64 << 10
_OTHERS_WRITE = 0o022
_NAME = re.compile(r"|/commands|/[a-z0-9-]+\.(json|yaml)|/trials(/\d+(/attempts(/\d+)?)?)?")
_LOOK_S = 0.005


def recall(paths: ExperimentPaths, owner: int) -> dict[str, Any] | None:
    """Return what was left in an experiment's folder; None if that may not be used.

    Args:
        owner: of the experiment, a user's number.
    """
    try:
        with os.fdopen(files.open_to_read(paths.row, follow=False), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != owner or status.st_mode & _OTHERS_WRITE:
                return None
            data = file.read(_LONGEST + 1)
        value = files.parse_json(data, paths.row) if len(data) <= _LONGEST else None
        if not isinstance(value, dict) or value.get("form") != FORM:
            return None
        # no other file of the reader's is looked at, as of a device that notices it
        names = [*value["folders"], *value["records"]]
        return value if all(map(_NAME.fullmatch, names)) else None
    except UNREADABLE:
        return None


def write(paths: ExperimentPaths, value: dict[str, Any]) -> None:
    """Leave a value in an experiment's folder. Raises OSError."""
    files.replace(paths.row, json.dumps({**value, "form": FORM}).encode())


def await_tick(paths: ExperimentPaths, newest: int) -> bool:
    """Wait until what is written has a later time than ``newest``, in nanoseconds.

    Returns:
        False if that takes longer than the tick of any file system. Raises OSError.
    """
    until, probe = time.monotonic() + freshness.TICK_S, paths.row.with_suffix(".tick")
    try:
        while True:
            probe.write_bytes(b"\n")
            if probe.stat().st_mtime_ns > newest:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_S)
    finally:
        probe.unlink(missing_ok=True)
