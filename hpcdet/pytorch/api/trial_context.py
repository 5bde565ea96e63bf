"""``TrialContext``: the part of a context that trials of PyTorch and of DeepSpeed share."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hpcdet.core import Context, DistributedContext
from hpcdet.errors import ConfigError
from hpcdet.pytorch.api.data_loader import TorchData, to_device
from hpcdet.pytorch.gradients.division import Division
from hpcdet.pytorch.metrics.reducers import MetricReducer
from hpcdet.pytorch.step.reducing import Reducing
from hpcdet.units import Length

GLOBAL_BATCH = "global_batch_size"


class TrialContext:
    """Facts for a trial about itself, its metric reducers and its files for TensorBoard.

    Args:
        exp_conf: the config of a script that runs alone.

    Attributes:
        core: the Core API's context below.
        division, reducers: of each batch, and of metrics, over all ranks; set by who makes it.
    """

    division: Division
    reducers: Reducing

    def __init__(self, core: Context, exp_conf: Mapping[str, Any] | None = None) -> None:
        self.core = core
        self._exp_conf = exp_conf
        self._stop_requested = False
        self._logs_tensorboard = True
        self._writer: Any = None

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

    def get_stop_requested(self) -> bool:
        return self._stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """End the trial well, if any rank asks for it, after this step or validation.

        Several ranks of a ``PyTorchTrial`` tell each other after steps 16, 32, 48 …, and all end
        one step later, or with the next validation; with ``elastic: exact`` one rank does so, too.
        A ``DeepSpeedTrial`` ends with this batch.
        """
        self._stop_requested = stop_requested

    def to_device(self, data: TorchData) -> TorchData:
        """A batch on this rank's device."""
        return to_device(data, self.device)

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Add a metric reduced over batches and ranks.

        Args:
            reducer: a ``MetricReducer``, or a function of the list of all updates.
            name: of the metric; a reducer that gives a dict of metrics needs none.

        Returns:
            The reducer; one made from a function has ``update(value)``.
        """
        return self.reducers.add(reducer, name, training=for_training, validation=for_validation)

    # -- TensorBoard, for code that writes for it; nothing else does -------------------------

    def get_tensorboard_path(self) -> pathlib.Path:
        """A folder for files of TensorBoard, in the trial's folder."""
        return self.core.train.get_tensorboard_path()

    def get_tensorboard_writer(self) -> Any:
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
            self._writer = SummaryWriter(str(self.get_tensorboard_path()))
        return self._writer

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Determined's; nothing is written for TensorBoard but by the code itself."""
        self._logs_tensorboard = enable_tensorboard_logging

    def get_enable_tensorboard_logging(self) -> bool:
        return self._logs_tensorboard
