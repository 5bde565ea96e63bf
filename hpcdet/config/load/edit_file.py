"""Edits of one value in a user's config file; every other character stays unchanged.

The place of a value comes from YAML's own parser; what comes out is read again, and has to say
what was meant and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from hpcdet.errors import ConfigError, UsageError
from hpcdet.store.fs import yaml12


def assign(text: str, key: str, value: str, source: str) -> str:
    """Return the text of a config with a key changed or added.

    Args:
        key: dotted; whole numbers are places in a list.
        value: YAML, kept as it is written where it may stand so.
        source: file name, for messages.

    Raises:
        ConfigError: the text is no mapping in YAML, or the place is one that cannot be changed
            alone (an alias of something else).
        UsageError: the value is not YAML, or the key leads through something that is no map.
    """
    parts = key.split(".")
    if not all(parts):
        raise UsageError(f"{key!r} is no key", where=source, hint="searcher.max_trials")
    try:
        meant = yaml12.scalar(value)
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{value!r} is not YAML: {error}", where=key) from error
    wanted = _unshared(yaml12.parse(text, source).values)
    _put(wanted, parts, meant, source)
    plain = yaml.safe_dump(meant, default_flow_style=True, width=1 << 20, allow_unicode=True)
    for written in (value.strip(), plain.removesuffix("...\n").strip()):
        changed = _write(text, parts, written)
        try:
            if yaml12.parse(changed, source).values == wanted:
                return changed
        except ConfigError:
            continue
    what = f"{key} cannot be changed without changing something else (an alias?)"
    raise ConfigError(what, where=source, hint="change it in an editor")


def _unshared(value: Any) -> Any:
    """Return a copy in which each YAML alias is a value of its own."""
    if isinstance(value, Mapping):
        return {name: _unshared(item) for name, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


def _put(values: Any, parts: list[str], value: Any, source: str) -> None:
    """Change plain data. Raises UsageError."""
    *above, last = parts
    for depth, part in enumerate(above):
        inner = values[_place(values, part, source)] if _has(values, part) else None
        if inner is None:
            inner = {}
            values[_place(values, part, source)] = inner
        if not isinstance(inner, dict | list):
            name = ".".join(parts[: depth + 1])
            raise UsageError(f"{name} is {inner!r}, no map", where=source)
        values = inner
    values[_place(values, last, source)] = value


def _has(values: Any, part: str) -> bool:
    return isinstance(values, list) or part in values


def _place(values: Any, part: str, source: str) -> Any:
    if not isinstance(values, list):
        return part
    if not part.isdigit() or int(part) >= len(values):
        raise UsageError(f"the list has no item {part!r}", where=source)
    return int(part)


def _write(text: str, parts: list[str], value: str) -> str:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return _ended(text) + _lines(parts, value, "")
    key_end = 0
    for depth, part in enumerate(parts):
        if isinstance(node, yaml.MappingNode):
            found = [pair for pair in node.value if str(pair[0].value) == part]
            if not found:
                return _add(text, node, parts[depth:], value)
            name, node = found[0]
            key_end = name.end_mark.index
        elif isinstance(node, yaml.SequenceNode):
            node, key_end = node.value[int(part)], 0
        else:  # nothing stands there yet
            return _replace(text, node, key_end, _flow(parts[depth:], value))
    return _replace(text, node, key_end, value)


def _replace(text: str, node: yaml.Node, key_end: int, value: str) -> str:
    start, end = node.start_mark.index, _end(text, node)
    between = text[key_end:start]
    if key_end and "#" not in between:
        start, value = key_end, f": {value}"
        end = max(end, start)
        if end == node.start_mark.index and ":" not in between:
            end = text.index(":", key_end) + 1  # an empty value: the colon comes after its mark
    return text[:start] + value + text[end:]


def _add(text: str, node: yaml.MappingNode, parts: list[str], value: str) -> str:
    """Add a key at the end of a mapping."""
    end = _end(text, node)
    if node.flow_style:
        comma = ", " if node.value else ""
        return text[: end - 1].rstrip() + comma + _flow_pair(parts, value) + text[end - 1 :]
    newline = text.find("\n", end)
    after = len(text) if newline < 0 else newline + 1
    indent = " " * node.start_mark.column
    return _ended(text[:after]) + _lines(parts, value, indent) + text[after:]


def _end(text: str, node: yaml.Node) -> int:
    """Return the end of a node; the end mark of a block is that of the node after it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        return max((_end(text, inner) for inner in _inside(node)), default=node.end_mark.index)
    start = int(node.start_mark.index)
    return start + len(text[start : node.end_mark.index].rstrip())


def _inside(node: yaml.CollectionNode) -> Iterator[yaml.Node]:
    for each in node.value:
        yield from each if isinstance(each, tuple) else (each,)


def _lines(parts: list[str], value: str, indent: str) -> str:
    """Format a nested key: ``a:``, below it ``b: value``."""
    *above, last = (_name(part) for part in parts)
    lines = [f"{indent}{'  ' * depth}{part}:\n" for depth, part in enumerate(above)]
    return "".join([*lines, f"{indent}{'  ' * len(above)}{last}: {value}\n"])


def _flow(parts: list[str], value: str) -> str:
    return "{" + _flow_pair(parts, value) + "}" if parts else value


def _flow_pair(parts: list[str], value: str) -> str:
    return f"{_name(parts[0])}: {_flow(parts[1:], value)}"


def _name(part: str) -> str:
    """Format a key as YAML; always text, even if it looks like a number."""
    return yaml.safe_dump(part, width=1 << 20).removesuffix("...\n").strip()


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
