"""The conversion of plain data to frozen dataclasses, checked by their field types.

A file's value is accepted only if it has the type that the reader's code relies on.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from hpcdet.units import Length

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Key:
    """How people may write a field of the config, in ``Annotated``; its type is what readers get.

    Readers do not look at it: ``hpcdet.config.check.section_models`` checks new configs by it.

    Attributes:
        kind: type of the value in a config, where it is another than readers'.
        form: text from which the value is made, where people may write such.
        new: default in a new config, where it is not what a file without the key means.
        required: a config without the key is refused.
        own: no key of a config, but hpcdet's own field.
        sparse: it is not written where it is None.
        ge, gt, le, lt, min_length, max_length, pattern, allow_inf_nan: bounds, as in pydantic.
    """

    kind: Any = None
    form: Literal["", "seconds", "bytes", "variables"] = ""
    new: Any = ...
    required: bool = False
    own: bool = False
    sparse: bool = False
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    allow_inf_nan: bool | None = None


Seconds = Annotated[int, Key(form="seconds")]
Bytes = Annotated[int, Key(form="bytes")]
Variables = Annotated[dict[str, str], Key(form="variables")]


def build(kind: type[T], value: Mapping[str, Any]) -> T:
    """Return an instance of a dataclass; unknown keys are ignored, missing ones take defaults.

    Raises:
        ValueError: a length is none, or a value has another type.
    """
    hints = _hints(kind)  # type: ignore[arg-type]
    given = {name: _convert(hint, value[name]) for name, hint in hints.items() if name in value}
    # null is written for what has not been said
    refuse_others(kind, {name: item for name, item in given.items() if item is not None})
    return kind(**given)


def refuse_others(kind: type[Any], given: Mapping[str, Any], *, lenient: bool = True) -> None:
    """Refuse values whose types are not those of a dataclass's fields.

    Args:
        lenient: a number counts as text: of a name like 2024 YAML makes one.

    Raises:
        ValueError: one has another type; names it.
    """
    fields = _fields(kind, lenient)  # type: ignore[arg-type]
    for name, item in given.items():
        fits, wanted = fields[name]
        if not fits(item):
            raise ValueError(f"{name} is {short(item)}, which is no {wanted}")


def short(value: Any) -> str:
    """Return a value, or its type, in the form of a message."""
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:39]}…"


@functools.cache
def _fields(kind: type[Any], lenient: bool) -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Return, by field name, a test of values and the name of the field's type."""
    return {name: (_test(hint, lenient), _called(hint)) for name, hint in _hints(kind).items()}  # type: ignore[arg-type]


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields, without ``Annotated``."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _called(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _test(hint: Any, lenient: bool) -> Callable[[Any], bool]:
    """Return a test of a value's type; a nested dataclass was tested when it was built."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        tests = [_test(each, lenient) for each in inner]
        return lambda value: any(test(value) for test in tests)
    if origin is typing.Literal:
        kinds = tuple({type(each) for each in inner})  # a later version may know other words
        return lambda value: isinstance(value, kinds)
    if origin is list:
        item = _test(inner[0], lenient)
        return lambda value: isinstance(value, list) and all(map(item, value))
    if origin in (dict, Mapping):
        item = _test(inner[1], lenient)
        return lambda value: isinstance(value, dict) and all(map(item, value.values()))
    if origin is tuple:
        of_all = _test(inner[0], lenient)
        return lambda value: isinstance(value, tuple) and all(map(of_all, value))
    if hint is Any:
        return lambda _: True
    if hint is str and lenient:
        return lambda value: isinstance(value, str | int | float)
    if hint in (int, float):
        number = (int,) if hint is int else (int, float)
        return lambda value: isinstance(value, number) and not isinstance(value, bool)
    kind = origin or hint
    return lambda value: isinstance(value, kind)


def _convert(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    kinds = (hint, *typing.get_args(hint))
    if Length in kinds:
        return Length.decode(value)
    if isinstance(value, Mapping):
        for kind in kinds:
            if dataclasses.is_dataclass(kind):
                return build(typing.cast("type[Any]", kind), value)
    if isinstance(value, list):
        for kind in kinds:
            if typing.get_origin(kind) is list:
                [inner] = typing.get_args(kind)
                return [_convert(inner, item) for item in value]
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(inner[0], item) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _convert(inner[1], item) for name, item in value.items()}
    return value
