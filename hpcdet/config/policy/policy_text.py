"""The text of a policy, checked key by key; every problem has its line."""

from __future__ import annotations

import contextlib
import difflib
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from hpcdet.config.policy.policy_keys import VERSION, PolicyKeys
from hpcdet.errors import ConfigError, HpcdetError
from hpcdet.policy.codes import PolicyRefused
from hpcdet.store.fs import yaml12, yaml_bounds
from hpcdet.store.fs.yaml12 import Document

_EXPECTED = {
    "int_type": ("a whole number", "write it without quotes and without a fraction: 4"),
    "float_type": ("a number", "write it without quotes: 0.5"),
    "bool_type": ("true or false", "write one of the two, without quotes"),
    "string_type": ("text", "in quotes it is text"),
    "list_type": ("a list", "[A, B], or a line with - for each"),
    "dict_type": ("a map", "{KEY: VALUE}, or a line for each key"),
    "model_type": ("a map", "{KEY: VALUE}, or a line for each key"),
    "finite_number": ("a finite number", "write one such as 0.5"),
}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_ABSENT = {
    "apiVersion": f"apiVersion: {VERSION}",
    "name": "name: what people call the policy",
    "version": "version: 1",
    "layers": "of the policy: [{id: all, match: .}]; of a rule: ['*']",
    "sources": "sources: [{id: NAME}]",
    "rules": "rules: [{id: NAME, match: {source: NAME}, layers: ['*'], weight: 1}]",
    "id": "id: NAME",
    "match": r"of a layer: '^head\.'; of a rule: {source: NAME}",
    "weight": "weight: a number from 0 (nothing) to 1 (all)",
    "role": "role: site, data, policy or run",
    "key": "key: the public key that hpcdet policy keygen prints",
    "uri": "uri: the file, relative to the model's folder",
    "merkle_root": "merkle_root: the digest that hpcdet data manifest prints",
    "head": "head: the digest that hpcdet data chain show prints of the link admit",
    "batches": "batches: 500",
}
"""What to write for a key that is missing."""
_ELSEWHERE = {
    "audit": "probe_every: {batches: 500}",
    "pairs_per_source": "it is called pairs",
    "key_ref": "the experiment's config has it: governance.twin_key",
    "min_site_attestation": "it is called statement",
    "path": "each attempt has its ledger in the experiment's folder",
}
"""Keys of drafts of this format."""
_LENGTH = "make it shorter or longer; docs/reference/policy.md has every key"
_UNKNOWN_ALLOWED = "data of unknown sources are never allowed: deny, or drop and count them"


_MOST = 20
"""Problems that are told at once."""


@dataclass(frozen=True)
class PolicyProblem:
    """A problem of a policy; ``key`` is dotted, places in lists are numbers."""

    key: str
    what: str
    hint: str = ""
    code: str = "P01"


Load = Callable[[str], Any]
"""Returns what a JSON file holds that a policy names; raises ``ValueError``, ``OSError`` or
``HpcdetError``."""


def read(text: str, source: str, load: Load | None = None) -> tuple[PolicyKeys, Document]:
    """Check the keys of a policy.

    Args:
        source: what messages call the file.
        load: of files that it names; None: it may name none.

    Raises:
        PolicyRefused: P01, with every problem found, each with its line.
    """
    try:
        document = yaml12.parse(text, source)
    except ConfigError as error:
        raise PolicyRefused("P01", error.what, where=error.where, hint=error.hint) from None
    _refuse_references(text, document)
    with _without_plugins():
        PolicyKeys.model_rebuild()
    try:
        return PolicyKeys.model_validate(_whole(document, load)), document
    except ValidationError as error:
        raise failure(_problems(error, document.values), document) from None


@contextlib.contextmanager
def _without_plugins() -> Iterator[None]:
    """Keep pydantic from looking through all installed packages for plugins.

    None of them has a part in what a policy means; and the search takes longer than the policy.
    """
    name = "PYDANTIC_DISABLE_PLUGINS"
    before = os.environ.get(name)
    os.environ[name] = "__all__"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _whole(document: Document, load: Load | None) -> dict[str, Any]:
    """The values of a policy, with those of the file that its reference is in."""
    values: Any = dict(document.values)
    try:
        name = values["entropy"]["spectral"]["expected"]
    except (KeyError, TypeError):
        return dict(values)
    if load is None or not isinstance(name, str):
        return dict(values)
    try:
        found = load(name)
    except (OSError, ValueError, HpcdetError) as error:
        why = error.strerror if isinstance(error, OSError) else getattr(error, "what", error)
        hint = error.hint if isinstance(error, ConfigError) else ""
        hint = hint or 'a JSON file beside the policy: {"LAYER": [MEAN, SD]}'
        problem = PolicyProblem(_REFERENCE, f"cannot read {name}: {why}", hint)
        raise failure([problem], document) from None
    entropy = values["entropy"]
    spectral = {**entropy["spectral"], "expected": found}
    return {**values, "entropy": {**entropy, "spectral": spectral}}


_REFERENCE = "entropy.spectral.expected"


