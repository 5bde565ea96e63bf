"""The results of former experiments that a warm-started search keeps in its folder.

``history.json`` is written once, when the experiment is made, so that a replay of its decisions
needs no other file: the former experiments may have gone on, or have been removed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet import units
from hpcdet.errors import IntegrityError
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files


@dataclass(frozen=True)
class HistorySource:
    """A former experiment.

    Attributes:
        trials: how many of its trials are included.
        left_out: why others are not, and how many of them.
    """

    id: str
    trials: int
    left_out: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        said = f"{units.counted(self.trials, 'trial')} of {self.id}"
        if not self.left_out:
            return said
        reasons = ", ".join(f"{n} {why}" for why, n in self.left_out.items())
        return f"{said}; left out: {reasons}"


@dataclass(frozen=True)
class Past:
    """A trial of a former experiment.

    Attributes:
        shown: ``[length, loss]`` at the rungs of the new search, ascending; a loss is None for
            what is worst, and smaller is better whatever the config says.
    """

    source: str
    trial: int
    params: dict[str, Any]
    shown: list[list[Any]]


@dataclass(frozen=True)
class History:
    """The trials of former experiments: longest training first, among equals the best first."""

    sources: list[HistorySource]
    trials: list[Past]

    def write(self, path: Path) -> None:
        value = {"schema": 1, **dataclasses.asdict(self)}
        files.write_once(path, files.canonical(value) + b"\n")


def of(paths: ExperimentPaths) -> History | None:
    """Return the history of an experiment; None if it has none.

    Raises:
        IntegrityError: it cannot be understood.
    """
    value = files.read_json(paths.history, large=True)
    if value is None:
        return None
    try:
        sources = [HistorySource(**_known(HistorySource, source)) for source in value["sources"]]
        trials = [Past(**_known(Past, trial)) for trial in value["trials"]]
    except (KeyError, TypeError, AttributeError) as error:
        what = "it does not say what former experiments have shown"
        raise IntegrityError(what, where=str(paths.history)) from error
    return History(sources, trials)


def _known(kind: type, value: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: it for name, it in value.items() if name in names}
