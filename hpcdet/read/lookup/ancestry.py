"""The ancestry of experiments and trials, also across experiments: forks, warm starts, parents."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hpcdet import units
from hpcdet.errors import HpcdetError
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import UNREADABLE
from hpcdet.read.lookup.find import Reference
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.trials import history
from hpcdet.store.trials.parents import ORIGIN, Parent

How = Literal["forked from", "began from", "warm start from"]


@dataclass(frozen=True)
class AncestorView:
    """A link from an experiment or trial to what it came from."""

    id: str
    """The experiment, or the trial as ``ID/3``."""
    parent: str
    """What it came from: an experiment or trial; as the record names it if it is not there."""
    how: How
    """``forked from``: its search goes on with that of the parent. ``began from``: with a
    checkpoint of the parent. ``warm start from``: its search knows the parent's results."""
    at: str
    """How far the parent had come, as ``400 batches``, ``24 events``, ``16 trials``; "" if the
    record does not say it."""
    checkpoint: str
    """Name of the parent's checkpoint; "" without one."""
    root: str
    """Digest of that checkpoint's manifest; "" without one."""
    there: bool
    """True if the parent can be read now."""


def ancestry(found: Reference) -> list[AncestorView]:
    """Return the links of an experiment or trial and of all its ancestors, nearest first.

    Those of an experiment include its trials'. Ancestors in folders that are gone, or that may
    not be read, are named and not followed.
    """
    rows: list[AncestorView] = []
    waiting, known = deque([found]), {found}
    while waiting:
        for row, parent in _links(waiting.popleft()):
            rows.append(row)
            if parent is not None and parent not in known:
                known.add(parent)
                waiting.append(parent)
    return rows


def _links(found: Reference) -> Iterator[tuple[AncestorView, Reference | None]]:
    """Yield the links of one experiment or trial, each with the parent if that can be read."""
    gathered = gather(found.paths)
    for trial in gathered.trials:
        record = trial.record
        if record is None or not record.parent or found.trial not in (0, trial.number):
            continue
        parsed = Parent.parse(record.parent)
        parent = _parent(gathered, parsed) if parsed is not None else None
        origin = record.origin
        row = AncestorView(
            id=f"{gathered.id}/{trial.number}",
            parent=_name(gathered, record.parent, parsed, parent),
            how="began from",
            at=str(parsed.length) if parsed is not None and parsed.length else "",
            checkpoint=str(origin.get("checkpoint", "")),
            root=str(origin.get("root", "")),
            there=parent is not None,
        )
        yield row, parent
    if not found.trial:
        yield from _of_search(gathered)


def _of_search(gathered: Gathered) -> Iterator[tuple[AncestorView, Reference | None]]:
    for line in gathered.decisions:
        if line["kind"] == "forked":
            source, at = str(line["experiment"]), f"{line['events']} events"
            yield _link(gathered, source, "forked from", at)
    past = history.of(gathered.paths)
    for former in past.sources if past is not None else ():
        yield _link(gathered, former.id, "warm start from", units.counted(former.trials, "trial"))


def _link(
    gathered: Gathered, parent: str, how: How, at: str
) -> tuple[AncestorView, Reference | None]:
    there = _readable(ExperimentPaths(gathered.paths.root.parent / parent))
    return AncestorView(gathered.id, parent, how, at, "", "", there is not None), there


def _parent(gathered: Gathered, parent: Parent) -> Reference | None:
    """Return a trial's parent; None if it is not there, or may not be read."""
    if parent.experiment == ORIGIN.experiment:
        named = re.sub(r"@\d+ \w+$", "", gathered.config.searcher.begin_from or "")
        try:
            donor = find.reference(named, gathered.paths.root.parent)
        except (HpcdetError, OSError):
            return None
        return donor if donor.trial else Reference(donor.paths, _only_trial(donor.paths))
    there = _readable(ExperimentPaths(gathered.paths.root / parent.experiment))
    return Reference(there.paths, parent.trial) if there is not None else None


def _only_trial(paths: ExperimentPaths) -> int:
    trials = paths.trials()
    return trials[0].number if len(trials) == 1 else 0


def _readable(paths: ExperimentPaths) -> Reference | None:
    try:
        gather(paths).config  # noqa: B018 - reads it
    except UNREADABLE:
        return None
    return Reference(ExperimentPaths(paths.root.resolve()))


def _name(gathered: Gathered, text: str, parsed: Parent | None, parent: Reference | None) -> str:
    if parent is not None:
        return str(parent)
    if parsed is None:
        return text
    if parsed.experiment == ORIGIN.experiment:
        return gathered.config.searcher.begin_from or text
    return f"{parsed.experiment or gathered.id}/{parsed.trial}"
