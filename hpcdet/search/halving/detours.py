"""Actions on one trial that cancel each other."""

from __future__ import annotations

from hpcdet.search.api.events import Action, Continue, Pause, Stop


def without(actions: list[Action]) -> list[Action]:
    """The actions less those that take each other back, as a pause and a promotion at once do."""
    if len(actions) < 2 or Continue not in map(type, actions):
        return actions
    told: dict[int, list[Action]] = {}
    for action in actions:
        if isinstance(action, Pause | Continue | Stop):
            told.setdefault(action.trial, []).append(action)
    dropped: set[int] = set()
    for said in told.values():
        back = type(said[-1]) is not type(said[0]) and not isinstance(said[-1], Stop)
        dropped.update(map(id, said if back else said[:-1]))
    return [action for action in actions if id(action) not in dropped]
