"""Reading of checkpoints with their progress shown, and what the reading process found of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hpcdet.cli.frame.progress import busy, working
from hpcdet.errors import of_exit_code
from hpcdet.read.exports import checkpoint_process
from hpcdet.read.exports.checkpoint_process import Row
from hpcdet.read.views.items import OPTIONAL


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

        said = checkpoint_process.run([command, *flags, *map(str, folders)], heard)
    if len(rows) != len(folders) and not (first and rows):
        raise checkpoint_process.failed(said)
    return rows


def one(what: str, *arguments: str | Path) -> Row:
    """Run a single task of the process and return its result.

    Args:
        what: description of the task, shown to the user while it runs.

    Raises:
        HpcdetError: it failed; of the same class as in that process.
    """
    with busy(what):
        return checkpoint_process.task(*arguments)


def every(what: str, count: int, *arguments: str | Path) -> list[Row]:
    """Run a task of the process that has ``count`` results, and return these.

    Args:
        what: description of the task, shown to the user while it runs.

    Raises:
        HpcdetError: as ``one``.
    """
    rows: list[Row] = []
    with working(what) as at:

        def heard(row: Row) -> None:
            rows.append(row)
            at(len(rows) / count)

        said = checkpoint_process.run([str(each) for each in arguments], heard)
    if rows and "failed" in rows[-1]:
        raise of_exit_code(rows[-1]["exit"])(**rows[-1]["failed"])
    if len(rows) < count:
        raise checkpoint_process.failed(said)
    return rows
