"""Populations: who is copied and given up, and what hyperparameters copies begin with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcdet.config import api as config
from hpcdet.errors import ConfigError
from hpcdet.search.api import codec
from hpcdet.search.api import events as api
from hpcdet.search.api.sampling import Blind
from hpcdet.search.population.explore import Perturb, perturbed
from hpcdet.search.searcher_factory import searcher
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.surrogate import Curves
from hpcdet.sim.turns import Reports
from hpcdet.space.domains import Categorical, Double, Int, Log, LogInt
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.trials.parents import Parent
from hpcdet.units import Length
from tests.json_states import plain, tell

RATE = {"rate": {"type": "loguniform", "low": 1e-4, "high": 1.0}}
FULL = 100


def pbt(**asked: Any) -> api.Method[Any]:
    asked = {
        "name": "pbt",
        "metric": "loss",
        "max_length": {"batches": FULL},
        "population_size": 6,
        "max_concurrent_trials": 6,
        "perturbation_interval": {"batches": 10},
        **asked,
    }
    return searcher(resolve({"searcher": asked, "hyperparameters": RATE}))


class Watched:
    """A searcher whose events and actions are taken down, and whose population is looked after."""

    def __init__(self, method: api.Method[Any], places: int) -> None:
        self.method, self.places = method, places
        self.name, self.version = method.name, method.version
        self.told: list[tuple[api.Event, list[api.Action]]] = []
        self.reported: dict[int, set[int]] = {}
        self.live: set[int] = set()
        self.training: set[int] = set()

    def initial(self) -> Any:
        return plain(self.method.initial())

    def on_event(self, state: Any, event: api.Event) -> tuple[Any, list[api.Action]]:
        state, actions = tell(self.method, state, event, nan=True)
        self.told.append((event, actions))
        match event:
            case api.Report(trial, length):
                self.reported.setdefault(trial, set()).add(length.value)
            case api.SegmentEnd(trial, reason):
                self.training.discard(trial)
                if reason != "target" or FULL in self.reported[trial]:
                    self.live.discard(trial)
        for action in actions:
            self.follow(action)
        if not isinstance(event, api.Start):
            assert len(self.training) <= self.places
        return state, actions

    def follow(self, action: api.Action) -> None:
        match action:
            case api.Create(trial, parent=text):
                if text:
                    parent = Parent.parse(text)
                    assert parent is not None and parent.length is not None
                    assert parent.trial in self.live
                    assert parent.length.value in self.reported[parent.trial]
                    self.reported[trial] = set()
                self.live.add(trial)
                self.training.add(trial)
            case api.Continue(trial):
                assert trial in self.live
                self.training.add(trial)
            case api.Pause(trial):
                self.training.discard(trial)
            case api.Stop(trial):
                self.live.remove(trial)
                self.training.discard(trial)


@pytest.mark.parametrize("synchronous", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(("places", "fail"), [(6, 0.0), (2, 0.0), (0, 3.0)])
def test_a_population_stays_whole_and_ends(synchronous: bool, places: int, fail: float) -> None:
    def method() -> api.Method[Any]:
        return pbt(synchronous=synchronous, max_concurrent_trials=places)

    watched = Watched(method(), places or 6)
    cluster = Cluster(
        workers=places or 6,
        fail_per_h=fail,
        stragglers=0.5,
        preempt_per_h=fail,
        idle_s=math.inf,
        checkpoint_every_s=100,
        poll_s=30,
        on_failure="lost" if fail else "checkpoint",
    )
    course = Simulation(
        watched,
        cluster,
        Curves(1, FULL, 36.0),
        Reports(range(10, FULL + 1, 10), metric="loss"),
        seed=1,
    ).run()
    assert course.over and not course.stalled
    copies = [a for _, actions in watched.told for a in actions if isinstance(a, api.Create)]
    assert sum(bool(one.parent) for one in copies) >= 4
    if not fail:
        assert len(course.finished) == 6
        ended = {a.trial for _, actions in watched.told for a in actions if isinstance(a, api.Stop)}
        replaced = len(copies) - 6
        assert len(ended) <= replaced
    again, state = method(), method().initial()
    for event, actions in watched.told:
        state, decided = again.on_event(state, event)
        assert [codec.encode_action(a) for a in decided] == [
            codec.encode_action(a) for a in actions
        ]


def drive(method: api.Method[Any], *events: api.Event) -> list[list[api.Action]]:
    state, found = method.initial(), []
    for event in (api.Start(), *events):
        state, actions = method.on_event(state, event)
        found.append(actions)
    return found


def report(trial: int, at: int, loss: float) -> api.Report:
    return api.Report(trial, Length("batches", at), {"loss": loss})


def test_the_worst_is_replaced_by_an_heir_of_the_best() -> None:
    losses = {1: 0.5, 2: 0.1, 3: 0.4, 4: 0.3, 5: 0.2}
    reports = [report(trial, 10, loss) for trial, loss in losses.items()]
    *_, quiet, last = drive(pbt(), *reports, report(6, 10, math.nan))
    assert quiet == []
    stop, heir = last
    assert isinstance(stop, api.Stop) and stop.trial == 6
    assert isinstance(heir, api.Create)
    assert (heir.trial, heir.until) == (7, Length("batches", FULL))
    assert heir.parent in ("2@10 batches", "5@10 batches")
    # who has nobody better, or nobody at all that is any good, goes on
    assert drive(pbt(), *reports, report(6, 10, 0.0))[-1] == []
    assert drive(pbt(), *(report(trial, 10, math.nan) for trial in range(1, 7)))[-1] == []
    # one that fails is replaced by an heir, without anybody to inherit from by a new one
    [heir] = drive(pbt(), *reports, api.SegmentEnd(6, "failed"))[-1]
    assert isinstance(heir, api.Create) and heir.parent
    [other] = drive(pbt(), api.SegmentEnd(6, "failed"))[-1]
    assert isinstance(other, api.Create) and not other.parent
    failed = [api.SegmentEnd(trial, "failed") for trial in range(1, 200)]
    actions = [action for some in drive(pbt(), *failed) for action in some]
    assert actions[-1] == api.Shutdown(True, "no trial succeeded")
    assert actions[-2].trial == 6 + 3 * 6  # type: ignore[union-attr]


def test_who_breaks_a_constraint_ranks_behind_and_is_not_copied() -> None:
    bound = [{"metric": "size", "upper": 1.0}]

    def said(trial: int, loss: float, size: float) -> api.Report:
        return api.Report(trial, Length("batches", 10), {"loss": loss, "size": size})

    reports = [said(trial, 0.5 + trial / 10, 1.0) for trial in range(1, 6)]
    stop, heir = drive(pbt(constraints=bound), *reports, said(6, 0.1, 2.0))[-1]
    assert (stop.trial, heir.parent) in ((6, "1@10 batches"), (6, "2@10 batches"))  # type: ignore[union-attr]


def test_a_synchronous_round_waits_for_all_and_compares_once() -> None:
    method = pbt(synchronous=True, max_concurrent_trials=2, population_size=4, quantile=0.25)
    events: list[api.Event] = []
    for trial, loss in ((1, 0.4), (2, 0.1), (3, 0.2), (4, 0.3)):
        events += [report(trial, 10, loss), api.SegmentEnd(trial, "target")]
    first, *_, last = drive(method, *events)
    assert [(a.trial, a.until) for a in first] == [(n, Length("batches", 10)) for n in (1, 2)]  # type: ignore[union-attr]
    heir, going = last
    assert isinstance(heir, api.Create) and heir.parent == "2@10 batches"
    assert isinstance(going, api.Continue) and going.trial == 2
    assert heir.until == going.until == Length("batches", 20)


def test_a_search_without_its_metric_says_so() -> None:
    unnamed = [api.Report(trial, Length("batches", 10), {"other": 1.0}) for trial in (1, 2, 3)]
    *_, last = drive(pbt(), *unnamed)
    [asked] = [action for action in last if isinstance(action, api.Ask)]
    assert "no trial of 3 has shown a finite number as 'loss'; the last" in asked.why


SPACE: Mapping[str, Any] = {
    "rate": {"type": "loguniform", "low": 0.001, "high": 1.0},
    "width": {"type": "int", "minval": 8, "maxval": 64, "mutable": False},
    "layers": [{"drop": {"type": "double", "minval": 0.0, "maxval": 0.9}}, {"drop": 0.5}],
    "order": {"type": "categorical", "vals": [1, 2, 4, 8], "ordered": True},
    "optimizer": {
        "choice": {
            "sgd": {"momentum": {"type": "double", "minval": 0, "maxval": 1}},
            "adam": {"beta": {"type": "double", "minval": 0.8, "maxval": 1}},
        }
    },
    "warm": {"type": "int", "minval": 1, "maxval": 9, "when": {"order": [1, 2]}},
    "twice": {"derived": "rate * 2"},
    "forbid": ["rate > 0.9"],
}


def test_an_heir_moves_to_neighbours_within_its_space() -> None:
    space = Space(SPACE)
    never, always = Perturb(space, 3, resample=0.0), Perturb(space, 3, resample=1.0)
    tags = set()
    for number in range(1, 60):
        params = space.sample(5, number)
        near = never.explore(Blind(), 1, params, number)
        assert near == never.explore(Blind(), 2, params, number)
        assert (
            near["rate"] / params["rate"] in (pytest.approx(0.8), pytest.approx(1.2))
            or near["rate"] == 0.001
        )
        assert near["twice"] == near["rate"] * 2 <= 1.8
        assert near["width"] == params["width"]
        assert near["layers"][1] == {"drop": 0.5}
        assert near["optimizer"]["name"] == params["optimizer"]["name"]
        places = [[1, 2, 4, 8].index(one["order"]) for one in (params, near)]
        assert abs(places[0] - places[1]) <= 1
        assert ("warm" in near) == (near["order"] <= 2)
        if "warm" in params and "warm" in near:
            assert abs(near["warm"] - params["warm"]) <= 2
        far = always.explore(Blind(), 1, params, number)
        assert far["width"] == params["width"]
        tags.add((params["optimizer"]["name"], far["optimizer"]["name"]))
    assert len(tags) == 4


def test_each_kind_of_number_moves_as_it_should() -> None:
    up, down = (1 << 128) - 1, 0
    factors = (0.8, 1.2)
    assert perturbed(Int(1, 100), 3, up, factors) == 4
    assert perturbed(Int(1, 100), 3, down, factors) == 2
    assert perturbed(Int(1, 100), 100, up, factors) == 100
    assert perturbed(Int(0, 100, step=20), 40, up, factors) == 60
    assert perturbed(Int(-9, 9), 0, up, factors) == 1
    assert perturbed(LogInt(1, 9), 1, down, factors) == 1
    assert perturbed(Double(0, 1), 0.95, up, factors) == math.nextafter(1, 0)
    assert perturbed(Log(-3, -1), 0.1, up, factors) == 0.1
    assert perturbed(Log(-3, -1), 0.05, down, factors) == 0.04
    assert perturbed(Categorical(("a", "b", "c"), True), "b", up, factors) == "c"
    assert perturbed(Categorical((True, 1), True), 1, down, factors) is True


def test_a_schedule_is_a_chain_of_heirs() -> None:
    steps = [
        {"until": {"batches": end}, "hyperparameters": {"rate": rate}}
        for end, rate in ((30, 0.1), (70, 0.2), (FULL, 0.3))
    ]
    asked = {"name": "schedule", "metric": "loss", "max_length": {"batches": FULL}}
    method = searcher(resolve({"searcher": {**asked, "schedule": {"seed": 5, "steps": steps}}}))
    ends = [api.SegmentEnd(trial, "target") for trial in (1, 2, 3)]
    *made, last = [action for actions in drive(method, *ends) for action in actions]
    assert [(a.trial, a.params, a.seed, a.until.value, a.parent) for a in made] == [  # type: ignore[union-attr]
        (1, {"rate": 0.1}, 5, 30, ""),
        (2, {"rate": 0.2}, 5, 70, "1@30 batches"),
        (3, {"rate": 0.3}, 5, FULL, "2@70 batches"),
    ]
    assert last == api.Shutdown()
    assert drive(method, api.SegmentEnd(1, "failed"))[-1] == [api.Shutdown(True, "trial 1: failed")]


CONFIG = """\
entrypoint: model_def:Model
hyperparameters: {rate: {type: loguniform, low: 0.001, high: 1}, width: {type: int, minval: 1,
  maxval: 9, mutable: false}}
