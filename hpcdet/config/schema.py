"""The keys of the config as JSON Schema, and as text for people (``config explain``)."""

from __future__ import annotations

import json
from typing import Any

from hpcdet.config.check import problems
from hpcdet.config.check.section_models import Config
from hpcdet.config.determined import unsupported_keys
from hpcdet.errors import NotFound

_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 1, "description": "points of a grid"}
_DOMAINS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "const": ("One value.", {"val": {}}, ["val"]),
    "int": (
        "Whole numbers, both bounds included.",
        {
            "minval": {"type": "integer"},
            "maxval": {"type": "integer"},
            "step": {"type": "integer", "minimum": 1},
            "count": _COUNT,
        },
        ["minval", "maxval"],
    ),
    "double": (
        "Real numbers, the upper bound excluded.",
        {"minval": _NUMBER, "maxval": _NUMBER, "count": _COUNT},
        ["minval", "maxval"],
    ),
    "log": (
        "base to the power of a real number: the bounds are exponents.",
        {
            "base": {"type": "number", "exclusiveMinimum": 0, "default": 10},
            "minval": _NUMBER,
            "maxval": _NUMBER,
            "count": _COUNT,
        },
        ["minval", "maxval"],
    ),
    "loguniform": (
        "Real numbers, every factor of ten as likely as the next: the bounds are values.",
        {"low": _NUMBER, "high": _NUMBER, "count": _COUNT},
        [],
    ),
    "log_int": (
        "Whole numbers, small ones more likely: the bounds are values.",
        {"low": {"type": "integer"}, "high": {"type": "integer"}, "count": _COUNT},
        [],
    ),
    "categorical": (
        "One of a list of values.",
        {"vals": {"type": "array", "minItems": 1}, "ordered": {"type": "boolean"}},
        ["vals"],
    ),
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of an experiment config, for editors."""
    made = Config.model_json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "hpcdet experiment config"
    made["description"] = "A whole experiment config."
    made["$defs"]["Hyperparameter"] = _hyperparameter()
    made["properties"]["schema"] = {"const": 1, "description": "Stands in resolved configs."}
    space = made["properties"]["hyperparameters"]
    space["properties"] = {
        "forbid": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Expressions; a sample for which one is true is drawn again.",
        }
    }
    space["additionalProperties"] = {"$ref": "#/$defs/Hyperparameter"}
    return made


def _hyperparameter() -> dict[str, Any]:
    when = {"type": "object", "description": "Other hyperparameters' values that make it exist."}
    mutable = {"type": "boolean", "description": "Whether a population may change it (pbt)."}
    this = {"$ref": "#/$defs/Hyperparameter"}
    domains: list[dict[str, Any]] = [
        {
            "type": "object",
            "description": text,
            "properties": {"type": {"const": name}, **properties, "when": when, "mutable": mutable},
            "required": ["type", *required],
        }
        for name, (text, properties, required) in _DOMAINS.items()
    ]
    choice = {
        "type": "object",
        "description": "One of several groups with hyperparameters of their own.",
        "properties": {
            "type": {"const": "choice"},
            "choice": {"type": "object", "additionalProperties": {"type": ["object", "null"]}},
            "when": when,
            "mutable": mutable,
        },
        "required": ["choice"],
    }
    derived = {
        "type": "object",
        "description": "Computed from others.",
        "properties": {"type": {"const": "derived"}, "derived": {"type": "string"}},
        "required": ["derived"],
    }
    repeat = {
        "type": "object",
        "description": "A list of items that are alike, as many as a number or another says.",
        "properties": {
            "type": {"const": "repeat"},
            "repeat": {"type": ["integer", "string"], "minimum": 1},
            "of": this,
        },
        "required": ["repeat", "of"],
    }
    kinds = (["type"], ["choice"], ["derived"], ["repeat", "of"])
    group = {
        "type": "object",
        "description": "A group.",
        "not": {"anyOf": [{"required": keys} for keys in kinds]},
        "additionalProperties": this,
    }
    plain = {"type": ["string", "number", "boolean", "array", "null"]}
    return {"anyOf": [plain, *domains, choice, derived, repeat, group]}


def explain(key: str) -> str:
    """Return the meaning of a key, its default, and the keys inside it.

    Raises:
        NotFound: there is no such key; the hint has the nearest.
    """
    key = key.strip(".")
    if key in problems.all_keys():
        return "\n".join(_field(key))
    if key in unsupported_keys.KEYS:
        return "\n".join([f"{key} (a key of Determined)", *_foreign(key)])
    raise NotFound(f"there is no key {key!r}", where="config", hint=problems.nearest(key))


def _field(key: str) -> list[str]:
    above, _, name = key.rpartition(".")
    model = problems.model_at(above) or Config
    field = model.model_fields[name]
    inner = problems.section(field.annotation)
    if inner is not None:
        inside = [f"{key}.{other}" for other in inner.model_fields]
        return [key, *(f"  {other}: {problems.explain_field(other)}" for other in inside)]
    lines = [key, f"  {field.description}"]
    if not field.is_required():
        lines.append(f"  default: {json.dumps(problems.default(key))}")
    return [*lines, *_foreign(key)]


def _foreign(key: str) -> list[str]:
    return [
        f"  {entry.kind}{'' if entry.always else ' for some values'}: {entry.reason}"
        for entry in unsupported_keys.KEYS.get(key, ())
    ]
