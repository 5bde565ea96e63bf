"""Stopping policies: when each one ends a trial or the search, and what the searcher hears."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest

from hpcdet.errors import ConfigError
from hpcdet.goals import Constraint, Goals, Objective
from hpcdet.search import searcher_factory
from hpcdet.search.api import codec
from hpcdet.search.api.events import (
    Action,
    Continue,
    Create,
    Limits,
    Pause,
    Report,
    SegmentEnd,
    Shutdown,
    Start,
    Stop,
)
from hpcdet.search.api.sampling import Independent
from hpcdet.search.methods.random import Random
from hpcdet.search.stopping import rules_from_config, search_rules, trial_rules
from hpcdet.search.stopping.supervised import Supervised
from hpcdet.search.stopping.trial_rules import WORST, RuleReport, TrialRule
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.trials.parents import Parent
from hpcdet.units import Length
from tests.json_states import plain, tell


def judged(
    policy: TrialRule[Any], values: list[Any], *, trial: str = "1", **more: Any
) -> list[str]:
    """What a policy says of one trial's values at lengths 1, 2, ...; the state goes by JSON."""
    state = policy.initial()
    said = []
    for length, metric in enumerate(values, 1):
        seen = RuleReport(trial, length, trial_rules.loss(metric, True), metric, **more)
        said.append(policy.judge(state, seen))
        state = codec.decode_state(policy.initial(), plain(state))
    return said


def first(said: list[str]) -> int:
    """The report (from 1) that ends the trial; 0: none does."""
    return next((at for at, why in enumerate(said, 1) if why), 0)


@pytest.mark.parametrize("metric", [None, "0.1", True, math.nan, math.inf, -math.inf, 10**400])
def test_what_is_no_finite_number_is_worst(metric: Any) -> None:
    assert trial_rules.loss(metric, True) == trial_rules.loss(metric, False) == WORST


@pytest.mark.parametrize(
    ("policy", "values", "ends"),
    [
        (trial_rules.PatienceRule(2), [3, 2, 2, 2, 1], 4),
        (trial_rules.PatienceRule(2), [3, 2, 2, 1, 1, 1], 6),
        (trial_rules.PatienceRule(2, min_delta=0.5), [3, 2.9, 2.8, 2.7], 3),
        (trial_rules.PatienceRule(3), [math.nan, math.nan, 1, 1, 1, 1], 6),
        (trial_rules.ThresholdRule(upper=5), [4, 6], 2),
        (trial_rules.ThresholdRule(lower=0), [4, -1], 2),
        (trial_rules.ThresholdRule(upper=5, warmup=3), [9, 9, 9], 3),
        (trial_rules.ThresholdRule(upper=5), [4, math.inf], 2),
        (trial_rules.ThresholdRule(lower=5, warmup=2), [math.nan, math.nan], 2),
        (trial_rules.PlateauRule(3, 0.01), [1, 0.5, 0.5, 0.5], 4),
        (trial_rules.PlateauRule(3, 0.01), [1, 0.5, 0.4, 0.3], 0),
        (trial_rules.NaNRule(), [1, math.nan], 2),
        (trial_rules.NaNRule(2), [math.nan, 1, math.nan, "x"], 4),
        (trial_rules.NaNRule(2), [math.nan, None, None, math.nan], 4),
        (trial_rules.NaNRule(2, absent=True), [math.nan, None], 2),
        (trial_rules.ThresholdRule(upper=5), [4, None, 6], 3),
        (trial_rules.DivergenceRule(3), [None, 1.0, None, 0.5, 2.5], 5),
        (trial_rules.DivergenceRule(3), [1.0, 0.5, 0.9, 2.5], 4),
        (trial_rules.DivergenceRule(3, reports=2), [1.0, 0.5, 2.5, 0.5, 2.5, 2.6], 6),
        (trial_rules.DivergenceRule(3), [1.0, 1.0, 3.9], 0),
        (trial_rules.DivergenceRule(3, reports=3), [1.0, math.inf, math.inf, math.nan], 4),
        (trial_rules.DivergenceRule(3, reports=2), [math.nan, 1.0, 3.9, 5.0, 5.0], 5),
        (search_rules.TargetRule(0.25), [1, 0.3, 0.2], 3),
        (search_rules.TotalLengthRule(3), [1, 1, 1], 3),
    ],
)
def test_a_policy_ends_a_trial_with_that_report(
    policy: TrialRule[Any], values: list[Any], ends: int
) -> None:
    assert first(judged(policy, values)) == ends


