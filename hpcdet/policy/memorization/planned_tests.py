"""The tests of memorization that an experiment's config plans: they share its level."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdet.policy.memorization.twins import alpha_now
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import Resolved


@dataclass(frozen=True)
class PlannedTests:
    """The looks at the twins of a search's trials that its config plans.

    Attributes:
        trials: of the search, at least 1.
        looks: validations of each, at least 1; none is counted before the first step.
    """

    trials: int
    looks: int

    @staticmethod
    def of(config: Resolved) -> PlannedTests:
        """The tests that a config plans; more of them are levelled down (``alpha_now``)."""
        searcher = config.searcher
        if searcher.name == "grid":
            trials = len(Space(config.hyperparameters).grid())
        else:
            trials = 1 if searcher.name in ("single", "schedule") else searcher.max_trials
        looks = {one.value for one in searcher.rungs}
        length, period = searcher.max_length, config.min_validation_period
        if length is not None and period.value and period.unit == length.unit:
            looks |= {*range(period.value, length.value, period.value), length.value}
        return PlannedTests(max(trials, 1), max(len(looks), 1))

    def level(self, alpha: float, trial: int, look: int, sources: int) -> float:
        """The level of one test (``twins.alpha_now``).

        Args:
            trial: its number, from 1.
            look: tests that the trial has had before.
            sources: how many are tested at each look.
        """
        return alpha_now(alpha, self.trials, self.looks, max(trial - 1, 0), look, sources)
