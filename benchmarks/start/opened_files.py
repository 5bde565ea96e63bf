"""The files that a process opens until its first step, by a library that notes each path."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("slow_metadata.c")
_HELD = re.compile(r"^/proc/\d+/fd/\d+/")
_MARK = "/first-step-is-over"
LOOK = f'    os.path.exists("{_MARK}")\n'
"""The end of what a process says after its first step: a look that is noted, too."""


def library(folder: Path) -> Path:
    """Compile what is to be preloaded."""
    made = folder / "slow.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", made, _SOURCE, "-ldl"], check=True)
    return made


def variables(folder: Path) -> dict[str, str]:
    """The variables of a process of which ``of`` is to find what it has opened."""
    log = folder / "log"
    log.mkdir()
    return {"LD_PRELOAD": str(library(folder)), "STORM_LOG": str(log)}


def of(folder: Path) -> set[Path]:
    """Plain files that are there, of the one process that came to a first step.

    Those of an experiment ``EXP`` are opened by its descriptor.
    """
    logs = [one.read_text().splitlines() for one in (folder / "log").iterdir()]
    [calls] = [log[: log.index(f"stat64 {_MARK}")] for log in logs if f"stat64 {_MARK}" in log]
    split = (call.split(" ", 1) for call in calls)
    opened = (path for call, path in split if call.startswith(("open", "fopen")))
    paths = {Path(os.path.normpath(_HELD.sub(f"{folder}/EXP/", path))) for path in opened}
    return {path for path in paths if path.is_file()}
