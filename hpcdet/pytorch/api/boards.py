"""TensorBoard, for code that writes for it; nothing does by itself."""

from __future__ import annotations

import pathlib
from typing import Any

from hpcdet.core import TrainContext
from hpcdet.errors import ConfigError


class Boards:
    """One trial's folder and writer.

    Attributes:
        enabled: Determined's switch, which nothing here depends on.
    """

    def __init__(self, train: TrainContext) -> None:
        self.enabled = True
        self._train = train
        self._writer: Any = None

    def path(self) -> pathlib.Path:
        """A folder for its files."""
        return self._train.get_tensorboard_path()

    def writer(self) -> Any:
        """A ``torch.utils.tensorboard.SummaryWriter`` there, the same at each call.

        Raises:
            ConfigError: the package ``tensorboard`` is not there, or something that it needs.
        """
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ConfigError(
                    f"torch.utils.tensorboard cannot be imported: {error}",
                    where="get_tensorboard_writer",
                    hint="pip install tensorboard",
                ) from error
            self._writer = SummaryWriter(str(self.path()))
        return self._writer
