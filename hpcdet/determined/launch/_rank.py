"""The common part of all launchers: this process, which is one rank, becomes the command."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from hpcdet import launch_modules
from hpcdet.errors import ConfigError
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.train.attempt import node_command

_PYTHON = re.compile(r"python(3(\.\d+)?)?")


def become(launcher: str, arguments: Sequence[str]) -> NoReturn:
    """Run the command behind a launcher's own options in place of this process.

    ``RANK``, ``WORLD_SIZE`` and the like are set for it, as torch's launcher would have done.

    Args:
        launcher: its module.
        arguments: options for the launcher before ``--``, which count for nothing; the command.

    Raises:
        ConfigError: there is no command, or this is no rank of hpcdet's.
    """
    found = launch_modules.read(launcher, arguments)
    if found.trial is not None:
        raise ConfigError(
            "--trial names a class",
            where=launcher,
            hint=f"write it as entrypoint: {found.trial}",
        )
    command = list(found.command)
    if not command:
        raise ConfigError(
            f"there is no command in {' '.join(arguments) or 'its arguments'}",
            where=launcher,
            hint=f"write -- between its own options and the command: -m {launcher} … -- python3 …",
        )
    place = AttemptLocation.from_environment()
    if place is None:
        raise ConfigError(
            "this process is no rank of an experiment",
            where=launcher,
            hint="submit it with hpcdet, or use torchrun",
        )
    ranks = Ranks.from_environment()
    if _PYTHON.fullmatch(command[0]):
        command[0] = sys.executable
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if (status := node_command.launch(place.attempt, ranks, command)) is not None:
            sys.exit(status)
        os.environ.update(ranks.variables())
        os.execvp(command[0], command)
    except OSError as error:
        raise ConfigError(f"{command[0]}: {error.strerror}", where=launcher) from error
