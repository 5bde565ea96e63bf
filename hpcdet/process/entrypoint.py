"""The meaning of a config's ``entrypoint``: a trial's class, a Python script, or a command.

``python3`` without a folder is the interpreter that runs this; one that is named by its path, or
as another version, is meant as it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcdet import launch_modules

INTERPRETER = "HPCDET_INTERPRETER"
"""The interpreter that an entrypoint named, in the environment of what runs in it."""
_PYTHON = re.compile(r"python(3(\.\d+)?)?")


@dataclass(frozen=True)
class Entrypoint:
    """The parsed entrypoint.

    Attributes:
        kind: ``class`` (``module:Class``), ``script`` (of Python, in this process),
            ``interpreter`` (a script, in another Python that has to know hpcdet), ``command``.
        argv: the class; the script and its arguments, or ``-m`` in front; the other Python and
            the same; the command.
    """

    kind: Literal["class", "script", "interpreter", "command"]
    argv: tuple[str, ...]

    @property
    def launches(self) -> bool:
        """Whether it is a command with a launcher of Determined's in it: run once on each node."""
        return self.kind == "command" and bool(launch_modules.named(self.argv))


def parse(entrypoint: str | Sequence[str], env: Mapping[str, str] = os.environ) -> Entrypoint:
    """Parse an entrypoint for this process."""
    if isinstance(entrypoint, str) and launch_modules.CLASS.fullmatch(entrypoint):
        return Entrypoint("class", (entrypoint,))
    argv = launch_modules.words(entrypoint)
    if (launch := launch_modules.at_front(argv)) is not None:  # the ranks are there already
        if launch.trial:
            return Entrypoint("class", (launch.trial,))
        argv = launch.command or argv
    if argv and _PYTHON.fullmatch(Path(argv[0]).name) and _is_script(argv[1:]):
        if _is_ours(argv[0], env):
            return Entrypoint("script", argv[1:])
        return Entrypoint("interpreter", argv)
    whole = ("sh", "-c", entrypoint) if isinstance(entrypoint, str) else tuple(entrypoint)
    return Entrypoint("command", whole)


def _is_script(arguments: tuple[str, ...]) -> bool:
    """``script.py …`` or ``-m module …``; other options are Python's own business."""
    if len(arguments) > 1 and arguments[0] == "-m":
        return True
    return bool(arguments) and not arguments[0].startswith("-")


def _is_ours(python: str, env: Mapping[str, str]) -> bool:
    """Whether a Python is that of this process.

    The environment is the folder: the files in the folders of all virtual environments are
    links to one and the same. One folder may hold several versions (``/usr/bin``).
    """
    if env.get(INTERPRETER) == python:
        return True
    if "/" not in python:
        return python in ("python", "python3", f"python3.{sys.version_info.minor}")
    named, running = Path(python).absolute(), Path(sys.executable).absolute()
    return (
        named.parent.resolve() == running.parent.resolve() and named.resolve() == running.resolve()
    )
