"""Problems of a config, each with its key, its line and the repair."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from hpcdet.config.check.section_models import Config
from hpcdet.errors import ConfigError

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "none_required": "nothing",
}


@dataclass(frozen=True)
class Problem:
    """One problem of a config.

    Attributes:
        key: dotted key path; empty for the file as a whole.
        by: key of what makes it wrong, where that stands elsewhere.
    """

    key: str
    what: str
    hint: str = ""
    by: str = ""


def failure(problems: Iterable[Problem], origins: Mapping[str, str], source: str) -> ConfigError:
    """All problems as one error, each with its line."""
    first, *others = sorted(problems, key=lambda p: _line(locate(p.key, origins)))
    if not others:
        where = _where(first.key, origins, source)
        return ConfigError(_what(first, origins, source), where=where, hint=first.hint)
    lines = [
        f"  {_where(p.key, origins, source)}: {_what(p, origins, source)}"
        + (f" ({p.hint})" if p.hint else "")
        for p in (first, *others)
    ]
    return ConfigError("\n".join([f"{len(lines)} problems", *lines]), where=source)


def _what(problem: Problem, origins: Mapping[str, str], source: str) -> str:
    return f"{problem.what} ({_where(problem.by, origins, source)})" if problem.by else problem.what


def _where(key: str, origins: Mapping[str, str], source: str) -> str:
    origin = locate(key, origins) or source
    if origin == f"--set {key}":  # which names it
        return origin
    return f"{origin}: {key}".rstrip(": ")


def _line(origin: str) -> int:
    line = origin.rpartition(":")[2]
    return int(line) if line.isdigit() else 0


def locate(key: str, origins: Mapping[str, str]) -> str:
    """Return a key's origin; for a map that of its first value, for a missing key a sibling's."""
    if found := locate_below(key, origins):
        return found
    above = key.rpartition(".")[0]
    return locate(above, origins) if above else ""


def locate_below(key: str, origins: Mapping[str, str]) -> str:
    """Return the origin of a key or of the first value inside it; "" if it has none."""
    if key in origins:
        return origins[key]
    inside = (origin for name, origin in origins.items() if name.startswith(f"{key}."))
    return next(inside, "")


def of_validation(error: ValidationError, values: Mapping[str, Any]) -> list[Problem]:
    """Return the problems that pydantic found, one for each key."""
    unions: dict[str, set[str]] = {}
    problems: dict[str, Problem] = {}
    for item in error.errors(include_url=False):
        kind = item["type"]
        key = _key(item["loc"], values, kind)
        context = item.get("ctx", {})
        name = key.rpartition(".")[2]
        if kind == "extra_forbidden":
            problems[key] = Problem(key, f"unknown key {name!r}", nearest(key))
        elif kind == "missing":
            problems[key] = Problem(key, f"{name!r} is missing", explain_field(key))
        elif kind in _EXPECTED or kind == "literal_error":
            words = str(context.get("expected", ""))
            expected = unions.setdefault(key, set())
            expected.add(words or _EXPECTED[kind])
            what = f"expected {' or '.join(sorted(expected))}, got {_short(item['input'])}"
            known = words.replace("'", "").replace(" or ", ", ").split(", ")
            guess = difflib.get_close_matches(str(item["input"]), known)
            before = problems[key].hint if key in problems else _keys_of(key, kind)
            problems[key] = Problem(key, what, f"did you mean {guess[0]!r}?" if guess else before)
        elif kind == "value_error":
            problems[key] = Problem(key, str(context["error"]))
        else:
            text = item["msg"][:1].lower() + item["msg"][1:]
            problems[key] = Problem(key, f"{text}, got {_short(item['input'])}")
    return list(problems.values())


def _keys_of(key: str, kind: str) -> str:
    """Return the hint for a value in place of a section; "" elsewhere."""
    model = model_at(key) if kind == "model_type" else None
    if model is None:
        return ""
    needed = [name for name, field in model.model_fields.items() if field.is_required()]
    first = needed or list(model.model_fields)
    return (
        f"{key.rpartition('.')[2]}: {{{first[0]}: ...}}; keys here: {', '.join(model.model_fields)}"
    )


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


def nearest(key: str) -> str:
    """Return ``did you mean …`` for an unknown key, from its siblings, then from all keys."""
    above, _, name = key.rpartition(".")
    model = model_at(above)
    beside = list(model.model_fields) if model else []
    if close := difflib.get_close_matches(name, beside, n=1):
        return f"did you mean {close[0]!r}?"
    elsewhere = [other for other in all_keys() if other.rpartition(".")[2] == name]
    if elsewhere:
        return f"it belongs at {elsewhere[0]!r}"
    return f"keys here: {', '.join(beside)}"


def model_at(key: str) -> type[BaseModel] | None:
    """Return the model of a section such as ``searcher``; the whole config for the empty key."""
    model: type[BaseModel] = Config
    for part in key.split(".") if key else []:
        if part not in model.model_fields:
            return None
        inner = section(model.model_fields[part].annotation)
        if inner is None:
            return None
        model = inner
    return model


def section(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation ``Model`` or ``Model | None``; else None."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        found = [section(option) for option in typing.get_args(annotation)]
        return next((model for model in found if model), None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def all_keys(model: type[BaseModel] = Config, above: str = "") -> list[str]:
    """Return every key, dotted, in the order of the models."""
    found = []
    for name, field in model.model_fields.items():
        found.append(above + name)
        if inner := section(field.annotation):
            found += all_keys(inner, f"{above}{name}.")
    return found


def default(key: str) -> Any:
    """The default of a key as plain data; None for a required key."""
    above, _, name = key.rpartition(".")
    model = model_at(above) or Config
    return model.model_construct().model_dump(include={name}).get(name)


def explain_field(key: str) -> str:
    """Return the description of a key; "" for a section or an unknown key."""
    above, _, name = key.rpartition(".")
    model = model_at(above)
    field = model.model_fields.get(name) if model else None
    return (field.description or "") if field else ""
