"""YAML with line numbers, and layers of it merged with the origin of each value."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpcdet.errors import ConfigError

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """One file: its values as plain data and the line of each key."""

    path: Path
    values: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def where(self, key: KeyPath) -> str:
        """``FILE:LINE`` of a key, or of the nearest key above it."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.path}:{self.lines[key]}" if key else str(self.path)


def read(path: Path) -> Layer:
    """Read a YAML mapping.

    Raises:
        ConfigError: it cannot be read, is not YAML, or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the file: {error}", where=str(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {error}", where=str(path)) from error
    if not isinstance(values, dict):
        raise ConfigError("a site file is a mapping of keys to values", where=str(path))
    lines: dict[KeyPath, int] = {}
    _mark(node, (), lines)
    return Layer(path, values, lines)


def _mark(node: yaml.Node | None, key: KeyPath, lines: dict[KeyPath, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            inner = (*key, str(name.value))
            lines[inner] = name.start_mark.line + 1
            _mark(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*key, str(index))] = value.start_mark.line + 1
            _mark(value, (*key, str(index)), lines)


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