def test_cost_counts_slots_and_time_does_not() -> None:
    spent: dict[str, Any] = {"slot_seconds": 4 * 3600.0, "slots": 4}
    assert first(judged(trial_rules.CostRule(3.9), [1], **spent)) == 1
    assert first(judged(trial_rules.CostRule(4), [1], **spent)) == 0
    assert first(judged(trial_rules.TimeRule(0.9), [1], **spent)) == 1
    assert first(judged(trial_rules.TimeRule(1), [1], **spent)) == 0


def reports(policy: TrialRule[Any], rows: list[tuple[int, int, Any]]) -> list[tuple[int, int]]:
    """(trial, length) of those (trial, length, metric) that are ended, each once."""
    state = policy.initial()
    ended: dict[str, int] = {}
    for trial, length, metric in rows:
        seen = RuleReport(str(trial), length, trial_rules.loss(metric, True), metric)
        if policy.judge(state, seen):
            ended.setdefault(trial, length)  # type: ignore[arg-type]
        state = codec.decode_state(policy.initial(), plain(state))
    return list(ended.items())  # type: ignore[arg-type]


def test_who_ends_by_the_median_is_worse_than_that_of_all_bests_so_far() -> None:
    """As docs/guides/search-stopping.md has it, of trials that report in any order, with ties."""
    dice = random.Random(1)
    policy = trial_rules.PercentileRule(50, min_trials=3)
    state, best, there = policy.initial(), dict[str, float](), dict[int, list[float]]()
    ends = 0
    for _ in range(400):
        trial, loss = str(dice.randrange(60)), float(dice.randrange(9))
        length = dice.randrange(1, 9)
        if length <= state.last.get(trial, 0):
            continue
        best[trial] = min(best.get(trial, loss), loss)
        others = there.setdefault(length, [])
        others.append(best[trial])
        worse = best[trial] > statistics.median(others) and len(others) > 3
        assert bool(policy.judge(state, RuleReport(trial, length, loss, loss))) == worse
        ends += worse
    assert ends > 20


def test_the_median_is_of_the_best_that_others_had_at_the_same_length() -> None:
    policy = trial_rules.PercentileRule(50, min_trials=4)
    rows = [(trial, 10, float(trial)) for trial in (1, 2, 3, 4)]
    assert reports(policy, [*rows, (5, 10, 2.5)]) == []
    assert reports(policy, [*rows, (5, 10, 3.5)]) == [(5, 10)]
    # its best counts, not its last value; other lengths do not
    assert reports(policy, [*rows, (5, 5, 0.5), (5, 10, 9.0)]) == []
    assert reports(policy, [*rows, (5, 11, 9.0)]) == []
    # nothing is judged before the fifth trial, nor within the warm-up
    assert reports(policy, [*rows[:3], (5, 10, 9.0)]) == []
    late = trial_rules.PercentileRule(50, min_trials=4, warmup=11)
    assert reports(late, [*rows, (5, 10, 9.0)]) == []


def test_a_percentile_keeps_that_share_on_the_long_run() -> None:
    draw = random.Random(0)
    rows = [(trial, 1, draw.random()) for trial in range(1, 501)]
    ended = reports(trial_rules.PercentileRule(25), rows)
    assert 0.70 < len(ended) / len(rows) < 0.80


def test_lengths_within_an_interval_are_compared() -> None:
    policy = trial_rules.PercentileRule(50, min_trials=2, interval=100)
    rows = [(1, 101, 1.0), (2, 150, 1.1), (3, 199, 2.0)]
    assert reports(policy, rows) == [(3, 199)]
    # a second report of a trial within the interval is not a second value of it
    assert reports(policy, [(1, 101, 1.0), (1, 120, 1.0), (3, 199, 2.0)]) == []


