"""``determined.experimental.client``: ``hpcdet.client`` under Determined's names.

Ids are ours: ``digits-7f3a``, ``digits-7f3a/3``, and a checkpoint's folder as its ``uuid``. There
is no server: ``login`` and its arguments count for nothing. Importing it imports nothing of the
login tower; using it does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdet.determined._absent import absent
from hpcdet.determined.experimental._client_checkpoints import Checkpoint, by_folder, checkpoint_of
from hpcdet.determined.experimental._client_enums import (
    CheckpointOrderBy,
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentOrderBy,
    ExperimentSortBy,
    ExperimentState,
    ModelOrderBy,
    OrderBy,
    TrialOrderBy,
    TrialSortBy,
    TrialState,
    our_words,
)
from hpcdet.determined.experimental._client_experiments import Experiment
from hpcdet.determined.experimental._client_models import Model, ModelVersion
from hpcdet.determined.experimental._client_trials import (
    TrainingMetrics,
    Trial,
    TrialMetrics,
    ValidationMetrics,
)
from hpcdet.errors import UsageError

__all__ = [
    "Checkpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "CheckpointState",
    "Determined",
    "DownloadMode",
    "Experiment",
    "ExperimentOrderBy",
    "ExperimentReference",
    "ExperimentSortBy",
    "ExperimentState",
    "Model",
    "ModelOrderBy",
    "ModelVersion",
    "OrderBy",
    "TrainingMetrics",
    "Trial",
    "TrialMetrics",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "TrialState",
    "ValidationMetrics",
    "create_experiment",
    "create_model",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_models",
    "get_session_username",
    "get_trial",
    "iter_trials_metrics",
    "list_experiments",
    "list_models",
    "login",
    "logout",
    "stream_trials_metrics",
    "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
]

ExperimentReference, TrialReference = Experiment, Trial


def login(*_: object, **__: object) -> None:
    """Nothing: there is no server to log in to."""


def logout() -> None:
    """Nothing: there is no server to log out from."""


def get_session_username() -> str:
    """Return the name of this process's user."""
    import getpass

    return getpass.getuser()


def create_experiment(
    config: str | Path | Mapping[str, Any],
    model_dir: str | Path | None = None,
    includes: Sequence[str | Path] | None = None,
    parent_id: object = None,
    project_id: object = None,
    template: object = None,
) -> Experiment:
    """Make an experiment and queue it.

    Raises:
        UsageError: an argument is not known here.
        HpcdetError: as ``hpcdet.client.submit``.
    """
    from hpcdet import client

    others = {"parent_id": parent_id, "project_id": project_id, "template": template}
    for name, value in {"includes": includes or None, **others}.items():
        if value is not None:
            hint = "hpcdet submit --include, --template; workspace and project are config keys"
            raise UsageError(f"{name} is not known here", where="create_experiment", hint=hint)
    return Experiment(str(client.submit(config, model_dir).path))


def get_experiment(experiment_id: str) -> Experiment:
    """Return an experiment. Raises NotFound: there is none."""
    return Experiment(experiment_id)


def list_experiments(
    sort_by: Any = None,
    order_by: Any = None,
    experiment_ids: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    users: Sequence[str] | None = None,
    states: Sequence[Any] | None = None,
    name: str | None = None,
    project_id: object = None,
) -> list[Experiment]:
    """Return the experiments that fit, oldest first.

    Raises:
        UsageError: ``project_id`` is given: projects have names here.
    """
    from hpcdet import client

    if project_id is not None:
        what = "projects have names here"
        raise UsageError(what, where="project_id", hint="hpcdet.client.experiments(project=...)")
    found = client.experiments(tag=labels or (), user=users or (), state=our_words(states or ()))
    rows = [one.brief() for one in found]
    rows = [row for row in rows if name is None or name.lower() in row.name.lower()]
    rows = [row for row in rows if experiment_ids is None or row.id in experiment_ids]
    if sort_by is not None:
        rows.sort(
            key=lambda row: (getattr(row, sort_by.value) is None, getattr(row, sort_by.value))
        )
    if order_by is OrderBy.DESCENDING:
        rows.reverse()
    return [Experiment(row.path) for row in rows]


def get_trial(trial_id: str) -> Trial:
    """Return a trial, named as ``ID/3``. Raises NotFound: there is none."""
    return Trial(trial_id)


def get_checkpoint(uuid: str) -> Checkpoint:
    """Return a checkpoint by its folder. Raises NotFound: there is none."""
    return checkpoint_of(*by_folder(str(uuid)))


def create_model(name: str, description: object = None, metadata: object = None) -> Model:
    """Return a model to register versions of; the first one makes it."""
    return Model(name)


def get_model(identifier: str) -> Model:
    """Return a model by its name. Raises NotFound: it has no versions."""
    found = Model(str(identifier))
    found.list_versions()
    return found


def list_models(*_: object, **__: object) -> list[Model]:
    """Return all models, by name."""
    from hpcdet import client

    return [Model(one.name) for one in client.models()]


get_models = list_models


def iter_trials_metrics(trial_ids: Sequence[str], group: str) -> Iterator[TrialMetrics]:
    """Yield what trials have reported of a group, trial by trial."""
    return itertools.chain.from_iterable(Trial(one).iter_metrics(group) for one in trial_ids)


stream_trials_metrics = iter_trials_metrics


def stream_trials_training_metrics(trial_ids: Sequence[str]) -> Iterator[TrialMetrics]:
    """Yield what trials have reported of training."""
    return iter_trials_metrics(trial_ids, "training")


def stream_trials_validation_metrics(trial_ids: Sequence[str]) -> Iterator[TrialMetrics]:
    """Yield what trials have reported of validation."""
    return iter_trials_metrics(trial_ids, "validation")


class Determined:
    """The functions of this module as methods; the address of a master counts for nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    create_experiment = staticmethod(create_experiment)
    create_model = staticmethod(create_model)
    get_checkpoint = staticmethod(get_checkpoint)
    get_experiment = staticmethod(get_experiment)
    get_model = staticmethod(get_model)
    get_models = staticmethod(get_models)
    get_session_username = staticmethod(get_session_username)
    get_trial = staticmethod(get_trial)
    iter_trials_metrics = staticmethod(iter_trials_metrics)
    list_experiments = staticmethod(list_experiments)
    list_models = staticmethod(list_models)
    logout = staticmethod(logout)
    stream_trials_metrics = staticmethod(stream_trials_metrics)
    stream_trials_training_metrics = staticmethod(stream_trials_training_metrics)
    stream_trials_validation_metrics = staticmethod(stream_trials_validation_metrics)


def __getattr__(name: str) -> Any:
    absent(__name__, name)
