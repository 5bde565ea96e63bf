"""Evidence of an attempt's end in its logs and journals."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hpcdet.errors import IntegrityError
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.fs import files

_TAIL = 64 * 1024
_TRACEBACK = "Traceback (most recent call last):"
_HELD_CODE = re.compile(r'"/proc/\d+/fd/\d+/code')
"""The code folder in what a rank's own libraries print (``store.folder.held_folder``)."""


@dataclass(frozen=True)
class Traceback:
    """The last traceback of a log: its last line, and whether it passes through a folder."""

    error: str
    in_user_code: bool


def tail(path: Path, limit: int = _TAIL) -> str:
    """The end of a text file; "" if it is not there."""
    try:
        with files.open_file(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            return file.read().decode(errors="replace")
    except (OSError, IntegrityError):
        return ""


def traceback(text: str, code: Path) -> Traceback | None:
    """The last traceback in a log, if it has one."""
    start = text.rfind(_TRACEBACK)
    if start < 0:
        return None
    block = text[start + len(_TRACEBACK) :].splitlines()[1:]
    error = next((line.strip() for line in block if line.strip() and line[0] not in " \t|+"), "")
    # a chain of causes is several blocks: the user's frames may be in an earlier one
    in_user_code = f'"{code}' in text or _HELD_CODE.search(text) is not None
    return Traceback(error or "an exception without a message", in_user_code)


def of_attempt(attempt: AttemptPaths, first: int | None, code: Path) -> Traceback | None:
    """The traceback of the rank that failed first, else of the lowest rank that has one."""
    with contextlib.suppress(OSError):
        names = sorted(attempt.logs.glob("rank-*.log"), key=lambda p: int(p.stem[5:]))
        ordered = [attempt.log(first)] if first is not None else []
        for path in (*ordered, *names, attempt.launcher_log):
            if (found := traceback(tail(path), code)) is not None:
                return found
    return None
