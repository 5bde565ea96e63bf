"""The score by which checkpoints are ranked: the metric, unless a constraint is broken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdet.store.config.searcher_keys import Searcher
from hpcdet.train.attempt.session import Units
from hpcdet.train.telemetry.tracker import finite


def worth(searcher: Searcher, metrics: Mapping[str, Any], units: Units) -> float | None:
    """The searcher's metric in a validation; None where it is none, or the trial is infeasible.

    Of several objectives it is the first. NaN counts as a number, as in ``finite``.
    """
    found = finite(metrics.get(searcher.metric))
    if not searcher.constraints:
        return found
    unit = searcher.max_length.unit if searcher.max_length else "batches"
    numbers = {name: finite(value) for name, value in metrics.items()}
    standing = searcher.goals.standing(numbers, getattr(units, unit))
    return found if standing.feasible else None
