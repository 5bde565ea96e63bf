"""``import determined`` in code that is run as it is: the package itself, or hpcdet's face of it.

A folder of hpcdet's with a package ``determined`` in it is the last on this process's module
path, and in ``PYTHONPATH`` for what it starts. Whoever imports that package gets the installed
one, if there is one; else ``hpcdet.determined``, under that name, with its submodules. Folders
``determined`` without an ``__init__.py`` are no package: what they have beside is found, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import MutableMapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

import hpcdet
from hpcdet.errors import ConfigError
from hpcdet.process.console import say
from hpcdet.process.ranks import Ranks

NAME = "determined"
FACE = "hpcdet.determined"
FOLDER = str(Path(hpcdet.__file__).parent / "standin")


def offer(wanted: str, env: MutableMapping[str, str] = os.environ) -> None:
    """Let ``import determined`` find hpcdet's face, here and in what this process starts.

    Args:
        wanted: the config's ``compat.determined``: ``auto``, or ``off`` for nothing of it.
    """
    if wanted == "off":
        return
    if FOLDER not in sys.path:
        sys.path.append(FOLDER)
    before = env.get("PYTHONPATH", "")
    if FOLDER not in before.split(os.pathsep):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [before, FOLDER]))


def stand_in() -> None:
    """Called by the package in ``FOLDER`` while it is imported: put another in its place."""
    path = [one for one in sys.path if one != FOLDER]
    real = PathFinder.find_spec(NAME, path)
    if real is not None and real.loader is not None and real.origin is not None:
        module = importlib.util.module_from_spec(real)
        sys.modules[NAME] = module
        real.loader.exec_module(module)
        _say(
            f"`import {NAME}` is the package in {Path(real.origin).parent}, which knows nothing "
            "of hpcdet: it trains as if alone; uninstall it to use hpcdet's own"
        )
        return
    beside = [*(real.submodule_search_locations or [])] if real is not None else []
    sys.meta_path.insert(0, _Finder(beside))  # first: else the path finder makes a second copy
    sys.modules[NAME] = importlib.import_module(FACE)
    importlib.import_module(f"{FACE}._groups").take_over()
    _say(
        f"`import {NAME}` is hpcdet's face of it (docs/start/port.md); compat.determined: off "
        "leaves it out"
    )


def _say(text: str) -> None:
    try:
        chief = Ranks.from_environment().chief
    except ConfigError:  # which whoever joins says
        chief = False
    if chief:
        say(text)


class _Finder(MetaPathFinder):
    """``determined.X`` is the module ``hpcdet.determined.X``, the same object.

    Args:
        beside: folders of this name that are no package, for what hpcdet has not.
    """

    def __init__(self, beside: Sequence[str]) -> None:
        self._beside = beside

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        if (
            not name.startswith(f"{NAME}.")
            or parent is None
            or not parent.__name__.startswith(FACE)
        ):
            return None
        there = FACE + name.removeprefix(NAME)
        found = importlib.util.find_spec(there)
        if found is None:
            own = PathFinder.find_spec(name, self._beside) if name.count(".") == 1 else None
            if own is not None:
                return own
            why = importlib.import_module(f"{FACE}._absent").why_absent(name)
            raise ModuleNotFoundError(
                f"No module named {name!r}: hpcdet has none"
                f"{f': {why}' if why else ''} (docs/start/port.md)",
                name=name,
            )
        packaged = found.submodule_search_locations is not None
        return ModuleSpec(name, _Alias(there, found), origin=found.origin, is_package=packaged)


class _Alias(Loader):
    """Gives a module that is imported under another name."""

    def __init__(self, there: str, found: ModuleSpec) -> None:
        self._there, self._found = there, found

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._there)

    def get_code(self, name: str) -> CodeType | None:
        """For ``python -m``."""
        return self._found.loader.get_code(self._there)  # type: ignore[union-attr, no-any-return]
