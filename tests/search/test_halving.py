"""Searches by halving: Determined's vectors, each rule on paper, and what always holds."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from hpcdet import rungs
from hpcdet.rungs import Bracket
from hpcdet.search.api import codec
from hpcdet.search.api.events import (
    Action,
    Ask,
    Continue,
    Create,
    Limits,
    Method,
    Pause,
    Report,
    SegmentEnd,
    Shutdown,
    Start,
    Stop,
)
from hpcdet.search.halving.bracket_state import OPEN, StateView
from hpcdet.search.halving.halving import NEWEST
from hpcdet.search.halving.rung_rules import RULES
from hpcdet.search.searcher_factory import searcher
from hpcdet.store.config.resolved_config import resolve
from hpcdet.units import Length
from tests.json_states import plain, tell

# -- brackets --------------------------------------------------------------------------------


def test_rungs_are_exact_where_logarithms_are_not() -> None:
    assert rungs.ladder(10, 2, 4) == (1, 2, 5, 10)
    assert rungs.ladder(900, 3, 3) == (100, 300, 900)
    assert rungs.ladder(1000, 4, 4) == (15, 62, 250, 1000)
    assert rungs.ladder(3, 2, 5) == (1, 3)  # equal ones are merged
    assert (rungs.depth(243, 3, 99), rungs.depth(1000, 10, 99), rungs.depth(242, 3, 99)) == (
        6,
        4,
        5,
    )
    assert rungs.ladder(27, 2.7, 2) == (10, 27)


def test_trials_and_places_are_shared_as_determined_does() -> None:
    def trials(total: int, eta: int, counts: list[int]) -> list[int]:
        return rungs.share(total, [Fraction(eta) ** (k - 1) / k for k in counts])

    assert trials(20, 3, [3, 2, 1]) == [12, 5, 3]
    assert trials(50, 3, [4, 3]) == [35, 15]
    assert trials(50, 4, [3, 2]) == [37, 13]
    assert trials(100, 4, [4, 3, 2]) == [70, 22, 8]
    assert rungs.spread(0, 3, [9, 3, 1]) == [3, 3, 3]
    assert rungs.spread(11, 3, [9, 3, 1]) == [4, 4, 3]
    assert rungs.spread(0, 4, [40, 10]) == [10, 10]


@pytest.mark.parametrize(
    ("asked", "brackets"),
    [
        ((256, 4, "standard", 5, (), 500, 16), [(5, 354, 6), (4, 110, 5), (3, 36, 5)]),
        ((1000, 4, "standard", 5, (), 100, 16), [(4, 70, 6), (3, 22, 5), (2, 8, 5)]),
        ((100, 4, "standard", 5, (), 10, 2), [(2, 7, 1), (1, 3, 1)]),
        ((1000, 3, "conservative", 5, (), 10, 5), [(3, 7, 2), (2, 2, 2), (1, 1, 1)]),
        ((937, 4, "standard", 5, (), 16, 16), [(3, 12, 8), (2, 4, 8)]),
        ((937, 4, "aggressive", 5, (), 500, 16), [(5, 500, 16)]),
        (
            (937, 4, "conservative", 5, (), 500, 16),
            [(5, 341, 4), (4, 105, 3), (3, 35, 3), (2, 13, 3), (1, 6, 3)],
        ),
        # Determined makes six trials of these three
        ((81, 3, "standard", 5, (1, 2, 3, 4, 5), 3, 3), [(5, 1, 1), (4, 1, 1), (3, 1, 1)]),
    ],
)
def test_adaptive_brackets(asked: Any, brackets: list[tuple[int, int, int]]) -> None:
    found = rungs.adaptive(*asked)
    assert [(len(one.rungs), one.trials, one.concurrent) for one in found] == brackets
    assert all(one.rungs[-1] == asked[0] for one in found)


def test_previews_of_determined_and_the_table_of_hyperband() -> None:
    preview = rungs.adaptive(900, 3, "standard", 10, (), 10, 0)
    assert [one.expected(3) for one in preview] == [(5, 1, 1), (2, 1)]
    tutorial = rungs.adaptive(937, 4, "standard", 5, (), 16, 16)
    assert sum(one.units(4) for one in tutorial) == 3566
    assert sum(one.units(4) for one in rungs.adaptive(937, 4, "standard", 5, (), 500, 16)) == 14146
    table = rungs.hyperband(81, 3, 5, None, 16)
    assert [(one.trials, one.rungs[0]) for one in table] == [
        (81, 1),
        (34, 3),
        (15, 9),
        (8, 27),
        (5, 81),
    ]
    assert [one.trials for one in rungs.hyperband(81, 3, 5, 143, 16)] == [81, 34, 15, 8, 5]


# -- a search on paper -----------------------------------------------------------------------

SPACE = {"lr": {"type": "loguniform", "low": 1e-4, "high": 1.0}}


def make(name: str = "async_halving", top: int = 9, **asked: Any) -> Method[Any]:
    settings = {"metric": "loss", "max_length": {"batches": top}, "divisor": 3}
    settings["rule_version"] = NEWEST
    settings |= asked
    config = {"hyperparameters": SPACE, "searcher": {"name": name, **settings}}
    return searcher(resolve(config | {"reproducibility": {"experiment_seed": 1}}))


class Run:
    """Events told one after the other; the state goes through strict JSON each time."""

    def __init__(self, method: Method[Any]) -> None:
        self.method = method
        self.state = plain(method.initial())
        self.log: list[tuple[Any, list[Action]]] = []
        self.tell(Start())

    def tell(self, event: Any) -> list[Action]:
        self.state, actions = tell(self.method, self.state, event)
        self.log.append((event, actions))
        return actions

    @property
    def typed(self) -> Any:
        return codec.decode_state(self.method.initial(), self.state)

    def report(self, trial: int, length: int, loss: Any) -> str:
        return said(self.tell(Report(trial, Length("batches", length), {"loss": loss})))

    def end(self, trial: int, reason: Any = "target") -> str:
        return said(self.tell(SegmentEnd(trial, reason)))


def said(actions: list[Action]) -> str:
    """``pause 1, create 2``."""
    words = []
    for action in actions:
        number = "" if isinstance(action, Shutdown | Ask) else f" {action.trial}"
        failed = " failed" if isinstance(action, Shutdown) and action.failed else ""
        words.append(f"{type(action).__name__.lower()}{number}{failed}")
    return ", ".join(words)


def test_stopping_is_determineds_rule() -> None:
    run = Run(make(rule="stopping", num_rungs=3, max_trials=9, max_concurrent_trials=3))
    assert run.report(1, 1, 0.5) == ""  # the best so far always goes on
    assert run.report(2, 1, 0.6) == "stop 2, create 4"
    assert run.report(2, 2, 0.1) == "" == run.report(2, 3, 0.1)  # it has been decided
    assert run.report(3, 3, 0.4) == ""  # past two rungs in one report
    assert run.report(1, 3, 0.45) == "stop 1, create 5"
    assert run.report(4, 1, float("nan")) == "stop 4, create 6"
    assert run.end(3, "failed") == "create 7"  # its place is free, and it is last at the top
    assert [e[0] for e in run.state["brackets"][0]["scores"][2]] == [1]
    assert run.end(5, "invalid_hp") == "create 8"
    assert run.report(6, 9, 0.3) == "create 9"  # trained in full: its place is free at once
    assert run.end(6) == ""
    assert run.report(7, 1, 0.9) == "stop 7, create 10"  # the tenth, as one was refused
    assert run.report(8, 1, 0.9) == "stop 8"
    stop = run.log[-1][1][0]
    assert isinstance(stop, Stop)
    assert stop.why == "rung 1 of 3 (1 batches): rank 6 of 7, the best 2 go on"
    assert [run.end(trial, "stopped") for trial in (1, 2, 4, 7, 8)] == [""] * 5
    assert run.end(9, "user_exit") == ""  # before any rung: not replaced when all were made
    assert run.end(10, "failed") == "shutdown"


def test_who_was_stopped_for_good_does_not_go_on_though_it_has_trained_to_its_end() -> None:
    asked: dict[str, Any] = {
        "rule": "stopping",
        "num_rungs": 2,
        "max_trials": 3,
        "max_concurrent_trials": 3,
    }

    def told(version: int) -> Run:
        run = Run(make(**asked, rule_version=version))
        assert run.report(1, 3, 0.1) == ""
        assert run.report(2, 3, 0.5) == "stop 2" and run.report(3, 3, 0.4) == "stop 3"
        return run

    run = told(5)
    assert run.report(2, 9, 0.01) == ""  # it had not heard yet: that it was stopped stands
    assert [run.end(2, "target"), run.end(1, "failed")] == ["", ""]
    assert run.end(3, "stopped") == "shutdown"  # nobody is left to be trained in full
    former = told(4)  # as experiments go on that began with it
    assert [former.end(2, "target"), former.end(1, "failed")] == ["", "continue 2"]
    # whoever was at the top when the search was made longer waits there, and no one else
    run = told(5)
    assert run.report(1, 9, 0.1) == ""
    assert said(run.tell(Limits(3, 3, Length("batches", 30)))) == ""
    assert [run.end(2, "target"), run.end(1, "target")] == ["", "continue 1"]


def test_hybrid_goes_on_in_place_and_promotes_what_was_paused() -> None:
    run = Run(make(num_rungs=2, max_trials=7, max_concurrent_trials=2, top=3))
    assert run.report(1, 1, 0.5) == "pause 1, create 3"
    assert run.report(2, 1, 0.6) == "pause 2, create 4"
    paused = run.log[-1][1][0]
    assert isinstance(paused, Pause) and paused.why.endswith("rank 2 of 2, nobody goes on yet")
    assert run.report(3, 1, 0.4) == ""  # the best of three goes on where it is
    assert run.report(3, 3, 0.3) == "create 5"
    assert run.end(3) == ""
    assert run.report(4, 1, 0.7) == "pause 4, create 6"
    assert run.report(5, 1, 0.8) == "pause 5, create 7"
    assert run.report(6, 1, 0.9) == "pause 6, continue 1"  # two of six, and 1 is the second
    promoted = run.log[-1][1][1]
    assert isinstance(promoted, Continue) and promoted.until == Length("batches", 3)
    assert promoted.why == "rung 1 of 2 (1 batches): rank 2 of 6 now, the best 2 go on"
    assert run.report(1, 3, 0.5) == ""
    assert run.end(1) == ""
    assert run.report(7, 1, 0.45) == "" == run.report(7, 3, 0.9)
    assert run.end(7) == "shutdown"


def test_paused_trials_wait_for_the_last_new_one_while_enough_have_gone_on() -> None:
    asked: dict[str, Any] = {"num_rungs": 2, "max_trials": 7, "max_concurrent_trials": 2, "top": 3}
    run = Run(make(**asked, promotion_share=0.5))
    assert run.report(1, 1, 0.5) == "pause 1, create 3"
    assert run.report(2, 1, 0.6) == "pause 2, create 4"
    assert run.report(3, 1, 0.4) == ""
    assert run.report(3, 3, 0.3) == "create 5" and run.end(3) == ""
    assert run.report(4, 1, 0.7) == "pause 4, create 6"
    assert run.report(5, 1, 0.8) == "pause 5, create 7"
    assert run.report(6, 1, 0.9) == "pause 6, continue 1"  # no new one is left
    early = Run(make(**{**asked, "max_trials": 20}, promotion_share=0.5))
    for trial, loss in ((1, 0.5), (2, 0.6), (3, 0.7), (4, 0.8), (5, 0.85)):
        said = "continue 1" if trial == 3 else f"create {trial + 2 - (trial > 3)}"
        assert early.report(trial, 1, loss) == f"pause {trial}, {said}"  # nobody has gone on
    assert early.report(6, 1, 0.9) == "pause 6, create 7"  # one of two has: the second waits
    assert early.end(1, "failed") == "continue 2"  # the one has failed, and nobody has gone on


def test_by_version_5_no_more_than_a_share_goes_on_however_fast_a_model_improves() -> None:
    asked: dict[str, Any] = {"num_rungs": 2, "max_trials": 30, "max_concurrent_trials": 2, "top": 3}
    model: dict[str, Any] = {"sampler": {"name": "tpe", "random_fraction": 1.0}, "rule_version": 5}
    run = Run(make(**asked, **model))
    assert run.report(1, 1, 0.5) == "pause 1, create 3"
    assert run.report(2, 1, 0.6) == "pause 2, create 4"
    assert run.report(3, 1, 0.4) == ""  # one of three goes on, and nobody better waits
    assert run.report(3, 3, 0.4) == "create 5" and run.end(3) == ""
    assert run.report(4, 1, 0.3) == "pause 4, create 6"  # the best of four, but one has gone on
    pause = run.log[-1][1][0]
    assert isinstance(pause, Pause)
    assert pause.why == "rung 1 of 2 (1 batches): rank 1 of 4, nobody goes on yet"
    assert run.report(5, 1, 0.2) == "pause 5, create 7"
    assert run.report(6, 1, 0.25) == "pause 6, continue 5"  # two of six: the best that waits

    def went_on(**more: Any) -> int:
        """Of 27 trials, each better than all before it, before the last is made."""
        run = Run(make(**asked, **more))
        for trial in range(1, 28):
            run.report(trial, 1, 1 / trial)
            for number, (rung, status) in enumerate(
                zip(run.state["rung"], run.state["status"], strict=True), 1
            ):
                if rung == 1 and status == OPEN:
                    run.report(number, 3, 1.0)
                    run.end(number)
        return int(run.state["brackets"][0]["on"][0])

    assert went_on(**model) == 9
    for version in (4, NEWEST):
        assert went_on(**{**model, "rule_version": version}) > 20


def test_promotion_pauses_first_and_a_small_rung_sends_its_best() -> None:
    run = Run(make(rule="promotion", num_rungs=2, max_trials=4, max_concurrent_trials=1, top=3))
    assert run.report(1, 1, 0.5) == "pause 1, create 2"
    assert run.report(2, 1, 0.4) == "pause 2, create 3"
    assert run.report(3, 1, 0.3) == ""  # paused and promoted: it stays where it is
    assert run.report(3, 3, 0.2) == "create 4"
    assert run.report(4, 1, 0.9) == "pause 4"
    assert run.end(3) == "shutdown"
    alone = Run(make(num_rungs=2, max_trials=2, max_concurrent_trials=2, top=3))
    assert alone.report(1, 1, "NaN") == "pause 1"
    # nothing better will ever come
    assert alone.report(2, 1, float("inf")) == "ask, pause 2, continue 1"
    assert alone.end(1, "failed") == "continue 2"
    assert alone.end(2) == "shutdown"


def test_cohorts_decide_on_as_many_trials_as_one_full_training_stands_for() -> None:
    asked: dict[str, Any] = {"rule": "cohorts", "num_rungs": 3, "max_concurrent_trials": 1}
    run = Run(make(max_trials=12, **asked))
    for trial in range(1, 9):  # hybrid would have let 3 and others go on
        assert run.report(trial, 1, 1 / trial) == f"pause {trial}, create {trial + 1}"
    assert run.report(9, 1, 0.01) == ""  # the best of a cohort of nine goes on in place
    assert run.report(9, 3, 0.01) == "pause 9, continue 8"
    assert run.report(8, 3, 0.02) == "pause 8, continue 7"
    assert run.report(7, 3, 0.03) == "pause 7, continue 9"  # three of three: the best one goes on
    assert run.report(9, 9, 0.01) == "create 10" and run.end(9) == ""
    assert [run.report(10, 1, 9), run.report(11, 1, 9)] == [
        "pause 10, create 11",
        "pause 11, create 12",
    ]
    # all were made: four of twelve may go on, whole cohorts or not
    assert run.report(12, 1, 9) == "pause 12, continue 6"
    assert run.report(6, 3, 0.04) == "pause 6, shutdown"


def test_reports_of_a_paused_trial_count_when_it_is_promoted() -> None:
    run = Run(make(num_rungs=3, max_trials=3, max_concurrent_trials=3))
    assert run.report(1, 1, 0.5) == "pause 1"
    assert run.report(1, 3, 0.4) == "" == run.report(1, 9, 0.2)  # it had not heard yet
    assert run.end(1) == ""
    assert run.report(2, 1, 0.6) == "pause 2"
    # closed, 1 is the best of three: it is at the top at once, and nothing has to run for it
    assert run.report(3, 1, 0.7) == "pause 3, shutdown"
    assert run.state["rung"][0] == 3 and run.state["status"][0] == "done"
    one = Run(make(num_rungs=3, max_trials=2, max_concurrent_trials=2))
    assert one.report(1, 3, 0.5) == "pause 1"  # past two rungs, and held at the first
    assert one.report(2, 1, 0.6) == "pause 2, continue 1"
    assert one.state["rung"][0] == 2 and one.report(1, 9, 0.5) == ""


def test_pasha_opens_a_rung_when_the_order_is_not_settled() -> None:
    asked: dict[str, Any] = {
        "name": "pasha",
        "top": 27,
        "max_concurrent_trials": 1,
        "rule": "stopping",
    }
    run = Run(make(max_trials=3, **asked))
    assert run.report(1, 1, 0.5) == ""
    assert run.report(1, 3, 0.4) == "pause 1, create 2"  # alone it is in order
    assert run.report(2, 1, 0.4) == "" and run.state["brackets"][0]["rungs"] == [1, 3]
    assert run.report(2, 3, 0.3) == "pause 2, create 3"  # better here, better there
    assert run.report(3, 1, 0.3) == ""
    # better before, worse now: a rung is opened, and the best of the former highest goes on
    assert run.report(3, 3, 0.35) == "stop 3, continue 2"
    assert run.state["brackets"][0]["rungs"] == [1, 3, 9]
    assert run.report(2, 9, 0.2) == "pause 2"  # and in the end the best one trains in full
    assert run.end(3, "stopped") == "continue 2"
    assert run.report(2, 27, 0.1) == "" and run.end(2) == "shutdown"


def test_pasha_judges_the_order_of_those_that_came_there_and_of_no_failure() -> None:
    asked: dict[str, Any] = {
        "name": "pasha",
        "top": 243,
        "max_concurrent_trials": 3,
        "rule": "stopping",
    }
    run = Run(make(max_trials=6, **asked))
    for trial, length, loss in [(1, 3, 4), (2, 3, 9), (4, 3, 1)]:
        run.report(trial, length, loss)
    run.end(2, "stopped")
    assert run.report(4, 9, 5) == "pause 4, create 5"
    assert run.report(1, 9, 4) == ""  # unsettled: a rung is opened, and 1 goes on to it
    assert run.end(1, "failed") == "create 6"
    run.report(5, 3, 2)
    run.end(5, "stopped")
    run.report(6, 3, 3)
    assert run.report(3, 3, 7) == "stop 3, continue 4"
    # 1 counts as worst at 27, where it never was: of those that were, 4 alone is in order
    assert run.report(4, 27, 4) == "pause 4"


def test_brackets_share_places_and_a_free_one_goes_where_there_is_work() -> None:
    run = Run(make("adaptive_asha", max_trials=9, max_concurrent_trials=4, rule="stopping"))
    assert run.method.brackets == [
        Bracket((1, 3, 9), 6, 2),
        Bracket((3, 9), 3, 2),
    ]
    assert [action.why for _, actions in run.log for action in actions] == [
        "bracket 1",
        "bracket 2",
        "bracket 1",
        "bracket 2",
    ]
    assert run.report(2, 1, 0.5) == ""  # no rung of its bracket
    assert run.end(2) + run.end(4) == "create 5create 6"
    assert run.state["bracket"] == [0, 1, 0, 1, 1, 0]  # the second bracket has made all its trials


def test_a_metric_of_time_counts_where_the_code_counts_by_itself() -> None:
    run = Run(make(max_length=None, time_metric="seen", max_time=9, num_rungs=2, max_trials=2))
    created = run.log[0][1][0]
    assert isinstance(created, Create) and created.until is None

    def report(trial: int, seen: Any, loss: float = 0.5) -> str:
        event = Report(trial, Length("batches", 70), {"loss": loss, "seen": seen})
        return said(run.tell(event))

    assert report(1, 2.5) == "" == report(1, float("nan"))
    assert report(1, 3.5) == "pause 1"
    assert report(2, 9, 0.1) == "pause 2" or run.state["status"][1] == "leaving"
    assert run.end(2, "stopped") == "shutdown"


def test_larger_is_better_and_ties_go_to_the_first() -> None:
    asked: dict[str, Any] = {"num_rungs": 2, "top": 3, "max_trials": 9, "max_concurrent_trials": 3}
    run = Run(make(rule="stopping", smaller_is_better=False, **asked))
    assert run.report(1, 1, 0.5) == ""
    assert run.report(2, 1, 0.5) == "stop 2, create 4"
    assert run.report(3, 1, 0.6) == ""
    seen = [(o.trial, o.length, o.loss) for o in StateView(run.typed).observations()]
    assert seen == [(3, 1, -0.6), (1, 1, -0.5), (2, 1, -0.5)]


@pytest.mark.parametrize("metrics", [{}, {"other": 1.0}])
def test_a_metric_that_nobody_reports_asks_for_help(metrics: dict[str, float]) -> None:
    run = Run(make(max_trials=9, max_concurrent_trials=3))
    for trial in (1, 2):
        assert run.tell(Report(trial, Length("batches", 1), metrics)) == []
    asked, *others = run.tell(SegmentEnd(3, "target"))
    assert (
        isinstance(asked, Ask) and "no trial of 3 has shown a finite number as 'loss'" in asked.why
    )
    assert said(others) == "create 4"
    assert said(run.tell(Report(4, Length("batches", 1), metrics))) == "pause 4, create 5"


def test_no_number_is_worst_but_asked_about_where_nobody_has_one() -> None:
    run = Run(make(max_trials=9, max_concurrent_trials=3))
    nan = {"loss": float("nan")}
    assert said(run.tell(Report(1, Length("batches", 1), nan))) == "pause 1, create 4"
    assert said(run.tell(Report(2, Length("batches", 1), nan))) == "pause 2, create 5"
    asked, *others = run.tell(Report(3, Length("batches", 1), nan))
    assert isinstance(asked, Ask) and "finite number as 'loss'" in asked.why
    assert asked.why.endswith("the last one reports loss = nan")
    assert said(others) == "pause 3, continue 1"
    assert said(run.tell(Report(4, Length("batches", 1), nan))) == "pause 4, create 6"
    other = Run(make(max_trials=9, max_concurrent_trials=3))
    other.report(1, 1, 0.5)
    for trial in (2, 3, 4):
        assert not any(
            isinstance(a, Ask) for a in other.tell(Report(trial, Length("batches", 1), nan))
        )


def test_code_that_ends_before_the_length_that_was_asked_for_is_asked_about_once() -> None:
    run = Run(make(top=9, num_rungs=2, max_trials=9, max_concurrent_trials=1))
    asked: list[str] = []
    while not run.state["over"]:
        trial = run.state["status"].index("open") + 1
        if run.state["rung"][trial - 1]:  # it goes on, and ends after 5 of 9 batches
            run.end(trial, "user_exit")
        else:
            run.report(trial, 3, 10 - trial)
        asked += [action.why for action in run.log[-1][1] if isinstance(action, Ask)]
    assert len(asked) == 1
    assert "ended by themselves before their next rung, the last one before 9 batches" in asked[0]


def test_a_search_can_be_given_more_trials_and_more_length() -> None:
    run = Run(make(num_rungs=2, top=3, max_trials=3, max_concurrent_trials=3))
    assert [run.report(k, 1, k) for k in (2, 3)] == ["pause 2", "pause 3"]
    assert run.report(1, 3, 1) == "" and run.end(1) == "shutdown"
    assert run.end(1) == "" and run.report(2, 3, 0.1) == ""
    more = Limits(5, 1, Length("batches", 3))
    assert said(run.tell(more)) == "create 4"
    assert run.report(4, 1, 9) == "pause 4, create 5"
    assert run.report(5, 1, 9) == "pause 5, shutdown"
    longer = Limits(5, 2, Length("batches", 30))
    assert said(run.tell(longer)) == "continue 1"  # the best of those trained in full until now
    assert run.report(1, 30, 0.1) == "" and run.end(1) == "shutdown"


# -- whatever happens ------------------------------------------------------------------------


class Cluster:
    """Trials that train in any order, fail, are refused, and report twice, late, never or NaN."""

    def __init__(
        self, method: Method[Any], seed: int, eta: int, max_trials: int, places: int
    ) -> None:
        self.dice = random.Random(seed)
        self.eta, self.max_trials, self.places = eta, max_trials, places
        self.running: dict[int, int] = {}
        self.paused: dict[int, int] = {}
        self.leaving: dict[int, int] = {}
        self.passed: set[tuple[int, int]] = set()
        self.over = False
        self.run = Run(method)
        self.see(self.run.log[0][1])

    def see(self, actions: list[Action]) -> None:
        for action in actions:
            assert not self.over
            match action:
                case Create(trial=trial):
                    self.running[trial] = 0
                case Continue(trial=trial):
                    self.running[trial] = self.paused.pop(trial)
                case Pause(trial=trial):
                    self.paused[trial] = self.running.pop(trial)
                case Stop(trial=trial):
                    held = self.running if trial in self.running else self.paused
                    self.leaving[trial] = held.pop(trial)
                case Shutdown():
                    self.over = True
        self.check()

    def check(self) -> None:
        state = self.run.state
        assert state["open"] <= self.places
        for number, books in enumerate(state["brackets"]):
            assert books["created"] - books["invalid"] <= books["trials"]
            assert books["next"] == [
                sum(
                    (b, r, s) == (number, rung, "open")
                    for b, r, s in zip(
                        state["bracket"], state["rung"], state["status"], strict=True
                    )
                )
                for rung in range(len(books["rungs"]))
            ]
            for rung, scores in enumerate(books["scores"]):
                assert scores == sorted(scores)
                trials = [entry[2] for entry in scores]
                assert len(set(trials)) == len(trials)
                # of several that went on in one event each may have overtaken the one before
                new = {(t, rung) for t in trials if self.went_on(t, rung)} - self.passed
                self.passed |= new
                allowed = max(len(scores) // self.eta, 1) + max(len(new) - 1, 0)
                last = not books["next"][0] and books["created"] >= books["trials"]
                assert last or all(trials.index(trial) < allowed for trial, _ in new)
        assert sum(one["created"] - one["invalid"] for one in state["brackets"]) <= self.max_trials

    def went_on(self, trial: int, rung: int) -> bool:
        state = self.run.state
        at, status = state["rung"][trial - 1], state["status"][trial - 1]
        top = len(state["brackets"][state["bracket"][trial - 1]]["rungs"]) - 1
        return rung < top and (at > rung + 1 or (at == rung + 1 and status == "open"))

    def step(self) -> None:
        tell, dice = self.run.tell, self.dice
        known = len(self.run.state["status"])
        trial = dice.choice([*self.running, *self.leaving, *self.paused] or [1])
        for held in (self.running, self.leaving, self.paused):
            if trial in held:
                fate = dice.random()
                if fate < 0.04:
                    held.pop(trial)
                    self.see(tell(SegmentEnd(trial, dice.choice(["failed", "canceled"]))))
                elif fate < 0.08 and held is not self.paused:
                    held.pop(trial)
                    self.see(tell(SegmentEnd(trial, dice.choice(["invalid_hp", "user_exit"]))))
                elif held is self.leaving or held[trial] >= 27:
                    if held is not self.paused:
                        held.pop(trial)
                        reason = "stopped" if held is self.leaving else "target"
                        self.see(tell(SegmentEnd(trial, reason)))  # type: ignore[arg-type]
                elif held is self.running or fate < 0.3:
                    held[trial] += dice.choice([1, 2, 6, 27])
                    loss = dice.choice([dice.random(), dice.random(), float("nan"), "x", True])
                    again = dice.random() < 0.2  # what it has reported before, or never did
                    at = Length(
                        "batches", min(dice.randint(0, held[trial] * again) or held[trial], 27)
                    )
                    self.see(tell(Report(trial, at, {"loss": loss})))
        stray = dice.randint(0, known + 2)  # from anybody, at any time: nobody must mind
        if dice.random() < 0.2 and stray not in self.running and stray not in self.paused:
            length = Length(dice.choice(["batches", "epochs"]), dice.randint(0, 30))
            self.see(tell(Report(stray, length, {"loss": dice.random()})))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["async_halving", "adaptive_asha", "hyperband", "pasha"])
def test_books_are_right_whatever_happens_and_every_search_comes_to_its_end(
    name: str, rule: str
) -> None:
    for seed in range(12):
        trials, places = 5 + 7 * (seed % 4), 1 + seed % 5
        asked: dict[str, Any] = {
            "rule": rule,
            "max_trials": trials,
            "max_concurrent_trials": places,
            "top": 27,
        }
        asked["promotion_share"] = (0.5, None)[seed % 2]
        cluster = Cluster(make(name, **asked), seed, 3, trials, places)
        for _ in range(3000):
            if cluster.over:
                break
            cluster.step()
        state = cluster.run.state
        assert cluster.over and not cluster.running and not cluster.leaving
        assert sum(one["created"] - one["invalid"] for one in state["brackets"]) == trials
        for books in state["brackets"]:
            trained = books["scores"][-1]
            assert trained or all(  # somebody has come to the top, or all who could have failed
                status == "ended"
                for status, bracket in zip(state["status"], state["bracket"], strict=True)
                if state["brackets"][bracket] == books
            )
        again, fresh = make(name, **asked), make(name, **asked).initial()
        for event, actions in cluster.run.log:  # without JSON in between: the same decisions
            fresh, replayed = again.on_event(fresh, event)
            assert replayed == actions
        assert plain(fresh) == state
