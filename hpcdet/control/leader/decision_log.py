"""The decisions of one term: their journal, and the state that all decisions fold into."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcdet.control.leader.decided_state import Decided, program
from hpcdet.search.api import codec, events
from hpcdet.store.decisions import snapshots
from hpcdet.store.decisions.chain import Chain, Point
from hpcdet.store.decisions.snapshots import Snapshot
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs.journal import Line

SNAPSHOT_EVERY = 2000
SNAPSHOT_PART = 5
"""Records after which a snapshot is written, or this part of the number of trials if that is
more: one costs as much as there are trials, and a new holder reads only what came since."""


class DecisionLog:
    """Noted decisions are folded at once, and durable with ``commit``.

    Attributes:
        chain: the term's journal.
        decided: the state after all decisions.
        unsnapped: records since the last snapshot.
    """

    def __init__(
        self, paths: ExperimentPaths, term: int, name: str, method: events.Method[Any]
    ) -> None:
        """Begin the journal of a term, with the state of the newest snapshot that belongs to it.

        Raises:
            IntegrityError: former decisions cannot be read.
        """
        known: dict[Point, Snapshot] = {}

        def points() -> Iterator[Point]:
            for one in snapshots.read(paths, program(method)):
                known[one.point] = one
                yield one.point

        self._paths = paths
        self._method = method
        self.chain = Chain.open(paths, term, name, points())
        since = self.chain.since
        self.decided = Decided(method)
        if since:
            self.decided = self.decided.decode(known[since].state)
        self.unsnapped = 0

    def recall(self, known: dict[int, Mapping[str, Any]], stay: Callable[[], None]) -> None:
        """Fold the records of former terms. Args: as of ``fold``."""
        lines, self.chain.history = self.chain.history, []  # a long search has many
        self.fold(lines, known, stay)
        self.unsnapped = len(lines)

    def fold(
        self, lines: list[Line], known: dict[int, Mapping[str, Any]], stay: Callable[[], None]
    ) -> None:
        """Fold records.

        Args:
            known: hyperparameters that were suggested then, which the searcher keeps; filled here.
            stay: keeps the lease, and raises where it is lost.
        """
        actions = (line["action"] for line in lines if line["kind"] == "action")
        known.update({each["trial"]: each["params"] for each in actions if "params" in each})
        for line in lines:
            if line["kind"] == "event":  # not behind the last: what is owed then is to be recorded
                stay()
            self.decided.take(line)
        known.clear()

    def note(self, kind: str, **fields: Any) -> None:
        """Add a decision."""
        self.decided.take(self.chain.note(kind, **fields))
        self.unsnapped += 1

    def tell(self, event: events.Event, **about: Any) -> None:
        """Add an event, and the actions that the searcher wants then."""
        self.chain.note("event", event=codec.encode_event(event), **about)
        self.unsnapped += 1
        self.decided.hear(event)
        self.settle()

    def settle(self) -> None:
        """Add the actions that the searcher wants and that are not recorded yet."""
        for action in list(self.decided.searcher.owed):
            self.note("action", action=codec.encode_action(action))

    def snapshot(self, fence: Callable[[], None]) -> None:
        """Write a snapshot if many records were added since the last one. ``fence``: as there."""
        if self.unsnapped < max(SNAPSHOT_EVERY, len(self.decided.trials.plans) // SNAPSHOT_PART):
            return
        self.chain.commit()
        self.unsnapped = 0
        state = self.decided.encode()
        if state is not None:
            found = Snapshot(self.chain.point, state)
            with contextlib.suppress(OSError, ValueError, TypeError):  # it is a shortcut, no more
                snapshots.write(self._paths, found, program(self._method), fence)
