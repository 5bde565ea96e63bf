"""Every rule of halving decides what its definition says, whatever trials do.

The number of searches is that of ``HPCDET_SEARCHES`` (200): ``HPCDET_SEARCHES=2000`` is the full
dose. A search is named by its seed, with which it comes again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from hpcdet.search.api.events import Ask, Create, Event, Report, SegmentEnd, Shutdown, Start
from hpcdet.search.halving.rung_rules import RULES
from hpcdet.units import Length
from tests import dose
from tests.compared import Compared, compared

KINDS = ("async_halving", "adaptive_asha")


class Trials:
    """Trials in any order that report, fail, are refused, leave, and end in every possible way.

    A trial may train beyond a rung before it hears, and to its end; it reports at rungs or past
    them, twice, what is no number, what others have reported, or nothing. Who was told to leave
    may still end otherwise.
    """

    def __init__(self, search: Compared, dice: random.Random) -> None:
        self.search, self.dice, self.top = search, dice, search.defined.brackets[0].rungs[-1]
        self.state = search.initial()
        self.at: dict[int, int] = {}
        self.goes: dict[int, str] = {}
        self.calm = dice.random()  # how seldom anything goes wrong
        self.tell(Start())

    def tell(self, event: Event) -> None:
        self.state, actions = self.search.on_event(self.state, event)
        for action in actions:
            if isinstance(action, Create):
                self.at[action.trial], self.goes[action.trial] = 0, "run"
            elif not isinstance(action, Shutdown | Ask):
                assert action.trial in self.goes, f"{action} of a trial that has ended"
                assert self.goes[action.trial] != "stop", f"{action}, but it was stopped for good"
                word = type(action).__name__.lower()
                self.goes[action.trial] = {"continue": "run"}.get(word, word)

    def report(self, trial: int, length: int) -> None:
        dice = self.dice
        loss: Any = dice.choice([dice.random(), dice.random(), dice.randint(0, 4), 0.5])
        if dice.random() < 0.1:
            loss = dice.choice([math.nan, math.inf, -math.inf, "x", None, True])
        metrics = {"loss": loss, "seen": length}
        if self.search.defined.shown and dice.random() < 0.03:
            del metrics["loss"]
        self.tell(Report(trial, Length("batches", length), metrics))

    def end(self, trial: int, reason: Any) -> None:
        if self.goes[trial] != "pause" or reason != "target":
            del self.goes[trial]  # a paused one that has trained all the way is out of sight
        else:
            self.goes[trial] = "full"
        self.tell(SegmentEnd(trial, reason))

    def step(self) -> None:
        dice = self.dice
        able = [trial for trial, goes in self.goes.items() if goes != "full"]
        trial = dice.choice(able)
        goes, fate = self.goes[trial], dice.random()
        if fate < 0.12 * (1 - self.calm):
            ends = ["failed", "canceled", "invalid_hp", "user_exit", "violated", "stopped"]
            self.end(trial, dice.choice(ends))
        elif goes != "run" and fate > 0.7:  # it has heard
            if goes == "stop":
                self.end(trial, "stopped")
        elif self.at[trial] >= self.top:
            self.end(trial, "target")
        else:
            before, rungs = self.at[trial], sorted({*self._rungs(), self.top})
            some = [rung for rung in rungs if rung > before][: dice.choice([1, 1, 1, 2, 4])]
            self.at[trial] = dice.choice([some[-1], min(some[-1] + 1, self.top)])
            if dice.random() < 0.95:  # else it has reported nothing there
                self.report(trial, self.at[trial])
        if dice.random() < 0.1:  # from anybody, what was said before
            someone = dice.choice([*self.at, len(self.at) + 3])
            self.report(someone, dice.randint(0, self.at.get(someone, self.top)))

    def _rungs(self) -> Iterator[int]:
        for ladder in self.search.defined.brackets:
            yield from ladder.rungs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_decides_what_its_definition_says(rule: str, kind: str) -> None:
    for seed in range(dose.SEARCHES // (len(RULES) * len(KINDS))):
        dice = random.Random(f"{rule} {kind} {seed}")
        trials = Trials(compared(rule, kind, dice), dice)
        for _ in range(2000):
            if trials.search.defined.over:
                break
            trials.step()
        assert trials.search.defined.over and trials.state.over
