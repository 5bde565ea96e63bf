"""The survey of a Torque cluster, for ``hpcdet site init``: two commands that change nothing."""

from __future__ import annotations

import re

from hpcdet.schedulers.common.survey import ClusterSurvey, QueueSurvey
from hpcdet.schedulers.pbs_family import pbs_queues
from hpcdet.schedulers.pbs_family.pbs_queues import Attributes
from hpcdet.schedulers.torque import torque_query
from hpcdet.schedulers.torque.torque_text import TorqueNode


def survey(server: str) -> ClusterSurvey:
    """Ask the server. Raises Unavailable: it gives no answer."""
    return surveyed(server, torque_query.attributes(), torque_query.nodes())


def surveyed(server: str, known: Attributes, nodes: list[TorqueNode]) -> ClusterSurvey:
    """Survey of ``qstat -Q -f`` and ``pbsnodes -a``. Pure."""
    name = server.partition(".")[0] or "torque"
    gpus = min((node.gpus for node in nodes), default=0)
    queues = tuple(
        QueueSurvey(
            name=queue.name,
            default=queue.default,
            nodes=queue.nodes,
            min_nodes=queue.min_nodes,
            max_nodes=queue.max_nodes,
            max_walltime_s=queue.max_walltime_s,
            cpus_per_node=min((node.cpus for node in nodes), default=None),
            memory_mib=min((node.memory_mib for node in nodes), default=0) or None,
            slots_per_node=gpus,
            chunk={"gpus": "{{ slots_per_node }}"} if gpus else {},
        )
        for queue in pbs_queues.partitions(known, len(nodes))
        if queue.up
    )
    rule = {"torque": "server_name", "match": f"^{re.escape(name)}(\\.|$)"}
    return ClusterSurvey(name, "Torque", "generic-torque", rule, queues)
