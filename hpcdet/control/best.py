"""The best validation of the experiment so far, for trials that keep checkpoints by it."""

from __future__ import annotations

import contextlib
import dataclasses

from hpcdet.control.holder import Holder
from hpcdet.search import api
from hpcdet.store import files
from hpcdet.store.records import Best, number


def remember(holder: Holder, report: api.Report) -> None:
    """Replace ``best.json`` if a report is better than what it holds.

    What breaks a constraint is no best; of several objectives the first one counts. Derived and
    soon overtaken: where it cannot be written, a trial keeps a checkpoint too many.
    """
    searcher = holder.hands.resolved.searcher
    found = report.metrics.get(searcher.metric)
    if found is None:
        return
    if searcher.constraints:
        standing = searcher.goals.standing(report.metrics, report.length.value)
        if not standing.feasible:
            return
    best = Best(report.trial, number(found), report.length)
    known: Best | None = holder.written.get(("best",))
    if known is None:
        known = holder.written["best",] = Best.read(holder.paths.best)
    if not best.beats(known, searcher.smaller_is_better):
        return
    best = dataclasses.replace(best, at=files.now())
    holder.fence()
    with contextlib.suppress(OSError):
        files.replace(holder.paths.best, best.encode())
        holder.written["best",] = best
