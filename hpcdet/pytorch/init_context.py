"""``pytorch.init``: the context for a trial."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hpcdet import core
from hpcdet.pytorch.api.context import PyTorchTrialContext


@contextlib.contextmanager
def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    exp_conf: Mapping[str, Any] | None = None,
    distributed: object = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
    checkpoint_storage: str | None = None,
    seed: int = 0,
) -> Iterator[PyTorchTrialContext]:
    """Join the attempt this process belongs to, or run alone if it belongs to none.

    Args:
        hparams: hyperparameters when alone; in an experiment the trial's count.
        exp_conf: what ``context.get_experiment_config`` gives when alone.
        distributed: Determined's; accepted, not needed.
        enable_tensorboard_logging: Determined's; nothing is written but by the code itself.
        aggregation_frequency: batches per step of the optimizers; in an experiment the config's
            ``optimizations.aggregation_frequency`` counts.
        checkpoint_storage: when alone, a folder to go on from and to save in.
        seed: when alone.
    """
    with core.init(
        hparams=hparams,
        checkpoint_storage=checkpoint_storage,
        seed=seed,
        distributed=distributed,
    ) as context:
        wanted = context.session.config.optimizations
        frequency = wanted.aggregation_frequency if context.session.attached else 0
        made = PyTorchTrialContext(
            context,
            frequency or aggregation_frequency,
            wanted.average_aggregated_gradients,
            exp_conf,
        )
        made.set_enable_tensorboard_logging(enable_tensorboard_logging)
        if wanted.mixed_precision not in ("", "O0"):
            made.experimental.use_amp()
        yield made
