"""A searcher beside the definition of its rule: told the same, both have to want the same."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hpcdet.search.api.events import (
    Action,
    Ask,
    Create,
    Event,
    Method,
    Report,
    SegmentEnd,
    Shutdown,
    Start,
)
from hpcdet.search.halving.halving import NEWEST
from hpcdet.search.searcher_factory import searcher
from hpcdet.store.config.resolved_config import resolve
from tests import by_definition
from tests.by_definition import Search, Word


def said(actions: list[Action], brackets: list[int]) -> list[Word]:
    """The words of the definition for what a searcher wants; questions to the user are none."""
    words: list[Word] = []
    for action in actions:
        if isinstance(action, Create):
            words.append((f"create {brackets[action.trial - 1]}", action.trial))
        elif isinstance(action, Shutdown):
            words.append(("shutdown failed" if action.failed else "shutdown", 0))
        elif not isinstance(action, Ask):
            words.append((type(action).__name__.lower(), action.trial))
    return sorted(words)


@dataclass
class Compared:
    """A searcher beside the definition: both are told the same, and have to want the same."""

    method: Method[Any]
    defined: Search
    metric: str = "loss"
    sign: int = 1
    told: list[Event] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def version(self) -> int:
        return self.method.version

    def initial(self) -> Any:
        return self.method.initial()

    def on_event(self, state: Any, event: Event) -> tuple[Any, list[Action]]:
        self.told.append(event)
        state, actions = self.method.on_event(state, event)
        match event:
            case Start():
                defined = self.defined.start()
            case Report(trial, length, metrics):
                at = metrics["seen"] if self.defined.timed else length.value
                defined = self.defined.report(trial, at, *self._loss(metrics))
            case SegmentEnd(trial, reason):
                defined = self.defined.end(trial, reason)
        assert said(actions, state.trials.bracket) == sorted(defined), "\n".join(
            map(str, self.told)
        )
        return state, actions

    def _loss(self, metrics: Any) -> tuple[float | None, bool]:
        value = metrics.get(self.metric)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        finite = number and math.isfinite(value)
        return (self.sign * float(value) if finite else None), self.metric in metrics


def compared(rule: str, kind: str, dice: random.Random) -> Compared:
    """A search of that rule, of any shape, beside its definition."""
    top, eta = dice.choice([9, 27, 64]), dice.choice([2, 2.5, 3, 4])
    trials, places = dice.randint(2, 30), dice.choice([1, 2, 3, 4, 8])
    timed, smaller = dice.random() < 0.15, dice.random() < 0.5
    share = dice.choice([0.5, None]) if rule == "hybrid" else None
    asked: dict[str, Any] = {"name": kind, "rule": rule, "divisor": eta, "metric": "loss"}
    asked |= {"max_trials": trials, "max_concurrent_trials": places, "rule_version": NEWEST}
    asked |= {"smaller_is_better": smaller, "promotion_share": share}
    asked |= {"max_time": top, "time_metric": "seen"} if timed else {"max_length": {"batches": top}}
    ratio = Fraction(str(eta))
    if kind == "async_halving":
        asked["num_rungs"] = count = dice.randint(1, 4)
        rungs = by_definition.rungs(top, ratio, count)
        brackets = [by_definition.Ladder(rungs, trials, min(places, trials))]
    else:
        asked["max_rungs"] = most = dice.randint(2, 5)
        brackets = by_definition.standard(top, ratio, most, trials, places)
    space = {"lr": {"type": "loguniform", "low": 1e-4, "high": 1.0}}
    config = {"hyperparameters": space, "searcher": asked}
    method = searcher(resolve(config | {"reproducibility": {"experiment_seed": 1}}))
    defined = Search(rule, ratio, brackets, places, share, timed)
    return Compared(method, defined, sign=1 if smaller else -1)
