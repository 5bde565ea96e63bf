"""Models that check a config, made from the sections that ``store.config`` declares.

A key stands there once: its type, default and bounds, and below it its meaning. ``schema.py`` and
``docs/reference/config.md`` are made from the same.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import operator
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    create_model,
    model_serializer,
)

from hpcdet.store.config import overrides
from hpcdet.store.config.resolved_config import Resolved, resolve
from hpcdet.store.config.sections.stopping_keys import Stopping
from hpcdet.store.fs.typed_fields import Key
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


_FORMS = {"seconds": Seconds, "bytes": Bytes, "variables": Variables}
_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern", "allow_inf_nan")


class Section(BaseModel):
    """A map of the config: no unknown keys, no conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Sparse(Section):
    """A section that is written without the keys of ``_absent`` that are None."""

    _absent: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _those_that_say_something(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = handler(self).items()
        return {name: one for name, one in written if one is not None or name not in self._absent}


class _Chosen(Section):
    """A section of which only the keys that are given are kept."""

    @model_serializer(mode="wrap")
    def _those_that_are_there(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


@functools.cache
def model(section: type[Any]) -> type[Section]:
    """Return the model of a section of the config, which is a dataclass of ``store.config``."""
    hints = typing.get_type_hints(section, include_extras=True)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        hint = hints[field.name]
        keys = _keys(hint)
        if not any(key.own for key in keys):
            made = Field(_default(field, keys), description=_meaning(section, field.name))
            fields[field.name] = (_checked(hint), made)
    absent = frozenset(name for name in hints if any(key.sparse for key in _keys(hints[name])))
    base = _Chosen if section is Stopping else _Sparse if absent else Section
    made_of: type[Section] = create_model(section.__name__, __base__=base, **fields)
    if issubclass(made_of, _Sparse):
        made_of._absent = absent
    return made_of


def _keys(hint: Any) -> list[Key]:
    return [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Key)]


def _checked(hint: Any) -> Any:
    """Return the type by which pydantic checks a value of a section's type."""
    if keys := _keys(hint):
        kind = next((key.kind for key in keys if key.kind is not None), hint.__origin__)
        checked = next((_FORMS[key.form] for key in keys if key.form), None) or _checked(kind)
        bounds = {
            n: bound for key in keys for n in _BOUNDS if (bound := getattr(key, n)) is not None
        }
        return Annotated[checked, Field(**bounds)] if bounds else checked
    if hint is Length:
        return LengthField
    if dataclasses.is_dataclass(hint):
        return model(hint)  # type: ignore[arg-type]
    origin, inner = typing.get_origin(hint), tuple(map(_checked, typing.get_args(hint)))
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, inner)
    return origin[inner] if origin in (list, dict) else hint


def _default(field: dataclasses.Field[Any], keys: Iterable[Key]) -> Any:
    """Return the default of a key in new configs; ``...`` if a config has to have it."""
    if any(key.required for key in keys):
        return ...
    value = next((key.new for key in keys if key.new is not ...), field.default)
    if value is MISSING and field.default_factory is not MISSING:
        value = field.default_factory()
    if value is MISSING:
        return ...
    is_section = dataclasses.is_dataclass(value) and not isinstance(value, Length)
    return model(type(value))() if is_section else value  # type: ignore[arg-type]


def _meaning(section: type[Any], name: str) -> str | None:
    """Return the text below a field of a dataclass, which may be an inherited one."""
    for each in filter(dataclasses.is_dataclass, section.__mro__):
        if text := _texts(each.__module__).get((each.__name__, name)):
            return text
    return None


@functools.cache
def _texts(module: str) -> dict[tuple[str, str], str]:
    """Return the texts below annotated names, by class and name."""
    found: dict[tuple[str, str], str] = {}
    for section in ast.parse(inspect.getsource(sys.modules[module])).body:
        for line, text in itertools.pairwise(getattr(section, "body", ())):
            match section, line, text:
                case (
                    ast.ClassDef(name=owner),
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(meaning))),
                ):
                    found[owner, name] = inspect.cleandoc(meaning)
    return found


Config = model(Resolved)
SEED = "reproducibility.experiment_seed"
DERIVED = ("resources.slots_per_node", "searcher.max_trials", SEED)
"""Keys whose values follow from others, or are drawn, where a config does not have them."""


def completed(values: Mapping[str, Any]) -> Resolved:
    """Return a config with the default of every key that is absent; 0 for those of ``DERIVED``.

    Raises:
        ValidationError: a key is unknown or missing, or a value is wrong.
    """
    found = resolve({"schema": 1, **Config.model_validate(values).model_dump()})
    open_ = [key for key in DERIVED if operator.attrgetter(key)(found) is None]
    return overrides.lay(found, dict.fromkeys(open_, 0))
