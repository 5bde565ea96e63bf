"""The allocation that a worker runs in, and questions to the scheduler from inside it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from hpcdet.schedulers.common import questions

_ANSWER_S = 60


@dataclass(frozen=True)
class Allocation:
    """The allocation of this worker.

    Attributes:
        job: the scheduler's id of the task, "" outside a scheduler.
        nodes: names of the nodes.
        restart: how often the scheduler has started this task again.
        end_at: when it ends, epoch seconds; None if it does not.
        steps_hear: signals of the scheduler reach steps that run, and not always the script.
        counted: the scheduler says ``restart``; False: it did not answer, and that is unknown.
    """

    job: str
    nodes: tuple[str, ...]
    restart: int = 0
    end_at: float | None = None
    steps_hear: bool = False
    counted: bool = True


@dataclass(frozen=True)
class ShownNode:
    """A node as the scheduler shows it.

    Attributes:
        host: its host name.
        features: what jobs can ask for that it has.
    """

    host: str
    features: frozenset[str]


def by_script(environ: Mapping[str, str]) -> Allocation:
    """Return the allocation that the variables of hpcdet's own scripts describe."""
    deadline = environ.get("HPCDET_DEADLINE")
    return Allocation(
        job=environ.get("HPCDET_JOB", ""),
        nodes=(socket.gethostname(),),
        restart=int(environ.get("HPCDET_RESTART_COUNT") or 0),
        end_at=float(deadline) if deadline else None,
    )


def ask(*command: str, **environ: str) -> str | None:
    """Return what a command of the scheduler prints; None if it fails or none is answered here.

    Args:
        environ: variables that it gets on top of this process's.
    """
    if not questions.answered():
        return None
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
            env={**os.environ, **environ},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
