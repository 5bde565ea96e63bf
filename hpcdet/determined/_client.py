"""Replacements for ``determined.experimental.client``: a command for each of its names.

hpcdet has no Python API to experiments yet; what has no place without a server says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

_NO_USERS = "users are those of the cluster: there is no server that has others"
_NO_LOGIN = "there is no server to log in to: the files of experiments say who may read them"
_NO_PROJECTS = "there are no workspaces or projects: a root folder each (HPCDET_ROOT), and labels"
_MODELS = "hpcdet registry ls -o json"
_MODEL = "hpcdet registry show MODEL -o json"
_NO_PACHYDERM = "Pachyderm is not known here"
_AGAIN = "each command reads the files anew"
_CONTROL = "the scheduler looks after the nodes: hpcdet site show"

_SHOW = "hpcdet show ID -o json"
_SHOW_TRIAL = "hpcdet show ID/3 -o json"
_LIST = "hpcdet ls -o json"
_TRIALS = "hpcdet ls --trials -o json"
_CHECKPOINTS = "hpcdet ckpt ls ID -o json"
_CHECKPOINTS_OF_TRIAL = "hpcdet ckpt ls ID/3 -o json"
_BEST = "hpcdet best ID -o json"
_METRICS = "hpcdet metrics ID -o json"
_METRICS_OF_TRIAL = "hpcdet metrics ID/3 -o json"
_LABELS = "hpcdet tag ID --add LABEL, hpcdet tag ID --rm LABEL"
_SORT = "hpcdet ls --sort [-]KEY"

_FUNCTIONS = {
    "hpcdet submit CONFIG MODEL_DIR": "create_experiment",
    _SHOW: "get_experiment",
    _LIST: "list_experiments",
    _SHOW_TRIAL: "get_trial",
    _CHECKPOINTS: "get_checkpoint",
    _METRICS: "iter_trials_metrics stream_trials_metrics stream_trials_training_metrics "
    "stream_trials_validation_metrics",
    _NO_LOGIN: "login logout get_session_username whoami",
    "hpcdet registry add MODEL ID": "create_model",
    _MODEL: "get_model get_model_by_id",
    _MODELS: "get_model_labels get_models list_models",
    _NO_PROJECTS: "create_workspace delete_workspace get_workspace list_workspaces",
    _NO_USERS: "add_oauth_client create_user get_user_by_id get_user_by_name list_oauth_clients "
    "list_users remove_oauth_client",
}
_CLASSES = {
    _CHECKPOINTS: "Checkpoint CheckpointState",
    _SORT: "CheckpointOrderBy CheckpointSortBy ExperimentOrderBy ExperimentSortBy OrderBy "
    "TrialOrderBy TrialSortBy",
    _SHOW: "Experiment ExperimentReference ExperimentState",
    _SHOW_TRIAL: "Trial TrialReference TrialState",
    _METRICS_OF_TRIAL: "TrainingMetrics TrialMetrics ValidationMetrics metrics",
    _MODELS: "Model ModelOrderBy ModelSortBy ModelVersion model",
    _NO_PROJECTS: "Project Workspace",
    _NO_USERS: "Oauth2ScimClient User",
    _CONTROL: "ResourcePool",
    "a type of decorated functions, of no use to other code": "C",
    "`hpcdet ckpt get` copies the files itself": "DownloadMode",
}
_MODULES = {_CHECKPOINTS: "checkpoint"}
_MEMBERS = {
    "Checkpoint": {
        "hpcdet ckpt get CHECKPOINT -o FOLDER": "download",
        "hpcdet ckpt rm CHECKPOINT": "delete remove_files",
        "metadata is given with the checkpoint: core.init().checkpoint.store_path(metadata)": (
            "add_metadata remove_metadata write_metadata_file"
        ),
        _METRICS: "get_metrics",
        _NO_PACHYDERM: "get_pachyderm_commit",
        _AGAIN: "reload",
    },
    "Experiment": {
        "hpcdet resume ID": "activate",
        "hpcdet pause ID": "pause",
        "hpcdet cancel ID": "cancel",
        "hpcdet cancel ID --now": "kill",
        "hpcdet rm ID": "delete",
        "hpcdet wait ID": "wait await_first_trial",
        "hpcdet archive ID (into one file), hpcdet tag ID --add archived": "archive archived",
        "hpcdet tag ID --rm archived": "unarchive",
        _LABELS: "add_label remove_label set_labels set_description set_notes",
        "hpcdet tag ID --add LABEL (an experiment keeps its id)": "set_name",
        "hpcdet ls --fields id,path (code/ in the folder)": "download_code",
        "no TensorBoard files are written but by the code itself": "delete_tensorboard_files",
        "hpcdet show ID --section config": "config",
        "hpcdet move ID FOLDER": "move_to_project",
        "hpcdet status ID -o json": "progress",
        _NO_PROJECTS: "project_id workspace_id",
        _NO_PACHYDERM: "get_pachyderm_config",
        _TRIALS: "get_trials iter_trials list_trials",
        _CHECKPOINTS: "list_checkpoints",
        _BEST: "top_checkpoint top_n_checkpoints",
        _AGAIN: "reload",
    },
    "Trial": {
        "hpcdet cancel ID/3": "kill",
        "hpcdet logs ID/3": "iter_logs logs",
        _METRICS_OF_TRIAL: "iter_metrics stream_metrics stream_training_metrics "
        "stream_validation_metrics summary_metrics",
        _CHECKPOINTS_OF_TRIAL: "get_checkpoints list_checkpoints select_checkpoint",
        _BEST: "top_checkpoint",
        _SHOW: "get_experiment",
        _AGAIN: "reload",
    },
}
_MEMBERS |= {"ExperimentReference": _MEMBERS["Experiment"], "TrialReference": _MEMBERS["Trial"]}

PACKAGES = (
    *("determined.experimental.client", "determined.experimental"),
    "determined.common.experimental",
)
"""Where these names can be imported from."""


def sentences() -> Iterator[tuple[str, str]]:
    """Each name with what does the same here."""
    found = dict(_by_name([_FUNCTIONS, _CLASSES, _MODULES]))
    found["Determined"] = (
        "there is no server to speak to; each method has a command in "
        "docs/reference/determined-names.md"
    )
    found |= {f"Determined.{name}": text for name, text in _by_name([_FUNCTIONS])}
    del found["Determined.login"]  # which is how one is made
    for kind, members in _MEMBERS.items():
        found |= {f"{kind}.{name}": text for name, text in _by_name([members])}
    for package in PACKAGES:
        for name, text in found.items():
            yield f"{package}.{name}", _in_place(text)


def _in_place(text: str) -> str:
    return f"no Python API yet: {text}" if text.startswith("hpcdet ") else text


def _by_name(tables: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    for table in tables:
        for text, names in table.items():
            yield from ((name, text) for name in names.split())
