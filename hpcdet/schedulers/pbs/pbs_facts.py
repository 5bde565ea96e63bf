"""``backend.FactsFace`` of PBS: what a site file leaves open.

``qstat -Bf`` and ``qstat -Qf`` are run on the login node.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpcdet.schedulers.calls.cluster_facts import NOT_ASKED, Answer, recall, settle
from hpcdet.schedulers.common.survey import ClusterSurvey
from hpcdet.schedulers.pbs import pbs_query
from hpcdet.schedulers.pbs_family import pbs_commands, pbs_queues
from hpcdet.schedulers.pbs_family.pbs_queues import Attributes
from hpcdet.site import Site

commands = ("qsub", "qstat")


def _of_server(key: str, path: str) -> str | None:  # noqa: ARG001
    """A value of PBS's configuration file on this host, as ``PBS_SERVER``."""
    return pbs_commands.configuration().get(key)


keys: Mapping[str, Callable[[str, str], str | None]] = {"pbs_conf": _of_server}
asked = (
    "capabilities.arrays",
    "capabilities.history",
    "limits.max_array",
    "limits.max_submit",
    "limits.kill_wait_s",
)
reads = frozenset({
    "capabilities.rerun", "capabilities.arrays", "capabilities.history", "chunk", "place",
    "partitions.*.chunk",
})  # fmt: skip
"""See ``survey.ReadsKeys``."""
generic = "generic-pbs"
launcher = "mpirun"

_KILL_DELAY_S = 10.0
"""What PBS waits between TERM and KILL where the queue says nothing."""
_PER_USER = re.compile(r"\[u:PBS_GENERIC=(\d+)\]")


def no_cluster(path: str) -> bool:
    """See ``backend.FactsFace``. A server that is down for the moment is a cluster."""
    return shutil.which("qsub", path=path) is not None and not pbs_commands.server()


def survey() -> ClusterSurvey:
    """See ``survey.Surveys``."""
    from hpcdet.schedulers.pbs import server_survey  # late: one verb asks it

    return server_survey.survey()


def slots_here(site: Site) -> int | None:  # noqa: ARG001
    """See ``backend.FactsFace``."""
    return None


def resolved(
    site: Site, pool: str | None = None, *, ask: bool = True, fresh: bool = False
) -> tuple[Site, str]:
    """See ``backend.FactsFace``."""
    if not site.open:
        return site, ""
    seen = (pbs_commands.path("qstat"), pbs_commands.server())
    known = recall("pbs-", seen, pbs_query.attributes, fresh=fresh) if ask else NOT_ASKED
    return settle(site, known, lambda said: _answers(said, site, pool), fresh=fresh)


def _answers(known: Attributes, site: Site, pool: str | None) -> Iterable[Answer]:
    """Key to value and source of each key that the server has an answer for."""
    server = known.get("", {})
    queue = str(site.view(pool).directives.get("partition") or server.get("default_queue", ""))
    of_queue = known.get(queue, {})
    history = server.get("job_history_enable", "False")
    found: dict[str, tuple[Any, str]] = {
        "capabilities.history": (history == "True", f"job_history_enable={history}")
    }
    # of a routing queue those count that it leads to; what is queued waits in itself
    behind = pbs_queues.behind(queue, known) or [of_queue]
    arrays = [one.get("max_array_size", "") for one in behind]
    widest = max(arrays, key=int) if all(map(str.isdecimal, arrays)) else ""
    widest = widest or server.get("max_array_size", "")
    if widest.isdecimal():
        found["limits.max_array"] = (int(widest), f"max_array_size={widest}")
    takes = site.capabilities.rerun == "server" and widest != "1"
    found["capabilities.arrays"] = (takes, f"max_array_size={widest or 'unset'}")
    queued = [
        (int(limit[1]), f"max_queued={limit[1]} of {'the server' if one is server else queue}")
        for one in (server, of_queue)
        if (limit := _PER_USER.search(one.get("max_queued", "")))
    ]
    if queued:
        found["limits.max_submit"] = min(queued)
    found["limits.kill_wait_s"] = pbs_queues.kill_wait(queue, known, _KILL_DELAY_S)
    return found.items()
