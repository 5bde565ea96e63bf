"""The simulated cluster: times worked out by hand, nothing lost under disturbances, the verb."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcdet.search.api import events
from hpcdet.search.halving.rung_rules import RULES
from hpcdet.search.searcher_factory import searcher
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.forecast import Forecast
from hpcdet.sim.outcome import Course
from hpcdet.sim.surrogate import Curves
from hpcdet.sim.turns import Reports
from hpcdet.sim.waits import QueueWait
from hpcdet.store.config.resolved_config import resolve
from hpcdet.units import Length
from tests.commands import Cli, cli  # noqa: F401
from tests.compared import compared


def random_search(trials: int, length: int, concurrent: int = 0) -> events.Searcher:
    asked = {
        "name": "random",
        "max_trials": trials,
        "max_concurrent_trials": concurrent,
        "max_length": {"batches": length},
    }
    return searcher(resolve({"hyperparameters": {"lr": 1}, "searcher": asked}))


@dataclass
class Ladder:
    """At each rung the better half goes on in place; others are paused, or stopped.

    When nothing runs any more, the best paused trial goes on: ``revived`` of them.
    """

    rungs: tuple[int, ...]
    trials: int
    concurrent: int
    rule: str = "pause"
    revived: int = 2
    name: str = "ladder"
    version: int = 1
    heard: list[events.Event] = field(default_factory=list)

    def initial(self) -> events.State:
        return {"made": 0, "open": [], "paused": [], "seen": {}, "revived": 0, "over": False}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        self.heard.append(event)
        state = json.loads(json.dumps(state))
        actions: list[events.Action] = []
        match event:
            case events.Report(trial, length, metrics):
                losses = state["seen"].setdefault(str(length.value), {})
                new = losses.setdefault(str(trial), metrics["loss"]) == metrics["loss"]
                worse = sum(loss <= metrics["loss"] for loss in losses.values())
                bad = worse > max(1, len(losses) // 2) and length.value < self.rungs[-1]
                if new and bad and trial in state["open"]:
                    state["open"].remove(trial)
                    state["paused"] += [[metrics["loss"], trial]] * (self.rule == "pause")
                    stop = (
                        events.Stop(trial, "half") if self.rule == "stop" else events.Pause(trial)
                    )
                    actions.append(stop)
            case events.SegmentEnd(trial):
                state["open"] = [other for other in state["open"] if other != trial]
        while state["made"] < self.trials and len(state["open"]) < self.concurrent:
            state["made"] += 1
            state["open"].append(state["made"])
            actions.append(events.Create(state["made"], {}, 0, Length("batches", self.rungs[-1])))
        if not state["open"] and state["paused"] and state["revived"] < self.revived:
            best = min(state["paused"])
            state["paused"].remove(best)
            state["revived"] += 1
            state["open"].append(best[1])
            actions.append(events.Continue(best[1], Length("batches", self.rungs[-1])))
        if not state["open"] and not state["over"]:
            state["over"] = True
            actions.append(events.Shutdown())
        return state, actions


def run(method: events.Searcher, cluster: Cluster, *lengths: int, **more: Any) -> Course:
    curves = Curves(more.get("seed", 0), max(lengths))
    name = "loss" if isinstance(method, Ladder) else "validation_loss"
    reports = Reports(lengths, metric=name)
    return Simulation(method, cluster, curves, reports, keep=True, **more).run()


def test_workers_take_trials_one_after_the_other() -> None:
    course = run(random_search(6, 10), Cluster(workers=4, queue_wait=QueueWait(typical_s=7)), 10)
    assert (course.over, course.stalled, course.end_s) == (True, False, 27)
    assert course.finished[-1][0] == 27
    assert (len(course.finished), course.at) == (6, {10: 6})
    assert course.waits_s == [7] * 4
    assert course.allocated_s == 80 and course.trained_s == 60  # two idle for the last ten seconds
    assert course.utilisation == 0.75


def test_trials_begin_where_their_checkpoint_is() -> None:
    course = run(random_search(2, 100), Cluster(2), 10, 40, 100, begun=40)
    assert (course.end_s, course.trained_s, course.at) == (60, 120, {100: 2})
    bad = Cluster(1, fail_per_h=60, on_failure="start")
    again = run(random_search(3, 100), bad, 10, 40, 100, begun=40)
    assert again.failures and again.at == {100: 3}
    assert {one.length for one in again.moments if one.what in ("begin", "restore")} == {40}


def test_a_trial_outlives_allocations() -> None:
    cluster = Cluster(
        1, queue_wait=QueueWait(typical_s=10), walltime_s=40, save_s=5, start_s=2, restore_s=3
    )
    course = run(random_search(1, 100), cluster, 100)
    # 33 s of the first allocation train, 30 of each further one
    assert [m.length for m in course.moments if m.what == "restore"] == [33, 63, 93]
    assert course.end_s == 10 + 3 * (40 + 10) + 5 + 7
    assert (course.allocated_s, course.trained_s, course.redone_s) == (132, 100, 0)
    assert (course.preempted, len(course.waits_s)) == (3, 4)


@pytest.mark.parametrize(
    ("on_failure", "length"), [("checkpoint", 0.75), ("start", 0.0), ("lost", None)]
)
def test_what_a_node_takes_along(on_failure: Any, length: float | None) -> None:
    cluster = Cluster(1, fail_per_h=3600 / 150, on_failure=on_failure, checkpoint_every_s=25)
    course = run(random_search(30, 100), cluster, 100)
    lost = [m for m in course.moments if m.what == "lost"]
    assert course.failures == len(lost) > 5
    went_on = {m.trial for m in course.moments if m.what == "restore"}
    if on_failure == "lost":
        assert not went_on and len(course.finished) == 30 - len(lost)
        return
    assert len(course.finished) == 30 and bool(went_on) == bool(length)
    assert course.trained_s - course.redone_s == pytest.approx(3000, abs=len(lost))
    kept = 25 if on_failure == "checkpoint" else 100
    assert course.redone_s <= len(lost) * kept


def test_a_paused_trial_frees_its_place_and_goes_on_from_where_it_left() -> None:
    method = Ladder((10, 40), trials=6, concurrent=2)
    course = run(method, Cluster(2, directive_s=3), 10, 40)
    paused = {m.trial: m for m in course.moments if m.what == "pause"}
    begun = [(m.at_s, m.worker) for m in course.moments if m.what in ("begin", "restore")]
    assert paused and all(any(at == m.at_s for at, _ in begun) for m in paused.values())
    back = [m for m in course.moments if m.what == "restore"]
    assert len(back) == 2
    assert {m.length for m in back} == {13}  # it trained on while the decision travelled
    assert course.over and len(course.finished) == 6 - len(paused) + 2


def test_the_crank_turns_late_and_not_while_nobody_is_there() -> None:
    method = Ladder((10, 20), trials=4, concurrent=1, rule="stop")
    cluster = Cluster(
        1, poll_s=6, away=((25, 100),), idle_s=math.inf, visible=QueueWait(typical_s=1)
    )
    course = run(method, cluster, 10, 20)
    # the first is the best of one; its end, written at 20, is heard at 24; the second's first
    # report, written at 34, when somebody is there again, and it has reached the top meanwhile
    made = [m.at_s for m in course.moments if m.what == "create"]
    assert made[:2] == [0, 24]
    assert made[2] == 100


@pytest.mark.parametrize("rule", ["pause", "stop"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_each_trial_ends_and_each_length_is_told_once(
    rule: str, seed: int
) -> None:
    def once() -> tuple[Course, Ladder]:
        method = Ladder((4, 16, 64), trials=60, concurrent=8, rule=rule)
        cluster = Cluster(
            workers=9,
            throttle=7,
            queue_wait=QueueWait.parse("lognormal:20:1"),
            walltime_s=90,
            preempt_per_h=20,
            fail_per_h=30,
            checkpoint_every_s=5,
            detect_s=7,
            save_s=1,
            restore_s=2,
            stragglers=1.3,
            visible=QueueWait.parse("exp:4"),
            poll_s=2,
            directive_s=1.5,
            away=((50, 120), (200, 230)),
            min_segment_s=4,
            idle_s=30,
        )
        return run(method, cluster, 4, 16, 64, seed=seed), method

    course, method = once()
    assert course.over and not course.stalled
    assert course.created == 60 and course.failures and course.preempted
    assert 0 < course.utilisation < 1
    told: dict[int, list[int]] = {}
    for event in method.heard:
        if isinstance(event, events.Report):
            told.setdefault(event.trial, []).append(event.length.value)
    assert all(lengths == sorted(set(lengths)) for lengths in told.values())
    assert course.at == {n: sum(n in lengths for lengths in told.values()) for n in (4, 16, 64)}
    again, _ = once()
    assert again.moments == course.moments
    forecast = Forecast([course, again])
    assert forecast.rungs[4].low == forecast.rungs[4].high == course.at[4]


def test_repeated_reports_are_told_as_they_are() -> None:
    method = Ladder((4, 16), trials=30, concurrent=3)
    course = run(method, Cluster(3, repeats=0.5), 4, 16)
    reports = [(e.trial, e.length) for e in method.heard if isinstance(e, events.Report)]
    assert course.over and len(reports) > len(set(reports)) > 30


def test_a_cluster_on_which_nothing_gets_on_ends_the_simulation() -> None:
    cluster = Cluster(2, fail_per_h=3600 * 10, checkpoint_every_s=1000)
    course = run(random_search(2, 100), cluster, 100, patience=500)
    assert course.stalled and not course.over and not course.finished


def test_curves_belong_to_trials_and_cross() -> None:
    one, other = Curves(3, 256), Curves(3, 2560, noise=0)
    assert [one.final(k) for k in (1, 700)] == [other.final(k) for k in (1, 700)]
    assert one.metric(9, 16) == one.metric(9, 16) != Curves(4, 256).metric(9, 16)
    trials = range(1, 250)
    early = sorted(trials, key=lambda k: other.metric(k, 10))[:25]
    late = sorted(trials, key=other.final)[:25]
    assert 6 < len(set(early) & set(late)) < 25  # better than chance (2), and not all
    assert sum(one.final(k) <= one.quantile(0.1) for k in trials) == pytest.approx(25, abs=12)


@pytest.mark.parametrize("text", ["soon", "exp", "exp:-1", "lognormal:1:2:3", "-4", "nan"])
def test_waits_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        QueueWait.parse(text)


@pytest.mark.parametrize("rule", ["hybrid", "stopping", "promotion"])
def test_rules_of_ours_on_a_bad_cluster(rule: str) -> None:
    asked = {
        "name": "adaptive_asha",
        "rule": rule,
        "max_trials": 60,
        "max_concurrent_trials": 8,
        "max_length": {"batches": 64},
        "max_rungs": 3,
    }
    resolved = resolve({"hyperparameters": {"lr": 1}, "searcher": asked})
    cluster = Cluster(
        7,
        queue_wait=QueueWait("exp", 20),
        walltime_s=90,
        preempt_per_h=20,
        fail_per_h=30,
        checkpoint_every_s=5,
        visible=QueueWait("exp", 4),
        poll_s=2,
        repeats=0.2,
    )
    course = run(searcher(resolved), cluster, 4, 16, 64)
    assert course.over and not course.stalled
    assert course.created == 60 and course.preempted and course.failures
    assert course.at[4] > course.at[16] > course.at[64] > 0


@dataclass
class Watched:
    """A searcher, and when it told each trial last what to do."""

    method: events.Searcher
    words: dict[int, tuple[str, float]] = field(default_factory=dict)
    now: Callable[[], float] = float
    name: str = "watched"
    version: int = 1

    def initial(self) -> events.State:
        return self.method.initial()

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        state, actions = self.method.on_event(state, event)
        for action in actions:
            if isinstance(action, events.Pause | events.Stop | events.Continue):
                self.words[action.trial] = type(action).__name__.lower(), self.now()
        return state, actions


@pytest.mark.parametrize("directive_s", [0.0, 30.0])
@pytest.mark.parametrize("rule", RULES)
def test_rules_where_trials_come_to_their_end_before_they_hear(
    rule: str, directive_s: float
) -> None:
    """Decisions that take longer than a rung: trials that are told to leave end by themselves."""
    to_leave: set[str] = set()
    for seed in range(40):
        method = compared(rule, "async_halving", random.Random(seed))
        rungs = method.defined.brackets[0].rungs
        visible = QueueWait("exp", 20)
        cluster = Cluster(
            3, visible=visible, poll_s=60, directive_s=directive_s, fail_per_h=9, save_s=1
        )
        watched = Watched(method)
        simulation = Simulation(
            watched,
            cluster,
            Curves(seed, rungs[-1]),
            Reports(
                rungs,
                metric="loss",
                time_metric="seen" if method.defined.timed else "",
                smaller_is_better=method.sign > 0,
            ),
            seed=seed,
            keep=True,
        )
        watched.now = lambda agenda=simulation.agenda: agenda.now
        course = simulation.run()
        assert course.over and not course.stalled
        ends = {moment.trial: moment.at_s for moment in course.moments if moment.what == "finish"}
        told = [event for event in method.told if isinstance(event, events.SegmentEnd)]
        heard = {event.trial for event in told if event.reason == "target"}
        to_leave |= {
            word
            for trial, (word, at_s) in watched.words.items()
            if at_s < ends.get(trial, 0.0) and trial in heard
        }
    word = "stop" if rule == "stopping" else "pause"
    assert (word in to_leave) == (directive_s > 0)


CONFIG = """
name: digits
entrypoint: python3 train.py
searcher: {name: random, metric: accuracy, smaller_is_better: false, max_trials: 9,
  max_concurrent_trials: 3, max_length: {batches: 100}}
