"""``determined.pytorch.deepspeed``: ``DeepSpeedTrial``, on ``hpcdet.integrations.deepspeed``."""

from __future__ import annotations

from typing import Any

from hpcdet.determined._absent import absent
from hpcdet.determined.pytorch.deepspeed._context import (
    DeepSpeedTrialContext,
    ModelParallelUnit,
    init,
    make_data_parallel_mpu,
    overwrite_deepspeed_config,
)
from hpcdet.determined.pytorch.deepspeed._trial import DeepSpeedTrial, Trainer

__all__ = [
    "DeepSpeedTrial",
    "DeepSpeedTrialContext",
    "ModelParallelUnit",
    "Trainer",
    "init",
    "make_data_parallel_mpu",
    "overwrite_deepspeed_config",
]


def __getattr__(name: str) -> Any:
    absent(__name__, name)
