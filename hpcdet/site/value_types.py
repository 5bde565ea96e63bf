"""Types of values in a site file, and the base of its models."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from hpcdet import units

Value = str | int | float | bool | None
Directives = dict[str, Value]
"""The scheduler's options, as its backend reads them.

``true``: a bare option; null, ``false``: none."""


def _text(value: Any) -> Any:
    """YAML reads ``OMP_NUM_THREADS: 1`` as a number; an environment holds text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _seconds(value: Any) -> Any:
    """``2h`` and ``12:00:00`` are seconds, too."""
    return units.seconds(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": ["string", "number"]})]
Duration = Annotated[
    int,
    BeforeValidator(_seconds),
    Field(ge=1),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1}),
]
"""Seconds, written as a number or as ``2h`` or ``1-12:00:00``."""


class Model(BaseModel):
    """A part of a site file: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
