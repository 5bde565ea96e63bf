"""An experiment as exports write it: trials, their attempts, and the metrics that count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from hpcdet.errors import Unavailable, UsageError
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.read.views import checkpoints, views
from hpcdet.read.views.checkpoints import CheckpointView
from hpcdet.read.views.list_rows import TrialStatusView
from hpcdet.read.views.trials import AttemptView
from hpcdet.read.views.views import StatusView

Each = TypeVar("Each")


@dataclass(frozen=True)
class ExperimentExport:
    """An experiment on its way to another program.

    Attributes:
        at: called with the fraction of trials done.
        warn: called with a sentence for people on what the other program cannot hold.
    """

    gathered: Gathered
    at: Callable[[float], None] = field(default=lambda _: None)
    warn: Callable[[str], None] = field(default=lambda _: None)

    @property
    def id(self) -> str:
        return self.gathered.id

    @cached_property
    def status(self) -> StatusView:
        return views.status(self.gathered)

    @property
    def created(self) -> str:
        return self.status.created

    @cached_property
    def attempts(self) -> Sequence[AttemptView]:
        return views.attempts(self.gathered)

    @cached_property
    def checkpoints(self) -> Sequence[CheckpointView]:
        return checkpoints.checkpoints(self.gathered)

    def row(self, trial: int) -> TrialStatusView:
        """Return a trial as ``status`` shows it."""
        return self._rows[trial]

    @cached_property
    def _rows(self) -> Mapping[int, TrialStatusView]:
        return {row.trial: row for row in self.status.trials}

    def each_trial(self) -> Iterator[tuple[GatheredTrial, Iterator[series.Row]]]:
        """Yield each trial with its metrics as ``metrics`` prints them: no superseded ones.

        One trial's are in memory at a time.
        """
        trials = self.gathered.trials
        for done, trial in enumerate(trials):
            self.at(done / len(trials))
            yield trial, (row for row in series.of_trial(trial) if not row["superseded"])


def refused(program: str, error: Exception, to: str) -> Unavailable:
    """Return the error of a store that refuses an export, with the first line of its message."""
    said = str(getattr(error, "orig", None) or error).strip()
    return Unavailable(f"{program}: {said.partition(chr(10))[0] or type(error).__name__}", where=to)


def number(value: Any) -> float | None:
    """Return a metric's value as a number, NaN among them; None if it is structured."""
    return float("nan") if value == "NaN" else series.number(value)


def epoch(time: str) -> float:
    """Return the seconds since 1970 of an ISO time."""
    return datetime.fromisoformat(time).timestamp()


def sqlite_file(to: str, name: str) -> Path:
    """Return the absolute path of an SQLite store to be made or written on.

    Args:
        to: the file; or a folder, for a file ``name`` in it.

    Raises:
        UsageError: the folder is not there.
    """
    path = Path(to).absolute()
    path = path / name if path.is_dir() else path
    if not path.parent.is_dir():
        raise UsageError("no such folder", where=str(path.parent), hint="make it, or name another")
    return path


def flat(params: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested hyperparameters by dotted names."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def batches(items: Iterable[Each], size: int) -> Iterator[list[Each]]:
    """Yield the items in lists of ``size``, the last one shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
