"""How the ranks' writers tell rank 0's that their files are there: by small files beside them.

The training group has nothing to do with it: its collectives belong to the training, which goes
on meanwhile. The manifest remains the only sign of a checkpoint; reports go once it is there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdet.store.fs import files

PATIENCE_S = 600.0
_IF_FAILED_S = 30.0
_TRY_S = 20.0
_FIRST_LOOK_S = 0.002
_LOOK_S = 0.05


def _name(rank: int, world: int) -> str:
    return f".report-{rank:05d}-of-{world:05d}.json"


def leave(folder: Path, rank: int, world: int, report: Mapping[str, Any]) -> None:
    """Say what has become of a rank's file; what fails is tried again for a while.

    Rank 0 waits for it, and where it never comes, for long. It need not be durable: it says
    nothing to anybody after a crash.
    """
    limit = time.monotonic() + _TRY_S
    while not _left(folder / _name(rank, world), files.canonical(report)):
        if time.monotonic() >= limit:
            return
        time.sleep(_LOOK_S)


def _left(path: Path, report: bytes) -> bool:
    """Return True if the report is there, or no rank waits for it any more."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, files.FILE_MODE)
        try:
            files.write_all(fd, report)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except FileNotFoundError:  # a folder that is gone is not made again
        return True
    except OSError:
        return False
    return True


def collect(
    folder: Path, own: Mapping[str, Any], world: int, patience_s: float
) -> list[Mapping[str, Any]]:
    """Rank 0: wait for all reports, in order of rank; what never comes is an ``error``.

    If this rank's file is not there anyway, the others are only waited for so that none still
    writes into a folder that goes.
    """
    if "error" in own:
        patience_s = min(patience_s, _IF_FAILED_S)
    limit = time.monotonic() + patience_s
    found: dict[int, Mapping[str, Any]] = {0: own}
    pause = _FIRST_LOOK_S
    while True:
        for rank in range(1, world):
            if rank not in found:
                report = files.read_json(folder / _name(rank, world), large=True)
                if report is not None:
                    found[rank] = report
        if len(found) == world:
            break
        if time.monotonic() >= limit:
            missing: Mapping[str, Any] = {"error": f"nothing heard for {patience_s:.0f} s"}
            return [found.get(rank, missing) for rank in range(world)]
        time.sleep(pause)
        if pause >= _LOOK_S:
            with contextlib.suppress(OSError):  # NFS: asks the server, which forgets no name
                os.utime(folder)
        pause = min(2 * pause, _LOOK_S)
    return [found[rank] for rank in range(world)]


def clear(folder: Path, world: int) -> None:
    """Take the reports away."""
    for rank in range(1, world):
        with contextlib.suppress(OSError):
            os.unlink(folder / _name(rank, world))
