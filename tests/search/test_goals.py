"""Several objectives and constraints: who ranks where, what ends, and what models are told."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from hpcdet import pareto
from hpcdet.config.load.load_config import load
from hpcdet.core.training import worth
from hpcdet.errors import ConfigError
from hpcdet.goals import Constraint, Goals, Objective
from hpcdet.search.api import codec, ranking
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
)
from hpcdet.search.api.events import Stop as StopTrial
from hpcdet.search.halving.bracket_state import StateView
from hpcdet.search.halving.rung_rules import RULES
from hpcdet.search.samplers.optuna_samplers import ModelBased
from hpcdet.search.searcher_factory import searcher
from hpcdet.search.stopping.search_rules import NoImprovementRule, TargetRule, TargetState
from hpcdet.search.stopping.trial_rules import RuleReport
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import resolve
from hpcdet.units import Length, Units
from tests.json_states import plain, tell

TWO = Goals((Objective("loss"), Objective("speed", smaller_is_better=False)))
BOTH = [{"metric": "loss"}, {"metric": "speed", "smaller_is_better": False}]
SPACE = {
    "x": {"type": "double", "minval": 0.0, "maxval": 1.0},
    "y": {"type": "double", "minval": 0.0, "maxval": 1.0},
}


# -- fronts ----------------------------------------------------------------------------------


def test_fronts_and_their_order_on_paper() -> None:
    points = [(1, 5), (2, 3), (4, 1), (2, 5), (3, 3), (5, 5), (2, 3), (1, 6)]
    assert pareto.layers(points) == [0, 0, 0, 1, 1, 2, 0, 1]
    assert pareto.layers([]) == [] and pareto.spread([]) == []
    # the lowest first objective, then the farthest from it, then the middle; a twin comes last
    assert pareto.spread([(2, 3), (1, 5), (2, 3), (5, 1), (1.5, 4)]) == [1, 3, 0, 4, 2]
    huge = [(-1e308, 1e308), (1e308, -1e308), (0, 0)]
    assert pareto.spread(huge) == [0, 1, 2]
    assert pareto.hypervolume([(1, 2), (2, 1), (2, 2), (9, 9)], (3, 3)) == 3
    assert not pareto.dominates((1, 2), (1, 2)) and pareto.dominates((1, 2), (1, 3))


@pytest.mark.parametrize("objectives", [2, 3])
def test_fronts_that_grow_one_by_one_are_those_of_all(objectives: int) -> None:
    """Whatever the order in which they come, with twins, NaN, and after some were taken out."""
    dice = random.Random(objectives)
    goals = Goals(tuple(Objective(f"m{n}") for n in range(objectives)))
    order = ranking.by(goals)
    worths = [[[float(dice.randint(0, 7)) for _ in range(objectives)], []] for _ in range(60)]
    worths += [[None, []], [None, []]]  # type: ignore[list-item]
    final = []
    for _ in range(6):
        scores: ranking.Ranking = []
        waiting: ranking.Ranking = []
        for trial in dice.sample(range(len(worths)), len(worths)):
            new = order.entry(worths[trial], trial)
            rank = order.insert(scores, waiting, new)
            assert scores == sorted(scores) and waiting == sorted(waiting)
            assert 0 <= rank < len(scores)
            if dice.random() < 0.5:
                ranking.insert(waiting, list(new))  # a copy, as after a restart
        for gone in (3, 30):
            ranking.remove(waiting, gone)
            order.remove(scores, waiting, gone)
        known = {entry[2]: entry for entry in scores}
        assert all(known[entry[2]] == entry for entry in waiting)
        feasible = [entry for entry in scores if not entry[0]]
        assert [e[1] for e in feasible] == pareto.layers([e[3] for e in feasible])
        assert [entry[0] for entry in scores[-2:]] == [2, 2]
        index, rank = order.first(scores, waiting, len(scores)) or (-1, -1)
        assert waiting[index][1] == waiting[0][1]
        assert order.first(scores, waiting, rank) is None
        final.append(json.dumps(scores))
    assert len(set(final)) == 1


def test_feasible_before_infeasible_before_unknown() -> None:
    goals = Goals(
        (Objective("loss"),),
        (Constraint("ms", upper=20), Constraint("gb", upper=8, tolerance=2, warmup=10)),
    )

    def entry(trial: int, length: int = 10, **metrics: Any) -> ranking.Entry:
        order = ranking.by(goals)
        return order.entry(order.worth(metrics, length), trial)

    worst_first = [
        entry(1, loss=math.nan, ms=1, gb=1),
        entry(2, loss=0.1, ms="fast", gb=1),
        entry(3, loss=0.1, ms=60, gb=1),  # two bounds beyond
        entry(4, loss=0.1, ms=20, gb=13),  # one and a half tolerances beyond the first
        entry(5, loss=0.1, ms=22, gb=1),
        entry(6, loss=0.9, ms=20, gb=10),
        entry(7, loss=0.8, ms=20, gb=99, length=9),  # not judged yet
    ]
    assert [one[2] for one in sorted(worst_first)] == [7, 6, 5, 4, 3, 1, 2]
    assert [one[1] for one in worst_first[2:5]] == [2.0, 1.5, 0.1]


# -- searches --------------------------------------------------------------------------------


def make(name: str = "async_halving", **asked: Any) -> Any:
    settings = {"metric": "loss", "max_length": {"batches": 9}, "divisor": 3, **asked}
    config = {"hyperparameters": SPACE, "searcher": {"name": name, **settings}}
    return searcher(resolve(config | {"reproducibility": {"experiment_seed": 1}}))


class Run:
    """Events told one after the other; the state goes through strict JSON each time."""

    def __init__(self, method: Any) -> None:
        self.method, self.state = method, plain(method.initial())
        self.last = self.tell(Start())

    def tell(self, event: Any) -> list[Action]:
        self.state, self.last = tell(self.method, self.state, event)
        return self.last

    @property
    def typed(self) -> Any:
        return codec.decode_state(self.method.initial(), self.state)

    def report(self, trial: int, length: int, **metrics: Any) -> list[str]:
        actions = self.tell(Report(trial, Length("batches", length), metrics))
        return [f"{type(a).__name__} {getattr(a, 'trial', '')}".strip() for a in actions]


def test_the_front_goes_on_and_its_spread_decides_where_there_is_no_room() -> None:
    run = Run(make(objectives=BOTH, num_rungs=2, max_trials=6, max_concurrent_trials=6))
    assert run.report(1, 3, loss=0.5, speed=5) == ["Pause 1"]
    assert run.report(2, 3, loss=0.6, speed=4) == ["Pause 2"]  # dominated
    # in one front with the first, and the lower loss: the first of it
    assert run.report(3, 3, loss=0.4, speed=3) == []
    assert run.report(4, 3, loss=0.9, speed=9) == ["Pause 4"]
    assert run.report(5, 3, loss=0.8, speed=1) == ["Pause 5"]
    # of six the best two go on: that with the least loss, and that farthest from it, the fastest
    assert run.report(6, 3, loss=math.nan, speed=99) == ["Pause 6", "Continue 4"]
    assert [a.why for a in run.last if isinstance(a, Continue)] == [
        "rung 1 of 2 (3 batches): rank 2 of 6 now, the best 2 go on"
    ]


@pytest.mark.parametrize(
    "asked", [{"objectives": BOTH}, {"constraints": [{"metric": "speed", "lower": 1}]}]
)
def test_a_search_for_several_goals_can_be_made_longer(asked: dict[str, Any]) -> None:
    run = Run(make(**asked, num_rungs=2, max_trials=3, max_concurrent_trials=3))
    for trial in (2, 3):
        assert run.report(trial, 3, loss=trial, speed=5) == [f"Pause {trial}"]
    run.report(1, 9, loss=1, speed=5)
    assert run.tell(SegmentEnd(1, "target")) == [Shutdown()]
    [action] = run.tell(Limits(3, 1, Length("batches", 27)))
    assert isinstance(action, Continue)
    assert (action.trial, action.until) == (1, Length("batches", 27))


def test_constraints_rank_and_a_hard_one_ends_without_a_trace() -> None:
    soft = {"metric": "ms", "upper": 20}
    run = Run(make(constraints=[soft], num_rungs=2, max_trials=3, max_concurrent_trials=3))
    assert run.report(1, 3, loss=0.1, ms=30) == ["Pause 1"]
    assert run.report(2, 3, loss=0.9, ms=20) == ["Pause 2"]
    assert run.report(3, 3, loss=0.8, ms=25) == ["Pause 3", "Continue 2"]

    hard = {"metric": "ms", "upper": 20, "warmup": {"batches": 3}, "mode": "hard"}
    run = Run(make(constraints=[hard], num_rungs=3, max_trials=4, max_concurrent_trials=3))
    assert run.report(1, 1, loss=0.1, ms=90) == ["Pause 1", "Create 4"]  # before its warmup
    assert run.report(2, 1, loss=0.5, ms=20) == ["Pause 2"]
    # a report of one that is paused may come late: it leaves what it had shown as well
    assert run.report(1, 3, loss=0.1, ms=90) == ["Stop 1"]
    assert isinstance(stop := run.last[0], StopTrial)
    assert stop.why == "constraint ms <= 20: ms is 90"
    method = run.state["method"]
    assert [[e[2] for e in scores] for scores in method["brackets"][0]["scores"]] == [[2], [], []]
    assert run.tell(SegmentEnd(1, "stopped")) == []
    assert run.report(3, 1, loss=0.6, ms=1) == ["Pause 3"]
    assert run.report(4, 1, loss=0.7, ms=1) == ["Pause 4", "Continue 2"]  # the best of three
    asked = {"population_size": 4, "perturbation_interval": {"batches": 1}, "quantile": 0.25}
    copied = Run(make("pbt", constraints=[{**hard, "warmup": None}], **asked))
    assert copied.report(2, 1, loss=0.5, ms=1) == []
    assert copied.report(1, 1, loss=0.1, ms=21) == ["Stop 1", "Create 5"]  # its place is taken
    alone = Run(make("random", constraints=[{**hard, "warmup": None}], max_trials=2))
    assert alone.report(1, 1, loss=1.0, ms=math.nan) == ["Stop 1"]
    assert alone.report(2, 1, loss=1.0, ms=1) == []


class Cluster:
    """Trials that report in any order, twice, late, NaN, half of what is wanted, and fail."""

    def __init__(self, method: Any, seed: int) -> None:
        self.dice, self.run = random.Random(seed), Run(method)
        self.at: dict[int, int] = {}
        self.free: set[int] = set()
        self.over = False
        self.see(self.run.last)

    def see(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Create(trial=trial) | Continue(trial=trial):
                    self.at.setdefault(trial, 0)
                    self.free.discard(trial)
                case Pause(trial=trial):
                    self.free.add(trial)
                case StopTrial(trial=trial):
                    del self.at[trial]
                    self.see(self.run.tell(SegmentEnd(trial, "stopped")))
                case Shutdown():
                    self.over = True

    def step(self) -> None:
        dice = self.dice
        trial = dice.choice([*self.at])
        fate = dice.random()
        if fate < 0.06 or (self.at[trial] >= 9 and trial not in self.free):
            del self.at[trial]
            reason = dice.choice(["failed", "invalid_hp", "canceled"]) if fate < 0.06 else "target"
            self.see(self.run.tell(SegmentEnd(trial, reason)))  # type: ignore[arg-type]
        elif trial not in self.free or fate < 0.3:
            self.at[trial] = min(self.at[trial] + dice.choice([1, 2, 6]), 9)
            metrics = {
                "loss": dice.choice([dice.random(), float(dice.randint(0, 3)), math.nan]),
                "speed": dice.choice([dice.random(), 1, "x"]),
                "ms": dice.choice([dice.random() * 40, math.inf]),
            }
            if dice.random() < 0.2:
                del metrics[dice.choice(list(metrics))]
            self.see(self.run.tell(Report(trial, Length("batches", self.at[trial]), metrics)))
        for bracket in (self.run.state.get("method") or self.run.state)["brackets"]:
            for scores, waiting in zip(bracket["scores"], bracket["waiting"], strict=True):
                fronts = [e for e in scores if not e[0]]
                assert [e[1] for e in fronts] == pareto.layers([e[3] for e in fronts])
                assert scores == sorted(scores)
                known = {e[2]: e for e in scores}
                assert waiting == sorted(known[e[2]] for e in waiting)


@pytest.mark.parametrize("mode", ["soft", "hard", "stop"])
@pytest.mark.parametrize("rule", RULES)
def test_every_search_comes_to_its_end_with_its_fronts_in_order(rule: str, mode: str) -> None:
    for seed, name in enumerate(("async_halving", "hyperband")):
        limits = [{"metric": "ms", "upper": 20, "mode": mode}]
        places = {"max_trials": 25, "max_concurrent_trials": 5, "rule": rule}
        cluster = Cluster(make(name, objectives=BOTH, constraints=limits, **places), seed)
        for _ in range(3000):
            if cluster.over or not cluster.at:
                break
            cluster.step()
        assert cluster.over


def test_whoever_breaks_a_constraint_reaches_no_target_and_is_no_improvement() -> None:
    seen = RuleReport("1", 1, 0.1, 0.1, feasible=False)
    assert TargetRule(0.5).judge(TargetState(), seen) == ""
    state = NoImprovementRule(9).initial()
    NoImprovementRule(9).judge(state, seen)
    assert state.best > 1


def test_a_checkpoint_that_breaks_a_constraint_is_none_of_the_best() -> None:
    limit = {"metric": "ms", "upper": 20, "warmup": {"epochs": 2}}
    settings = {"metric": "loss", "max_length": {"epochs": 3}, "constraints": [limit]}
    asked = resolve({"searcher": settings}).searcher
    late, early = Units(300, 900, 2), Units(299, 897, 1)
    assert worth(asked, {"loss": 0.1, "ms": 21}, late) is None
    assert worth(asked, {"loss": 0.1, "ms": 20}, late) == 0.1
    assert worth(asked, {"loss": 0.1}, early) == 0.1 and worth(asked, {"loss": 0.1}, late) is None


# -- samplers --------------------------------------------------------------------------------


def told(state_of: Any, trials: int, name: str, **asked: Any) -> Run:
    """A search in which every trial trains in full and shows what ``state_of`` says."""
    run = Run(make(name, max_trials=trials, max_concurrent_trials=1, **asked))
    for trial in range(1, trials + 1):
        run.report(trial, 9, **state_of(StateView(run.typed).params()[trial]))
        run.tell(SegmentEnd(trial, "target"))
    assert isinstance(run.last[-1], Shutdown)
    return run


def curve(params: Any) -> dict[str, float]:
    """The front is y = 0.5, from x = 0.2 to 0.8; x above 0.6 is too slow."""
    x, off = params["x"], (params["y"] - 0.5) ** 2
    return {"loss": (x - 0.2) ** 2 + off, "speed": -((x - 0.8) ** 2) - off, "ms": 10 * x}


@pytest.mark.parametrize("sampler", ["nsga2", "tpe"])
def test_samplers_learn_of_objectives_and_constraints(sampler: str) -> None:
    name = "nsga2" if sampler == "nsga2" else "bayesian"
    limits = [{"metric": "ms", "upper": 6}]
    run = told(curve, 60, name, objectives=BOTH, constraints=limits)
    again = told(curve, 60, name, objectives=BOTH, constraints=limits)
    assert run.state == again.state
    seen = list(StateView(run.typed).observations())
    late = [one for one in seen if one.trial > 30]
    assert [one.violation for one in seen] == sorted(one.violation for one in seen)
    params = StateView(run.typed).params()
    # a random draw is 0.25 off in y on average, and two of five are too slow
    assert sum(abs(params[one.trial]["y"] - 0.5) for one in late) / len(late) < 0.2
    assert sum(one.violation > 0 for one in late) < len(late) / 4


def test_densities_part_trials_by_constraints_and_fronts() -> None:
    limits, model = [{"metric": "ms", "upper": 6}], {"name": "tpe", "random_fraction": 0.0}
    asked: dict[str, Any] = {"objectives": BOTH, "constraints": limits, "sampler": model}
    run = told(curve, 80, "async_halving", num_rungs=1, **asked)
    late = list(StateView(run.typed).params().values())[40:]
    assert sum(abs(params["y"] - 0.5) for params in late) / len(late) < 0.2
    assert sum(params["x"] > 0.6 for params in late) < len(late) / 4


def test_a_gaussian_process_is_told_of_them_too() -> None:
    limits = [{"metric": "ms", "upper": 6}]
    run = told(curve, 9, "nsga2", objectives=BOTH, constraints=limits)
    model = ModelBased(Space(SPACE), 1, "gp", random_fraction=0.0, objectives=2)
    assert model.suggest(StateView(run.typed), 10) != Space(SPACE).sample(1, 10)


# -- configs ---------------------------------------------------------------------------------

CONFIG = """\
entrypoint: python train.py
hyperparameters: {lr: 0.1}
searcher:
  name: async_halving
  max_length: {batches: 9}
  max_trials: 4
