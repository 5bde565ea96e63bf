"""The best validation of the experiment so far, for trials that keep checkpoints by it."""

from __future__ import annotations

import contextlib
import dataclasses

from hpcdet.control.holder import Holder
from hpcdet.search import api
from hpcdet.store import files
from hpcdet.store.records import Best, number

_KNOWN, _NEWS = ("best",), ("best", "news")


def remember(holder: Holder, report: api.Report) -> None:
    """Keep in mind a report that is better than what ``best.json`` holds, until ``write``.

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
    known: Best | None = holder.written.get(_KNOWN)
    if known is None:
        known = holder.written[_KNOWN] = Best.read(holder.paths.best)
    if best.beats(known, searcher.smaller_is_better):
        holder.written[_KNOWN] = best
        holder.written[_NEWS] = True


def write(holder: Holder) -> None:
    """Replace ``best.json`` if there is something better."""
    if not holder.written.pop(_NEWS, False):
        return
    best = dataclasses.replace(holder.written[_KNOWN], at=files.now())
    holder.fence()
    with contextlib.suppress(OSError):
        files.replace(holder.paths.best, best.encode())
