"""Succession: how an experiment continues after a worker or its node has died.

Whatever the site, the batch script that survives its worker comes first (``worker.again``,
``worker.handover``). This is about what remains when the whole job is gone.

A task may be requeued only while its worker is at work: its batch script allows it at its start.
So a launch that fails ends the task, which a scheduler may otherwise hold for ever, and the job
behind its array goes on.
"""

from __future__ import annotations

from typing import Literal

from hpcdet.schedulers import opening
from hpcdet.schedulers.common.request import AfterEnd
from hpcdet.site.models import Site

Way = Literal["supervisor", "requeue", "daemon", "successor", "spares"]

WORDS: dict[Way, str] = {
    "supervisor": "tasks start again on this machine, as long as it is up",
    "requeue": "the scheduler requeues the task; where it does not, a small job behind each array "
    "submits new workers",
    "daemon": "the scheduler requeues the task; where it does not, the searcher on a login node "
    "submits new workers",
    "successor": "a small job behind each array submits new workers",
    "spares": "spare tasks of the array, or jobs behind each worker, go on, as jobs cannot be "
    "submitted from nodes; a small job behind them tells when they are used up",
}
"""What happens once the scheduler calls a node or a job gone, for people."""

_AFTER_END: dict[Way, AfterEnd] = {"requeue": "bad", "successor": "bad", "spares": "any"}


def way(site: Site) -> Way:
    """Return the way in which experiments continue here after the loss of a whole job."""
    if not opening.of(site).cluster:
        return "supervisor"
    if site.capabilities.nobody_submits:
        return "spares"
    if not site.capabilities.submit_from_compute:
        return "daemon"
    return "requeue" if site.capabilities.comes_back else "successor"


def after_end(site: Site) -> AfterEnd:
    """After which ends of an array the small job behind it starts; "" if there is none."""
    if not opening.of(site).script.sentinel:
        return ""
    return _AFTER_END.get(way(site), "")
