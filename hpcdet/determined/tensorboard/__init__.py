"""``determined.tensorboard``: files of TensorBoard, which stay in the trial's folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hpcdet.determined._absent import absent
from hpcdet.determined._tensorboard_files import BatchMetricWriter, MetricWriter, get_base_path
from hpcdet.determined.tensorboard.metric_writers.pytorch import TorchWriter

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


def get_sync_path(*_: object, **__: object) -> Path:
    """Where files would be copied: they are there already."""
    return get_base_path()


def get_metric_writer() -> BatchMetricWriter:
    """Torch's.

    Raises:
        ConfigError: the package ``tensorboard`` is not there, or something that it needs.
    """
    return BatchMetricWriter(TorchWriter())


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
