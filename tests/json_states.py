"""Searchers whose state goes through strict JSON between events, as through a snapshot."""

from __future__ import annotations

import json
from typing import Any

from hpcdet.search.api import codec
from hpcdet.search.api.events import Action, Event, Method


def plain(state: Any, *, nan: bool = False) -> Any:
    """A state as it is read from a snapshot; without ``nan`` it must not hold what JSON lacks."""
    return json.loads(json.dumps(codec.encode_state(state), allow_nan=nan))


def tell(
    method: Method[Any], state: Any, event: Event, *, nan: bool = False
) -> tuple[Any, list[Action]]:
    """The plain state after an event, and the actions."""
    after, actions = method.on_event(codec.decode_state(method.initial(), state), event)
    return plain(after, nan=nan), actions
