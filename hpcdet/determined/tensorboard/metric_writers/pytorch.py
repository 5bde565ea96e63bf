"""``determined.tensorboard.metric_writers.pytorch``."""

from __future__ import annotations

from typing import Any

from hpcdet.determined._tensorboard_files import MetricWriter, get_base_path
from hpcdet.errors import ConfigError

__all__ = ["TorchWriter"]


class TorchWriter(MetricWriter):
    """Torch's ``SummaryWriter`` in the trial's folder, as ``writer``.

    Raises:
        ConfigError: the package ``tensorboard`` is not there, or something that it needs.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                f"torch.utils.tensorboard cannot be imported: {error}",
                where="TorchWriter",
                hint="pip install tensorboard",
            ) from error
        self.writer: Any = SummaryWriter(str(get_base_path()))

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        self.writer.add_scalar(name, value, step)

    def reset(self) -> None:
        self.writer.close()

    def flush(self) -> None:
        self.writer.flush()
