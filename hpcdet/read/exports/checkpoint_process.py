"""Reading of checkpoints' data in a process of its own, ``python -m hpcdet.checkpoint``.

Views and verbs import no torch; what has to read the data of checkpoints runs there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcdet.errors import HpcdetError, IntegrityError, of_exit_code

Row = dict[str, Any]


def run(arguments: Sequence[str], heard: Callable[[Row], None]) -> str:
    """Run the process; returns its standard error.

    Args:
        heard: called with each object that the process prints.
    """
    argv = [sys.executable, "-Pm", "hpcdet.checkpoint", *arguments]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                heard(json.loads(line))
        process.wait()
        said.seek(0)
        return said.read().strip()


def task(*arguments: str | Path) -> Row:
    """Run a single task and return its result.

    Raises:
        HpcdetError: it failed; of the same class as in that process.
    """
    rows: list[Row] = []
    said = run([str(each) for each in arguments], rows.append)
    if not rows:
        raise failed(said)
    if "failed" in rows[-1]:
        raise of_exit_code(rows[-1]["exit"])(**rows[-1]["failed"])
    return rows[-1]


def content_digest(folder: Path) -> str:
    """Verify every byte of a checkpoint and return the digest of its training state.

    Raises:
        IntegrityError: it is damaged, or made by a newer hpcdet.
        HpcdetError: the process failed.
    """
    rows: list[Row] = []
    said = run(["verify", str(folder)], lambda row: rows.append(row) if "state" in row else None)
    if not rows:
        raise failed(said)
    if rows[-1]["state"] != "valid":
        what = str(rows[-1]["error"]).partition("\n  hint: ")[0]
        raise IntegrityError(what, where=str(folder), hint="hpcdet ckpt verify checks all others")
    return str(rows[-1]["digest"])


def failed(said: str) -> HpcdetError:
    """Return the error of a process without a result, given its standard error."""
    return HpcdetError("the process that reads checkpoints failed", hint=said)
