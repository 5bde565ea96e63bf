"""Determined's launchers in a command: ``python3 -m determined.launch.X [OPTIONS --] COMMAND``.

Configs, ranks and the launchers' own modules read them by this module alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

PACKAGE = "determined.launch"
CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_MODULE = re.compile(r"determined\.(?:launch\.(\w+)|exec\.harness)")
_RUN = re.compile(rf"-[A-Za-z]*m[\s\\\"']*({_MODULE.pattern})(?![\w.])")
_HIDDEN = re.compile(
    r"\bPYTHONPATH=(?![^\s;&|]*\$\{?PYTHONPATH)|\benv\s+(-i\b|-\s)|\bpython[\d.]*\s+-[bBdiOPqsSuvx]*[EI]"
)
_SHELL = re.compile(r"[|&;<>()$`*?#~\[\]{}\\\n]|(?:^|\s)\w+=")


@dataclass(frozen=True)
class LaunchModule:
    """A launcher with what it would start.

    Attributes:
        module: the launcher's.
        trial: the class of ``--trial``, or the only argument; None: there is none; "": the option
            names none.
        command: behind the launcher's own options; empty where nothing tells them apart.
    """

    module: str
    trial: str | None = None
    command: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``torch_distributed`` and the like; "" of ``determined.exec.harness``."""
        return name(self.module)


def name(module: str) -> str:
    """A launcher's name; "" of ``determined.exec.harness``."""
    found = _MODULE.fullmatch(module)
    return (found[1] or "") if found else ""


def named(entrypoint: object) -> list[str]:
    """The launchers that a command runs by ``-m``, wherever in it."""
    words = entrypoint if isinstance(entrypoint, list | tuple) else [entrypoint]
    text = " ".join(word for word in words if isinstance(word, str))
    return [found[1] for found in _RUN.finditer(text)]


def hidden(entrypoint: object) -> str:
    """Return the words that keep a Python from a rank's module path; "" if there are none."""
    words = entrypoint if isinstance(entrypoint, list | tuple) else [entrypoint]
    found = _HIDDEN.search(" ".join(word for word in words if isinstance(word, str)))
    return found[0].strip() if found else ""


def words(entrypoint: object) -> tuple[str, ...]:
    """A command as words; none where only a shell knows what it means."""
    if isinstance(entrypoint, list | tuple):
        return tuple(entrypoint) if all(isinstance(word, str) for word in entrypoint) else ()
    if not isinstance(entrypoint, str) or _SHELL.search(entrypoint):
        return ()
    try:
        return tuple(shlex.split(entrypoint))
    except ValueError:
        return ()


def at_front(command: Sequence[str]) -> LaunchModule | None:
    """The launcher that is all there is around a command; of several the innermost one."""
    found = None
    while len(command) > 2 and PYTHON.fullmatch(command[0]) and command[1] == "-m":
        if not _MODULE.fullmatch(command[2]):
            break
        found = read(command[2], command[3:])
        command = found.command
    return found


def read(module: str, arguments: Sequence[str]) -> LaunchModule:
    """The program that a launcher would start, by its arguments.

    ``--`` ends the launcher's own options: none come behind a command.
    """
    rest = list(arguments)
    if name(module) == "wrap_rank":  # RANK, and the command
        rest = [word for word in rest[:2] if word != "--no-redirect-stdio"] + rest[2:]
        rest = rest[2:] if rest[1:2] == ["--"] else rest[1:]
    elif rest[:1] == ["--"] or ("--" in rest and rest[0].startswith("-")):
        rest = rest[rest.index("--") + 1 :]
    trial = _trial(rest)
    if trial is not None or not rest or rest[0].startswith("-"):
        return LaunchModule(module, trial)
    return LaunchModule(module, None, tuple(rest))


def _trial(arguments: Sequence[str]) -> str | None:
    """The class of ``--trial`` among a launcher's arguments; None without that option."""
    for at, word in enumerate(arguments):
        if word == "--trial":
            return "".join(arguments[at + 1 : at + 2])
        if word.startswith("--trial="):
            return word.partition("=")[2]
        if PYTHON.fullmatch(word):  # what follows are the script's own
            return None
    only = arguments[-1:]
    return only[0] if len(arguments) == 1 and CLASS.fullmatch(only[0]) else None
