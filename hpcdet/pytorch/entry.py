"""Running a trial's class or a Python script in this process, which takes signals already."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path

from hpcdet.errors import ConfigError
from hpcdet.process.entrypoint import Entrypoint
from hpcdet.pytorch.api.trial import PyTorchTrial
from hpcdet.pytorch.init_context import init
from hpcdet.pytorch.trainer import fit_as_configured


def run_entrypoint(entrypoint: Entrypoint, code: Path) -> None:
    """Run it with the code folder as current folder and first on the module path.

    Raises:
        ConfigError: the entrypoint names nothing that can be run.
    """
    os.chdir(code)
    sys.path.insert(0, str(code))
    if entrypoint.kind == "class":
        trial_class = load_class(entrypoint.argv[0])
        with init() as context:
            fit_as_configured(trial_class(context), context)
        return
    first, *rest = entrypoint.argv
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [first, *rest]
    sys.path.insert(0, str((code / first).parent))
    runpy.run_path(first, run_name="__main__")


def load_class(entrypoint: str) -> type[PyTorchTrial]:
    """The trial's class of ``module:Class``.

    Raises:
        ConfigError: the module has no such class.
        Exception: whatever importing the module raises.
    """
    module, _, name = entrypoint.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, PyTorchTrial)):
        raise ConfigError(
            f"module {module!r} has no PyTorchTrial named {name!r}",
            where=f"entrypoint: {entrypoint}",
            hint="write it as module:Class, the module lying in the model folder",
        )
    return found
