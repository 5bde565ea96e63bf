"""Facts for a trial about itself: its hyperparameters, its ranks, its place in the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hpcdet.core import Context, DistributedContext
from hpcdet.errors import ConfigError
from hpcdet.pytorch.gradients.division import Division
from hpcdet.units import Length

GLOBAL_BATCH = "global_batch_size"


class TrialContext:
    """The part of a trial's context that only answers.

    Args:
        exp_conf: the config of a script that runs alone.

    Attributes:
        core: the Core API's context below.
        division: of each batch, over all ranks; set by who makes it.
    """

    division: Division

    def __init__(self, core: Context, exp_conf: Mapping[str, Any] | None = None) -> None:
        self.core = core
        self._exp_conf = exp_conf

    @property
    def distributed(self) -> DistributedContext:
        """Ranks and talk between them."""
        return self.core.distributed

    @property
    def device(self) -> torch.device:
        """The device that this rank trains on."""
        return self.core.session.device

    @property
    def horizon(self) -> Length | None:
        """The whole training, whatever the searcher has decided so far.

        A schedule of learning rates spans it. None where ``fit(max_length=…)`` alone knows it.
        """
        return self.core.horizon

    def get_hparams(self) -> dict[str, Any]:
        """All hyperparameters of this trial."""
        return dict(self.core.hparams)

    def get_hparam(self, name: str) -> Any:
        """One hyperparameter.

        Raises:
            ConfigError: there is none of this name.
        """
        if name not in self.core.hparams:
            raise ConfigError(
                f"there is no hyperparameter {name!r}",
                where="hyperparameters",
                hint=f"there are: {', '.join(sorted(self.core.hparams)) or 'none'}",
            )
        return self.core.hparams[name]

    def get_global_batch_size(self) -> int:
        """Samples per step over all ranks: the hyperparameter ``global_batch_size``."""
        return int(self.get_hparam(GLOBAL_BATCH))

    def get_per_slot_batch_size(self) -> int:
        """Samples per step of one rank (rounded down; the first ranks take the remainder).

        With ``reproducibility.elastic: exact``, of one virtual rank.
        """
        return max(1, self.get_global_batch_size() // self.shares)

    @property
    def shares(self) -> int:
        """Shares that a global batch is cut into: as many as ranks, or virtual ranks."""
        return self.division.count

    @property
    def mine(self) -> range:
        """Which of the shares are this rank's."""
        return self.division.mine

    def get_trial_seed(self) -> int:
        return self.core.seed

    def get_experiment_config(self) -> dict[str, Any]:
        """The resolved config as plain data; where the script runs alone, ``init``'s."""
        if self._exp_conf is not None and not self.core.session.attached:
            return dict(self._exp_conf)
        return dict(self.core.session.config.raw)

    def get_data_config(self) -> dict[str, Any]:
        """The config's ``data``, with its secrets."""
        return dict(self.core.data or self.get_experiment_config().get("data", {}))

    def get_experiment_id(self) -> str:
        experiment = self.core.session.place.experiment
        return experiment.id if experiment else ""

    def get_trial_id(self) -> int:
        return self.core.session.record.number

    def get_initial_batch(self) -> int:
        """The batch this attempt began at."""
        return self.core.first_batch