hyperparameters: {lr: {type: log, minval: -3, maxval: -1}}
"""


def test_the_verb(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    config = tmp_path / "model" / "random.yaml"
    config.parent.mkdir()
    config.write_text(CONFIG)
    waits = tmp_path / "waits"
    waits.write_text("60\n10m\n")
    asked = ("simulate", config, "--trial-time", "1h", "--queue-wait", f"@{waits}", "--seeds", 5)
    [item] = cli(*asked, "-o", "json").items
    assert item["trials"] == {"median": 9, "low": 9, "high": 9}
    assert item["rungs"] == [{"length": 100, "trials": item["trials"]}]
    assert 3 * 3600 + 60 <= item["end_s"]["low"] <= item["end_s"]["high"] <= 3 * 3600 + 1800
    table = cli(*asked).out
    assert max(map(len, table.splitlines())) <= 80
    assert "bracket 1: 9 trials; to 100 batches" in table and "trials at 100 batches" in table
    for wrong in (
        ["--queue-wait", "soon"],
        ["--walltime", "9", "--save-time", "9"],
        ["--away", "8h"],
    ):
        ran = cli("simulate", config, *wrong, code=2)
        assert wrong[0].strip("-") in ran.err
    policies = "searcher.stopping={threshold: {lower: 0.2}, target: {value: 0.5}, nan: {}}"
    ran = cli(*asked, "--set", policies, "-o", "json")
    assert ran.items[0]["rungs"] == item["rungs"]
    assert "nothing ends by threshold, target: " in ran.out
    bound = cli(*asked, "--set", "budget={slot_hours: 99, wall_s: 1h}", "-o", "json").out
    assert "the budget is 1 h: " in bound and "the budget is 99" not in bound
    hopeless = ("--fail", "100000", "--seeds", 1, "--trial-time", "10h")
    assert "does not end" in cli("simulate", config, *hopeless, code=6).err
