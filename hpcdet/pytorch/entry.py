"""What a config's ``entrypoint`` means: a trial's class, or a command.

A command that is a Python script runs in this process, which hears signals already and is seen
as ``hpcdet.attempt`` by people; any other is exec'ed, with signals held back until its
``core.init`` hears them.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcdet.errors import ConfigError
from hpcdet.pytorch._init import init
from hpcdet.pytorch._trainer import fit_as_configured
from hpcdet.pytorch._trial import PyTorchTrial
from hpcdet.train import notice

_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SHELL = re.compile(r"[|&;<>()$`*?#~=\[\]{}\\]")
_DETERMINED_LAUNCHERS = "determined.launch."


def run_entrypoint(entrypoint: str | Sequence[str], code: Path) -> None:
    """Run it with the code folder as current folder and first on the module path.

    Raises:
        ConfigError: the entrypoint names nothing that can be run.
    """
    os.chdir(code)
    sys.path.insert(0, str(code))
    if isinstance(entrypoint, str) and _CLASS.fullmatch(entrypoint):
        trial_class = load_class(entrypoint)
        with init() as context:
            fit_as_configured(trial_class(context), context)
        return
    argv = _argv(entrypoint)
    if argv and _PYTHON.fullmatch(Path(argv[0]).name) and _run_python(argv[1:]):
        return
    notice.hold()
    command = ["sh", "-c", entrypoint] if isinstance(entrypoint, str) else list(entrypoint)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(command[0], command)


def load_class(entrypoint: str) -> type[PyTorchTrial]:
    """The trial's class of ``module:Class``.

    Raises:
        ConfigError: the module has no such class.
        Exception: whatever importing the module raises.
    """
    module, _, name = entrypoint.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, PyTorchTrial)):
        raise ConfigError(
            f"module {module!r} has no PyTorchTrial named {name!r}",
            where=f"entrypoint: {entrypoint}",
            hint="write it as module:Class, the module lying in the model folder",
        )
    return found


def is_class(entrypoint: str | Sequence[str]) -> bool:
    """Whether an entrypoint names a trial's class."""
    return isinstance(entrypoint, str) and _CLASS.fullmatch(entrypoint) is not None


def _argv(entrypoint: str | Sequence[str]) -> list[str]:
    """The command as argv, without Determined's launchers (ranks are there already); [] if it
    needs a shell."""
    if isinstance(entrypoint, str):
        if _SHELL.search(entrypoint):
            return []
        argv = shlex.split(entrypoint)
    else:
        argv = list(entrypoint)
    if len(argv) > 3 and argv[1] == "-m" and argv[2].startswith(_DETERMINED_LAUNCHERS):
        rest = argv[3:]
        while rest and rest[0] == "--":
            rest = rest[1:]
        starts = [at for at, word in enumerate(rest) if _PYTHON.fullmatch(Path(word).name)]
        argv = rest[starts[0] :] if starts else rest
    return argv


def _run_python(arguments: list[str]) -> bool:
    """Run a script or ``-m module`` here; False if these are other options of Python."""
    if len(arguments) > 1 and arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return True
    if arguments and not arguments[0].startswith("-"):
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")
        return True
    return False
