"""The test whether a trial can make progress in the time that an allocation has left.

Every attempt pays for its start (launch, imports, data, loading the checkpoint, the first batch)
and for a save. If the time left hardly covers these, the slots would be held for nothing, and the
trial is left to the next allocation. A trial whose costs are not known yet is run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost.spending import epoch
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.records import Claim
from hpcdet.store.fs import journal
from hpcdet.store.trials.standing import TrialFiles
from hpcdet.units import UNITS
from hpcdet.worker.allocation.time_left import Remaining

LATEST = 3
"""So many attempts are asked for their pace."""


@dataclass(frozen=True)
class AttemptPace:
    """The durations of an attempt's parts, in seconds.

    Attributes:
        start_s: from the claim to the end of the first batch.
        save_s: of one checkpoint, 0 before the first one.
        batch_s: of one batch, with its part of validations; None after one batch only.
        units: lengths at the last report, to tell batches from epochs.
    """

    start_s: float
    save_s: float = 0.0
    batch_s: float | None = None
    units: dict[str, int] = field(default_factory=dict)

    def useful_s(self, batches: float) -> float:
        """Return the shortest useful training time, with ``batches`` left to the next rung.

        The time to that rung or, if shorter, the time of start and save (ranks that are told to
        leave save after any batch), so that at least half of the time goes into training.
        """
        whole = math.inf if self.batch_s is None else batches * self.batch_s
        return min(whole, max(self.start_s + self.save_s, self.batch_s or 0.0))


@dataclass(frozen=True)
class Need:
    """The least seconds in which an attempt makes progress, by their parts."""

    start_s: float
    useful_s: float
    leave_s: float

    @property
    def whole_s(self) -> float:
        return self.start_s + self.useful_s + self.leave_s


@dataclass
class Fitting:
    """A worker's estimates of the time its trials need, from their earlier attempts or its own.

    Attributes:
        time: of this allocation.
        note: writes into the worker's journal.
        here: the newest attempts that ended in this allocation.
        passed_over: trials that did not fit since the caller cleared it.
    """

    resolved: Resolved
    time: Remaining
    note: Callable[..., None]
    here: list[AttemptPaths] = field(default_factory=list)
    passed_over: set[int] = field(default_factory=set)
    _told: set[int] = field(default_factory=set)
    _known: dict[tuple[int, int], AttemptPace | None] = field(default_factory=dict)

    def learn(self, attempt: AttemptPaths) -> None:
        """Add an attempt that has ended in this allocation."""
        self.here = [*self.here[1 - LATEST :], attempt]

    def fits(self, trial: TrialFiles) -> bool:
        """True if a trial can progress in the time left; a fresh allocation is used at least once.

        Journals of former attempts are read only in the second half of an allocation.
        """
        left_s = self.time.left_s
        if left_s >= self.time.length_s / 2:
            return True
        need = self.need(trial)
        if need is None or need.whole_s <= left_s:
            return True
        self.passed_over.add(trial.number)
        if trial.number not in self._told:
            self._told.add(trial.number)
            about = {name: round(value, 1) for name, value in vars(need).items()}
            self.note("passed_over", trial=trial.number, left_s=round(left_s, 1), **about)
        return False

    def need(self, trial: TrialFiles) -> Need | None:
        """Return the time that the next attempt of a trial needs; None if no pace was measured."""
        latest = [attempt.paths for attempt in trial.attempts[-LATEST:]]
        pace = self._pace(latest) or self._pace(self.here)
        if pace is None:
            return None
        to_go = self._to_go(trial, pace)
        return Need(pace.start_s, pace.useful_s(to_go), max(self.time.lead_s, pace.save_s))

    def _pace(self, attempts: Sequence[AttemptPaths]) -> AttemptPace | None:
        """Return the median pace of ended attempts that trained; each is read once."""
        found = []
        for one in attempts:
            key = (one.trial, one.number)
            if key not in self._known:
                self._known[key] = measure(one)
            if (pace := self._known[key]) is not None:
                found.append(pace)
        return _middle(found)

    def _to_go(self, trial: TrialFiles, pace: AttemptPace) -> float:
        """Return the batches left to the next rung or the end; infinity if that is unknown."""
        search, control = self.resolved.searcher, trial.control
        last = (control.until if control else None) or search.max_length
        if last is None:
            return math.inf
        each = 1.0
        if last.unit != "batches":
            done = pace.units.get(last.unit, 0)
            if not done:
                return math.inf
            each = pace.units.get("batches", 0) / done
        trained = trial.standing.batches
        ends = [rung.value for rung in search.rungs if rung.unit == last.unit] + [last.value]
        return min(
            (end * each - trained for end in ends if end * each > trained),
            default=math.inf,
        )


def measure(attempt: AttemptPaths) -> AttemptPace | None:
    """Return the pace of an attempt from its journal; None if it never trained a batch."""
    claim, lines = Claim.read(attempt.claim), journal.read(attempt.journal)
    first = next((line for line in lines if line["kind"] == "first_step"), None)
    if first is None or claim is None or not claim.at:
        return None
    begun = epoch(first["t"])
    start = next((line for line in lines if line["kind"] == "start"), {})
    reached: list[tuple[int, float]] = [(int(start.get("batches", 0)) + 1, begun)]
    save_s, units = 0.0, dict[str, int]()
    for line in lines:
        if line["kind"] == "checkpoint":
            save_s = max(save_s, float(line.get("save_s") or 0.0))
        elif line["kind"] in ("metrics", "progress"):
            units = line.get("units") or line
        step = line.get("step", line.get("batches"))
        if line["kind"] in ("checkpoint", "metrics", "progress") and step is not None:
            reached.append((int(step), epoch(line["t"])))
    (low, since), (high, until) = reached[0], max(reached)
    batch_s = max(0.0, until - since) / (high - low) if high > low else None
    known = {str(name): int(units[name]) for name in UNITS if name in units}
    return AttemptPace(max(0.0, begun - epoch(claim.at)), save_s, batch_s, known)


def _middle(paces: Sequence[AttemptPace]) -> AttemptPace | None:
    """Return the medians of the paces, with the lengths of the newest."""
    if not paces:
        return None
    known = [pace.batch_s for pace in paces if pace.batch_s is not None]
    return AttemptPace(
        statistics.median(pace.start_s for pace in paces),
        max(pace.save_s for pace in paces),
        statistics.median(known) if known else None,
        next((pace.units for pace in reversed(paces) if pace.units), {}),
    )
