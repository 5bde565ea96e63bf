"""Workers that left for more nodes: the submissions that take their places.

Their nodes are a part of what the new job is to have. Would it start before theirs has ended, it
would get the others alone: it starts after that.
"""

from __future__ import annotations

from hpcdet.control.leader.leader import Holder
from hpcdet.store.folder.records import WorkerClaim, WorkerEnd


def unfollowed(holder: Holder) -> list[str]:
    """Return the tasks of workers that left for more nodes which no submission is behind yet."""
    if holder.resolved.resources.min_slots_per_trial is None:
        return []
    before = {task for number in holder.paths.submissions() for task in _behind(holder, number)}
    found = []
    for worker in holder.paths.workers():
        holder.stay()
        end, claim = WorkerEnd.read(worker.end), WorkerClaim.read(worker.claim)
        if end is not None and end.why == "resized" and claim and claim.job not in before:
            found.append(claim.job)
    return found


def _behind(holder: Holder, number: int) -> list[str]:
    """Return the tasks that a submission is behind; none if it was given up."""
    intent, submitted = holder.watch.files.submission(number)
    given_up = submitted is not None and not submitted.job
    return [] if intent is None or given_up else intent.behind
