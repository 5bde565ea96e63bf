"""Questions to the server, in the words that Slurm's wrappers understand, too."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdet.schedulers.pbs_family import pbs_commands
from hpcdet.schedulers.pbs_family.pbs_commands import UNKNOWN
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow
from hpcdet.schedulers.torque import torque_text
from hpcdet.schedulers.torque.torque_text import NamedRow, TorqueNode

_AT_ONCE = 500
"""Jobs that one ``qstat`` is asked about."""


def rows(jobs: Sequence[str]) -> list[NamedRow]:
    """Ask about some jobs; those that the server does not know (any more) are left out.

    Raises:
        Unavailable: it does not answer.
    """
    found: list[NamedRow] = []
    for first in range(0, len(jobs), _AT_ONCE):
        found += _asked(jobs[first : first + _AT_ONCE])
    return found


def named(name: str, owner: str) -> list[PbsRow]:
    """Jobs of a user that have a name.

    Each is asked about alone: in the list variables of others may have lines that look like it.

    Raises:
        Unavailable: the server does not answer.
    """

    def of_them(found: list[NamedRow]) -> list[str]:
        return [each.row.id for each in found if (each.name, each.owner) == (name, owner)]

    shown = ((job, _asked([job])) for job in dict.fromkeys(of_them(every())))
    return [told[0].row for job, told in shown if job in of_them(told[:1])]


def every() -> list[NamedRow]:
    """All jobs that the server knows, and what variables of some say of others.

    Raises:
        Unavailable: it does not answer.
    """
    return _asked(())


def members(shown: Sequence[NamedRow], group: str) -> list[PbsRow]:
    """The jobs of a group (``NamedRow.groups``), of those that ``every`` has shown.

    Each is asked about again: in the list variables of others may have lines that look like it.
    In an answer about the group alone those are seen by whose they are in.

    Raises:
        Unavailable: the server does not answer.
    """
    return list(_members([job.row.id for job in shown if group in job.groups], group).values())


def _members(jobs: Sequence[str], group: str) -> dict[str, PbsRow]:
    jobs = list(dict.fromkeys(jobs))
    told = rows(jobs) if jobs else []
    if len(jobs) == 1:
        told = told[:1]
    elif any(group not in each.groups for each in told):
        half = len(jobs) // 2
        return _members(jobs[:half], group) | _members(jobs[half:], group)
    return {each.row.id: each.row for each in told if each.row.id in jobs and group in each.groups}


def _asked(jobs: Sequence[str]) -> list[NamedRow]:
    done = pbs_commands.ask(["qstat", "-f", *jobs])
    # a wrapper ends with UNKNOWN, too, where there is no job at all
    if done.returncode not in (0, UNKNOWN):
        raise pbs_commands.failure("qstat", done)
    return torque_text.jobs(done.stdout)


def attributes() -> dict[str, dict[str, str]]:
    """Attributes of the queues by their names. Raises Unavailable: the server does not answer."""
    return torque_text.queues(pbs_commands.said(["qstat", "-Q", "-f"]))


def nodes(*names: str) -> list[TorqueNode]:
    """The nodes of the cluster, or those of these names. Raises Unavailable: no answer."""
    return torque_text.nodes(pbs_commands.said(["pbsnodes", *(names or ("-a",))]))
