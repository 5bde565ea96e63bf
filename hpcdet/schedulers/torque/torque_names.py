"""Names of jobs: ids such as ``12.server``, and names that ``qsub`` takes."""

from __future__ import annotations

from hpcdet.schedulers.pbs_family.pbs_names import PbsNames

NAMES = PbsNames("torque")


def of_job(name: str) -> str:
    """The name of a job: its first character has to be a letter."""
    return name if name[:1].isalpha() else f"x{name}"
