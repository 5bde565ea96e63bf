"""Slurm's commands: what they are given."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from hpcdet.schedulers.calls import scheduler_commands
from hpcdet.schedulers.slurm import slurm_names


def run(argv: Sequence[str], times: str = "%s") -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm, without what this process inherited from another job.

    Args:
        times: how it prints them (``SLURM_TIME_FORMAT``): seconds, which need no time zone.

    Raises:
        Unavailable: it is not there, or does not end in time.
    """
    # else the list of a long array's tasks is cut off
    settings = {"SLURM_TIME_FORMAT": times, "SLURM_BITSTR_LEN": "0"}
    return scheduler_commands.run(argv, slurm_names, settings, whose="Slurm", probe="scontrol ping")
