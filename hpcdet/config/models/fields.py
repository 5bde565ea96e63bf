"""Types of values in the config, as users write them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from hpcdet.units import Length, seconds


def _length(value: Any) -> Any:
    return value if isinstance(value, Length) else Length.decode(value)


def _seconds(value: Any) -> Any:
    return seconds(value) if isinstance(value, str) else value


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if match := re.fullmatch(r"(\d+)\s*([KMGT])i?B?", value.strip()):
        return int(match[1]) * 1024 ** ("KMGT".index(match[2]) + 1)
    raise ValueError(f"{value!r} is no amount of memory; write bytes or '4G'")


def _variables(value: Any) -> Any:
    """Return a map of text; numbers and booleans become the text that a shell would see."""
    if not isinstance(value, dict):
        return value
    for name in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            raise ValueError(f"{name!r} is no name of a variable: letters, digits and _")
    return {
        name: str(item).lower()
        if isinstance(item, bool)
        else item
        if isinstance(item, dict | list | None)
        else str(item)
        for name, item in value.items()
    }


LengthField = Annotated[
    Length,
    BeforeValidator(_length),
    PlainSerializer(Length.encode),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "description": "batches"},
                {
                    "type": "object",
                    "properties": {
                        unit: {"type": "integer", "minimum": 0}
                        for unit in ("batches", "records", "epochs")
                    },
                    "additionalProperties": False,
                    "minProperties": 1,
                    "maxProperties": 1,
                },
            ]
        }
    ),
]
_NUMBER_OR_TEXT = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}
Seconds = Annotated[int, BeforeValidator(_seconds), WithJsonSchema(_NUMBER_OR_TEXT)]
Bytes = Annotated[int, BeforeValidator(_bytes), WithJsonSchema(_NUMBER_OR_TEXT)]
_MAP_OR_LIST = {
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
        {"type": "array", "items": {"type": "string", "pattern": "="}},
    ]
}
Variables = Annotated[dict[str, str], BeforeValidator(_variables), WithJsonSchema(_MAP_OR_LIST)]


class Section(BaseModel):
    """A map of the config: no unknown keys, no conversion of types."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )
