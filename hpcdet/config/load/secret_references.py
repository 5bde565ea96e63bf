"""``data.secrets``, and those of an object store: references stay in a config, literals do not.

So is ``notify.webhook``, whose literals are known by their whole keys (``notify.webhook.url``).
The node resolves ``{env: NAME}`` and ``{file: PATH}`` (``config.data_secrets``). Anything else
is taken out and goes to a file of its own, mode 0600; ``{stored: NAME}`` takes its place, in copies
of the file as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import yaml

from hpcdet.errors import ConfigError
from hpcdet.store.config import webhook_addresses
from hpcdet.store.config.sections import checkpoint_storage
from hpcdet.store.config.sections.notify_keys import WEBHOOK_KEYS
from hpcdet.store.fs import yaml12

if TYPE_CHECKING:
    from hpcdet.config.check.problems import Problem

_FORMS = ("env", "file")
_HOOK = "notify.webhook"
_REFERENCES = (*_FORMS, "stored")
_ANCHOR = re.compile(r"(?:!\S*\s+)?(&\S+\s+)")
_ESCAPE = re.compile(rb"\\[xuU]")
"""In quotes a key may be written so."""
_STORAGE = checkpoint_storage.SECTION.encode()
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
    from hpcdet.config.check.problems import Problem  # pydantic: who scans files needs none

    if not isinstance(secrets, dict):
        what = "expected a map of names to secrets"
        return data, {}, [Problem("data.secrets", what, "secrets: {token: {env: API_TOKEN}}")]
    references, literals, problems = _separated(secrets, "data.secrets", "")
    own = tuple(f"{checkpoint_storage.SECTION}.{key}" for key in checkpoint_storage.SECRETS)
    taken = [n for n in references if str(n).startswith(f"{_HOOK}.") or n in own]
    problems += [
        Problem(f"data.secrets.{name}", "the name is hpcdet's own", "take another name")
        for name in taken
    ]
    return {**data, "secrets": references}, literals, problems


def separate_webhook(
    notify: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """Take the literals out of ``notify``, as ``separate`` does; ``{stored: …}`` is left out."""
    from hpcdet.config.check.problems import Problem  # pydantic: who scans files needs none

    hook = notify.get("webhook")
    if hook is None:
        return notify, {}, []
    hint = "webhook: {url: {env: HOOK_URL}, secret: {file: ~/.hook-secret}}"
    if not isinstance(hook, dict):
        rest = {name: value for name, value in notify.items() if name != "webhook"}
        return rest, {}, [Problem(_HOOK, "expected a map of url and secret", hint)]
    secret = {name: hook[name] for name in WEBHOOK_KEYS if hook.get(name) is not None}
    others = {name: value for name, value in hook.items() if name not in WEBHOOK_KEYS}
    references, literals, problems = _separated(secret, _HOOK, f"{_HOOK}.")
    for key in [key for key, value in literals.items() if not isinstance(value, str)]:
        problems.append(Problem(key, "expected text, or a reference to it", hint))
    url = literals.get(f"{_HOOK}.url")
    if isinstance(url, str) and (why := webhook_addresses.refusal(url)):
        problems.append(Problem(f"{_HOOK}.url", why, "https://HOST/PATH"))
    if "secret" in references and "url" not in references:
        problems.append(Problem(_HOOK, "there is a secret, and no url to send to", hint))
    return {**notify, "webhook": {**others, **references}}, literals, problems


def separate_storage(
    section: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """Take the literals out of ``checkpoint_storage``; they are named by their whole keys.

    Returns: as ``separate``.
    """
    from hpcdet.config.check.problems import Problem  # pydantic: who scans files needs none

    given = {key: section[key] for key in checkpoint_storage.SECRETS if section.get(key)}
    above = f"{checkpoint_storage.SECTION}."
    references, literals, problems = _separated(given, checkpoint_storage.SECTION, above)
    for key in given:
        if not isinstance(literals.get(above + key, ""), str):
            del literals[above + key]
            what, hint = "expected text or a reference", "{env: NAME} or {file: PATH}"
            problems.append(Problem(above + key, what, hint))
    return {**section, **references}, literals, problems


def _separated(
    secrets: dict[str, Any], above: str, stored: str
) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """Return references to secrets, the literals, and what is wrong.

    Args:
        above: the key that they stand below.
        stored: what the name of a literal begins with.
    """
    from hpcdet.config.check.problems import Problem  # pydantic: who scans files needs none

    references: dict[str, Any] = {}
    literals: dict[str, Any] = {}
    problems = []
    for name, value in secrets.items():
        if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _FORMS:
            references[name] = value
            if not isinstance(next(iter(value.values())), str):
                problems.append(Problem(f"{above}.{name}", "expected text as the reference"))
        elif isinstance(value, dict) and value.keys() == {"stored"}:
            what = "the secret itself is kept in another experiment"
            problems.append(Problem(f"{above}.{name}", what, "{env: NAME} or {file: PATH}"))
        else:
            references[name] = {"stored": f"{stored}{name}"}
            literals[f"{stored}{name}"] = value
    return references, literals, problems


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
    """Yield name and value of each secret in data that may be a config."""
    words = ((b"data", b"secrets"), (b"notify", b"webhook"))
    named = any(one in contents and two in contents for one, two in words)
    named = named or _STORAGE in contents or _ESCAPE.search(contents) is not None
    if len(contents) > yaml12.LARGEST or not named:
        return
    try:
        root = yaml12.node(contents.decode().removeprefix(_MARK))
    except (UnicodeDecodeError, ConfigError):
        return
    for node in _below(root, "data", "secrets"):
        yield from _pairs(node)
    for node in _below(root, "notify", "webhook"):
        yield from ((f"{_HOOK}.{name}", value) for name, value in _pairs(node))
        if isinstance(node, yaml.ScalarNode) and node.tag != "tag:yaml.org,2002:null":
            yield _HOOK, node
    for node in _below(root, checkpoint_storage.SECTION):
        for name, value in _pairs(node):
            if name in checkpoint_storage.SECRETS:
                yield f"{checkpoint_storage.SECTION}.{name}", value


def _below(root: yaml.Node, *keys: str) -> list[yaml.Node]:
    nodes = [root]
    for key in keys:
        nodes = [value for node in nodes for name, value in _pairs(node) if name == key]
    return nodes


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


def is_reference(value: object) -> bool:
    """True for ``{env: NAME}`` and ``{file: PATH}``."""
    return (
        isinstance(value, dict)
        and len(value) == 1
        and next(iter(value)) in _FORMS
        and isinstance(next(iter(value.values())), str)
    )


def _is_reference(node: yaml.Node) -> bool:
    names = [name for name, _ in _pairs(node)]
    return len(names) == 1 and names[0] in _REFERENCES
