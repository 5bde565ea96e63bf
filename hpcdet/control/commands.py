"""What a user asks of an experiment: a numbered file that the holder of the lease obeys."""

from __future__ import annotations

import getpass
from typing import Any

from hpcdet.errors import UsageError
from hpcdet.store import files
from hpcdet.store.layout import ExperimentPaths, numbers
from hpcdet.store.records import Closed, Command, Verb

__all__ = ["Verb", "ask"]


def ask(paths: ExperimentPaths, verb: Verb, trial: int = 0, **arguments: Any) -> int:
    """Ask; returns the command's number. It is obeyed at the next turn of the crank.

    Args:
        trial: number of the trial it is about; 0 means the whole experiment.
        arguments: of ``tag``, ``set``, ``after``, ``follow``, and the ``reason`` of any.

    Raises:
        UsageError: the experiment is over for good; only ``tag`` is left to do then.
    """
    closed = Closed.read(paths.closed)
    if closed is not None and verb != "tag":
        raise UsageError(
            f"cannot {verb}: the experiment is {closed.state} already",
            where=paths.id,
            hint="submit it again to run it once more",
        )
    command = Command(verb, trial, arguments, getpass.getuser(), files.now())
    number = max(numbers(paths.commands, ".json"), default=0) + 1
    while not command.write_once(paths.command(number)):
        number += 1
    return number
