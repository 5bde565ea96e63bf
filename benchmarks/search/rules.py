"""Every scheduling rule of the benchmark, as a searcher on hpcdet's interface.

Ours come from hpcdet's searcher factory. A peer's rule is written down here once more, in a few
lines, since the peers' own code needs time in proportion to the number of trials at each decision;
``parity`` drives both over the same reports and counts decisions that differ. All of them make
trial k from the k-th random configuration.
"""

from __future__ import annotations

import bisect
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hpcdet.search.api import events
from hpcdet.search.halving.halving import NEWEST
from hpcdet.search.searcher_factory import searcher
from hpcdet.store.config.resolved_config import resolve
from hpcdet.units import Length

ENDLESS = 10**7
"""Trials; a horizon ends the search."""
METRIC = "validation_loss"


@dataclass(frozen=True)
class Ladder:
    """``full`` units, rungs at ``full / eta**k`` (0: all), so many trials at once."""

    full: int = 256
    eta: int = 4
    workers: int = 25
    trials: int = ENDLESS
    rung_count: int = 0

    @property
    def rungs(self) -> tuple[int, ...]:
        found = [self.full]
        while found[0] >= self.eta and len(found) != self.rung_count:
            found.insert(0, found[0] // self.eta)
        return tuple(found)


def ours(
    ladder: Ladder,
    name: str,
    hyperparameters: dict[str, Any] | None = None,
    seed: int = 0,
    **asked: Any,
) -> events.Searcher:
    """A method of hpcdet's, as a config names it."""
    common = {
        "metric": METRIC,
        "max_length": {"batches": ladder.full},
        "max_trials": ladder.trials,
        "max_concurrent_trials": ladder.workers,
        "promotion_share": 0.5,  # the defaults of a config
        "rule_version": NEWEST,
    }
    config = {
        "hyperparameters": hyperparameters or {},
        "reproducibility": {"experiment_seed": seed},
        "searcher": {"name": name, **common, **asked},
    }
    return searcher(resolve(config))


def halving(ladder: Ladder, rule: str, **asked: Any) -> events.Searcher:
    rungs = {"num_rungs": len(ladder.rungs), "divisor": ladder.eta}
    return ours(ladder, "async_halving", rule=rule, **rungs, **asked)


@dataclass
class Stopping:
    """A rule of a peer's that stops trials at rungs. Its records are not JSON, and need not be.

    Attributes:
        decide: ``(losses of the rung, new loss) -> goes on``; the new one is not in yet.
        brackets: ladders that trials are spread over; ``spread`` says which takes a trial.
    """

    ladder: Ladder
    name: str
    decide: Callable[[list[float], float], bool]
    brackets: int = 1
    spread: Callable[[int], int] = lambda trial: 0
    version: int = 1
    _records: list[dict[int, list[float]]] = field(default_factory=list)

    def initial(self) -> events.State:
        rungs = self.ladder.rungs
        self._records = [{length: [] for length in rungs[b:]} for b in range(self.brackets)]
        return {"made": 0, "open": 0}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        match event:
            case events.Report(trial, length, metrics):
                record = self._records[self.spread(trial)].get(length.value)
                if record is None:
                    return state, []
                loss = metrics[METRIC]
                on = self.decide(record, loss)
                bisect.insort(record, loss)
                if length.value < self.ladder.full and not on:
                    return state, [events.Stop(trial)]
                return state, []
            case events.SegmentEnd():
                state["open"] -= 1
        return state, _fill(state, self.ladder, self.ladder.full)


def _fill(state: events.State, ladder: Ladder, until: int) -> list[events.Action]:
    """New trials for free workers."""
    actions: list[events.Action] = []
    while state["open"] < ladder.workers and state["made"] < ladder.trials:
        state["made"] += 1
        state["open"] += 1
        actions.append(events.Create(state["made"], {}, 0, Length("batches", until)))
    if not state["open"] and not state.get("over"):
        state["over"] = True
        actions.append(events.Shutdown())
    return actions


def ray(eta: int) -> Callable[[list[float], float], bool]:
    """Not worse than the percentile of those before; the first goes on."""

    def decide(record: list[float], loss: float) -> bool:
        if not record:
            return True
        # numpy's percentile of the negated losses at 1 - 1/eta, by linear interpolation
        place = (len(record) - 1) / eta
        low = math.floor(place)
        high = min(low + 1, len(record) - 1)
        cut = record[low] + (record[high] - record[low]) * (place - low)
        return loss <= cut

    return decide


def syne(eta: int) -> Callable[[list[float], float], bool]:
    """Rank among all, itself included, at most ``1/eta``; the first goes on."""

    def decide(record: list[float], loss: float) -> bool:
        rank = bisect.bisect_left(record, loss)
        return not record or rank / (len(record) + 1) <= 1 / eta

    return decide


def optuna(eta: int) -> Callable[[list[float], float], bool]:
    """As good as the ``n // eta``-th, itself included; below ``eta`` of them, as the best."""

    def decide(record: list[float], loss: float) -> bool:
        rank = bisect.bisect_left(record, loss)
        return rank < max((len(record) + 1) // eta, 1)

    return decide


def optuna_hyperband(ladder: Ladder, study: str = "study") -> Stopping:
    """Successive halving in brackets; a hash of study and number says a trial's bracket."""
    count, eta = len(ladder.rungs), ladder.eta
    budgets = [math.ceil(count * eta**s / (s + 1)) for s in reversed(range(count))]

    def spread(trial: int) -> int:
        place = zlib.crc32(f"{study}_{trial - 1}".encode()) % sum(budgets)
        for bracket, budget in enumerate(budgets):
            place -= budget
            if place < 0:
                return bracket
        raise AssertionError("budgets sum up")

    return Stopping(ladder, "Optuna Hyperband", optuna(eta), count, spread)


@dataclass
class TopK:
    """Many for one unit each, then the best few in full; again and again."""

    ladder: Ladder
    many: int = 256
    few: int = 16
    name: str = "one epoch, then top K"
    version: int = 1
    _losses: list[tuple[float, int]] = field(default_factory=list)

    def initial(self) -> events.State:
        return {"made": 0, "open": 0, "waiting": []}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        match event:
            case events.Report(trial, length, metrics) if length.value == self.ladder.rungs[0]:
                self._losses.append((metrics[METRIC], trial))
            case events.SegmentEnd():
                state["open"] -= 1
        actions: list[events.Action] = []
        if len(self._losses) >= self.many:
            self._losses.sort()
            state["waiting"] += [trial for _, trial in self._losses[: self.few]]
            self._losses = []
        while state["open"] < self.ladder.workers:
            if state["waiting"]:
                trial = state["waiting"].pop(0)
                actions.append(events.Continue(trial, Length("batches", self.ladder.full)))
            elif state["made"] < self.ladder.trials:
                state["made"] += 1
                first = Length("batches", self.ladder.rungs[0])
                actions.append(events.Create(state["made"], {}, 0, first))
            else:
                break
            state["open"] += 1
        return state, actions


@dataclass
class _Round:
    """One bracket of synchronous halving: who waits, who has reported, how many are out."""

    queue: list[int]
    rung: int = 0
    out: int = 0
    losses: list[tuple[float, int]] = field(default_factory=list)


@dataclass
class Synchronous:
    """Successive halving that waits for all of a rung; where it would idle, one more begins."""

    ladder: Ladder
    name: str = "synchronous halving"
    version: int = 1
    _rounds: list[_Round] = field(default_factory=list)
    _of: dict[int, _Round] = field(default_factory=dict)
    _loss: dict[int, float] = field(default_factory=dict)

    def initial(self) -> events.State:
        return {"made": 0, "open": 0}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        match event:
            case events.Report(trial, _, metrics):
                self._loss[trial] = metrics[METRIC]
                return state, []
            case events.SegmentEnd(trial, reason):
                state["open"] -= 1
                self._ended(trial, reason == "target")
        actions: list[events.Action] = []
        while state["open"] < self.ladder.workers:
            actions.append(self._next(state))
            state["open"] += 1
        return state, actions

    def _ended(self, trial: int, well: bool) -> None:
        mine = self._of[trial]
        mine.out -= 1
        if well:
            mine.losses.append((self._loss[trial], trial))
        if mine.queue or mine.out:
            return
        keep = [trial for _, trial in sorted(mine.losses)]
        mine.queue = keep[: max(len(keep) // self.ladder.eta, 1)]
        mine.rung, mine.losses = mine.rung + 1, []
        if mine.rung == len(self.ladder.rungs) or not mine.queue:
            self._rounds.remove(mine)

    def _next(self, state: events.State) -> events.Action:
        for one in self._rounds:
            if one.queue:
                break
        else:
            first, count = state["made"] + 1, self.ladder.eta ** (len(self.ladder.rungs) - 1)
            one = _Round(list(range(first, first + count)))
            state["made"] += count
            self._rounds.append(one)
            self._of.update(dict.fromkeys(one.queue, one))
        trial = one.queue.pop(0)
        one.out += 1
        until = Length("batches", self.ladder.rungs[one.rung])
        return events.Continue(trial, until) if one.rung else events.Create(trial, {}, 0, until)


RULES: dict[str, Callable[[Ladder], events.Searcher]] = {
    "hpcdet hybrid": lambda ladder: halving(ladder, "hybrid"),
    "hpcdet hybrid, all promoted": lambda ladder: halving(ladder, "hybrid", promotion_share=None),
    "hpcdet stopping": lambda ladder: halving(ladder, "stopping"),
    "hpcdet promotion": lambda ladder: halving(ladder, "promotion"),
    "hpcdet cohorts": lambda ladder: halving(ladder, "cohorts"),
    "hpcdet adaptive": lambda ladder: ours(
        ladder, "adaptive_asha", divisor=ladder.eta, max_rungs=len(ladder.rungs)
    ),
    "hpcdet hyperband": lambda ladder: ours(
        ladder, "hyperband", divisor=ladder.eta, max_rungs=len(ladder.rungs)
    ),
    "hpcdet pasha": lambda ladder: ours(
        ladder, "pasha", divisor=ladder.eta, num_rungs=len(ladder.rungs)
    ),
    "Ray ASHA": lambda ladder: Stopping(ladder, "Ray ASHA", ray(ladder.eta)),
    "Syne Tune ASHA": lambda ladder: Stopping(ladder, "Syne Tune ASHA", syne(ladder.eta)),
    "Optuna halving": lambda ladder: Stopping(ladder, "Optuna halving", optuna(ladder.eta)),
    "Optuna Hyperband": optuna_hyperband,
    "synchronous halving": Synchronous,
    "one epoch, then top K": TopK,
    "random": lambda ladder: ours(ladder, "random"),
}
PEERS = tuple(name for name in RULES if not name.startswith("hpcdet"))
