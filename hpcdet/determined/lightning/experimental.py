"""``determined.lightning.experimental``: a logger for Lightning's ``Trainer``.

It reports and no more: checkpoints and leaving are ``hpcdet.integrations.lightning``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import Logger

from hpcdet.determined.experimental import core_v2
from hpcdet.process.ranks import Ranks

__all__ = ["DetLogger"]


class DetLogger(Logger):
    """Reports the module's logged values as training metrics.

    Args:
        config, defaults, unmanaged, client: as of ``core_v2.init``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._open = False

    @property
    def name(self) -> str:
        return "DetLogger"

    @property
    def version(self) -> str:
        return "0.1"

    @property
    def experiment(self) -> None:
        """Opens ``core_v2``, on every rank."""
        if not self._open:
            self._open = True
            core_v2.init(**self._options)

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """The trial's are known."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.experiment  # noqa: B018
        if Ranks.from_environment().chief:
            core_v2.train.report_training_metrics(step or 0, dict(metrics))

    def finalize(self, status: str) -> None:
        if self._open:
            self._open = False
            core_v2.close()
