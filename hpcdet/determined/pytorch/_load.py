"""A trial made again from one of its checkpoints, outside of training."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdet import checkpoint
from hpcdet.core import Context
from hpcdet.determined._import import import_from_path
from hpcdet.errors import NotFound, UsageError
from hpcdet.process.entrypoint import parse
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.pytorch import PyTorchTrial, PyTorchTrialContext
from hpcdet.pytorch.entry import load_class
from hpcdet.registry import model_names, registered_models, registry_place
from hpcdet.store.config import resolved_config as configs
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder import home, trust
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial
from hpcdet.train.attempt.session import Session
from hpcdet.train.checkpoints.deadline import Deadline


class CheckpointLoadContext(PyTorchTrialContext):
    """The context of a trial that is not trained; it talks to no other rank.

    Args:
        hparams: what ``get_hparams`` gives; ``exp_conf``: what ``get_experiment_config`` does.
    """

    def __init__(
        self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None
    ) -> None:
        root = tempfile.mkdtemp(prefix="hpcdet-")
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        place, record = AttemptLocation.alone(Path(root)), Trial(1, dict(hparams or {}), 0)
        session = Session(Ranks(), place, record, Resolved(), Deadline(None))
        super().__init__(Context(session), exp_conf=exp_conf)


def load_trial_from_checkpoint_path(
    path: str | os.PathLike[str],
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: Mapping[str, Any] | None = None,
    torch_load_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """The trial that a checkpoint of a ``PyTorchTrial`` is of, its models as they were then.

    Args:
        path: the checkpoint's folder: what ``hpcdet ckpt ls`` says; or ``model:NAME@ALIAS`` and the
            like, of the registry that is ``$HPCDET_REGISTRY``, else in ``$HPCDET_ROOT``.
        trial_class: needed where the entrypoint is not ``module:Class``, or the folder does not
            lie in its experiment.
        trial_kwargs: arguments of the class beside its context.
        torch_load_kwargs, kwargs: Determined's; models come to this rank's device.

    Raises:
        NotFound: there is no such folder.
        UsageError: nobody says the class, or the checkpoint holds the state of another loop.
        IntegrityError: it is damaged.
        ConfigError: another user may change the code that says the class.
    """
    name = os.fspath(path)
    if model_names.is_reference(name):
        version = registered_models.version(registry_place.folder(home.root()), name)
        path = version.unchanged_checkpoint()
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise NotFound("there is no such checkpoint", where=str(path))
    experiment = ExperimentPaths(folder.parents[3])
    record = Trial.read(TrialPaths(folder.parents[1], 0).record)
    config = configs.load(experiment.config) if experiment.config.is_file() else None
    if trial_class is None:
        entrypoint = parse(config.entrypoint) if config is not None else None
        if entrypoint is None or entrypoint.kind != "class":
            raise UsageError(
                "the experiment does not say of which class the trial is",
                where=str(path),
                hint="pass trial_class=",
            )
        trust.refuse_to_run(experiment.code)
        with import_from_path(experiment.code):
            trial_class = load_class(entrypoint.argv[0])
    saved = checkpoint.load(folder).shared
    if "models" not in saved:
        raise UsageError(
            "it holds the state of another loop than PyTorchTrial's",
            where=str(path),
            hint="hpcdet.checkpoint.load gives it as it is",
        )
    context = CheckpointLoadContext(
        record.params if record is not None else {}, config.raw if config is not None else None
    )
    trial = trial_class(context, **(trial_kwargs or {}))
    for model, state in zip(context.models, saved["models"], strict=True):
        model.load_state_dict(state)
    return trial
