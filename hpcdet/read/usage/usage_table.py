"""Slot hours of many experiments, by user, project, account, partition, state and month."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hpcdet.errors import UsageError
from hpcdet.read.experiment import changes, states
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.usage import costs, slot_hours
from hpcdet.read.usage.slot_hours import SlotHoursView, SlotPiece
from hpcdet.store.folder.layout import ExperimentPaths

KEYS = ("user", "project", "account", "partition", "state", "month")


def checked(by: Sequence[str]) -> Sequence[str]:
    """Return keys to group by. Raises UsageError: one is not of ``KEYS``."""
    if unknown := [key for key in by if key not in KEYS]:
        hint = f"keys: {', '.join(KEYS)}"
        raise UsageError(f"no such key: {', '.join(unknown)}", where="by", hint=hint)
    return by


@dataclass(frozen=True)
class UsageView:
    """The slot hours of some experiments."""

    by: dict[str, str]
    """What they have in common, by the keys asked for; "" where nothing is known."""
    experiments: int
    """Experiments among them."""
    trials: int
    """Trials that held slots."""
    slot_hours: SlotHoursView
    """Slot hours by what became of them."""


@dataclass(frozen=True)
class UsageOfOne:
    """The use of one experiment in one group."""

    by: tuple[str, ...]
    trials: int
    slot_hours: SlotHoursView


def of_experiment(
    source: ExperimentPaths | Gathered, by: Sequence[str], since: float = -math.inf
) -> list[UsageOfOne]:
    """Return the use of one experiment, one row for each month where ``by`` has it.

    Args:
        by: of ``KEYS``.
        since: what was before is left out, in epoch seconds.
    """
    gathered = gather(source)
    now = costs.until(gathered)
    found = slot_hours.pieces(gathered, now)
    known = _known(gathered) if set(by) - {"month"} else {}
    rows = []
    for month, start, end in _periods(found, since, now, "month" in by):
        inside = [piece for piece in found if piece.within(start, end)]
        if inside or "month" not in by:
            trials = {piece.trial for piece in inside if piece.kind != "queued"} - {0}
            group = tuple(({**known, "month": month})[key] for key in by)
            hours = slot_hours.added(inside, start, end)
            rows.append(UsageOfOne(group, len(trials), hours))
    return rows


def table(rows: Sequence[Sequence[UsageOfOne]], by: Sequence[str]) -> list[UsageView]:
    """Return the use of experiments by groups, in the order of these; ``rows``: of each one."""
    groups: dict[tuple[str, ...], list[UsageOfOne]] = defaultdict(list)
    members: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for number, of_one in enumerate(rows):
        for row in of_one:
            groups[row.by].append(row)
            members[row.by].add(number)
    return [
        UsageView(
            by=dict(zip(by, group, strict=True)),
            experiments=len(members[group]),
            trials=sum(row.trials for row in found),
            slot_hours=slot_hours.total(row.slot_hours for row in found),
        )
        for group, found in sorted(groups.items())
    ]


def _known(gathered: Gathered) -> dict[str, str]:
    config = changes.effective(gathered)
    return {
        "user": str(gathered.provenance.get("user", "")),
        "project": config.project or "",
        "account": str(gathered.provenance.get("account", "")),
        "partition": config.resources.resource_pool or "",
        "state": states.experiment_state(gathered)[0],
    }


def _periods(
    found: Sequence[SlotPiece], since: float, now: float, months: bool
) -> Iterator[tuple[str, float, float]]:
    """Yield name, start and end of each period; months are those of UTC."""
    if not months:
        yield "", since, math.inf
        return
    at = max(since, min((piece.start for piece in found), default=now))
    last = max((piece.end for piece in found), default=now)
    while at <= last:
        day = datetime.fromtimestamp(at, UTC)
        year, month = divmod(day.year * 12 + day.month, 12)
        end = datetime(year, month + 1, 1, tzinfo=UTC).timestamp()
        yield f"{day:%Y-%m}", at, end
        at = end
