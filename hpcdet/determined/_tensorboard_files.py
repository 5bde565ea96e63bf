"""Folders and writers of TensorBoard files, for ``determined.tensorboard`` and its writers."""

from __future__ import annotations

import abc
import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hpcdet.process.location import AttemptLocation

_alone: list[Path] = []


def get_base_path(checkpoint_config: object = None) -> Path:
    """The folder for files of TensorBoard: the trial's, or one of this script alone."""
    place = AttemptLocation.from_environment()
    if place is not None:
        folder = place.trial.root / "tensorboard"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
    if not _alone:
        _alone.append(Path(tempfile.mkdtemp(prefix="hpcdet-")))
        atexit.register(shutil.rmtree, _alone[0], ignore_errors=True)
    return _alone[0]


class MetricWriter(abc.ABC):
    """Writes single values."""

    @abc.abstractmethod
    def add_scalar(self, name: str, value: Any, step: int) -> None:
        """A value after so many batches."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Close the file; the next value begins another one."""

    def flush(self) -> None:  # noqa: B027
        """Write what is held back."""


class BatchMetricWriter:
    """Writes all numbers of a report by name, with Determined's prefixes."""

    def __init__(self, writer: MetricWriter) -> None:
        self.writer = writer

    def on_train_step_end(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: Any = None
    ) -> None:
        self._write("Determined", steps_completed, metrics)

    def on_validation_step_end(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        self._write("Determined", steps_completed, metrics)

    def _write(self, prefix: str, step: int, metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(f"{prefix}/{name}", value, step)
        self.writer.reset()
