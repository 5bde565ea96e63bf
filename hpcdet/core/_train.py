"""``context.train``: what the trial tells."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdet.core.governance.own_loop import LoopGovernance
from hpcdet.core.training import worth
from hpcdet.goals import refuse_reserved
from hpcdet.process.console import say
from hpcdet.store.fs import journal
from hpcdet.store.fs.json_record import value
from hpcdet.train.attempt.control_reader import experiment_best
from hpcdet.train.attempt.session import Session
from hpcdet.train.attempt.verdicts import InvalidHP
from hpcdet.train.telemetry.tracker import finite, plain
from hpcdet.units import Length, Units


class EarlyExitReason(enum.Enum):
    """Why a trial gives up by itself."""

    INVALID_HP = "INVALID_HP"
    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"


class TrainContext:
    """Reports of metrics; rank 0's count, other ranks may call or not.

    Attributes:
        units: how far the trial is, as far as it has said.
        validation: step and metrics of the last validation.
        validated: how far the trial was then; earlier attempts count.
        restored: how far it was, and was validated, at the checkpoint that it goes on from.
    """

    def __init__(self, session: Session, governance: LoopGovernance) -> None:
        self._session = session
        self._governance = governance
        self.units = Units()
        self.validation: tuple[int, Mapping[str, Any]] = (-1, {})
        self.validated = Units()
        self.restored = Units(), Units()
        self._metadata: dict[str, Any] | None = None
        self._unseen: int | None = None  # the last step that was saved before it was validated

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Metrics of training after so many batches: numbers, or lists and dicts of them.

        ``batch_metrics``, Determined's, are kept nowhere.
        """
        self.report_metrics("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Metrics of a validation; the searcher's metric should be among them."""
        self.report_metrics("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Metrics of any group.

        Those named ``epochs`` and ``records`` say how far the trial is in these units, too.

        Raises:
            TypeError: a value that cannot be recorded, with its name.
            ConfigError: a metric is named as those that governance measures: ``gov.`` and more.
        """
        refuse_reserved(metrics)
        self.advance(steps_completed, metrics)
        metrics = self._governance.reported(steps_completed, group, metrics)
        if group == "validation":
            self.validation = (steps_completed, dict(metrics))
            self.validated = self.units
        self._session.refuse_ungoverned()
        self._session.report(group, self.units, metrics)
        late = group == "validation" and steps_completed == self._unseen
        if late and self._session.ranks.chief:
            self._unseen = None
            what = f"step {steps_completed} was saved before it was validated"
            say(f"{what}: its checkpoint is not among the best; report, then save")

    def report_progress(self, progress: float) -> None:
        """Fraction done, 0 to 1."""
        self._session.tracker.record("fraction", value=float(progress))

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """End this trial now.

        Raises:
            InvalidHP: for ``INVALID_HP``: leave the ``with`` block by it.
            SystemExit: otherwise.
        """
        if reason is EarlyExitReason.INVALID_HP:
            raise InvalidHP("the code refused these hyperparameters")
        raise SystemExit(0)

    def set_status(self, status: str) -> None:
        """Set a line on what is going on, for people."""
        self._session.tracker.record("status", text=str(status))

    def set_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Note facts about this trial, in place of those noted before; returns them.

        Raises:
            TypeError: a value that cannot be recorded, with its name.
        """
        self._metadata = plain(metadata)
        self._session.tracker.record("metadata", values=self._metadata)
        return self._metadata

    def get_metadata(self) -> dict[str, Any]:
        """The facts noted last, in this attempt or an earlier one."""
        if self._metadata is None:
            trial = self._session.place.trial
            found = [
                line["values"]
                for attempt in (trial.attempts() if self._session.attached else [])
                for line in journal.read(attempt.journal)
                if line["kind"] == "metadata"
            ]
            self._metadata = found[-1] if found else {}
        return self._metadata

    def get_tensorboard_path(self) -> Path:
        """A folder for files of TensorBoard, in the trial's folder; made when asked for."""
        folder = self._session.place.trial.root / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def upload_tensorboard_files(self, selector: object = None, mangler: object = None) -> None:
        """Determined's; the files are where they belong already."""

    def get_experiment_best_validation(self) -> float | None:
        """Best searcher metric of the experiment so far, or None.

        Of other trials, as far as the holder of the lease has heard; of this one, by its
        checkpoints and last validation.
        """
        from hpcdet.checkpoint import committed

        known = experiment_best(self._session.place)
        saved = committed(*self._session.place.trial.checkpoint_places)
        metrics = [
            metric
            for metric in (
                value(known.metric) if known else None,
                self.searcher_metric(self.validation[0]),
                *(finite(one.meta.get("metric")) for one in saved),
            )
            if metric is not None and math.isfinite(metric)
        ]
        better = min if self._session.config.searcher.smaller_is_better else max
        return better(metrics, default=None)

    def advance(self, batches: int, metrics: Mapping[str, Any] | None = None) -> None:
        """The trial is so many batches far, and so many records and epochs, if metrics say it."""
        said = {unit: finite((metrics or {}).get(unit)) for unit in ("records", "epochs")}
        known = {
            unit: int(found)
            for unit, found in said.items()
            if found is not None and 0 <= found < math.inf
        }
        if known or batches != self.units.batches:
            self.units = dataclasses.replace(self.units, batches=batches, **known)

    def set_progress(self, units: Units) -> None:
        """Record how far the trial is, as a loop counts that knows all units."""
        self.units = units

    def reach(self, length: Length) -> None:
        """Record how far the trial is, whatever it reported; its last validation was that far."""
        if length.unit != "batches" and not self.units.reached(length):
            self.units = dataclasses.replace(self.units, **{length.unit: length.value})
            at, metrics = self.validation
            if at == self.units.batches:
                self.validated = self.units
                self._session.report("validation", self.units, metrics)

    def go_on(self, units: Units, validated: Units) -> None:
        """From a checkpoint: how far the trial was there, and at its last validation."""
        self.units, self.validated = self.restored = units, validated

    def saved(self, step: int) -> float | None:
        """A checkpoint of this step is made; the searcher's metric that it is to have."""
        metric = self.searcher_metric(step)
        self._unseen = step if self.validation[0] != step else None
        return metric

    def searcher_metric(self, step: int) -> float | None:
        """The metric of ``worth``, if the trial was validated at this very step."""
        at, metrics = self.validation
        return worth(self._session.config.searcher, metrics, self.units) if at == step else None
