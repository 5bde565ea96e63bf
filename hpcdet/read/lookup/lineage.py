"""The lineage of a trial: its parents, and the resulting schedule of hyperparameters."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.errors import NotFound
from hpcdet.read.experiment import series, standings
from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.read.lookup import find
from hpcdet.store.folder import home
from hpcdet.store.folder.names import MODEL_PREFIX
from hpcdet.store.fs import files, sealed_json
from hpcdet.store.trials import parents
from hpcdet.store.trials.parents import Parent
from hpcdet.units import Length, Unit


@dataclass(frozen=True)
class StretchView:
    """A stretch of a model's training, by one trial."""

    trial: int
    """The trial's number."""
    from_: int
    """Length at which the stretch begins."""
    to: int
    """Length at which it ends."""
    unit: Unit
    """Unit of both."""
    hyperparameters: dict[str, Any]
    """Hyperparameters of the stretch."""
    seed: int
    """The trial's seed."""
    parent: str
    """What the trial began from, as ``3@400 batches``; "" if from nothing."""
    checkpoint: str
    """Name of its parent's checkpoint; "" without one."""
    root: str
    """Digest of that checkpoint's manifest; "" without one."""


def chain(gathered: Gathered, trial: int) -> list[StretchView]:
    """Return a trial and its ancestors, the first one first.

    Raises:
        NotFound: there is no such trial.
        IntegrityError: a trial is its own ancestor by the records.
    """
    trials = {each.number: each for each in gathered.trials}
    length = gathered.config.searcher.max_length
    unit: Unit = length.unit if length else "batches"
    rows: list[StretchView] = []
    number = trial
    while number:
        found = trials.get(number)
        record = found.record if found is not None else None
        if found is None or record is None:
            raise NotFound("there is no such trial", where=f"{gathered.id}/{number}")
        if any(row.trial == number for row in rows):
            raise files.damaged(found.paths.record, "the trial is its own ancestor")
        origin = record.origin
        begins = int(origin["units"][unit]) if origin else 0
        to = rows[-1].from_ if rows else _reached(found, unit)
        given = (origin.get("checkpoint", ""), origin.get("root", ""))
        began = (record.params, record.seed, record.parent, *given)
        rows.append(StretchView(number, begins, to, unit, *began))
        parent = Parent.parse(record.parent) if origin else None
        number = parent.trial if parent is not None and not parent.experiment else 0
    return rows[::-1]


def best_trial(gathered: Gathered) -> int:
    """Return the best trial by the searcher's metric; with several goals, as ``status`` does.

    Raises:
        NotFound: none has a number yet, or keeps the constraints.
    """
    searcher = gathered.config.searcher
    stand = standings.standings(gathered)
    if stand is not None:
        if not stand.front:
            hint = f"see how they stand with: hpcdet status {home.called(gathered.paths)}"
            raise NotFound("no trial is feasible", where=gathered.id, hint=hint)
        return stand.front[0]
    smaller = searcher.smaller_is_better
    found = {
        trial.number: series.best_validation(trial, searcher.metric, smaller)
        for trial in gathered.trials
    }
    ordered = [(series.number(best[1]), trial) for trial, best in found.items() if best is not None]
    if not ordered:
        hint = f"name a trial: {gathered.id}/1"
        raise NotFound(f"no trial has a value of {searcher.metric}", where=gathered.id, hint=hint)
    pick = min if smaller else max
    return int(pick(ordered)[1])


def config(rows: list[StretchView], gathered: Gathered) -> dict[str, Any]:
    """Return config keys that train one model by the schedule of a ``chain``.

    With the code and the other keys of the experiment it ends with the bits of the last trial.

    Raises:
        NotFound: the first one began from a checkpoint that is not there any more.
    """
    asked = gathered.config.searcher
    unit = rows[-1].unit
    steps = [
        {"until": {unit: row.to}, "hyperparameters": row.hyperparameters}
        for row in rows
        if row.to > row.from_  # else an heir begins from what its parent began from
    ]
    found: dict[str, Any] = {
        "searcher": {
            "name": "schedule",
            "metric": asked.metric,
            "smaller_is_better": asked.smaller_is_better,
            "max_length": {unit: asked.max_length.value if asked.max_length else rows[-1].to},
            "schedule": {"seed": rows[0].seed, "steps": steps},
        }
    }
    if rows[0].root:
        found["searcher"]["begin_from"] = _beginning(rows[0], gathered)
    if asked.interval:
        found["min_validation_period"] = {unit: asked.interval}
    return found


def _beginning(first: StretchView, gathered: Gathered) -> str:
    """Return the checkpoint of another experiment that a trial began from (``begin_from``)."""
    if (gathered.config.searcher.begin_from or "").startswith(MODEL_PREFIX):
        return str(gathered.config.searcher.begin_from)  # a version, which never changes
    parent = Parent.parse(first.parent)
    root, length = first.root, Length(first.unit, first.from_)
    named, donor = "", None
    if parent is not None and parent.experiment == gathered.paths.origin.root.name:
        linked = parents.given(gathered.paths.origin.trial(parent.trial))
        root = linked["meta"]["linked"]["root"] if linked is not None else ""
        named = re.sub(r"@\d+ \w+$", "", gathered.config.searcher.begin_from or "")
        with contextlib.suppress(NotFound):
            donor = find.trial(named, gathered.paths.root.parent)
            named = f"{find.reference(named, gathered.paths.root.parent).paths.id}/{donor.number}"
    elif parent is not None and parent.experiment:
        donor = parent.paths(gathered.paths)
        named = f"{Path(parent.experiment).name}/{parent.trial}"
    held = parents.donations(donor, length.unit) if donor is not None else []
    # the newest at or before a length is what it will begin from
    newest = next((one for one in reversed(held) if one.at <= length.value), None)
    if newest is None or newest.manifest[sealed_json.ROOT] != root:
        what = f"trial {first.trial} began from {first.checkpoint} of {first.parent}"
        hint = "without --config the hyperparameters of each stretch are listed all the same"
        raise NotFound(f"{what}, which is not there any more", where=gathered.id, hint=hint)
    return f"{named}@{length}"


def _reached(trial: GatheredTrial, unit: Unit) -> int:
    """Return the length that a trial has reached, by its reports."""
    units = (
        line.get("units") or {} for attempt in trial.attempts for line in attempt.of_kind("metrics")
    )
    return max((int(each.get(unit, 0)) for each in units), default=0)
