"""Events and actions as JSON, the form of the decisions journal: ``{"kind": "create", …}``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hpcdet.search import api
from hpcdet.units import Length

_EVENTS: dict[str, type[api.Event]] = {
    "start": api.Start,
    "report": api.Report,
    "segment_end": api.SegmentEnd,
}
_ACTIONS: dict[str, type[api.Action]] = {
    "create": api.Create,
    "continue": api.Continue,
    "pause": api.Pause,
    "stop": api.Stop,
    "shutdown": api.Shutdown,
}
_KINDS: dict[type, str] = {kind: name for name, kind in {**_EVENTS, **_ACTIONS}.items()}


def encode(item: api.Event | api.Action) -> dict[str, Any]:
    """The JSON form; lengths as ``{"batches": 900}``."""
    plain: dict[str, Any] = {"kind": _KINDS[type(item)]}
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        plain[field.name] = value.encode() if isinstance(value, Length) else value
    return plain


def decode_event(plain: Mapping[str, Any]) -> api.Event | None:
    """The event, or None for a kind that this version does not know."""
    kind = _EVENTS.get(plain["kind"])
    return None if kind is None else kind(**_fields(kind, plain))


def decode_action(plain: Mapping[str, Any]) -> api.Action | None:
    """The action, or None for a kind that this version does not know."""
    kind = _ACTIONS.get(plain["kind"])
    return None if kind is None else kind(**_fields(kind, plain))


def _fields(kind: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(kind)}
    return {
        key: Length.decode(value) if key in ("until", "length") and value is not None else value
        for key, value in plain.items()
        if key in known
    }
