"""What a config's ``entrypoint`` means: a trial's class, a Python script, or any other command.

``python3`` without a folder is the interpreter that runs this; one that is named by its path, or
as another version, is meant as it is.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

INTERPRETER = "HPCDET_INTERPRETER"
"""The interpreter that an entrypoint named, in the environment of what runs in it."""
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SHELL = re.compile(r"[|&;<>()$`*?#~=\[\]{}\\]")
_DETERMINED_LAUNCHERS = "determined.launch."
_LAUNCHES = re.compile(r"-m\s+determined\.launch\.\w")


@dataclass(frozen=True)
class Entrypoint:
    """What is to be run.

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
        return self.kind == "command" and any(_LAUNCHES.search(word) for word in self.argv)


def parse(entrypoint: str | Sequence[str], env: Mapping[str, str] = os.environ) -> Entrypoint:
    """What an entrypoint means for this process."""
    if isinstance(entrypoint, str) and _CLASS.fullmatch(entrypoint):
        return Entrypoint("class", (entrypoint,))
    argv = _argv(entrypoint)
    if argv and _PYTHON.fullmatch(Path(argv[0]).name) and _is_script(argv[1:]):
        if _is_ours(argv[0], env):
            return Entrypoint("script", argv[1:])
        return Entrypoint("interpreter", argv)
    whole = ("sh", "-c", entrypoint) if isinstance(entrypoint, str) else tuple(entrypoint)
    return Entrypoint("command", whole)


def _argv(entrypoint: str | Sequence[str]) -> tuple[str, ...]:
    """The command as argv, without Determined's launchers (ranks are there already); empty if
    it needs a shell."""
    if isinstance(entrypoint, str):
        if _SHELL.search(entrypoint):
            return ()
        argv = shlex.split(entrypoint)
    else:
        argv = list(entrypoint)
    if len(argv) > 3 and argv[1] == "-m" and argv[2].startswith(_DETERMINED_LAUNCHERS):
        rest = argv[3:]
        while rest and rest[0] == "--":
            rest = rest[1:]
        starts = [at for at, word in enumerate(rest) if _PYTHON.fullmatch(Path(word).name)]
        argv = rest[starts[0] :] if starts else rest
    return tuple(argv)


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
