"""``backend.FactsFace`` of Torque: what a site file leaves open.

``qstat -Q -f`` is run on the login node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdet.schedulers.calls.cluster_facts import NOT_ASKED, Answer, recall, settle
from hpcdet.schedulers.common.survey import ClusterSurvey
from hpcdet.schedulers.pbs_family import pbs_commands, pbs_queues
from hpcdet.schedulers.torque import torque_query
from hpcdet.site import Site

commands: tuple[str, ...] = ()
"""None whose presence means Torque: PBS's, and Slurm's wrappers, have the same names."""
generic = "generic-torque"
launcher = "mpirun"
asked = ("limits.max_submit", "limits.kill_wait_s")
reads = frozenset({"chunk", "partitions.*.chunk"})
"""See ``survey.ReadsKeys``."""

_HOMES = ("/var/spool/torque", "/var/torque")
_KILL_DELAY_S = 2.0
"""What Torque waits between TERM and KILL where the queue says nothing."""


def _of_home(key: str, path: str) -> str | None:  # noqa: ARG001
    """The first line of a file in Torque's folder on this host, as ``server_name``."""
    homes = filter(None, (os.environ.get("TORQUE_HOME"), *_HOMES))
    for file in (Path(home, key) for home in homes):
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        if lines and lines[0].strip():
            return lines[0].strip()
    return None


keys: Mapping[str, Callable[[str, str], str | None]] = {"torque": _of_home}


def server() -> str:
    """The name of the server that the commands ask; "" if only they know it."""
    return os.environ.get("PBS_DEFAULT") or _of_home("server_name", "") or ""


def no_cluster(path: str) -> bool:  # noqa: ARG001
    """See ``backend.FactsFace``. No command is taken for a sign of Torque."""
    return False


def slots_here(site: Site) -> int | None:  # noqa: ARG001
    """See ``backend.FactsFace``."""
    return None


def survey() -> ClusterSurvey:
    """See ``survey.Surveys``."""
    from hpcdet.schedulers.torque import torque_survey  # late: one verb asks it

    return torque_survey.survey(server())


def resolved(
    site: Site, pool: str | None = None, *, ask: bool = True, fresh: bool = False
) -> tuple[Site, str]:
    """See ``backend.FactsFace``."""
    if not site.open:
        return site, ""
    seen = (pbs_commands.path("qstat"), server())
    known = recall("torque-", seen, torque_query.attributes, fresh=fresh) if ask else NOT_ASKED
    return settle(site, known, lambda said: _answers(said, site, pool), fresh=fresh)


def _answers(known: pbs_queues.Attributes, site: Site, pool: str | None) -> Iterator[Answer]:
    """Key to value and source of each key that the server has an answer for."""
    name = str(site.view(pool).directives.get("partition") or "")
    queue: Mapping[str, Any] = known.get(name, {})
    most = queue.get("max_user_queuable", "")
    if most.isdecimal():
        yield "limits.max_submit", (int(most), f"max_user_queuable={most} of {name}")
    yield "limits.kill_wait_s", pbs_queues.kill_wait(name, known, _KILL_DELAY_S)
