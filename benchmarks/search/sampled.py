"""Optuna's samplers as searchers: they propose, its halving or Hyperband stops, or nothing does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna

from benchmarks.search.rules import METRIC, Ladder, Stopping, optuna_hyperband
from benchmarks.search.rules import optuna as optuna_rule
from hpcdet.search.api import events
from hpcdet.units import Length

WORST = 100.0
Draw = Callable[[optuna.Trial], dict[str, Any]]


class Sampled(Stopping):
    """The study is told what became of each trial, as ``Study.optimize`` tells it."""

    draw: Draw
    sampler: optuna.samplers.BaseSampler

    def initial(self) -> events.State:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(sampler=self.sampler)
        self._asked: dict[int, tuple[optuna.Trial, float]] = {}
        return super().initial()

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        if isinstance(event, events.Report):
            trial, loss = self._asked[event.trial][0], event.metrics[METRIC]
            trial.report(loss, event.length.value)
            self._asked[event.trial] = (trial, loss)
        if isinstance(event, events.SegmentEnd):
            trial, loss = self._asked.pop(event.trial)
            if event.reason == "target":
                self._study.tell(trial, loss)
            else:
                kinds = optuna.trial.TrialState
                kind = kinds.FAIL if event.reason == "failed" else kinds.PRUNED
                self._study.tell(trial, state=kind)
        state, actions = super().on_event(state, event)
        return state, [self._with_params(action) for action in actions]

    def _with_params(self, action: events.Action) -> events.Action:
        if not isinstance(action, events.Create):
            return action
        trial = self._study.ask()
        self._asked[action.trial] = (trial, WORST)
        full = Length("batches", self.ladder.full)
        return events.Create(action.trial, self.draw(trial), 0, full)


def sampled(
    ladder: Ladder, name: str, draw: Draw, sampler: optuna.samplers.BaseSampler, stops: str = ""
) -> Sampled:
    """``stops``: ``halving``, ``hyperband``, or nothing: all trials train in full."""
    if stops == "hyperband":
        like = optuna_hyperband(ladder)
        made = Sampled(ladder, name, like.decide, like.brackets, like.spread)
    else:
        rule = optuna_rule(ladder.eta) if stops else lambda record, loss: True
        made = Sampled(ladder, name, rule)
    made.draw, made.sampler = draw, sampler
    return made


def tpe(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