searcher: {name: pbt, population_size: 4, max_length: {batches: 50}}
"""


def test_a_config_of_a_population_is_checked_and_planned(tmp_path: Path) -> None:
    file = tmp_path / "pbt.yaml"
    file.write_text(CONFIG)
    planned = config.plan(config.load(file).config)
    assert planned["population"] == {"size": 4, "interval": 5, "comparisons": 9}
    assert (planned["trials"], planned["units"]) == (4, 200)
    for wrong in (
        "searcher.population_size=null",
        "searcher.max_trials=9",
        "searcher.perturbation_interval={epochs: 1}",
        "searcher.perturbation_interval=50",
        "searcher.quantile=0.6",
        "searcher.name=random",
        "searcher.name=schedule",
    ):
        with pytest.raises(ConfigError):
            config.load(file, [wrong])


STEPS = [
    {"until": {"batches": end}, "hyperparameters": {"rate": 0.1, "width": 3}} for end in (20, 50)
]


def _scheduled(*steps: dict[str, Any]) -> list[str]:
    said = {"name": "schedule", "max_length": {"batches": 50}, "schedule": {"steps": steps}}
    return [f"searcher={json.dumps(said)}"]


def test_the_steps_of_a_schedule_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "schedule.yaml"
    file.write_text(CONFIG.partition("searcher:")[0])
    first, last = STEPS
    found = config.load(file, _scheduled(first, last))
    assert found.config.searcher.max_trials == 2 and not found.warnings
    assert "ends at 20 batches, short of 50" in config.load(file, _scheduled(first)).warnings[0]
    low = first | {"until": {"batches": 0}}
    far, epochs = (last | {"until": until} for until in ({"batches": 60}, {"epochs": 50}))
    wrong = {"rate": 9, "width": 3}, {"rate": 0.1}, {"rate": 0.1, "width": 3, "depth": 1}
    for steps, key, what in (
        ((first, far), "1.until", "beyond the whole training of 50"),
        ((first, epochs), "1.until", "50 epochs cannot be compared"),
        ((last, first), "1.until", "20 batches is not beyond 50 batches"),
        ((low, last), "0.until", "0 batches is not beyond 0"),
        ((first | {"hyperparameters": wrong[0]},), "0.hyperparameters.rate", "out of bounds"),
        ((first | {"hyperparameters": wrong[1]},), "0.hyperparameters.width", "it is missing"),
        ((first | {"hyperparameters": wrong[2]},), "0.hyperparameters.depth", "no such hyper"),
    ):
        with pytest.raises(ConfigError, match=what) as caught:
            config.load(file, _scheduled(*steps))
        assert f"searcher.schedule.steps.{key}" in str(caught.value)


@pytest.mark.parametrize(
    "asked", ["{name: pbt, population_size: 2", "{name: random, max_trials: 2"]
)
def test_no_more_points_are_tried_first_than_there_are_trials(tmp_path: Path, asked: str) -> None:
    file = tmp_path / "initial.yaml"
    file.write_text(CONFIG.partition("searcher:")[0])
    points = "initial: [{width: 1}, {width: 2}, {width: 3}]"
    with pytest.raises(ConfigError, match="3 points are more than the 2 of"):
        config.load(file, [f"searcher={asked}, max_length: {{batches: 50}}, {points}}}"])


def test_who_is_given_up_is_not_copied_where_some_have_begun_anew() -> None:
    method = pbt(population_size=7, max_concurrent_trials=7, quantile=0.5, synchronous=True)
    state, actions = method.on_event(method.initial(), api.Start())
    trials = [action.trial for action in actions if isinstance(action, api.Create)]
    losses = dict.fromkeys(trials, math.nan)  # nobody can be copied yet

    def train(trial: int, length: int, reason: str = "target") -> list[api.Action]:
        at = Length("batches", length)
        method.on_event(state, api.Report(trial, at, {"loss": losses[trial]}))
        return method.on_event(state, api.SegmentEnd(trial, reason))[1]  # type: ignore[arg-type]

    for trial in trials:
        train(trial, 10)
    for trial in trials:
        actions = train(trial, 20, "failed" if trial <= 3 else "target")
    anew = [action.trial for action in actions if isinstance(action, api.Create)]
    assert len(anew) == 3
    losses = {**dict.fromkeys(anew, 9.0), 4: 0.1, 5: 0.2, 6: 0.3, 7: 0.4}
    for trial, length in [
        *dict.fromkeys(anew, 10).items(),
        *dict.fromkeys((4, 5, 6, 7), 30).items(),
    ]:
        actions = train(trial, length)
    parents = {action.parent for action in actions if isinstance(action, api.Create)}
    assert parents and parents <= {"4@30 batches", "5@30 batches"}
