"""The cached costs of attempts, which spare reading every trial for each claim.

A claim under limits takes a number (``reservations/``), which announces it: a trial of which all
attempts have ended, or that was never claimed, is checked when there is a new reservation of it,
and else in turns, as attempts from before there were limits have no number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcdet.store.cost.budget import Stretch
from hpcdet.store.cost.cost_records import Reservation
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, End
from hpcdet.store.fs import packed
from hpcdet.store.trials import observer
from hpcdet.store.trials.standing import AttemptFiles

Key = tuple[int, int]
"""A trial and one of its attempts."""


@dataclass
class AttemptCosts:
    """Reader of one experiment's attempts.

    Attributes:
        cost: what an attempt cost by its records; None if it never ran.
        stay: called for each trial that is read, to keep the lease meanwhile.
        clock: real seconds, as the times of files are.
        reserved: the reservations that are known, in their order: number n is at n - 1.
    """

    paths: ExperimentPaths
    cost: Callable[[Claim | None, End | None], Stretch | None]
    stay: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    reserved: list[Reservation] = field(default_factory=list)
    _ended: dict[Key, Stretch | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._trials = observer.standings(self.paths, self.clock)

    def stretches(self) -> dict[Key, Stretch]:
        """Return all attempts that ran or run."""
        self.hear()
        self._trials.begin()
        found = {key: one for key, one in self._ended.items() if one is not None}
        for trial in self.paths.trials():
            self.stay()
            self._look(trial.number, found)
        for one in self.reserved:  # a listing from a cache may have lacked it when there was word
            self.late((one.trial, one.attempt), found)
        return found

    def doubt(self) -> None:
        """Check all trials again, as any may have been claimed without a reservation."""
        self._trials.quiet.clear()

    def hear(self, last: int = 0) -> bool:
        """Read the new reservations; False if one up to ``last`` is not visible yet.

        They are opened by name, as a listing may come from a cache.
        """
        folder = self.paths.reservation(0).parent
        newest = max(last, *packed.numbers(folder, ".json"), 0)
        while len(self.reserved) < newest:
            record = Reservation.read(self.paths.reservation(len(self.reserved) + 1))
            if record is None:
                return len(self.reserved) >= last
            self.reserved.append(record)
            if (record.trial, record.attempt) not in self._ended:
                self._trials.expire(record.trial)
        return True

    def late(self, key: Key, found: dict[Key, Stretch]) -> bool:
        """Add a reserved attempt that no listing shows; False if it is not visible yet.

        One in a damaged archive has ended, at a cost that stays unknown.
        """
        if key in found or key in self._ended:
            return True
        trial = self.paths.trial(key[0])
        attempt = AttemptFiles(trial.attempt(key[1]))
        if attempt.claim is None:
            return packed.damaged(trial.root)
        self._take(attempt, found)
        return True

    def waiting(self) -> int:
        """Return how many trials could begin, as each was when it was checked last."""
        return sum(trial.standing.state == "runnable" for trial in self._trials)

    def _look(self, number: int, found: dict[Key, Stretch]) -> None:
        self._trials.look(number)
        attempts = self._trials[number].attempts
        over = [
            self._take(one, found) for one in attempts if (number, one.number) not in self._ended
        ]
        (self._trials.quiet.add if all(over) else self._trials.quiet.discard)(number)

    def _take(self, attempt: AttemptFiles, found: dict[Key, Stretch]) -> bool:
        """Add an attempt; True if it has ended, so that its cost is final."""
        key = (attempt.paths.trial, attempt.number)
        stretch = self.cost(attempt.claim, attempt.end)
        if stretch is not None:
            found[key] = stretch
        if attempt.claim is None or attempt.end is None:
            return False
        self._ended[key] = stretch
        return True
