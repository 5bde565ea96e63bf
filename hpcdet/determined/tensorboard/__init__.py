"""``determined.tensorboard``: files of TensorBoard, which stay in the trial's folder."""

from __future__ import annotations

import abc
import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hpcdet.determined._absent import absent
from hpcdet.train.process.location import AttemptLocation

__all__ = [
    "BatchMetricWriter",
    "MetricWriter",
    "SharedFSTensorboardManager",
    "TensorboardManager",
    "build",
    "get_base_path",
    "get_metric_writer",
    "get_sync_path",
]

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


def get_sync_path(*_: object, **__: object) -> Path:
    """Where files would be copied: they are there already."""
    return get_base_path()


def get_metric_writer() -> BatchMetricWriter:
    """Torch's.

    Raises:
        ConfigError: the package ``tensorboard`` is not there, or something that it needs.
    """
    from hpcdet.determined.tensorboard.metric_writers.pytorch import TorchWriter

    return BatchMetricWriter(TorchWriter())


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


class TensorboardManager:
    """Determined's, which copied files elsewhere: here they are where they belong."""

    def __init__(self, *_: object, **__: object) -> None:
        self.base_path = self.sync_path = get_base_path()

    def list_tb_files(self, since: float = 0, selector: Any = lambda _: True) -> list[Path]:
        """Files that changed since then, seconds since the epoch."""
        found = (path for path in self.base_path.rglob("*") if path.is_file())
        return [path for path in found if path.stat().st_mtime > since and selector(path)]

    def start(self) -> None:
        """There is nothing to start."""

    def sync(self, *_: object, **__: object) -> None:
        """There is nothing to copy."""

    def delete(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.base_path, ignore_errors=True)

    def close(self) -> None:
        """There is nothing to stop."""


SharedFSTensorboardManager = TensorboardManager


def build(*_: object, **__: object) -> TensorboardManager:
    """The manager; its arguments named the storage."""
    return TensorboardManager()


def __getattr__(name: str) -> Any:
    absent(__name__, name)
