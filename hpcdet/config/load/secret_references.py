"""``data.secrets``: references stay in the config, literals are removed from it.

The node resolves ``{env: NAME}`` and ``{file: PATH}`` (``config.data_secrets``). Anything else
is taken out and goes to a file of its own, mode 0600; ``{stored: NAME}`` takes its place, in copies
of the file as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from hpcdet.config.check.problems import Problem
from hpcdet.errors import ConfigError
from hpcdet.store.fs import yaml12

_FORMS = ("env", "file")
_REFERENCES = (*_FORMS, "stored")
_ANCHOR = re.compile(r"(?:!\S*\s+)?(&\S+\s+)")
_ESCAPE = re.compile(rb"\\[xuU]")
"""In quotes a key may be written so."""
_MARK = "\ufeff"
"""Before what some editors write; places in a document are counted behind it."""


def separate(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """Take the literals out of ``data``.

    Returns:
        ``data`` with references only, the literals by name, and what is wrong. No message
        holds a value.
    """
    secrets = data.get("secrets")
    if secrets is None:
        return data, {}, []
    if not isinstance(secrets, dict):
        what = "expected a map of names to secrets"
        return data, {}, [Problem("data.secrets", what, "secrets: {token: {env: API_TOKEN}}")]
    references: dict[str, Any] = {}
    literals: dict[str, Any] = {}
    problems = []
    for name, value in secrets.items():
        if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _FORMS:
            references[name] = value
            if not isinstance(next(iter(value.values())), str):
                problems.append(Problem(f"data.secrets.{name}", "expected text as the reference"))
        elif isinstance(value, dict) and value.keys() == {"stored"}:
            what = "the secret itself is kept in another experiment"
            problems.append(Problem(f"data.secrets.{name}", what, "{env: NAME} or {file: PATH}"))
        else:
            references[name] = {"stored": name}
            literals[name] = value
    return {**data, "secrets": references}, literals, problems


def redacted(contents: bytes) -> bytes:
    """Return a config file's contents with references for its literals; other files unchanged."""
    spans = {
        (node.start_mark.index, node.end_mark.index): name
        for name, node in _secrets(contents)
        if not _is_reference(node)
    }
    if not spans:
        return contents
    text = contents.decode()
    mark, text = text[: text.startswith(_MARK)], text.removeprefix(_MARK)
    inner = {(a, b) for a, b in spans for c, d in spans if c <= a and b <= d and (a, b) != (c, d)}
    for (start, end), name in sorted(spans.items(), reverse=True):
        if (start, end) in inner:
            continue
        value = text[start:end]
        anchor = _ANCHOR.match(value)
        # a block ends where the next key begins: what is between belongs to that
        rest = value[len(value.rstrip()) :]
        reference = f"{anchor[1] if anchor else ''}{{stored: {json.dumps(name)}}}"
        # a list may begin right below its key, where a mapping has to be further in
        indent = " " if value.startswith("-") else ""
        text = f"{text[:start]}{indent}{reference}{rest}{text[end:]}"
    return (mark + text).encode()


def holds(contents: bytes) -> bool:
    """True for a config file with secrets or with references to them."""
    return next(_secrets(contents), None) is not None


def _secrets(contents: bytes) -> Iterator[tuple[str, yaml.Node]]:
    """Yield name and value of each of ``data.secrets`` in data that may be a config."""
    named = (b"secrets" in contents and b"data" in contents) or _ESCAPE.search(contents)
    if len(contents) > yaml12.LARGEST or not named:
        return
    try:
        nodes = [yaml12.node(contents.decode().removeprefix(_MARK))]
    except (UnicodeDecodeError, ConfigError):
        return
    for key in ("data", "secrets"):
        nodes = [value for node in nodes for name, value in _pairs(node) if name == key]
    for node in nodes:
        yield from _pairs(node)


def _pairs(node: yaml.Node, above: tuple[yaml.Node, ...] = ()) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the keys and values of a mapping, with those that it merges (``<<``)."""
    if not isinstance(node, yaml.MappingNode) or node in above:
        return
    for name, value in node.value:
        if name.value == "<<":
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for other in merged:
                yield from _pairs(other, (*above, node))
        else:
            yield str(name.value), value


def _is_reference(node: yaml.Node) -> bool:
    names = [name for name, _ in _pairs(node)]
    return len(names) == 1 and names[0] in _REFERENCES
