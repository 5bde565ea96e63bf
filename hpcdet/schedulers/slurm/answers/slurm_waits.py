"""Why Slurm lets a job wait: its reasons, sorted by whether they pass, and what repairs the rest.

The names are those of ``squeue`` (``man squeue``, JOB REASON CODES) and of ``job_reason_string`` in
Slurm's sources, version 22.05. A reason that is not listed passes by itself, as far as known.
"""

from __future__ import annotations

import re

from hpcdet.schedulers.common.base import Wait

_LAUNCH = "Slurm holds it after a launch that failed; the node's slurmd log says why"
_WALLTIME = "ask for less time: resources.walltime_s"
_NODES = "ask for fewer nodes: resources.nodes, resources.slots_per_trial"
_MATCH = (
    "no node of the partition has what is asked for: lessen resources.memory_per_slot, "
    "resources.cpus_per_slot or resources.slots_per_node, or change slurm.sbatch_args"
)
_ACCOUNT = "name a valid account: --account in slurm.sbatch_args, or directives in the site file"
_QOS = "name a valid QOS: --qos in slurm.sbatch_args, or directives in the site file"
_LESS = "it asks for more than one job may have here: lessen resources, or choose another QOS"

SIZE = "PartitionNodeLimit"
TOO_WIDE = Wait("never", _NODES, "resources.nodes=FEWER")
_TIME = Wait("never", _WALLTIME, "resources.walltime_s=LESS")

_TABLE: dict[str, Wait] = {
    # held by Slurm itself; `scontrol release` by an administrator would help, a new job does, too
    "launch failed requeued held": Wait("launch", _LAUNCH),
    "JobHeldAdmin": Wait("launch", "an administrator or Slurm holds it: ask the administrators"),
    "JobHoldMaxRequeue": Wait("launch", "it was requeued as often as the cluster allows"),
    # will not start as they are
    "BadConstraints": Wait("never", _MATCH),
    "DependencyNeverSatisfied": Wait("in_vain"),
    "PartitionTimeLimit": _TIME,
    "QOSMaxWallDurationPerJobLimit": _TIME,
    "AssocMaxWallDurationPerJobLimit": _TIME,
    "InvalidAccount": Wait("never", _ACCOUNT),
    "InvalidQOS": Wait("never", _QOS),
    "AccountNotAllowed": Wait("never", _ACCOUNT),
    "QOSNotAllowed": Wait("never", _QOS),
    # may mean nodes that are down, too; of a job that is wider than its partition: `TOO_WIDE`
    SIZE: Wait("outage", _NODES),
    # pass when somebody repairs the cluster, or ends the maintenance
    "PartitionDown": Wait("outage"),
    "PartitionInactive": Wait("outage"),
    "ReqNodeNotAvail": Wait("outage"),
    "NodeDown": Wait("outage"),
    # with the text that Slurm gives instead of a name
    "Nodes required for job are DOWN": Wait("outage"),
    # by its owner
    "JobHeldUser": Wait("held"),
    "job requeued in held state": Wait("held"),
    "BeginTime": Wait("begin_time"),
}
_PER_JOB = re.compile(r"(?:QOS|Assoc)(?:Min|Max\w*Per(?:Job|Node))")
"""Limits on what one job asks for."""
_LIMIT = re.compile(r"QOS|Assoc|MaxMemPerLimit|JobArrayTaskLimit")
"""Limits on all jobs of a user, an account or a QOS together, or on the tasks of an array."""


def wait(reason: str) -> Wait:
    """The class of a reason as ``squeue`` prints it (``scontrol`` has ``_`` instead of spaces).

    Some have details behind a comma: ``ReqNodeNotAvail, UnavailableNodes:n1``.
    """
    name = reason.partition(",")[0]
    name = name.replace("_", " ") if "_" in name else name
    if (known := _TABLE.get(name)) is not None:
        return known
    if _PER_JOB.match(name):
        return Wait("never", _LESS)
    return Wait("limit") if _LIMIT.match(name) else Wait()
