"""Trials and their metrics as ``determined.experimental.client`` has them.

A trial's id is ``EXPERIMENT/NUMBER``. What is read is read anew each time, so that ``reload`` has
nothing to do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.determined.experimental._client_checkpoints import Checkpoint, listed, newest_of
from hpcdet.determined.experimental._client_enums import CheckpointSortBy, TrialState, their_word
from hpcdet.errors import NotFound, UsageError

if TYPE_CHECKING:
    from hpcdet.determined.experimental._client_experiments import Experiment


@dataclass(frozen=True)
class TrialMetrics:
    """Metrics that a trial reported at one step."""

    trial_id: str
    trial_run_id: int
    steps_completed: int
    end_time: str
    metrics: dict[str, Any]
    group: str
    batch_metrics: list[dict[str, Any]] | None = None

    @property
    def total_batches(self) -> int:
        """The older name of ``steps_completed``."""
        return self.steps_completed


TrainingMetrics = ValidationMetrics = TrialMetrics


class Trial:
    """A trial.

    Attributes:
        id: ``EXPERIMENT/NUMBER``.
    """

    def __init__(self, trial_id: str, session: object = None) -> None:
        from hpcdet import client

        named, _, number = str(trial_id).rpartition("/")
        if not named or not number.isdigit():
            raise UsageError("a trial is named by its experiment", where=str(trial_id), hint="ID/3")
        self._experiment = client.get(named)
        self._number = int(number)
        self.id = f"{self._experiment.id}/{number}"
        self._row()

    def __repr__(self) -> str:
        return f"Trial(id={self.id})"

    def _row(self) -> Any:
        for row in self._experiment.trials():
            if row.trial == self._number:
                return row
        raise NotFound("there is no such trial", where=self.id)

    @property
    def experiment_id(self) -> str:
        """The experiment's id."""
        return self._experiment.id

    @property
    def hparams(self) -> dict[str, Any]:
        """Its hyperparameters."""
        return dict(self._row().hyperparameters)

    @property
    def state(self) -> Any:
        """Its state, a ``TrialState``."""
        return TrialState[their_word(self._row().state)]

    @property
    def summary_metrics(self) -> dict[str, Any]:
        """The newest value of each metric, by group and name: ``{"last": value}``."""
        found: dict[str, Any] = {}
        for row in self._experiment.metrics(trial=self._number, pick="last"):
            group = {"training": "avg_metrics", "validation": "validation_metrics"}
            found.setdefault(group.get(row.group, row.group), {})[row.name] = {"last": row.value}
        return found

    def get_experiment(self) -> Experiment:
        """Return its experiment."""
        from hpcdet.determined.experimental._client_experiments import Experiment

        return Experiment(str(self._experiment.path))

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Yield what it has reported, in the order written."""
        rows = self._experiment.metrics(trial=self._number, group=group or "*")
        for (attempt, of, step), some in itertools.groupby(
            rows, key=lambda row: (row.attempt, row.group, row.step)
        ):
            reported = list(some)
            values = {row.name: _value(row.value) for row in reported}
            yield TrialMetrics(self.id, attempt, step, reported[-1].time, values, of)

    def stream_metrics(self, group: str) -> Iterator[TrialMetrics]:
        """The older name of ``iter_metrics``."""
        return self.iter_metrics(group)

    def stream_training_metrics(self) -> Iterator[TrialMetrics]:
        """Yield what was reported of training."""
        return self.iter_metrics("training")

    def stream_validation_metrics(self) -> Iterator[TrialMetrics]:
        """Yield what was reported of validation."""
        return self.iter_metrics("validation")

    def logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        rank_ids: list[int] | None = None,
        **others: Any,
    ) -> Iterator[str]:
        """Yield its lines.

        Raises:
            UsageError: an argument has no meaning here.
        """
        given = [name for name, value in others.items() if value is not None]
        if follow or given:
            what = f"{'follow' if follow else given[0]} is not known here"
            raise UsageError(what, where="Trial.logs", hint=f"hpcdet logs {self.id} --help")
        lines = (f"{line.text}\n" for line in self._experiment.logs(self._number, rank_ids or ()))
        if tail is not None:
            return iter(list(lines)[-tail:] if tail else [])
        return itertools.islice(lines, head)

    iter_logs = logs

    def list_checkpoints(
        self, sort_by: Any = None, order_by: Any = None, max_results: int | None = None
    ) -> list[Checkpoint]:
        """Return its checkpoints, by step."""
        return listed(self._experiment, self._number, sort_by, order_by)[:max_results]

    get_checkpoints = list_checkpoints

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """Return one of its checkpoints.

        Raises:
            UsageError: not exactly one of ``latest``, ``best`` and ``uuid`` is given.
            NotFound: there is none.
        """
        if sum((latest, best, uuid is not None)) != 1:
            raise UsageError("exactly one of latest, best and uuid", where="select_checkpoint")
        if best:
            return self.top_checkpoint(sort_by, smaller_is_better)
        found = self.list_checkpoints()
        chosen = [one for one in found if uuid in (None, one.uuid, Path(one.uuid).name)]
        return newest_of(chosen, self.id)

    def top_checkpoint(
        self, sort_by: Any = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Return the best by the searcher's metric. Raises NotFound: there is none."""
        by = sort_by or CheckpointSortBy.SEARCHER_METRIC
        best_first = listed(self._experiment, self._number, by, None, smaller_is_better)
        return newest_of(best_first[:1], self.id)

    def kill(self) -> None:
        """End it for good, without saving."""
        self._experiment.cancel(self._number, now=True)

    def reload(self) -> None:
        """Nothing: everything is read anew."""


def _value(value: Any) -> Any:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
