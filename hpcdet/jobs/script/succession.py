"""Succession: how an experiment continues after a worker or its node has died.

Whatever the site, the batch script that survives its worker comes first (``worker.again``,
``worker.handover``). This is about what remains when the whole job is gone.

A task may be requeued only while its worker is at work: its batch script allows it at its start.
So a launch that fails ends the task, which Slurm would otherwise hold for ever, and the job behind
its array goes on.
"""

from __future__ import annotations

from typing import Literal

from hpcdet.site.models import Site

Way = Literal["supervisor", "requeue", "daemon", "successor", "spares"]

WORDS: dict[Way, str] = {
    "supervisor": "tasks start again on this machine, as long as it is up",
    "requeue": "the scheduler requeues the task; where it does not, a small job behind each array "
    "(afternotok) submits new workers",
    "daemon": "the scheduler requeues the task; where it does not, the searcher on a login node "
    "submits new workers",
    "successor": "a small job behind each array (afternotok) submits new workers",
    "spares": "spare tasks of the array go on, as jobs cannot be submitted from nodes; a small job "
    "behind it (afterany) tells when they are used up",
}
"""What happens once the scheduler calls a node or a job gone, for people."""

_DEPENDENCY: dict[Way, str] = {
    "requeue": "afternotok",
    "successor": "afternotok",
    "spares": "afterany",
}


def way(site: Site) -> Way:
    """Return the way in which experiments continue here after the loss of a whole job."""
    if site.scheduler != "slurm":
        return "supervisor"
    if site.capabilities.nobody_submits:
        return "spares"
    if not site.capabilities.submit_from_compute:
        return "daemon"
    return "requeue" if site.capabilities.requeue == "user" else "successor"


def dependency(site: Site) -> str:
    """When the small job behind each array starts, in Slurm's words; "" if there is none."""
    return _DEPENDENCY.get(way(site), "")
