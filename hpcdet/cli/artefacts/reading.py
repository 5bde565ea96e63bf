"""Reading of checkpoint files in a process of its own, ``python -m hpcdet.checkpoint``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcdet import errors
from hpcdet.cli.frame.progress import busy, working
from hpcdet.errors import HpcdetError
from hpcdet.read.views.items import OPTIONAL

Row = dict[str, Any]


@dataclass(frozen=True)
class CheckedView:
    """The content of a checkpoint."""

    error: str
    """What is wrong; "" for nothing."""
    digest: str
    """Digest of the training state; "" if it could not be read."""
    path: str
    """Its folder."""
    state: Literal["valid", "damaged", "newer"]
    """``newer``: made by a newer hpcdet."""
    step: int | None = field(default=None, metadata=OPTIONAL)
    """Batches the trial had trained."""
    world: int | None = field(default=None, metadata=OPTIONAL)
    """Number of ranks that saved it."""
    bytes: int | None = field(default=None, metadata=OPTIONAL)
    """Size of its files."""


def run(command: str, folders: Sequence[Path], *, first: bool = False) -> list[CheckedView]:
    """Run ``python -m hpcdet.checkpoint COMMAND`` and return what it finds.

    Args:
        first: of each trial's checkpoints, none after the first one that is sound.

    Raises:
        HpcdetError: the process failed.
    """
    flags = ["--first"] if first else []
    rows: list[CheckedView] = []
    what = f"reading {len(folders)} checkpoint{'s' if len(folders) > 1 else ''}"
    with working(what) as at:

        def heard(row: Row) -> None:
            if "seen" in row:
                at((len(rows) + row["seen"] / max(1, row["of"])) / len(folders))
            else:
                rows.append(CheckedView(**{"error": "", "digest": "", **row}))

        said = _process([command, *flags, *map(str, folders)], heard)
    if len(rows) != len(folders) and not (first and rows):
        raise HpcdetError("the process that reads checkpoints failed", hint=said)
    return rows


def one(what: str, *arguments: str | Path) -> Row:
    """Run ``python -m hpcdet.checkpoint ARGUMENTS`` for a single task and return its result.

    Args:
        what: description of the task, shown to the user while it runs.

    Raises:
        HpcdetError: it failed; of the same class as in that process.
    """
    rows: list[Row] = []
    with busy(what):
        said = _process([str(each) for each in arguments], rows.append)
    if not rows:
        raise HpcdetError("the process that reads checkpoints failed", hint=said)
    if "failed" in rows[-1]:
        raise _kind(rows[-1]["exit"])(**rows[-1]["failed"])
    return rows[-1]


def _kind(code: int) -> Callable[..., HpcdetError]:
    direct = HpcdetError.__subclasses__()
    return next(
        (one for one in direct if one.__module__ == errors.__name__ and one.exit_code == code),
        HpcdetError,
    )


def _process(arguments: Sequence[str], heard: Callable[[Row], None]) -> str:
    """Run the process and return its stderr."""
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
