"""An experiment of another platform: what of it hpcdet can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

State = Literal["COMPLETED", "CANCELED", "ERROR"]


@dataclass(frozen=True)
class ForeignMetrics:
    """Values that a trial reported at once.

    Attributes:
        group: ``training``, ``validation`` or another one.
        step: batches trained.
        units: the same length in other units.
        time: ISO 8601 UTC.
        values: as journals have them: numbers that are not finite are texts.
    """

    group: str
    step: int
    time: str
    values: Mapping[str, Any]
    units: Mapping[str, int]


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint. ``name``: of its folder on the other platform's storage."""

    name: str
    step: int
    time: str
    bytes: int
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class ForeignTrial:
    """A trial.

    Attributes:
        number: here, from 1: the same at each import, also where others are missing.
        id: its number on the other platform.
        said: its state there, in the other platform's word.
        slots: that it had.
        start: "" if it never began; ``end``: "" if that is not known.
        restarts: how often it had to begin again there.
    """

    number: int
    id: int
    state: State
    said: str
    params: Mapping[str, Any]
    start: str
    end: str
    batches: int
    restarts: int
    metrics: Sequence[ForeignMetrics] = ()
    checkpoints: Sequence[ForeignCheckpoint] = ()


@dataclass(frozen=True)
class ForeignExperiment:
    """An experiment.

    Attributes:
        platform: its name, for people.
        key: tells it from all others of that platform, on any of its servers.
        said: its state there.
        config: of hpcdet, as far as what there was means something here.
        written: the config there, without secrets.
        missing: ids of trials of which nothing is known but that they were.
    """

    platform: str
    id: int
    key: str
    name: str
    state: State
    said: str
    user: str
    start: str
    end: str
    config: Mapping[str, Any]
    written: Mapping[str, Any]
    trials: Sequence[ForeignTrial]
    missing: Sequence[int] = ()
    notes: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


def utc(time: str) -> str:
    """Return an ISO time as records have it: in UTC, to the microsecond. Raises ValueError."""
    there = datetime.fromisoformat(time)
    zoned = there if there.tzinfo else there.replace(tzinfo=UTC)
    text = zoned.astimezone(UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")
