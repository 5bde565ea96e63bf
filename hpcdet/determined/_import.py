"""``det.import_from_path``: code that lies in a checkpoint, beside code of the same name."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def import_from_path(path: str | os.PathLike[str]) -> Iterator[None]:
    """While the block lasts, modules come from a folder first; afterwards their names are free.

    What was imported from elsewhere under the same names is back after the block.
    """
    folder = Path(path).resolve()
    own = {name: sys.modules.pop(name) for name in _names_in(folder) & sys.modules.keys()}
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and folder in Path(file).resolve().parents:
                del sys.modules[name]
        sys.modules.update(own)


def _names_in(folder: Path) -> set[str]:
    """The loaded modules that a folder's own would be confused with, submodules included."""
    if not folder.is_dir():
        return set()
    tops = {one.stem for one in folder.iterdir() if one.suffix == ".py" or one.is_dir()}
    return {
        name
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in tops
        and getattr(module, "__file__", None)
        and not _installed(name.partition(".")[0])
    }


def _installed(top: str) -> bool:
    """Whether a package is a library's: a folder ``torch`` in a checkpoint must not unload it."""
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return top in sys.stdlib_module_names or "site-packages" in Path(file).parts
