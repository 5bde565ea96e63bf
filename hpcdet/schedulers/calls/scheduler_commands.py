"""Runs of a scheduler's commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.backend import NamesFace
from hpcdet.schedulers.common.variables import scrubbed

_LIMIT_S = 120


def run(
    argv: Sequence[str],
    names: NamesFace,
    settings: Mapping[str, str],
    *,
    whose: str,
    probe: str,
    path: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command without what this process inherited from another job.

    Args:
        names: of the variables of jobs.
        settings: variables that it gets.
        whose: the scheduler, for people.
        probe: the command that shows whether it answers, for people.
        path: where the command is; "": on PATH.

    Raises:
        Unavailable: it is not there, or does not end in time.
    """
    try:
        return subprocess.run(
            [path or argv[0], *argv[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env={**scrubbed(os.environ, names), "LC_ALL": "C", **settings},
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise Unavailable(
            f"there is no {argv[0]} on PATH",
            hint=f"run this on a host of the cluster, or load the module of {whose}'s commands",
        ) from error
    except OSError as error:
        raise Unavailable(f"{argv[0]} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"{argv[0]} gave no answer in {_LIMIT_S} s",
            hint=f"{whose}'s server may be overloaded or down ({probe}); try again later",
        ) from error
