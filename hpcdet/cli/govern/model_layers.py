"""The layers of a config's model under a policy, from a process of its own (the node tower)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.cli.frame.progress import busy
from hpcdet.cli.inputs.load_request import SubmitRequest, request
from hpcdet.cli.run import preflight
from hpcdet.config.policy.policy_file import read_policy
from hpcdet.jobs import one_shot_job
from hpcdet.jobs.script import launch
from hpcdet.policy.codes import PolicyRefused
from hpcdet.schedulers.common import processes
from hpcdet.store.folder.layout import ExperimentPaths


@dataclass(frozen=True)
class ModelLayers:
    """The answer of ``python -m hpcdet.model_layers``.

    Attributes:
        groups: for each layer, the places of the policy's layers that it obeys.
        parameters: name, shape and layer of each.
        operators: name, class and kind of each module with parameters.
    """

    layers: list[str]
    groups: list[list[int]]
    parameters: list[list[Any]]
    operators: list[list[Any]]


def of(config_file: Path, policy: Path) -> ModelLayers:
    """Make the model of a config's first trial under a policy.

    Raises:
        ConfigError: the config is wrong, its code fails, or the policy does not fit the model.
    """
    set_policy = f"governance.policy={json.dumps(str(policy.absolute()))}"
    wanted = request(config_file, None, [set_policy], None)
    wanted = dataclasses.replace(
        wanted, loaded=dataclasses.replace(wanted.loaded, policy=read_policy(str(policy)))
    )
    wanted = wanted.with_images()
    with _folder(wanted) as folder, busy("making the model"):
        paths = preflight.experiment(wanted, folder / "experiments")
        answer = paths.root / "layers.json"
        command = ["-Pm", "hpcdet.model_layers", str(paths.root), str(answer)]
        code, said = _run(wanted, folder, paths, command)
        if code != 0 or not answer.exists():
            preflight.judge(wanted, code or 1, said)
        found = json.loads(answer.read_text())
    if "refused" in found:
        refusal, what, where, hint = found["refused"]
        raise PolicyRefused(refusal, what, where=f"{policy}: {where}", hint=hint)
    return ModelLayers(**found)


@contextlib.contextmanager
def _folder(wanted: SubmitRequest) -> Iterator[Path]:
    """A folder for a while, where nodes see it if the code may run on some nodes only."""
    if wanted.required is not None:
        with one_shot_job.folder(wanted.root) as place:
            yield place
    else:
        with tempfile.TemporaryDirectory(prefix="hpcdet-policy-") as folder:
            yield Path(folder)


def _run(
    wanted: SubmitRequest, folder: Path, paths: ExperimentPaths, command: list[str]
) -> tuple[int, str]:
    """Run Python where the policy lets the code run; return exit code and output."""
    if wanted.required is not None:
        answer, said = preflight.on_a_node(wanted, folder, paths, command)
        return answer.code, said
    variables = launch.with_variables(os.environ, wanted.resolved.environment)
    argv = preflight.python(wanted, paths, command, sys.executable)
    return processes.ended(argv, variables, None)