def test_wilcoxon_compares_equal_folds_with_the_best_trial() -> None:
    policy = trial_rules.WilcoxonRule(p=0.05)
    best = [(1, fold, 0.1 * fold) for fold in range(1, 9)]
    worse = [(2, fold, 0.1 * fold + 0.05 + fold / 1000) for fold in range(1, 9)]
    mixed = [(3, fold, 0.1 * fold + (-1) ** fold / 50) for fold in range(1, 9)]
    # all of n pairs worse: p = 2**-n, below 0.05 from the fifth
    assert reports(policy, best + worse) == [(2, 5)]
    assert reports(policy, best + mixed) == []
    assert reports(policy, worse + best) == []


def test_a_test_without_its_package_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    asked = {"name": "random", "metric": "loss", "max_trials": 2, "stopping": {"wilcoxon": {}}}
    with pytest.raises(ConfigError, match="lacks a package: scipy"):
        searcher_factory.searcher(resolve({"searcher": asked}))


def test_no_improvement_counts_trials() -> None:
    policy = search_rules.NoImprovementRule(3)
    rows = [(1, 1, 1.0), (2, 1, 2.0), (3, 1, 2.0), (4, 1, 2.0)]
    assert reports(policy, rows) == []
    assert reports(policy, [*rows, (5, 1, 2.0)]) == [(5, 1)]
    assert reports(policy, [*rows, (2, 2, 0.5), (5, 1, 2.0)]) == []


