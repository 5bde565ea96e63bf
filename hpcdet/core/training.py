"""The part of core that hpcdet's own training loops use beside ``Context``; users' loops do not.

``PyTorchTrial`` has a loop of its own, which decides itself when to validate and to save. It drives
``Context.session`` (a ``Session``), adds up over its ``Peers``, tells its ``Phases`` where the time
goes, and leaves by a ``Cause``. The functions compare validations by the searcher's metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.store.fs.json_record import value
from hpcdet.train.attempt.control_reader import experiment_best
from hpcdet.train.attempt.session import Session
from hpcdet.train.comm.agreement import NOTHING, Cause
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.phases import Phases
from hpcdet.train.telemetry.tracker import finite
from hpcdet.units import Units

__all__ = [
    "NOTHING",
    "Cause",
    "Peers",
    "Phases",
    "Session",
    "beats",
    "leads",
    "searcher_metric",
    "worth",
]


def worth(searcher: Searcher, metrics: Mapping[str, Any], units: Units) -> float | None:
    """The metric by which checkpoints are ranked; None if a validation has none or is infeasible.

    Of several objectives it is the first. NaN counts as a number, as in ``finite``.
    """
    found = finite(metrics.get(searcher.metric))
    if not searcher.constraints:
        return found
    unit = searcher.max_length.unit if searcher.max_length else "batches"
    numbers = {name: finite(value) for name, value in metrics.items()}
    standing = searcher.goals.standing(numbers, units.of(unit))
    return found if standing.feasible else None


def searcher_metric(session: Session, metrics: Mapping[str, Any], units: Units) -> float | None:
    """The metric of ``worth``; None, too, where a script runs alone without it.

    Raises:
        ConfigError: an experiment's validation has none.
    """
    wanted = session.config.searcher.metric
    if wanted not in metrics and session.attached:
        raise ConfigError(
            f"the validation has no metric {wanted!r}",
            where="searcher.metric",
            hint=f"it has: {', '.join(sorted(metrics)) or 'none'}",
        )
    return worth(session.config.searcher, metrics, units)


def beats(session: Session, metric: float | None, best: float | None) -> bool:
    """True if a metric is better than the best so far; None, NaN and infinities never are."""
    if metric is None or not math.isfinite(metric):
        return False
    if best is None or not math.isfinite(best):
        return True
    return metric < best if session.config.searcher.smaller_is_better else metric > best


def leads(session: Session, metric: float | None) -> bool:
    """True if a metric, the best of this trial, is the best of the experiment so far.

    As far as the holder of the lease has heard; two trials may both think so of themselves. All
    ranks call, and are told what rank 0 found.
    """
    known = experiment_best(session.place) if session.ranks.chief else None
    if known is not None and known.trial == session.record.number:
        known = None
    ahead = known is None or beats(session, metric, value(known.metric))
    return session.peers.broadcast(ahead)
