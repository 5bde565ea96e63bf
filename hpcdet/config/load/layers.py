"""Layers of a config, merged, with the origin of every value.

Maps merge, lists and scalars replace, labels and environment variables add up. A length and a
hyperparameter replace as a whole: half of one and half of the other would be neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from hpcdet.errors import UsageError
from hpcdet.store.fs.yaml12 import Document, KeyPath, scalar

_LENGTHS = {("searcher", "max_length"), ("min_validation_period",), ("min_checkpoint_period",)}
_DOMAIN = {"type", "choice", "derived"}
_ADDED = ("environment_variables", "cpu_variables", "cuda_variables")
_DEVICES = {"cpu": "cpu_variables", "cuda": "cuda_variables", "gpu": "cuda_variables"}
"""What Determined calls a kind of device, and our key for its variables."""


@dataclass
class Layered:
    """The merged values and, by dotted key, where each leaf comes from."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def lay(self, document: Document) -> None:
        """Merge a document on top."""
        values = _copy(document.values)
        environment = values.get("environment")
        if isinstance(environment, Mapping):
            given = {key: variables(environment[key]) for key in _ADDED if key in environment}
            values["environment"] = {**environment, **given, **_by_device(environment)}
        self._lay(self.values, values, (), document.origin)

    def set(self, assignment: str) -> None:
        """Merge ``key.path=value`` on top; the value is YAML.

        Raises:
            UsageError: it is not of that form, or leads through something that is no map.
        """
        name, equals, text = assignment.partition("=")
        key = tuple(name.strip().split("."))
        if not equals or not all(key):
            raise UsageError(
                f"{assignment!r} sets nothing", where="--set", hint="--set searcher.max_trials=8"
            )
        try:
            value = scalar(text)
        except (yaml.YAMLError, ValueError) as error:
            raise UsageError(f"{text!r} is not YAML: {error}", where=f"--set {name}") from error
        target: Any = self.values
        for depth, part in enumerate(key[:-1]):
            if isinstance(target, list):
                target = target[self._place(target, part, name)]
            else:
                if target.get(part) is None:
                    target[part] = {}
                target = target[part]
            if not isinstance(target, dict | list):
                inner = ".".join(key[: depth + 1])
                raise UsageError(f"{inner} is {target!r}, no map", where=f"--set {name}")
        if isinstance(target, list):
            target[self._place(target, key[-1], name)] = value
            self._forget(key)
            self.origins[".".join(key)] = f"--set {name}"
        else:
            self._lay(target, {key[-1]: value}, key[:-1], lambda _: f"--set {name}")

    @staticmethod
    def _place(items: Sequence[Any], part: str, name: str) -> int:
        if not part.isdigit() or int(part) >= len(items):
            raise UsageError(f"the list has no item {part!r}", where=f"--set {name}")
        return int(part)

    def _lay(
        self,
        into: dict[str, Any],
        values: Mapping[Any, Any],
        above: KeyPath,
        origin: Callable[[KeyPath], str],
    ) -> None:
        for name, value in values.items():
            key = (*above, str(name))
            old = into.get(name)
            if isinstance(value, dict) and not _whole(key, value):
                if not isinstance(old, dict):
                    self._forget(key)
                    into[name] = old = {}
                if not value:
                    self.origins.setdefault(".".join(key), origin(key))
                self._lay(old, value, key, origin)
                continue
            self._forget(key)
            if key == ("labels",) and isinstance(old, list) and isinstance(value, list):
                value = list(dict.fromkeys([*old, *value]))
            into[name] = value
            self._mark(value, key, origin)

    def _mark(self, value: Any, key: KeyPath, origin: Callable[[KeyPath], str]) -> None:
        if isinstance(value, dict) and value:
            for name, item in value.items():
                self._mark(item, (*key, str(name)), origin)
            return
        self.origins[".".join(key)] = origin(key)
        for place, item in enumerate(value if isinstance(value, list) else ()):
            self._mark(item, (*key, str(place)), origin)

    def _forget(self, key: KeyPath) -> None:
        name = ".".join(key)
        for other in [o for o in self.origins if o == name or o.startswith(f"{name}.")]:
            del self.origins[other]


def _copy(value: Any) -> Any:
    """Return a copy in which nothing is shared, not even values repeated by a YAML alias."""
    if isinstance(value, Mapping):
        return {name: _copy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def _whole(key: KeyPath, value: Mapping[str, Any]) -> bool:
    return key in _LENGTHS or (
        len(key) > 1 and key[0] == "hyperparameters" and not _DOMAIN.isdisjoint(value)
    )


def variables(given: Any) -> Any:
    """Return environment variables as one map; Determined writes a list of ``NAME=value``."""
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        return {name: value for name, _, value in (item.partition("=") for item in given)}
    return given


def _by_device(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Determined's ``environment_variables: {cpu: [...], cuda: [...]}`` to maps."""
    given = environment.get(_ADDED[0])
    if not isinstance(given, dict) or not given or not given.keys() <= _DEVICES.keys():
        return {}
    if not all(isinstance(items, list | dict | None) for items in given.values()):
        return {}
    found: dict[str, Any] = {_ADDED[0]: {}}
    for device, items in given.items():
        key = _DEVICES[device]
        found[key] = {**(found.get(key) or variables(environment.get(key)) or {})}
        found[key].update(variables(items) or {})
    return found
