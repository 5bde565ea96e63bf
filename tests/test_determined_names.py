"""Every public name of Determined 0.38 is here, or hpcdet says what there is in its place.

``tests/recorded/determined-0.38-names.json``: names by module, with the methods of classes.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from hpcdet.determined._absent import ABSENT, why_absent

NAMES = json.loads((Path(__file__).parent / "recorded/determined-0.38-names.json").read_text())
FRAMEWORKS = {
    "determined.keras": "keras",
    "determined.lightning.experimental": "lightning",
    "determined.pytorch.deepspeed": "deepspeed",
    "determined.transformers": "transformers",
}


def face(module: str) -> ModuleType | None:
    """hpcdet's module for one of Determined's; None where its absence is explained."""
    try:
        return importlib.import_module(f"hpcdet.{module}")
    except ModuleNotFoundError:
        assert why_absent(module), f"nobody says where {module} is"
        return None


def is_set(kind: type, name: str) -> bool:
    """Whether instances have an attribute that the class has not: a field."""
    return re.search(rf"^\s+(self\.)?{name}\b.*[:=]", inspect.getsource(kind), re.M) is not None


@pytest.mark.parametrize("module", sorted(NAMES))
def test_each_name_is_here_or_explained(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    if module in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[module])
    found = face(module)
    lost = []
    for name, members in NAMES[module].items():
        try:
            there = getattr(found, name) if found is not None else None
        except (AttributeError, ImportError):
            there = None
        if there is None and not (found is not None and "_OPENED" in vars(found)):
            lost += [] if why_absent(f"{module}.{name}") else [name]
        elif isinstance(there, type):
            own = f"{module}.{name}"
            lost += [
                f"{name}.{one}"
                for one in members
                if not (hasattr(there, one) or f"{own}.{one}" in ABSENT or is_set(there, one))
            ]
    assert not lost, f"{module}: {', '.join(lost)}"


def test_nothing_is_explained_that_is_here() -> None:
    """But for names under a module whose sentence holds for the rest of it."""
    wrong = []
    for name in ABSENT:
        module, _, last = name.rpartition(".")
        found = face(module) if module in NAMES and module not in FRAMEWORKS else None
        if (
            found is not None
            and last in vars(found)
            and not isinstance(vars(found)[last], ModuleType)
        ):
            wrong.append(name)
    assert not wrong
