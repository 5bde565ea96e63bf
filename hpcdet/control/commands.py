"""What a user asks of an experiment: a numbered file that the holder of the lease obeys."""

from __future__ import annotations

import getpass
from typing import Any

from hpcdet.errors import UsageError
from hpcdet.store import files, packed
from hpcdet.store.layout import ExperimentPaths
from hpcdet.store.records import Closed, Command, Reopened, Verb

__all__ = ["Verb", "ask"]


def ask(
    paths: ExperimentPaths, verb: Verb, trial: int = 0, *, reopen: bool = False, **arguments: Any
) -> int:
    """Ask; returns the command's number. It is obeyed at the next turn of the crank.

    Args:
        trial: number of the trial it is about; 0 means the whole experiment.
        reopen: also of an experiment that is over, unless it was canceled; it goes on then.
        arguments: of ``tag``, ``set``, ``after``, ``follow``, and the ``reason`` of any.

    Raises:
        UsageError: the experiment is over; only ``tag`` and what reopens it is left to do then.
    """
    closed = Closed.read(paths.closed)
    reopen = reopen and closed is not None and closed.state != "CANCELED"
    if closed is not None and verb != "tag" and not reopen:
        raise UsageError(
            f"cannot {verb}: the experiment is {closed.state} already",
            where=paths.id,
            hint="submit it again to run it once more",
        )
    command = Command(verb, trial, arguments, getpass.getuser(), files.now())
    number = max(packed.numbers(paths.commands, ".json"), default=0) + 1
    while not command.write_once(paths.command(number)):
        number += 1
    if reopen:  # last: a holder that found it open without the command would close it again
        Reopened(number, command.user, command.at).write_once(paths.reopening)
    return number
