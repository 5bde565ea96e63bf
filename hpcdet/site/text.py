"""YAML with line numbers, and layers of it merged with the origin of each value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.store.fs import yaml12
from hpcdet.store.fs.yaml12 import KeyPath


@dataclass(frozen=True)
class Layer:
    """One file: its values as plain data and the line of each key."""

    path: Path
    values: dict[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def where(self, key: KeyPath) -> str:
        """``FILE:LINE`` of a key, or of the nearest key above it."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.path}:{self.lines[key]}" if key else str(self.path)


def read(path: Path) -> Layer:
    """Read a YAML 1.2 mapping: ``time: 12:00:00`` is text and ``on`` is a word."""
    document = yaml12.read(path)
    if not document.values:
        raise ConfigError("the site file is empty", where=str(path))
    return Layer(path, dict(document.values), document.lines)


def merge(layers: list[Layer]) -> tuple[dict[str, Any], dict[KeyPath, Layer]]:
    """Later layers over earlier ones: mappings merge, everything else replaces.

    Returns:
        The merged values, and for each leaf the layer it comes from.
    """
    values: dict[str, Any] = {}
    origins: dict[KeyPath, Layer] = {}
    for layer in layers:
        _lay(values, layer.values, (), layer, origins)
    return values, origins


def _lay(
    into: dict[str, Any],
    values: dict[str, Any],
    key: KeyPath,
    layer: Layer,
    origins: dict[KeyPath, Layer],
) -> None:
    for name, value in values.items():
        inner = (*key, str(name))
        if isinstance(value, dict) and isinstance(into.get(name, {}), dict):
            _lay(into.setdefault(name, {}), value, inner, layer, origins)
        else:
            into[name] = value
            origins[inner] = layer


def nearest(name: str, known: list[str]) -> str:
    """``did you mean …`` for a misspelt key, or the list of the keys there are."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"