def searcher(*asked: tuple[str, TrialRule[Any]], most: int = 3, at_once: int = 2) -> Supervised:
    space = Space({"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}})
    until = Length("batches", 100)
    method = Random(Independent(space, 1), 1, until, most, at_once)
    return Supervised(method, asked, "loss", limits=Limits(most, at_once, until))


class Run:
    def __init__(self, method: Supervised) -> None:
        self.method, self.state = method, plain(method.initial())
        self.give(Start())

    def give(self, event: Any) -> list[Action]:
        self.state, actions = tell(self.method, self.state, event)
        return actions

    def report(self, trial: int, length: int, value: Any) -> list[Action]:
        return self.give(Report(trial, Length("batches", length), {"loss": value}))


def test_a_trial_that_a_policy_ends_makes_room_at_once_and_is_heard_no_more() -> None:
    run = Run(searcher(("nan", trial_rules.NaNRule())))
    stop, create = run.report(1, 10, math.nan)
    assert stop == Stop(1, "nan: the metric is nan")
    assert isinstance(create, Create) and create.trial == 3
    assert run.report(1, 20, math.nan) == []
    assert run.give(SegmentEnd(1, "stopped")) == []
    assert run.give(SegmentEnd(2, "target")) == []
    [end] = run.give(SegmentEnd(3, "target"))
    assert isinstance(end, Shutdown) and not end.failed


def test_a_target_ends_all_trials_and_the_search() -> None:
    run = Run(searcher(("target", search_rules.TargetRule(0.5)), most=9))
    assert run.report(1, 10, 0.6) == []
    why = "target: trial 2 reached the target with 0.4"
    assert run.report(2, 10, 0.4) == [Stop(1, why), Stop(2, why), Shutdown(why=why)]
    assert run.report(1, 20, 0.1) == run.give(SegmentEnd(1, "stopped")) == []


@pytest.mark.parametrize(
    ("policy", "at", "again"),
    [
        (search_rules.TargetRule(0.1), 1, 0),
        (search_rules.TotalLengthRule(30), 3, 5),
        (search_rules.NoImprovementRule(1), 3, 5),
    ],
)
def test_what_ended_a_search_does_not_end_it_at_once_again_when_more_is_asked_for(
    policy: TrialRule[Any], at: int, again: int
) -> None:
    """``at``: the trial that ended it, ``again``: the next one that does, if any."""
    run = Run(searcher(("it", policy), most=3, at_once=3))
    until = Length("batches", 100)

    def ends(trial: int, value: float, at: int = 10) -> bool:
        return any(isinstance(action, Shutdown) for action in run.report(trial, at, value))

    assert [ends(trial, trial / 10) for trial in range(1, at + 1)] == [False] * (at - 1) + [True]
    assert run.give(SegmentEnd(1, "stopped")) == []
    assert run.give(Limits(3, 9, until)) == []  # nothing further
    made = run.give(Limits(7, 3, until))
    assert [action.trial for action in made if isinstance(action, Create)] == [4, 5, 6]
    assert len(made) == 3
    # one that is still leaving is not heard, nor is its place given away twice
    assert run.report(2, 20, 0.05) == run.give(SegmentEnd(2, "stopped")) == []
    assert next((trial for trial in (4, 5) if ends(trial, 0.1, 20)), 0) == again


def test_a_trial_that_had_come_to_its_end_when_a_target_ended_the_search_can_be_made_longer() -> (
    None
):
    run = Run(searcher(("target", search_rules.TargetRule(0.1)), most=3, at_once=3))
    run.report(1, 100, 0.5)
    run.report(2, 100, 0.1)
    assert run.report(3, 90, 0.2) == run.report(3, 100, 0.2) == []
    assert [run.give(SegmentEnd(n, "target")) for n in (2, 3)] == [[], []]
    actions = run.give(Limits(3, 3, longer := Length("batches", 200)))
    assert [(a.trial, a.until) for a in actions if isinstance(a, Continue)] == [
        (2, longer),
        (3, longer),
    ]
    assert len(actions) == 2 and run.report(3, 150, 0.01) == []
    assert run.give(SegmentEnd(1, "stopped")) == run.give(SegmentEnd(2, "target")) == []
    assert run.give(SegmentEnd(3, "target")) == [Shutdown()]


def test_a_member_that_had_come_to_its_end_when_a_target_ended_the_search_can_be_made_longer() -> (
    None
):
    target = {"stopping": {"target": {"value": 0.1}}, "stopping_version": 2}
    asked = {"name": "pbt", "metric": "loss", "max_length": {"batches": 100}, **target}
    asked |= {"population_size": 2, "max_concurrent_trials": 2}
    run = Run(searcher_factory.searcher(resolve({"searcher": asked})))  # type: ignore[arg-type]
    assert isinstance(run.report(1, 100, 0.1)[-1], Shutdown)
    assert run.give(SegmentEnd(1, "target")) == run.give(SegmentEnd(2, "stopped")) == []
    [longer] = run.give(Limits(2, 2, Length("batches", 200)))
    assert isinstance(longer, Continue) and longer.trial == 1


def test_a_constraint_that_a_trial_breaks_once_the_search_is_over_ends_it_once() -> None:
    ends: list[tuple[int, str]] = []

    class Hears(Random):
        def on_event(self, state: Any, event: Any) -> Any:
            if isinstance(event, SegmentEnd):
                ends.append((event.trial, event.reason))
            return super().on_event(state, event)

    until = Length("batches", 100)
    method = Hears(Independent(Space({"lr": 0.1}), 1), 1, until, 3, 3)
    goals = Goals((Objective("loss"),), (Constraint("memory", upper=1.0, mode="hard"),))
    target, limits = [("target", search_rules.TargetRule(0.1))], Limits(3, 3, until)
    run = Run(Supervised(method, target, "loss", goals=goals, limits=limits))
    run.give(Report(1, Length("batches", 10), {"loss": 0.1, "memory": 0.5}))
    for at, memory in ((10, 2.0), (20, 2.0), (30, 0.5)):
        run.give(Report(2, Length("batches", at), {"loss": 0.5, "memory": memory}))
    run.give(SegmentEnd(2, "stopped"))
    assert ends == []
    run.give(Limits(5, 3, until))
    assert ends == [(2, "violated"), (1, "stopped"), (3, "stopped")]


def test_where_nobody_is_left_to_go_on_a_search_stays_ended_by_what_ended_it() -> None:
    run = Run(searcher(("target", search_rules.TargetRule(0.1)), most=1))
    [stop, end] = run.report(1, 50, 0.1)
    assert isinstance(stop, Stop) and run.give(SegmentEnd(1, "stopped")) == []
    assert run.give(Limits(1, 2, Length("batches", 200))) == [end]
    [made] = run.give(Limits(2, 2, Length("batches", 200)))
    assert isinstance(made, Create) and made.until == Length("batches", 200)


def test_what_rungs_did_not_hear_before_a_search_was_reopened_they_hear_then() -> None:
    run = Run(halving(("target", search_rules.TargetRule(0.1)), trials=4))
    for trial, value in ((1, 0.1), (2, 0.5)):
        run.report(trial, 1, value)
    assert (
        run.report(2, 4, 0.4) == run.report(2, 16, 0.3) == run.give(SegmentEnd(2, "target")) == []
    )
    [longer, *others] = run.give(Limits(4, 4, Length("batches", 64)))
    assert isinstance(longer, Continue) and (longer.trial, others) == (2, [])
    assert longer.why.startswith("rung 3 of 4 (16 batches)")


def test_a_search_by_rungs_knows_what_ended_it_when_it_goes_on() -> None:
    target = ("target", search_rules.TargetRule(0.1))
    run = Run(halving(target, trials=4))
    for trial in (1, 2, 3):
        run.report(trial, 1, trial / 10 + 1)
    why = "target: trial 4 reached the target with 0.1"
    assert run.report(4, 1, 0.1)[-1] == Shutdown(why=why)
    made = run.give(Limits(8, 4, Length("batches", 16)))
    assert [action.trial for action in made if isinstance(action, Create)] == [5, 6, 7, 8]
    assert not any(isinstance(action, Continue | Shutdown) for action in made)
    pause = run.report(5, 1, 0.5)[0]
    assert isinstance(pause, Pause) and "rank 2 of 5" in pause.why


def test_what_a_trial_inherits_was_trained_once() -> None:
    policy, state = search_rules.TotalLengthRule(1000), search_rules.TotalLengthState()

    def total(trial: int, length: int) -> int:
        policy.judge(state, RuleReport(str(trial), length, 1.0, 1.0))
        return state.total

    assert total(1, 500) == 500
    policy.inherit(state, 2, Parent(1, Length("batches", 500)), "batches")
    assert total(2, 600) == 600
    policy.inherit(state, 3, Parent(2), "batches")  # its newest
    assert total(3, 650) == 650
    policy.inherit(state, 4, Parent(1, None, "origin"), "batches")  # nobody knows how far that is
    assert (total(4, 300), total(4, 350)) == (650, 700)
    policy.inherit(state, 5, Parent(1, Length("batches", 500)), "batches")
    assert (total(5, 450), total(5, 500)) == (700, 750)  # from an older one, nobody knows which


@pytest.mark.parametrize(("begin_at", "total"), [({"batches": 30}, 50), (None, 20)])
def test_what_all_trials_begin_from_is_known_since_it_is_written_down(
    begin_at: dict[str, int] | None, total: int
) -> None:
    asked = {
        "name": "random",
        "metric": "loss",
        "max_length": {"batches": 90},
        "max_trials": 2,
        "begin_from": "old-1/3",
        "begin_at": begin_at,
        "stopping": {"total_length": {"length": {"batches": 50}}},
        "stopping_version": 2,
    }
    run = Run(searcher_factory.searcher(resolve({"searcher": asked})))  # type: ignore[arg-type]
    assert not any(run.report(*at, 1.0) for at in ((1, 40), (2, 50), (1, 50)))
    assert bool(run.report(1, 60, 1.0)) is (total == 50)
    assert run.state["policies"][0]["total"] == total


class Copies(Random):
    """Each trial but the first begins from the first."""

    def _create(self, state: Any, trial: int) -> Create:
        parent = "1@500 batches" if trial > 1 else ""
        return replace(super()._create(state, trial), parent=parent)


@pytest.mark.parametrize(("rules", "total"), [(1, 1100), (2, 600)])
def test_searches_of_former_versions_are_judged_by_their_rules(rules: int, total: int) -> None:
    method = Copies(Independent(Space({"lr": 0.1}), 1), 1, Length("batches", 900), 2, 2)
    values = {"threshold": {"upper": 5}, "total_length": {"length": {"batches": 9000}}}
    chosen = rules_from_config.chosen(values, True, rules)  # type: ignore[arg-type]
    limits = Limits(2, 2, Length("batches", 900))
    run = Run(Supervised(method, chosen, "loss", limits=limits, rules=rules))
    run.report(1, 500, 1.0)
    run.report(2, 600, 1.0)
    assert run.state["policies"][1]["total"] == total
    assert bool(run.report(2, 700, math.inf)) is (rules > 1)
    [(_, nan)] = rules_from_config.chosen({"nan": {}}, True, rules)
    assert first(judged(nan, [1.0, None])) == (2 if rules == 1 else 0)
    assert ("asked" in run.state) is (rules > 1)
    assert (run.method.version == method.version) is (rules == 1)
    asked = {"name": "random", "metric": "loss", "max_trials": 2, "stopping": {"nan": {}}}
    old = searcher_factory.searcher(resolve({"searcher": asked}))  # as experiment.yaml was before
    assert isinstance(old, Supervised) and old.rules == 1


class Pauses(Random):
    """Pauses whatever reports, and wants the next instead."""

    def on_event(self, state: Any, event: Any) -> Any:
        if isinstance(event, Report):
            return state, [Pause(event.trial), self._create(state, 9)]
        return super().on_event(state, event)


def test_what_the_searcher_wants_of_an_ended_trial_is_dropped_and_nothing_else() -> None:
    method = Pauses(Independent(Space({"lr": 0.1}), 1), 1, Length("batches", 9), 2, 1)
    run = Run(Supervised(method, [("nan", trial_rules.NaNRule())], "loss"))
    stop, create, *rest = run.report(1, 10, math.nan)
    assert isinstance(stop, Stop) and isinstance(create, Create) and create.trial == 9
    assert not any(isinstance(action, Pause) for action in rest)


def halving(*asked: tuple[str, TrialRule[Any]], trials: int = 16) -> Supervised:
    values = {
        "hyperparameters": {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}},
        "searcher": {
            "name": "async_halving",
            "metric": "loss",
            "max_length": {"batches": 16},
            "divisor": 4,
            "num_rungs": 3,
            "max_trials": trials,
            "max_concurrent_trials": 4,
        },
        "reproducibility": {"experiment_seed": 1},
    }
    limits = Limits(trials, 4, Length("batches", 16))
    return Supervised(searcher_factory.searcher(resolve(values)), asked, "loss", limits=limits)


def test_who_is_ended_by_a_policy_has_had_its_turn_at_the_rungs() -> None:
    """Nobody is promoted in its stead: it would end in the same way."""
    method = halving(("time", trial_rules.TimeRule(9 / 3600)))
    state, actions = tell(method, plain(method.initial()), Start())
    lengths: dict[int, int] = {}
    running, longest = [a.trial for a in actions if isinstance(a, Create)], {}
    ended = 0
    while running:
        trial = running.pop(0)
        lengths[trial] = at = lengths.get(trial, 0) + 1
        longest[trial] = at
        report = Report(trial, Length("batches", at), {"loss": trial / 100}, seconds=float(at))
        state, actions = tell(method, state, report)
        running.append(trial)
        while actions:
            action = actions.pop(0)
            if isinstance(action, Create | Continue):
                running.append(action.trial)
            elif isinstance(action, Pause | Stop) and action.trial in running:
                running.remove(action.trial)
                if isinstance(action, Stop):
                    ended += 1
                    state, more = tell(method, state, SegmentEnd(action.trial, "stopped"))
                    actions += more
            elif isinstance(action, Shutdown):
                running = []
    assert len(longest) == 16 and state["method"]["over"]
    # of 16 trials at most a few come beyond the second rung, as without the policy
    assert 1 <= ended <= 5 and sum(at > 4 for at in longest.values()) <= 5
