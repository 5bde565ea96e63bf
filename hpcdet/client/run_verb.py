"""Verbs of the command line, run in a process of their own.

There they have the umask, the signals and the children that a verb has, whatever this process is;
and what is recorded of a submission is a command that people can give again.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hpcdet.errors import HpcdetError, of_exit_code

_CLIENT = str(Path(__file__).parent)


class HpcdetWarning(UserWarning):
    """A warning that the command line printed."""


def run(
    *words: object, root: Path | None = None, fine: Collection[int] = (0,)
) -> list[dict[str, Any]]:
    """Run ``hpcdet WORDS -o json`` and return its items.

    Args:
        root: folder of experiments (``-C``).
        fine: exit codes with which the verb has printed its items.

    Raises:
        HpcdetError: the verb failed; of the class that belongs to its exit code.
    """
    place = ("-C", str(root)) if root is not None else ()
    argv = [sys.executable, "-Pm", "hpcdet", *place, *map(str, words), "-o", "json"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode not in fine or not done.stdout.startswith("{"):
        raise _error(done.returncode, done.stderr)
    envelope = json.loads(done.stdout)
    for warning in envelope["warnings"]:
        warn(warning)
    found: list[dict[str, Any]] = envelope["items"]
    return found


def warn(text: str) -> None:
    """Give a warning at the line that uses the client."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_CLIENT):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, HpcdetWarning, stacklevel=level)


def _error(code: int, said: str) -> HpcdetError:
    """Return the error that a verb ended with."""
    for line in reversed(said.splitlines()):
        if line.startswith('{"error"'):
            body = json.loads(line)["error"]
            what, where, hint = body["message"], body["where"], body["hint"]
            return of_exit_code(code)(what, where=where, hint=hint)
    return of_exit_code(code)(said.strip() or f"the command ended with exit code {code}")
