"""Events, actions and states of searchers as the plain data of the decisions, and back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hpcdet.errors import IntegrityError
from hpcdet.search.api import events
from hpcdet.store.fs import json_record
from hpcdet.store.fs.json_record import plain
from hpcdet.units import Length

EVENTS: dict[str, type[events.Event]] = {
    "start": events.Start,
    "report": events.Report,
    "segment_end": events.SegmentEnd,
    "limits": events.Limits,
}
ACTIONS: dict[str, type[events.Action]] = {
    "create": events.Create,
    "continue": events.Continue,
    "pause": events.Pause,
    "stop": events.Stop,
    "shutdown": events.Shutdown,
    "ask": events.Ask,
    "halt": events.Halt,
}
_EVENT_NAMES: dict[type, str] = {kind: name for name, kind in EVENTS.items()}
_ACTION_NAMES: dict[type, str] = {kind: name for name, kind in ACTIONS.items()}


def encode_event(event: events.Event) -> dict[str, Any]:
    """``{"kind": "report", "trial": 1, "length": {"batches": 100}, "metrics": {…}}``."""
    if type(event) is events.Report:  # there are many
        length = {event.length.unit: event.length.value}
        metrics = {name: _plain(value) for name, value in event.metrics.items()}
        fixed = {"kind": "report", "trial": event.trial, "length": length, "metrics": metrics}
        return {**fixed, "seconds": _plain(event.seconds)}
    return _encode(event, _EVENT_NAMES)


def decode_event(value: dict[str, Any]) -> events.Event | None:
    """The event, or None for a kind that this version does not know."""
    kind = EVENTS.get(value["kind"])
    return kind(**_fields(kind, value)) if kind else None


def encode_action(action: events.Action) -> dict[str, Any]:
    """``{"kind": "stop", "trial": 1, "why": "…"}``."""
    return _encode(action, _ACTION_NAMES)


def decode_action(value: dict[str, Any]) -> events.Action | None:
    """The action, or None for a kind that this version does not know."""
    kind = ACTIONS.get(value["kind"])
    return kind(**_fields(kind, value)) if kind else None


def _encode(value: Any, kinds: dict[type, str]) -> dict[str, Any]:
    return {"kind": kinds[type(value)], **{key: _plain(it) for key, it in vars(value).items()}}


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is int or kind is str or value is None:
        return value
    if kind is float and math.isfinite(value):
        return value
    return plain(value, lambda item: json_record.number(item) if isinstance(item, float) else item)


def _fields(kind: type, value: dict[str, Any]) -> dict[str, Any]:
    """Those that this version knows; what the record lacks takes its default."""
    known = kind.__match_args__  # type: ignore[attr-defined]
    fields = {key: value[key] for key in known if key in value}
    for key in ("until", "length", "max_length"):
        if fields.get(key) is not None:
            fields[key] = Length.decode(fields[key])
    if "metrics" in fields:
        if not isinstance(fields["metrics"], Mapping):
            raise IntegrityError(
                f"a recorded {value['kind']!r} has no valid 'metrics'",
                where="the decisions of the experiment",
                hint="put the records back from a backup",
            )
        fields["metrics"] = {name: _number(item) for name, item in fields["metrics"].items()}
    return fields


def _number(stored: Any) -> Any:
    special = isinstance(stored, str) and stored in ("NaN", "Infinity", "-Infinity")
    return json_record.value(stored) if special else stored


def subject(action: events.Action) -> tuple[type[events.Action], int]:
    """Return an action's type and the number of its trial; 0 for those of the whole search."""
    return type(action), getattr(action, "trial", 0)


def concerns(action: events.Action, trial: int) -> bool:
    """True if an action lets this existing trial continue, pause or end."""
    return (
        isinstance(action, events.Continue | events.Pause | events.Stop) and action.trial == trial
    )


# -- states ----------------------------------------------------------------------------------

PART = {"part": True}
"""Metadata of a field that is a ``StateRecord``: in JSON its keys stand among the others."""
PASSING = {"passing": True}
"""Metadata of a field that is not in the JSON."""


@dataclass
class StateRecord:
    """Base of typed states: a dataclass that is one JSON object, field by field, in order."""

    def encode(self) -> Any:
        """The JSON of a snapshot; it shares lists with the state."""
        found: dict[str, Any] = {}
        for each in dataclasses.fields(self):
            if "passing" in each.metadata:
                continue
            value = encode_state(getattr(self, each.name))
            found |= value if "part" in each.metadata else {each.name: value}
        return found

    def decode(self, value: Any) -> Self:
        """The state that was encoded; this one, as before any event, gives the types."""
        known = {}
        for each in dataclasses.fields(self):
            first = getattr(self, each.name)
            if "part" in each.metadata:
                known[each.name] = first.decode(value)
            elif each.name in value:
                known[each.name] = decode_state(first, value[each.name])
        return dataclasses.replace(self, **known)


def encode_state(state: Any) -> Any:
    """The JSON of a searcher's state, or of a part of one; what is JSON already stays as it is."""
    if isinstance(state, StateRecord | Length):
        return state.encode()
    if isinstance(state, list) and state and isinstance(state[0], StateRecord):
        return [encode_state(one) for one in state]
    return state


def decode_state(first: Any, value: Any) -> Any:
    """The inverse of ``encode_state``; ``first`` is the searcher's initial state."""
    if isinstance(first, StateRecord | Length):
        return first.decode(value)
    if isinstance(first, list) and first and isinstance(first[0], StateRecord):
        return [first[0].decode(one) for one in value]
    return value