"""


def test_one_objective_is_the_metric_and_a_resolved_config_is_a_config(tmp_path: Any) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{CONFIG}  objectives: [{{metric: loss, smaller_is_better: false}}]\n")
    alone = load(file).config.searcher
    assert (alone.metric, alone.smaller_is_better, alone.objectives) == ("loss", False, [])
    two = "[{metric: a}, {metric: b, smaller_is_better: false}]"
    file.write_text(f"{CONFIG}  objectives: {two}\n  constraints: [{{metric: c, lower: 1}}]\n")
    loaded = load(file)
    file.write_text(json.dumps(loaded.resolved()))
    assert load(file).config.searcher == loaded.config.searcher
    found = loaded.config.searcher
    assert found.metric == "a" and found.goals.several
    assert found.goals.constraints == (Constraint("c", lower=1.0),)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("constraints: [{metric: ms}]", "neither lower nor upper"),
        ("constraints: [{metric: ms, lower: 9, upper: 3}]", "above 9 and below 3"),
        ("constraints: [{metric: ms, lower: 9}, {metric: ms, upper: 10}]", "'ms' is there twice"),
        ("constraints: [{metric: ms, upper: 9, warmup: {epochs: 3}}]", "cannot be compared"),
        ("constraints: [{metric: ms, upper: 9, warmup: 10}]", "never apply"),
        ("objectives: [{metric: a}, {metric: a}]", "'a' is there twice"),
        ("objectives: [{metric: a}, {metric: b}]\n  metric: b", "'a' of the first"),
        ("objectives: [{metric: a}, {metric: b}]\n  name: pasha", "several objectives give none"),
        (
            "constraints: [{metric: gov.x, upper: 1}]",
            "constraints: nothing reports 'gov.x' without",
        ),
        ("metric: gov.x", "metric: nothing reports 'gov.x' without a policy"),
        ("objectives: [{metric: a}, {metric: gov.x}]", "objectives: nothing reports 'gov.x'"),
        ("sampler: {name: tpe, population_size: 9}", "only nsga2 has a population"),
        ("name: nsga2\n  sampler: {name: gp}", "nsga2 with the sampler gp"),
    ],
)
def test_what_cannot_be_is_said(more: str, says: str, tmp_path: Any) -> None:
    file = tmp_path / "a.yaml"
    named = any(line.strip().startswith("name: ") for line in more.splitlines())
    text = CONFIG.replace("  name: async_halving\n", "") if named else CONFIG
    text = text.replace("  metric: loss\n", "") if more.startswith("metric: ") else text
    file.write_text(f"{text}  {more}\n")
    with pytest.raises(ConfigError, match=says):
        load(file)
    if "gov." in more:  # under a policy it is measured
        file.write_text(f"{text}  {more}\ngovernance: {{policy: p.yaml}}\n")
        assert load(file).config.governance is not None
