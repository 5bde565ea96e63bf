"""From plain data to the frozen dataclasses that read it, by their types."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from hpcdet.units import Length

T = TypeVar("T")


def build(kind: type[T], value: Mapping[str, Any]) -> T:
    """An instance of a dataclass: unknown keys are ignored, missing ones take their default.

    Raises:
        ValueError: a length is none.
    """
    hints = typing.get_type_hints(kind)
    names = (f.name for f in dataclasses.fields(kind))  # type: ignore[arg-type]
    return kind(**{name: _convert(hints[name], value[name]) for name in names if name in value})


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
    return value
