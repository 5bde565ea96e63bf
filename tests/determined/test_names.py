"""Every public name of Determined 0.38 is here, or hpcdet says what there is in its place.

``tests/recorded/determined-0.38-names.json``: names by module, with the members of classes.
"""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType

import pytest

from hpcdet.determined import _client
from hpcdet.determined._absent import ABSENT, why_absent
from tests import determined_names
from tests.determined_names import NAMES

FRAMEWORKS = {
    "determined.keras": "keras",
    "determined.lightning.experimental": "lightning",
    "determined.pytorch.deepspeed": "deepspeed",
    "determined.transformers": "transformers",
}


def face(module: str) -> ModuleType | None:
    """Hpcdet's module for one of Determined's; None where its absence is explained."""
    try:
        return importlib.import_module(f"hpcdet.{module}")
    except ModuleNotFoundError:
        assert why_absent(module), f"without an address {module} is"
        return None


def is_set(kind: type, name: str) -> bool:
    """Whether instances have an attribute that the class has not: a field."""
    sources = [inspect.getsource(one) for one in kind.__mro__ if one.__module__ != "builtins"]
    written = re.compile(rf"^\s+((self\.)?{name}\b|self\..*\bself\.{name}\b).*[:=]", re.M)
    return any(written.search(source) for source in sources)


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
    """The page says of what has no sentence that it works."""
    wrong = []
    for name in ABSENT:
        holder, _, last = name.rpartition(".")
        module, _, kind = holder.rpartition(".")
        found = face(holder) if holder in NAMES and holder not in FRAMEWORKS else None
        if module in NAMES and module not in FRAMEWORKS and kind in NAMES[module]:
            there = vars(face(module) or object).get(kind)
            wrong += [name] if isinstance(there, type) and hasattr(there, last) else []
        elif found is not None and last in vars(found):
            wrong += [] if isinstance(vars(found)[last], ModuleType) else [name]
    assert not wrong


def test_the_page_has_every_name_and_verb() -> None:
    page = determined_names.page()
    assert determined_names.PAGE.read_text() == page, "make names"
    for module, names in NAMES.items():
        _, _, rest = page.partition(f"\n## {module}\n")
        section = rest.partition("\n## ")[0]
        assert section and all(f"`{name}`" in section for name in names), module
    assert page.count("\n| `det ") == len(determined_names.VERBS) == 182


def test_what_is_said_of_names_is_of_names_that_are_recorded() -> None:
    known = {*NAMES}
    for module, names in NAMES.items():
        known |= {f"{module}.{name}" for name in names}
        known |= {f"{module}.{name}.{one}" for name in names for one in names[name]}
    assert determined_names.REMARKS.keys() <= known
    told = {name.removeprefix(f"{_client.PACKAGES[0]}.") for name, _ in _client.sentences()}
    of_client = {name for name in told if not name.startswith(_client.PACKAGES[1:])}
    assert not [
        name for name in of_client if not known & {f"{each}.{name}" for each in _client.PACKAGES}
    ]
