"""The cached costs of attempts, which spare reading every trial for each claim.

An attempt that has ended is read once. A claim under limits takes a number (``reservations/``),
which announces it: a trial of which all attempts have ended, or that was never claimed, is read
again when there is a new reservation of it, and else in turns, as attempts from before there were
limits have no number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hpcdet.store.cost.budget import Stretch
from hpcdet.store.folder.layout import AttemptPaths, ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, End, Reservation
from hpcdet.store.fs import packed
from hpcdet.store.trials import standing

A_ROUND = 100
"""Trials without an open attempt that are read again in each pass."""

Key = tuple[int, int]
"""A trial and one of its attempts."""


@dataclass
class AttemptCosts:
    """Reader of one experiment's attempts.

    Attributes:
        cost: what an attempt cost by its records; None if it never ran.
        stay: called for each trial that is read, to keep the lease meanwhile.
        reserved: the reservations that are known, in their order: number n is at n - 1.
    """

    paths: ExperimentPaths
    cost: Callable[[Claim | None, End | None], Stretch | None]
    stay: Callable[[], None]
    reserved: list[Reservation] = field(default_factory=list)
    _ended: dict[Key, Stretch | None] = field(default_factory=dict)
    _quiet: set[int] = field(default_factory=set)
    _round: int = 0
    _runnable: set[int] = field(default_factory=set)
    _looked: set[int] = field(default_factory=set)

    def stretches(self) -> dict[Key, Stretch]:
        """Return all attempts that ran or run."""
        self.hear()
        self._round += 1
        turns = 1 + len(self._quiet) // A_ROUND
        found = {key: one for key, one in self._ended.items() if one is not None}
        for trial in self.paths.trials():
            if trial.number in self._quiet and (trial.number + self._round) % turns:
                continue
            self.stay()
            self._look(trial, found)
        for one in self.reserved:  # a listing from a cache may have lacked it when there was word
            self.late((one.trial, one.attempt), found)
        return found

    def doubt(self) -> None:
        """Read all trials again, as any may have been claimed without a reservation."""
        self._quiet.clear()

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
                self._quiet.discard(record.trial)
        return True

    def late(self, key: Key, found: dict[Key, Stretch]) -> bool:
        """Add a reserved attempt that no listing shows; False if it is not visible yet.

        One in a damaged archive has ended, at a cost that stays unknown.
        """
        if key in found or key in self._ended:
            return True
        trial = self.paths.trial(key[0])
        attempt = trial.attempt(key[1])
        if (claim := Claim.read(attempt.claim)) is None:
            return packed.damaged(trial.root)
        self._take(attempt, claim, found)
        return True

    def waiting(self) -> int:
        """Return how many trials could begin, as each was when it was read last."""
        for number in self._looked:
            runnable = standing.standing(self.paths.trial(number)).state == "runnable"
            (self._runnable.add if runnable else self._runnable.discard)(number)
        self._looked.clear()
        return len(self._runnable)

    def _look(self, trial: TrialPaths, found: dict[Key, Stretch]) -> None:
        self._looked.add(trial.number)
        claimed = standing.claimed(trial)
        unknown = [one for one in claimed if (one.trial, one.number) not in self._ended]
        over = [self._take(one, Claim.read(one.claim), found) for one in unknown]
        (self._quiet.add if all(over) else self._quiet.discard)(trial.number)

    def _take(self, attempt: AttemptPaths, claim: Claim | None, found: dict[Key, Stretch]) -> bool:
        """Add an attempt; True if it has ended, so that its cost is final."""
        key, end = (attempt.trial, attempt.number), End.read(attempt.end)
        stretch = self.cost(claim, end)
        if stretch is not None:
            found[key] = stretch
        if claim is None or end is None:
            return False
        self._ended[key] = stretch
        return True
