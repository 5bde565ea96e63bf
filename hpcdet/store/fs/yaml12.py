"""YAML 1.2 as users expect it, with the line of every key.

PyYAML reads YAML 1.1, where ``1e-4`` is text, ``on`` is true, ``12:30`` is 750 and ``010`` is 8.
Here scalars are those of YAML 1.2: a learning rate is a number and ``notify.on`` a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from hpcdet.errors import ConfigError
from hpcdet.store.fs import yaml_bounds
from hpcdet.store.fs.bounded_json import Unreasonable

KeyPath = tuple[str, ...]
DEEPEST = 100
"""Levels of maps and lists within each other; what is deeper is a mistake or an attack."""
LARGEST = 1024**2
"""Bytes of one file; what is larger is data, given by mistake."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.2's core schema on PyYAML's parser."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first)
    )


def _whole(loader: Any, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


@dataclass(frozen=True)
class Document:
    """A mapping that a user wrote.

    Attributes:
        source: file name, or what else to call it in messages.
        lines: line of each key, list items included.
    """

    source: str
    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def origin(self, key: KeyPath) -> str:
        """Return ``FILE:LINE`` of a key, or of the nearest one above it that has a line."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.source}:{self.lines[key]}" if key else self.source


def scalar(text: str) -> Any:
    """Return the value of a piece of YAML, such as ``TEXT`` in ``--set key=TEXT``.

    Raises:
        yaml.YAMLError, ValueError: it has none, or one beyond the bounds of ``yaml_bounds``.
    """
    yaml_bounds.check(text, DEEPEST)
    return yaml.load(text, Loader=_Loader)


def node(text: str) -> yaml.Node:
    """Return the node tree of one document, with places in the text, without building values.

    Raises:
        ConfigError: it is not YAML, or there is nothing in it.
    """
    loader = _Loader(text)
    try:
        found = loader.get_single_node()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError("not YAML") from error
    finally:
        loader.dispose()
    if found is None:
        raise ConfigError("there is nothing in it")
    return found  # type: ignore[no-any-return]


def read(path: Path) -> Document:
    """Read a file that holds a mapping.

    Raises:
        ConfigError: it cannot be read, is not YAML or no mapping, or has a key twice.
    """
    return parse(text(path), str(path))


def text(path: Path) -> str:
    """Return the text of a file that a user wrote. Raises ConfigError: it cannot be read."""
    try:
        with path.open("rb") as file:  # perhaps the user's own pipe
            return text_of(file, str(path))
    except OSError as error:
        raise ConfigError(f"cannot read the file: {error.strerror}", where=str(path)) from error


def text_of(file: IO[bytes], source: str) -> str:
    """Return the text of an open file, as ``text`` does of a path; ``source``: its name."""
    found = file.read(LARGEST + 1)
    if len(found) > LARGEST:
        what = f"no config is that large (more than {LARGEST} bytes)"
        raise ConfigError(what, where=source)
    try:
        return found.decode("utf-8")  # line ends as they are
    except UnicodeDecodeError as error:
        line = found[: error.start].count(b"\n") + 1
        what = f"cannot read the file: {error}"
        hint = "write it as UTF-8: iconv -f latin1 -t utf-8 FILE, if it is Latin-1"
        raise ConfigError(what, where=f"{source}:{line}", hint=hint) from error


def parse(text: str, source: str) -> Document:
    """Read a mapping from text, as ``read`` does from a file."""
    lines: dict[KeyPath, int] = {}
    loader = None
    try:
        yaml_bounds.check(text, DEEPEST)
        loader = _Loader(text)
        node = loader.get_single_node()
        _mark(node, (), lines, source, set())
        values = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        raise ConfigError(f"not YAML: {error.problem or error.context}", where=where) from error
    except Unreasonable as error:
        raise ConfigError(str(error), where=f"{source}:{error.line}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"not YAML: {error}", where=source) from error
    finally:
        if loader is not None:
            loader.dispose()
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError("not a mapping of keys to values", where=source, hint="name: digits")
    return Document(source, values, lines)


def _mark(
    node: yaml.Node | None,
    key: KeyPath,
    lines: dict[KeyPath, int],
    source: str,
    seen: set[int],
) -> None:
    """Record the line of every key below ``node``; an alias has the lines of its anchor."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        mine: set[str] = set()
        for name, value in node.value:
            inner = (*key, str(name.value))
            line = name.start_mark.line + 1
            if inner[-1] in mine and inner[-1] != "<<":
                what = f"the key {inner[-1]!r} stands here twice"
                hint = f"keep one of them; the first is in line {lines[inner]}"
                raise ConfigError(what, where=f"{source}:{line}", hint=hint)
            mine.add(inner[-1])
            lines[inner] = line
            _mark(value, inner, lines, source, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*key, str(index))] = value.start_mark.line + 1
            _mark(value, (*key, str(index)), lines, source, seen)
