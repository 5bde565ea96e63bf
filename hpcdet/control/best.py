"""The best validation of the experiment so far, for trials that keep checkpoints by it."""

from __future__ import annotations

import contextlib

from hpcdet.control.holder import Holder
from hpcdet.search import api
from hpcdet.store import files
from hpcdet.store.records import Best, number


def remember(holder: Holder, report: api.Report) -> None:
    """Replace ``best.json`` if a report is better than what it holds.

    Derived and soon overtaken: where it cannot be written, a trial keeps a checkpoint too many.
    """
    searcher = holder.resolved.searcher
    found = report.metrics.get(searcher.metric)
    if found is None:
        return
    best = Best(report.trial, number(found), report.length, files.now())
    if not best.beats(Best.read(holder.paths.best), searcher.smaller_is_better):
        return
    holder.fence()
    with contextlib.suppress(OSError):
        files.replace(holder.paths.best, best.encode())
