"""The survey of a PBS cluster, for ``hpcdet site init``: three commands that change nothing."""

from __future__ import annotations

import json
import re

from hpcdet.schedulers.common.survey import ClusterSurvey, QueueSurvey
from hpcdet.schedulers.pbs import pbs_query
from hpcdet.schedulers.pbs_family import pbs_commands, pbs_queues
from hpcdet.schedulers.pbs_family.pbs_queues import Attributes

_MIB = {"": 2**20, "k": 2**10, "m": 1, "g": 2**-10, "t": 2**-20}
"""How many of a unit are a MiB."""
_PER_USER = re.compile(r"\[u:PBS_GENERIC=(\d+)\]")
_NO_HISTORY = "the server keeps no history of jobs: set server job_history_enable = True"


def survey() -> ClusterSurvey:
    """Ask the server. Raises Unavailable: it gives no answer."""
    known = pbs_query.attributes()
    return surveyed(known, pbs_commands.said(["pbsnodes", "-a", "-F", "json"]))


def surveyed(known: Attributes, nodes: str) -> ClusterSurvey:
    """The content of ``qstat -Bf``, ``qstat -Qf`` and ``pbsnodes -a -F json``. Pure."""
    server = known.get("", {})
    name = server.get("server_host", "").partition(".")[0] or "pbs"
    shapes = _shapes(nodes)
    alike = [min(column) for column in zip(*shapes, strict=True)] if shapes else [0, 0, 0]
    cpus, memory, gpus = alike
    queues = tuple(
        QueueSurvey(
            name=queue.name,
            default=queue.default,
            nodes=queue.nodes,
            min_nodes=queue.min_nodes,
            max_nodes=queue.max_nodes,
            min_walltime_s=queue.min_walltime_s,
            max_walltime_s=queue.max_walltime_s,
            cpus_per_node=cpus or None,
            memory_mib=memory or None,
            slots_per_node=gpus,
            chunk={"ngpus": "{{ slots_per_node }}"} if gpus else {},
        )
        for queue in pbs_queues.partitions(known, len(shapes))
        if queue.up
    )
    return ClusterSurvey(
        name=name,
        scheduler=f"PBS {server.get('pbs_version', '')}".strip(),
        parent="generic-pbs",
        detect={"pbs_conf": "PBS_SERVER", "match": f"^{re.escape(name)}(\\.|$)"},
        queues=queues,
        max_running=int(most[1]) if (most := _PER_USER.search(server.get("max_run", ""))) else None,
        remarks=() if server.get("job_history_enable") == "True" else (_NO_HISTORY,),
    )


def _shapes(text: str) -> list[tuple[int, int, int]]:
    """Cores, MiB and accelerators of each host."""
    try:
        shown = json.loads(text, strict=False).get("nodes", {}).values()
    except (ValueError, AttributeError):
        return []
    has = (one.get("resources_available", {}) for one in shown if isinstance(one, dict))
    return [
        (_whole(one.get("ncpus")), _mebi(one.get("mem")), _whole(one.get("ngpus"))) for one in has
    ]


def _whole(value: object) -> int:
    text = str(value)
    return int(text) if text.isdecimal() else 0


def _mebi(value: object) -> int:
    found = re.fullmatch(r"(\d+)([kmgt]?)b", str(value).lower())
    return int(int(found[1]) / _MIB[found[2]]) if found else 0