def failure(problems: Iterable[PolicyProblem], document: Document) -> PolicyRefused:
    """All problems as one error, in the order of their lines; its code is the first's."""
    first, *others = sorted(problems, key=lambda one: document.lines.get(_path(one.key), 0))
    where = _where(first, document)
    if not others:
        return PolicyRefused(first.code, first.what, where=where, hint=first.hint)
    lines = [
        f"  {_where(one, document)}: {one.code}: {one.what}"
        + (f" ({one.hint})" if one.hint else "")
        for one in (first, *others)[:_MOST]
    ]
    more = len(others) + 1 - len(lines)
    lines += [f"  and {more} more"] if more else []
    what = "\n".join([f"{len(others) + 1} problems", *lines])
    return PolicyRefused(first.code, what, where=document.source)


def _where(problem: PolicyProblem, document: Document) -> str:
    return f"{document.origin(_path(problem.key))}: {problem.key}".removesuffix(": ")


def _path(key: str) -> tuple[str, ...]:
    return tuple(key.split(".")) if key else ()


def _refuse_references(text: str, document: Document) -> None:
    """Refuse anchors, aliases and merge keys: what stands in a place is all that holds there."""
    problems = []
    for event in yaml.parse(text, Loader=yaml_bounds.LOADER):
        anchor = getattr(event, "anchor", None)
        if anchor is not None and event.start_mark is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            problems.append((event.start_mark.line + 1, f"{sign}{anchor}"))
    problems += [(line, "<<") for key, line in document.lines.items() if key[-1] == "<<"]
    if problems:
        line, what = min(problems)
        raise PolicyRefused(
            "P01",
            f"{what} refers to another place of the file",
            where=f"{document.source}:{line}",
            hint="write out what it stands for: a policy says everything where it holds",
        )


def _problems(error: ValidationError, values: Mapping[str, Any]) -> list[PolicyProblem]:
    """The problems that pydantic found, one for each key."""
    found: dict[str, PolicyProblem] = {}
    for item in error.errors(include_url=False):
        key, kind = _key(item["loc"], values, item["type"]), item["type"]
        name, context = key.rpartition(".")[2], item.get("ctx", {})
        if kind == "extra_forbidden":
            found[key] = PolicyProblem(key, f"unknown key {name!r}", _nearest(key))
        elif kind == "missing":
            found[key] = PolicyProblem(key, f"{name!r} is missing", _ABSENT.get(name, ""))
        elif kind == "literal_error":
            hint = _UNKNOWN_ALLOWED if name == "unknown_source" else "write one of these"
            what = f"expected {context['expected']}, got {_short(item['input'])}"
            found[key] = PolicyProblem(key, what, hint)
        elif kind in _EXPECTED:
            expected, hint = _EXPECTED[kind]
            what = f"expected {expected}, got {_short(item['input'])}"
            found.setdefault(key, PolicyProblem(key, what, hint))
        elif kind == "value_error":
            found[key] = PolicyProblem(key, *context["error"].args)
        elif kind == "string_pattern_mismatch":
            found[key] = PolicyProblem(
                key, f"{_short(item['input'])} is not of its form", _form(context)
            )
        elif kind == "too_short" and item["input"] == []:
            found[key] = PolicyProblem(key, "the list is empty", f"{name} has at least one item")
        else:
            text = item["msg"][:1].lower() + item["msg"][1:]
            limits = [f"{_BOUNDS[one]} {context[one]}" for one in _BOUNDS if one in context]
            hint = f"take {limits[0]}" if limits else _LENGTH
            found[key] = PolicyProblem(key, f"{text}, got {_short(item['input'])}", hint)
    return list(found.values())


def _form(context: Mapping[str, Any]) -> str:
    pattern = str(context.get("pattern", ""))
    if "sha256" in pattern:
        return "sha256: and 64 hexadecimal digits"
    if pattern == "^[0-9a-f]{64}$":
        return "64 hexadecimal digits: an Ed25519 public key"
    return f"up to 64 of {pattern.removeprefix('^[').partition(']')[0]}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _key(loc: tuple[int | str, ...], values: Any, kind: str) -> str:
    """Return the dotted key of an error, without the names of types that pydantic adds."""
    parts = []
    for part in loc:
        inside = isinstance(values, Mapping) and part in values
        item = isinstance(values, list) and isinstance(part, int) and part < len(values)
        if not (inside or item):
            if kind == "missing":
                parts.append(str(part))
            break
        parts.append(str(part))
        values = values[part]
    return ".".join(parts)


def _nearest(key: str) -> str:
    """Return the known key that is nearest to an unknown one."""
    *above, name = key.split(".")
    beside = list(_model(above).model_fields)
    if close := difflib.get_close_matches(name, beside, n=1):
        return f"did you mean {close[0]!r}?"
    return _ELSEWHERE.get(name, f"keys here: {', '.join(beside)}")


def _model(parts: Iterable[str]) -> type[BaseModel]:
    """The model of a section; ``parts``: names of keys, and places in lists."""
    model: type[BaseModel] = PolicyKeys
    for part in parts:
        if not part.isdigit():
            model = inner_model(model.model_fields[part].annotation) or model
    return model


def inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model in ``Model``, ``Model | None`` or ``list[Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    unions = (types.UnionType, typing.Union, list)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) in unions:
        found = map(inner_model, typing.get_args(annotation))
        return next(filter(None, found), None)
    return None
