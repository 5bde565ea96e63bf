"""Names of ``determined.experimental.client`` that hpcdet does not have, and what replaces them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

_NO_USERS = "users are those of the cluster: there is no server that has others"
_NO_PROJECTS = "there are no workspaces: `workspace` and `project` are keys of the config"
_NO_PACHYDERM = "Pachyderm is not known here"
_NO_METADATA = "metadata is given with the checkpoint: core.init().checkpoint.store_path(metadata)"
_CONTROL = "the scheduler looks after the nodes: hpcdet site show"
_MODELS = "hpcdet registry: label, note, archive, rm, ls --where"

_FUNCTIONS = {
    "models are known by their names: get_model": "get_model_by_id",
    _MODELS: "get_model_labels",
    _NO_PROJECTS: "create_workspace delete_workspace get_workspace list_workspaces",
    _NO_USERS: "add_oauth_client create_user get_user_by_id get_user_by_name list_oauth_clients "
    "list_users remove_oauth_client",
    "get_session_username()": "whoami",
}
_CLASSES = {
    "hpcdet registry ls --sort KEY": "ModelSortBy",
    _NO_PROJECTS: "Project Workspace",
    _NO_USERS: "Oauth2ScimClient User",
    _CONTROL: "ResourcePool",
    "a type of decorated functions, of no use to other code": "C",
}
_MODULES = {"use determined.experimental.client": "checkpoint metrics model"}
_MEMBERS = {
    "Checkpoint": {
        "hpcdet ckpt rm CHECKPOINT": "delete remove_files",
        _NO_METADATA: "add_metadata remove_metadata",
        _NO_PACHYDERM: "get_pachyderm_commit",
    },
    "Experiment": {
        "hpcdet rm ID": "delete",
        "no TensorBoard files are written but by the code itself": "delete_tensorboard_files",
        "hpcdet move ID FOLDER": "move_to_project",
        _NO_PROJECTS: "project_id workspace_id",
        _NO_PACHYDERM: "get_pachyderm_config",
    },
    "ExperimentSortBy": {
        "hpcdet ls --sort [-]KEY": "CHECKPOINT_COUNT CHECKPOINT_SIZE DESCRIPTION END_TIME "
        "FORKED_FROM RESOURCE_POOL",
    },
    "TrialSortBy": {
        "hpcdet ls --trials --sort [-]KEY": "CHECKPOINT_SIZE DURATION LATEST_VALIDATION_METRIC "
        "LOG_RETENTION_DAYS",
    },
    "Model": {
        _MODELS: "add_metadata archive archived creation_time delete description labels "
        "last_updated_time metadata move_to_workspace remove_metadata set_description set_labels "
        "unarchive username workspace_id",
    },
    "ModelVersion": {
        _MODELS: "delete set_name set_notes",
        "hpcdet metrics of the version's experiment": "get_metrics iter_metrics",
    },
}
_MEMBERS |= {"ExperimentReference": _MEMBERS["Experiment"]}

PACKAGES = (
    *("determined.experimental.client", "determined.experimental"),
    "determined.common.experimental",
)
"""Where these names can be imported from."""


def sentences() -> Iterator[tuple[str, str]]:
    """Each name with what does the same here."""
    found = dict(_by_name([_FUNCTIONS, _CLASSES, _MODULES]))
    found |= {f"Determined.{name}": text for name, text in _by_name([_FUNCTIONS])}
    for kind, members in _MEMBERS.items():
        found |= {f"{kind}.{name}": text for name, text in _by_name([members])}
    for package in PACKAGES:
        for name, text in found.items():
            yield f"{package}.{name}", text


def _by_name(tables: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    for table in tables:
        for text, names in table.items():
            yield from ((name, text) for name in names.split())
