"""The limits of a running experiment that workers obey: concurrency, cost and lengths.

The config's limits hold until a user changes them; then the holder of the lease writes those in
force into ``limits/0001.json`` and so on, and workers read them before they claim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdet.store.config.overrides import MAX_LENGTH
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost.cost_records import RunLimits
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import packed

MAX_CONCURRENT = "searcher.max_concurrent_trials"
KEYS = (MAX_CONCURRENT, MAX_LENGTH, "budget.slot_hours", "budget.wall_s")
"""Keys of the config that are limits of this kind."""


def wanted(
    resolved: Resolved, overrides: Mapping[str, Any], longer: Sequence[int] = ()
) -> RunLimits:
    """Return the limits after users' changes; ``resolved`` is the config with these applied.

    Until a user sets it, the number of concurrent trials is left to the searcher, which opens no
    more.
    """
    budget = resolved.budget
    most = overrides.get(MAX_CONCURRENT, 0)
    return RunLimits(most, budget.slot_hours, budget.wall_s, list(longer))


def in_force(paths: ExperimentPaths, resolved: Resolved) -> RunLimits:
    """Return the limits in force: the newest that a holder wrote, else the config's."""
    latest: RunLimits | None = None
    for number in packed.numbers(paths.limits(0).parent, ".json"):
        found = RunLimits.read(paths.limits(number))
        if found is not None and (latest is None or found.term >= latest.term):
            latest = found
    return latest or wanted(resolved, {})


def alike(one: RunLimits, other: RunLimits) -> bool:
    """True if two records hold the same limits, regardless of term and time."""
    return dataclasses.replace(one, term=other.term, at=other.at) == other
