"""The best validation of the experiment so far, for trials that keep checkpoints by it."""

from __future__ import annotations

import contextlib
import dataclasses

from hpcdet.control.leader.leader import Holder
from hpcdet.goals import finite
from hpcdet.search.api import events
from hpcdet.search.halving import sanity
from hpcdet.store.decisions import chain
from hpcdet.store.folder.records import Best
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import number

_KNOWN, _NEWS = ("best",), ("best", "news")


def remember(holder: Holder, report: events.Report) -> None:
    """Remember a report that is better than the one in ``best.json``, until ``write``.

    A report that breaks a constraint is never the best; of several objectives the first counts.
    The file is derived: if it cannot be written, a trial merely keeps a checkpoint too many.
    """
    searcher = holder.hands.resolved.searcher
    found = report.metrics.get(searcher.metric)
    if found is None:
        return
    if searcher.constraints:
        standing = searcher.goals.standing(report.metrics, report.length.value)
        if not standing.feasible:
            return
    if _KNOWN not in holder.written:
        holder.written[_KNOWN] = Best.read(holder.paths.best)
    known: Best | None = holder.written[_KNOWN]
    best = Best(report.trial, number(found), report.length)
    if best.beats(known, searcher.smaller_is_better):
        holder.written[_KNOWN] = best
        holder.written[_NEWS] = True


def lacking(holder: Holder) -> str:
    """Return a message if no report of the search has ever had its metric; "" otherwise."""
    if holder.written.get(_KNOWN) is not None or Best.read(holder.paths.best) is not None:
        return ""
    metric, told = holder.hands.resolved.searcher.metric, None
    for line in chain.read(holder.paths):
        if line["kind"] == "event" and line["event"]["kind"] == "report":
            told = line["event"]["metrics"]
            if finite(told.get(metric)) is not None:
                return ""
    return sanity.unseen(len(holder.decided.trials.plans), metric) + sanity.said(told)


def write(holder: Holder) -> None:
    """Replace ``best.json`` if there is something better."""
    if not holder.written.pop(_NEWS, False):
        return
    best = dataclasses.replace(holder.written[_KNOWN], at=files.now())
    holder.fence()
    with contextlib.suppress(OSError):
        files.replace(holder.paths.best, best.encode())
