"""Searches in which nothing is memorized, and memorizers among honest trials: who is pruned.

All between the losses of twins and the directive is what trials and searches use: keyed coins,
``WithheldTwins.judge``, the level of the config's plan, ``gov.*`` metrics, the policy's gates and
the searcher that enforces them. The losses are drawn.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np

from hpcdet.data.sample_order import Order, shuffled
from hpcdet.data.sourced import SourceTable
from hpcdet.guard.withheld import Losses, WithheldTwins
from hpcdet.policy import governed_metrics
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup, Memorization, Twins
from hpcdet.policy.memorization import twin_evidence, twins
from hpcdet.policy.memorization.planned_tests import PlannedTests
from hpcdet.store.config.resolved_config import resolve
from tests.dose import GOVERNED_SEARCHES, dice
from tests.search.test_goals import Run, make

ALPHA, PAIRS, TRIALS, LOOKS, RECORDS = 0.05, 100, 16, 5, 400
POLICY = CompiledPolicy(
    "notes",
    1,
    "sha256:00",
    (LayerGroup("all", ""),),
    (DataSource("notes"),),
    ((1.0,),),
    memorization=Memorization(Twins(PAIRS, alpha=ALPHA), max_advantage=0.2),
)
CONFIG = {
    "searcher": {"name": "random", "max_trials": TRIALS, "max_length": {"batches": LOOKS}},
    "min_validation_period": {"batches": 1},
}
PLANNED = PlannedTests.of(resolve(CONFIG))
AUC = 0.71
SHIFT = statistics.NormalDist().inv_cdf(AUC) * math.sqrt(2)
"""By which losses of withheld records are larger, in standard deviations, to be told by ``AUC``."""

Level = Callable[[float, int, int, int], float]


def withheld(key: bytes) -> WithheldTwins:
    """The twins of an experiment's data; each trial has its own looks at them."""
    order = Order(RECORDS, 20, lambda epoch: shuffled(RECORDS, 1, epoch), permutes=True)
    table = SourceTable.of(["notes"] * RECORDS, "data")
    found = WithheldTwins.of(POLICY, key, order, table, lambda look, sources: 0.0)
    assert found is not None
    return found


def pruned(
    key: bytes, losses: Callable[[int, WithheldTwins], Losses], level: Level = PLANNED.level
) -> dict[int, int]:
    """Run a search; returns the look, from 1, at which trials were stopped, by their number."""
    shared, found = withheld(key), dict[int, int]()

    def of(trial: int) -> WithheldTwins:
        return WithheldTwins(
            shared.pairs,
            shared.max_advantage,
            shared.commitment,
            lambda look, sources: level(ALPHA, trial, look, sources),
        )

    trials = {number: of(number) for number in range(1, TRIALS + 1)}
    gates = governed_metrics.constraints(POLICY)
    run = Run(make("random", constraints=gates, max_trials=TRIALS, max_concurrent_trials=TRIALS))
    for look in range(1, LOOKS + 1):
        for number, mine in trials.items():
            if number not in found:
                judged = twin_evidence.memorization(mine.judge(losses(number, mine)))
                reported = {"gov.coverage": 1.0, "gov.violations": 0.0, **judged}
                said = run.report(number, look, loss=1 / number, **reported)
                if f"Stop {number}" in said:
                    found[number] = look
    return found


def test_the_plan_is_that_of_the_config() -> None:
    assert PlannedTests(TRIALS, LOOKS) == PLANNED


def test_null_searches_prune_no_more_often_than_alpha() -> None:
    """Each look has losses of its own, so that its verdict is independent: the worst case."""
    draws = np.random.default_rng(dice("null searches").randrange(1 << 32))
    false = sum(
        bool(pruned(draws.bytes(32), lambda _, mine: draws.normal(size=2 * PAIRS)))
        for _ in range(GOVERNED_SEARCHES)
    )
    each = twins.power(PAIRS, 0.0, PLANNED.level(ALPHA, 1, 0, 1), 0.2)
    exact = 1 - (1 - each) ** (TRIALS * LOOKS)
    share = false / GOVERNED_SEARCHES
    print(f"{false} of {GOVERNED_SEARCHES} null searches prune: {share:.4f}, exactly {exact:.4f}")
    assert exact <= 0.8 * ALPHA
    assert abs(false - exact * GOVERNED_SEARCHES) <= 5 * math.sqrt(exact * GOVERNED_SEARCHES)


def test_without_the_plan_most_null_searches_would_prune() -> None:
    """What is counted above can be wrong: each test at the level of the whole search."""
    draws = np.random.default_rng(dice("uncorrected").randrange(1 << 32))

    def level(alpha: float, trial: int, look: int, sources: int) -> float:
        return alpha

    false = [
        pruned(draws.bytes(32), lambda _, mine: draws.normal(size=2 * PAIRS), level)
        for _ in range(40)
    ]
    assert sum(map(bool, false)) > 20


def test_a_memorizer_is_pruned_in_four_of_five_searches() -> None:
    """Its losses tell trained records from withheld ones with an AUC of 0.71, and are the least.

    They are the same at each look, so that later looks add nothing to the power of the first.
    """
    draws = np.random.default_rng(dice("memorizers").randrange(1 << 32))
    found = 0
    for _ in range(GOVERNED_SEARCHES):
        known: dict[int, Losses] = {}

        def losses(number: int, mine: WithheldTwins, known: dict[int, Losses] = known) -> Losses:
            if number not in known:
                known[number] = draws.normal(size=2 * PAIRS)
                if number == 1:
                    known[number] += SHIFT * np.isin(mine.indices, mine.outside)
            return known[number]

        found += 1 in pruned(draws.bytes(32), losses)
    exact = twins.power(PAIRS, 2 * AUC - 1, PLANNED.level(ALPHA, 1, 0, 1), 0.2)
    print(f"{found} of {GOVERNED_SEARCHES} memorizers are pruned, and of all such {exact:.3f}")
    spread = math.sqrt(exact * (1 - exact) * GOVERNED_SEARCHES)
    assert exact >= 0.8
    assert abs(found - exact * GOVERNED_SEARCHES) <= 5 * spread
