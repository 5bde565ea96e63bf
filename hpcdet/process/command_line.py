"""The command line of a rank: its words, and how ``ps`` and ``pgrep -f`` show it."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# made once, in a nursery before it forks: each heading in it is looked for in other languages
OF_RANK = argparse.ArgumentParser(
    prog="python -m hpcdet.attempt", description="Run one rank of an attempt."
)
OF_RANK.add_argument("experiment", type=Path)
OF_RANK.add_argument("trial", type=int, nargs="?", default=1)
OF_RANK.add_argument("attempt", type=int, nargs="?", default=1)
OF_RANK.add_argument("--test", action="store_true", help="one batch, in a copy that is removed")
OF_RANK.add_argument("--identity", default="", help="of the attempt, by its worker's record")
OF_RANK.add_argument("--hpcdet", default="", help="version that an image has to have")

_ARG_START, _ARG_END = 45, 46  # fields of /proc/PID/stat behind the command's name


def show(argv: Sequence[str]) -> None:
    """Let this process be known by another command line, cut off where there is no room for it.

    There is as much room as the one had with which it was executed.
    """
    sys.orig_argv[:] = argv
    behind = Path("/proc/self/stat").read_text("latin-1").rpartition(")")[2].split()
    start, end = int(behind[_ARG_START]), int(behind[_ARG_END])
    wanted = b"".join(os.fsencode(word) + b"\0" for word in argv)
    # its last byte is 0, or the kernel takes what follows, the environment, for a part of it
    ctypes.memmove(start, wanted[: end - start - 1].ljust(end - start, b"\0"), end - start)
