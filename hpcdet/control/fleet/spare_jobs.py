"""Spare jobs in a chain behind each worker, for sites where workers cannot submit others.

Each begins when the one before it has ended, however that was (``afterany``). In arrays, spare
tasks wait behind a throttle instead (``worker_count``).
"""

from __future__ import annotations

import secrets

from hpcdet.control.fleet import capacity, worker_count
from hpcdet.control.leader.leader import Holder
from hpcdet.errors import Unavailable
from hpcdet.store.folder.records import Intent, Submitted
from hpcdet.store.fs import files


def chain(holder: Holder, workers: int) -> None:
    """Submit the spare jobs of workers that have just been submitted, as far as room is left.

    Raises:
        Fenced: the term ended meanwhile.
    """
    site = holder.hands.site
    if not workers or holder.hold or holder.hands.scheduler.capabilities().arrays:
        return
    spares = capacity.spares(holder.resolved, site, workers)
    if site.limits.max_submit is not None:
        spares = min(spares, site.limits.max_submit - workers - 1)  # one is the small job
    try:
        for _ in range(spares):
            number = holder.paths.submissions()[-workers]
            former = Submitted.read(holder.paths.submitted(number))
            if former is None or not former.job or not _submit(holder, former.job):
                return
    except worker_count.Later:
        pass  # the queue is full: a shorter chain has to do, and its last intent is given up
    except Unavailable as error:
        worker_count.later(holder, error.what)


def _submit(holder: Holder, former: str) -> bool:
    """Submit a job behind another one; False if it was not taken."""
    number, id = holder.paths.submissions()[-1] + 1, holder.paths.id
    intent = Intent(
        number=number,
        name=f"{id}-{number}",
        tag=f"hpcdet:{id}:{number}-{secrets.token_hex(4)}",
        tasks=1,
        throttle=1,
        term=holder.lease.term,
        script=str(holder.paths.script(number).relative_to(holder.paths.root)),
        overrides=holder.decided.user.overrides,
        at=files.now(),
        held=holder.decided.user.held,
        spares=1,
        behind=[former],
    )
    holder.record("intent", number=number, tasks=1, tag=intent.tag, exclude=[])
    holder.fence()
    if not intent.write_once(holder.paths.intent(number)):
        return False
    return worker_count.settle(holder, intent, 1, fresh=True) > 0
