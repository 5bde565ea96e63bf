"""Lists of the experiments of a root, or of their trials, by what they have in common."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.errors import UsageError
from hpcdet.read.catalog import Catalog
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import of_each
from hpcdet.read.views.items import encode, text
from hpcdet.read.views.list_rows import ExperimentView
from hpcdet.store.folder.layout import ExperimentPaths

if TYPE_CHECKING:
    from hpcdet.read.usage.usage_table import UsageView
    from hpcdet.read.views.list_rows import TrialStatusView

    Row = ExperimentView | TrialStatusView


@dataclass(frozen=True)
class Filters:
    """Conditions on listed experiments; empty ones hold for all.

    Attributes:
        states: one of these; with trials, of these.
        tags: all of these labels.
        users, projects: one of these; a project as ``NAME`` or ``WORKSPACE/NAME``.
        since: made at this time or later, ISO in UTC.
    """

    states: Collection[str] = ()
    tags: Collection[str] = ()
    users: Collection[str] = ()
    projects: Collection[str] = ()
    since: str = ""

    def hold(self, row: ExperimentView) -> bool:
        """True for an experiment that has everything but the state."""
        names = (row.project, row.project.rpartition("/")[2])
        return (
            set(self.tags) <= set(row.labels)
            and row.created >= self.since
            and (not self.users or row.user in self.users)
            and (not self.projects or any(name in self.projects for name in names if name))
        )


def listed(
    root: Path,
    filters: Filters,
    *,
    trials: bool = False,
    sort: str = "",
    limit: int | None = None,
) -> tuple[list[Row], list[str]]:
    """Return experiments or their trials, oldest first, and a line about each unreadable one.

    Args:
        sort: by this key of a row, descending if it begins with ``-``.
        limit: the newest so many; with ``sort``, the first.

    Raises:
        UsageError: rows have no such key.
    """
    catalog = Catalog(root)
    if trials:
        from hpcdet.read.views import views  # much more than a list of experiments needs

    def rows_of(paths: ExperimentPaths) -> Sequence[Row]:
        row = catalog.row(paths)
        if not filters.hold(row):
            return []
        rows: Sequence[Row] = views.trials(paths) if trials else [row]
        return [each for each in rows if not filters.states or each.state in filters.states]

    rows, warnings = _newest(catalog.experiments, rows_of, None if sort else limit)
    return (_sorted(rows, sort)[:limit] if sort else rows), warnings


def used(
    root: Path, by: Sequence[str], since: float = -math.inf
) -> tuple[list[UsageView], list[str]]:
    """Return the slot hours of all experiments of a root, and a line about each unreadable one.

    Args:
        by: keys of ``usage_table.KEYS``.
        since: what was before is left out, in epoch seconds.

    Raises:
        UsageError: there is no such key.
    """
    from hpcdet.read.usage import usage_table  # much more than a list of experiments needs

    view = functools.partial(usage_table.of_experiment, by=usage_table.checked(by), since=since)
    rows, warnings = of_each(find.experiments(root), view)
    table = usage_table.table(rows, by)
    return [row for row in table if row.trials or row.slot_hours.queued], warnings


def _newest(
    experiments: list[ExperimentPaths],
    rows_of: Callable[[ExperimentPaths], Sequence[Row]],
    limit: int | None,
) -> tuple[list[Row], list[str]]:
    """Return rows and warnings, oldest first; with ``limit`` no more are read than it takes."""
    parts: list[Sequence[Row]] = []
    warnings: list[str] = []
    left = math.inf if limit is None else limit
    for paths in reversed(experiments):
        if left <= 0:
            break
        found, warned = of_each([paths], rows_of)
        parts += found
        warnings += warned
        left -= sum(map(len, found))
    rows = [row for part in reversed(parts) for row in part]
    return rows[-limit:] if limit else rows, warnings[::-1]


def _sorted(rows: list[Row], by: str) -> list[Row]:
    """Sort rows by a key, descending if it begins with ``-``; rows without it come last.

    Raises:
        UsageError: rows have no such key.
    """
    from hpcdet.read.experiment import series

    key = by.removeprefix("-")
    items = [encode(row) for row in rows]
    if rows and key not in items[0]:
        raise UsageError(f"no such key: {key}", where="--sort", hint=f"keys: {', '.join(items[0])}")

    def value(pair: tuple[Any, Row]) -> tuple[float, str]:
        # numbers by value; NaN and infinities are words in the journals, and infinity still has one
        amount = series.number(pair[0])
        return (0.0, text(pair[0])) if amount is None else (amount, "")

    pairs = [(item[key], row) for item, row in zip(items, rows, strict=True)]
    nothing = [row for known, row in pairs if known in (None, "", "NaN")]
    ordered = [pair for pair in pairs if pair[0] not in (None, "", "NaN")]
    return [row for _, row in sorted(ordered, key=value, reverse=by.startswith("-"))] + nothing
