"""``determined.experimental.core_v2``: the Core API as a module, for scripts that run anywhere.

    core_v2.init(config=core_v2.Config(name="mine"))
    core_v2.train.report_training_metrics(steps_completed=1, metrics={"loss": 0.5})
    core_v2.close()

In an experiment the experiment's config counts, as there. Alone, a script of the same
``external_trial_id`` and ``checkpoint_storage`` goes on from its last checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.checkpoint.format.manifest import position
from hpcdet.determined import core
from hpcdet.determined._absent import absent
from hpcdet.determined._info import ClusterInfo, TrialInfo, get_cluster_info
from hpcdet.determined.core import Context, DistributedContext, PreemptMode, TensorboardMode
from hpcdet.errors import UsageError

__all__ = [
    "Config",
    "Context",
    "DefaultConfig",
    "DistributedContext",
    "PreemptMode",
    "TensorboardMode",
    "UnmanagedConfig",
    "close",
    "init",
    "init_context",
    "url_reverse_webui_exp_view",
]

_OPENED = ("train", "checkpoint", "distributed", "preempt", "searcher", "info")
"""Names of this module between ``init`` and ``close``."""
_context: Context | None = None


@dataclass
class Config:
    """Settings that count where the script runs alone.

    Attributes:
        checkpoint_storage: a folder; a dict has it as ``host_path``, and in it ``storage_path``.
        external_trial_id, external_experiment_id: name the folder in it, to go on from.
    """

    name: str | None = None
    hparams: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    description: str | None = None
    labels: list[str] | None = None
    workspace: str | None = None
    project: str | None = None
    checkpoint_storage: str | dict[str, Any] | None = None
    searcher: dict[str, Any] | None = None
    external_experiment_id: str | None = None
    external_trial_id: str | None = None


class DefaultConfig(Config):
    """Determined's older name."""


class UnmanagedConfig(Config):
    """Determined's older name."""


def init_context(
    *,
    config: Config | None = None,
    defaults: Config | None = None,
    unmanaged: Config | None = None,
    client: object = None,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """``core.init``'s context, for ``with``; ``client`` is not needed.

    Raises:
        UsageError: the script runs alone, and there is no config.
    """
    if get_cluster_info() is not None:
        return core.init(
            distributed=distributed, preempt_mode=preempt_mode, tensorboard_mode=tensorboard_mode
        )
    asked = config or defaults
    if asked is None:
        raise UsageError(
            "there is neither config nor defaults, and the script runs alone",
            where="core_v2.init",
            hint='core_v2.init(config=core_v2.Config(name="…"))',
        )
    return core.init(
        hparams=asked.hparams,
        checkpoint_storage=_folder(asked, checkpoint_storage),
        distributed=distributed,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )


def init(**options: Any) -> None:
    """Run ``init_context`` for the whole module: ``train``, ``checkpoint``, … exist then."""
    global _context
    close()
    config = options.get("config") or options.get("defaults")
    _context = init_context(**options)
    globals().update(
        train=_context.train,
        checkpoint=_context.checkpoint,
        distributed=_context.distributed,
        preempt=_context.preempt,
        searcher=_context.searcher,
        info=get_cluster_info() or _alone(_context, config),
    )


def close() -> None:
    """Leave it; also done at the end of the script."""
    global _context
    context, _context = _context, None
    for name in _OPENED:
        globals().pop(name, None)
    if context is not None:
        context.close()


def url_reverse_webui_exp_view() -> str:
    """Hpcdet has no web server: the command that shows the experiment.

    Raises:
        UsageError: before ``init``.
    """
    if _context is None:
        raise UsageError("core_v2 is not open", where="core_v2", hint="core_v2.init()")
    experiment = _context.session.place.experiment
    return f"hpcdet show {experiment.id}" if experiment else str(_context.session.place.trial.root)


def _folder(config: Config, storage: str | dict[str, Any] | None) -> str | None:
    """Where a script that runs alone keeps its checkpoints; None: nowhere for long.

    Raises:
        UsageError: it is no folder.
    """
    wanted = storage or config.checkpoint_storage
    if isinstance(wanted, dict):
        wanted = str(Path(wanted.get("host_path", ""), wanted.get("storage_path", "")))
    if wanted and "://" in wanted:
        raise UsageError(
            f"{wanted} is no folder", where="checkpoint_storage", hint="name one on a shared disk"
        )
    if not wanted:
        return None
    names = (config.external_experiment_id, config.external_trial_id)
    return str(Path(wanted, *(re.sub(r"[^\w.-]", "_", name) for name in names if name)))


def _alone(context: Context, config: Config | None) -> ClusterInfo:
    """The cluster info of a script that runs alone."""
    asked = config or Config()
    latest = context.checkpoint.latest_id()
    experiment = asked.external_experiment_id or asked.name or ""
    return ClusterInfo(
        task_id=experiment,
        allocation_id=experiment,
        agent_id="",
        slot_ids=list(range(context.distributed.local_size)),
        latest_checkpoint=latest,
        user_data=dict(asked.data or {}),
        trial=TrialInfo(
            context.session.record.number,
            experiment,
            context.seed,
            dict(context.hparams),
            {"name": asked.name, "searcher": asked.searcher or {}},
            position(latest)[0] if latest else 0,
        ),
        container_rank=context.distributed.cross_rank,
    )


def __getattr__(name: str) -> Any:
    if name in _OPENED:
        return None  # as there, before `init`
    absent(__name__, name)
