"""Layers of a trial's model under its policy: ``python -m hpcdet.model_layers EXP FILE``.

Trial 1 is constructed, which wraps its models; nothing trains. What was found is written to FILE.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.errors import ConfigError, HpcdetError
from hpcdet.policy.codes import PolicyRefused
from hpcdet.process import determined_imports
from hpcdet.process.entrypoint import parse
from hpcdet.process.location import AttemptLocation
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.records import Control
from hpcdet.store.fs import files
from hpcdet.train.attempt import node_proof
from hpcdet.units import Length

if TYPE_CHECKING:  # it takes seconds to import
    import torch

    from hpcdet.guard.guard import Guard


def main(argv: list[str]) -> int:
    """Write the layers of an experiment's model; returns the exit code."""
    experiment, answer = Path(argv[0]).resolve(), Path(argv[1]).resolve()
    sys.dont_write_bytecode = True  # the code snapshot stays as it is
    os.umask(0o077)
    try:
        found = layers(experiment)
    except PolicyRefused as error:  # for the verb to raise again
        code, what = error.what.split(": ", 1)
        found = {"refused": [code, what, error.where, error.hint]}
    except HpcdetError as error:
        print(error, file=sys.stderr)
        return 1
    files.write_once(answer, files.canonical(found))
    return 0


def layers(experiment: Path) -> dict[str, Any]:
    """Construct an experiment's first trial and return its layers, parameters and operators.

    Raises:
        ConfigError: its entrypoint is no class, it wraps no model, or the policy does not fit.
    """
    from hpcdet.pytorch.entry import load_class
    from hpcdet.pytorch.init_context import init

    place = AttemptLocation.of(experiment, 1, 1)
    assert place.experiment is not None
    asked = resolved_config.load(place.experiment.config)
    entrypoint = parse(asked.entrypoint)
    if entrypoint.kind != "class":
        hint = "for other entrypoints, train one batch: hpcdet test"
        raise ConfigError(
            "only a class of a trial can be constructed", where="entrypoint", hint=hint
        )
    node_proof.require(place.experiment, asked)  # before anything of the user's is imported
    determined_imports.offer(asked.compat.determined)
    Control("run", Length("batches", 1)).write_once(place.trial.control(1))
    place.announce()
    os.chdir(place.experiment.code)
    sys.path.insert(0, str(place.experiment.code))
    trial_class = load_class(entrypoint.argv[0])
    refused: PolicyRefused | None = None
    found: dict[str, Any] = {}
    try:
        with init() as context:
            try:
                trial_class(context)
            except PolicyRefused as error:  # or the context would say that code has failed
                refused = error
            guard = context.core.governance.guard
            if guard is not None:
                found = _found(guard)
    except PolicyRefused as error:  # of a trial that has no governed model
        raise refused or error from None
    if refused is not None:
        raise refused
    if not found.get("parameters"):
        hint = "a trial gives its model to context.wrap_model when it is made"
        raise ConfigError("the trial wraps no model that learns", where="entrypoint", hint=hint)
    return found


def _found(guard: Guard) -> dict[str, Any]:
    parameters = [
        [one.name, list(one.shape), known.layers[one.layer]]
        for known in guard.models.maps
        for one in known.parameters
    ]
    groups = {
        name: list(places)
        for known in guard.models.maps
        for name, places in zip(known.layers, known.groups, strict=True)
    }
    return {
        "layers": list(guard.models.layers),
        "groups": [groups[name] for name in guard.models.layers],
        "parameters": parameters,
        "operators": [
            one for model in guard.models.models for one in _operators(model, guard.models.twice)
        ],
    }


def _operators(model: torch.nn.Module, twice: Container[str]) -> Iterator[list[str]]:
    """Yield name, class and kind of each module that uses parameters that learn."""
    inside: set[torch.nn.Module] = set()
    for name, module in model.named_modules():
        learns = any(one.requires_grad for one in module.parameters(recurse=False))
        routed = "_routed" in vars(module)
        if module in inside or not (learns or routed):
            continue
        if routed:  # it uses what its children have
            inside.update(module.modules())
        kind = type(module).__name__
        yield [name, kind, "twice" if (name or kind) in twice else "routed" if routed else "plain"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
