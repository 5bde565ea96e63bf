"""A replay of a search: the check that its searcher still takes the recorded decisions.

The same searcher, given the same events in the same order, must decide the same. If it does
not, it is not a pure function of its events, its code has changed without its version, or
the journal was modified.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hpcdet.control.leader.decided_state import Decided
from hpcdet.search.api import codec
from hpcdet.search.api import events as api
from hpcdet.store.decisions.chain import Point
from hpcdet.store.fs.journal import Line


@dataclass(frozen=True)
class Difference:
    """A difference between a recorded action and the one that the searcher wants now.

    ``recorded`` is None where it wants something that was not recorded, ``wanted`` None where
    it wants nothing. ``after``: the event before it.
    """

    recorded: dict[str, Any] | None
    wanted: dict[str, Any] | None
    after: dict[str, Any] | None

    def __str__(self) -> str:
        recorded, wanted, after = (
            "nothing" if each is None else json.dumps(each, ensure_ascii=False)
            for each in (self.recorded, self.wanted, self.after)
        )
        return f"after {after}: recorded is {recorded}, decided again it is {wanted}"


@dataclass
class Replay:
    """The fold over an experiment's records, each compared with the searcher's replayed decision.

    Attributes:
        events, decisions: how many so far.
        difference: the first one.
        failed: the searcher raised an exception, and which.
        term, n: the last record that was looked at.
        points: where the state was compared with a snapshot's, and whether it was equal.
    """

    method: api.Method[Any]
    snapshots: dict[Point, dict[str, Any]]
    events: int = 0
    decisions: int = 0
    difference: Difference | None = None
    failed: str = ""
    term: int = 0
    n: int = 0

    def __post_init__(self) -> None:
        self._decided = Decided(self.method)
        self._event: dict[str, Any] | None = None
        self._states = {(point.term, point.n): s for point, s in self.snapshots.items()}
        self.points: dict[tuple[int, int], bool] = {}

    def run(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Replay records; yield each that agrees, and stop at the first difference."""
        for line in lines:
            self.term, self.n = line["term"], line["n"]
            self._compare(line)
            if self.difference is not None:
                return
            self._decided.take(line)
            if self._decided.searcher.broken:
                self.failed = self._decided.searcher.broken
                return
            where = (self.term, self.n)
            if where in self._states:
                again = json.loads(json.dumps(self._decided.encode()))
                one, other = (json.dumps(s, sort_keys=True) for s in (again, self._states[where]))
                self.points[where] = one == other  # as text: NaN is not equal to itself
            yield line

    def _compare(self, line: Line) -> None:
        """Compare a record with the searcher's wishes before it is folded."""
        owed = self._decided.searcher.owed
        if line["kind"] == "event":
            self.events += 1
            if owed:  # the next event comes after all that was decided on the one before
                self._differs(None, owed[0])
            self._event = line["event"]
        elif line["kind"] == "action":
            self.decisions += 1
            wanted = owed[0] if owed else None
            if wanted is None or _decision(_plain(wanted)) != _decision(line["action"]):
                self._differs(line["action"], wanted)

    def _differs(self, recorded: dict[str, Any] | None, wanted: api.Action | None) -> None:
        encoded = _plain(wanted) if wanted is not None else None
        self.difference = Difference(recorded, encoded, self._event)


def _plain(action: api.Action) -> dict[str, Any]:
    """Return an action as it would be read from the journal."""
    plain: dict[str, Any] = json.loads(json.dumps(codec.encode_action(action)))
    return plain


def _decision(action: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an action that are compared: not its explanation, nor empty ones."""
    return {key: value for key, value in action.items() if key != "why" and value not in ("", None)}
