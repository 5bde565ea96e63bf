"""Small file systems that can be filled up."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[str]:
    """Make a folder a file system of its own, where that is allowed; yields why it is not."""
    folder.mkdir(mode=0o700)
    options = f"size={megabytes}m,mode=0700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        yield mounted.stderr.strip() if mounted.returncode else ""
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Nothing more fits on a file system, as long as the context lasts."""
    ballast = disk / ".ballast"
    try:
        for piece in (1 << 20, 4096):
            with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(piece))
        yield
    finally:
        os.unlink(ballast)
