"""Users' commands to an experiment: numbered files that the holder of the lease obeys."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import Any

from hpcdet.errors import UsageError
from hpcdet.store.decisions import chain
from hpcdet.store.folder import home, trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, Command, Reopened, Verb
from hpcdet.store.fs import files, packed

__all__ = ["Verb", "ask", "describe", "following"]

_ALSO_AFTERWARDS: tuple[Verb, ...] = ("tag", "note", "describe")
"""Verbs that an experiment takes after its end, which stay without effect on it."""


def following(paths: ExperimentPaths) -> int:
    """Return the number of the next command."""
    return max(packed.numbers(paths.commands, ".json"), default=0) + 1


def ask(
    paths: ExperimentPaths,
    verb: Verb,
    trial: int = 0,
    *,
    reopen: bool = False,
    number: int = 0,
    **arguments: Any,
) -> int:
    """Write a command and return its number; it is obeyed at the next turn of the crank.

    Args:
        trial: number of the trial it is about; 0 means the whole experiment.
        reopen: also of an experiment that is over, unless it was canceled; it goes on then.
        number: that which it has to have, as it says what follows from those before; if another
            has it by now, nothing is asked, and 0 returned.
        arguments: of ``tag``, ``note``, ``set``, ``after``, ``follow``, and the ``reason`` of any.

    Raises:
        UsageError: the experiment is over; only labels, notes, descriptions and
            what reopens it are left to do then.
            Or it is a copy of another one (``store.folder.home``).
        ConfigError: it belongs to another user.
    """
    trust.refuse_anothers(paths.root)
    home.refuse_copy(paths)
    reopens = _reopens(paths, verb, reopen)
    command = Command(verb, trial, arguments, getpass.getuser(), files.now())
    only, number = number, number or following(paths)
    while not command.write_once(paths.command(number)):
        if only:
            return 0
        number += 1
    reopening = paths.reopening  # as it is now: who closes it may reopen it for this command
    if not reopens:  # it may have been closed meanwhile, without seeing this command
        try:
            reopens = _reopens(paths, verb, reopen) and not _is_obeyed(paths, number)
        except UsageError:
            if not _is_obeyed(paths, number):
                paths.command(number).unlink(missing_ok=True)  # not for who reopens it one day
                raise
    if reopens:  # last: a holder that found it open without the command would close it again
        Reopened(number, command.user, command.at).write_once(reopening)
    return number


def describe(paths: ExperimentPaths, about: Mapping[str, str | None]) -> int:
    """Change the keys ``overrides.ABOUT`` of an experiment, also after its end; as ``ask``."""
    arguments: dict[str, Any] = dict(about)
    return ask(paths, "describe", **arguments)


def _reopens(paths: ExperimentPaths, verb: Verb, may: bool) -> bool:
    """True if the experiment is over and such a command reopens it.

    Raises:
        UsageError: it is over, and does not.
    """
    closed = Closed.read(paths.closed)
    if closed is None:
        return False
    if may and closed.state != "CANCELED":
        return True
    if verb in _ALSO_AFTERWARDS:
        return False
    raise UsageError(
        f"cannot {verb}: the experiment is {closed.state} already",
        where=paths.id,
        hint="submit the config again to run it once more",
    )


def _is_obeyed(paths: ExperimentPaths, number: int) -> bool:
    lines = chain.read(paths)
    return any(line["kind"] == "command" and line["seq"] == number for line in lines)
