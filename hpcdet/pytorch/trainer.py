"""``Trainer``: Determined's face of the training loop."""

from __future__ import annotations

from typing import Any, Literal

from hpcdet.errors import ConfigError
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.api.periods import Batch, TrainUnit
from hpcdet.pytorch.api.trial import PyTorchTrial
from hpcdet.pytorch.loop.loop import Loop
from hpcdet.pytorch.loop.loop_progress import LoopPlan


class Trainer:
    """Trains a trial."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        self._trial = trial
        self._context = context

    def configure_profiler(self, *arguments: Any, **options: Any) -> None:
        """Determined's old way to ask for ``fit(profiling_enabled=True)``; it changes nothing."""

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit | None = None,
        checkpoint_policy: Literal["best", "all", "none"] = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> None:
        """Train until the searcher's length is reached, or ``max_length`` where there is none.

        Goes on from the trial's newest valid checkpoint by itself. Returns when the length is
        reached and validated, or when it is time to leave (``context.core.preempt.cause``);
        everything is saved then.

        Args:
            checkpoint_period: checkpoints to be kept, beside those of ``checkpoint_policy`` and
                the resume checkpoints, which are made by time.
            validation_period: also validated at the end and at the searcher's rungs, always.
            reporting_period: of training metrics; default 100 batches.
            checkpoint_policy: after a validation: ``best`` so far, ``all``, ``none``.
            latest_checkpoint: Determined's; not needed, the newest one is taken. Any other than
                this trial's is refused.
            step_zero_validation: validate before the first batch.
            test_mode: train one batch, validate, save.
            profiling_enabled: record what the process uses.

        Raises:
            ConfigError: no length, or something missing in the trial.
            StateError: the trial's state cannot be saved; at step 0, not hours later.
        """
        self._check_origin(latest_checkpoint)
        plan = LoopPlan(
            checkpoint_period=checkpoint_period,
            validation_period=validation_period,
            reporting_period=reporting_period or Batch(100),
            max_length=max_length,
            test_mode=test_mode,
            checkpoint_policy=checkpoint_policy,
            step_zero_validation=step_zero_validation,
        )
        if profiling_enabled:
            self._context.core.profiler.on()
        Loop(self._trial, self._context, plan).run()

    def _check_origin(self, name: str | None) -> None:
        places = self._context.core.session.place.trial.checkpoint_places
        if name is not None and not any((place / name).is_dir() for place in places):
            raise ConfigError(
                f"{name!r} is no checkpoint of this trial, which continues from its own",
                where="fit(latest_checkpoint=…)",
                hint="leave it out, or give det.get_cluster_info().latest_checkpoint",
            )


def fit_as_configured(trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
    """``fit`` with the periods of the experiment's config: what ``entrypoint`` does."""
    config = context.core.session.config
    Trainer(trial, context).fit(
        checkpoint_period=TrainUnit.of(config.min_checkpoint_period),
        validation_period=TrainUnit.of(config.min_validation_period),
        max_length=TrainUnit.of(config.searcher.max_length),
        reporting_period=Batch(config.scheduling_unit),
        checkpoint_policy=config.checkpoint_policy,
        step_zero_validation=config.perform_initial_validation,
        profiling_enabled=config.profiling.enabled,
    )
