"""What turns keep of all trials is what would be found by asking for each of them anew."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader import leader
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.trial_cache import ALL_S, OpenAttempts, Sight
from hpcdet.control.requests import commands
from hpcdet.control.turn import controller, searcher_events, worker_demand
from hpcdet.control.upkeep import close_attempts
from hpcdet.search.api import events
from hpcdet.store.decisions import wakeup
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.records import Verb
from hpcdet.store.trials.standing import Standing, standing
from tests.control.worlds import begun, control
from tests.paper import Promotion, Waves, World


class Moody(Promotion):
    """It asks its user something at every ninth report, and in doing so halts every other time."""

    name = "moody"

    def initial(self) -> events.State:
        return {**super().initial(), "heard": 0}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        state, actions = super().on_event(state, event)
        state["heard"] += isinstance(event, events.Report)
        if isinstance(event, events.Report) and not state["heard"] % 9:
            ask = events.Halt if state["heard"] % 2 else events.Ask
            actions.append(ask("shall it go on?"))
        return state, actions


class Checks:
    """Compares, in each turn of any holder, what is kept with what is found anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_over = self.compared = 0
        self.visited: set[int] = set()
        for module, name, check in (
            (close_attempts, "find_open", self.open),
            (controller, "learn", self.learn),
            (worker_demand, "demand", self.demand),
        ):
            monkeypatch.setattr(module, name, self.checked(getattr(module, name), check))
        self.learn_of = searcher_events.learn_of
        monkeypatch.setattr(searcher_events, "learn_of", self.visit)

    def checked(self, real: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
        def both(holder: Holder, *args: Any) -> Any:
            self.visited.clear()
            found = real(holder, *args)
            check(holder, found)
            return found

        return both

    def visit(self, holder: Holder, number: int) -> None:
        self.visited.add(number)
        self.learn_of(holder, number)

    def open(self, holder: Holder, found: OpenAttempts) -> None:
        """Every attempt that is open by its files, or of which no nudge has told yet."""
        wanted = []
        for number in sorted(holder.decided.trials.open):
            files = holder.sight.trial(number).files
            for one in reversed(files.attempts) if files.standing.open_attempt else ():
                if one.claim is None or one.end is not None:
                    break
                wanted.append((one.paths, one.claim))
        assert found == wanted

    def learn(self, holder: Holder, standings: dict[int, Standing]) -> None:
        """The trials that were passed over have nothing to say; all stand as when last read."""
        decided = holder.decided
        left = decided.trials.open - self.visited
        before = holder.log.unsnapped, set(decided.trials.touched), set(decided.trials.open)
        for number in sorted(left):
            self.learn_of(holder, number)
        assert (holder.log.unsnapped, decided.trials.touched, decided.trials.open) == before
        self.passed_over += len(left)
        known = {n for n in decided.trials.open if holder.paths.trial(n).record.exists()}
        assert standings.keys() == known
        for number, kept in standings.items():
            assert kept == holder.sight._trials[number].standing
        assert holder.sight.running == {n for n, one in standings.items() if one.open_attempt}

    def demand(self, holder: Holder, found: worker_demand.Demand) -> None:
        """Whoever is to run and does not, by a look at each trial's files and plan."""
        decided, waiting, leaving = holder.decided, [], 0
        for number in sorted(decided.trials.open):
            plan, there = decided.trials.plans[number], holder.sight.standings.get(number)
            runs = decided.action(plan) == "run"
            leaving += there is not None and bool(there.open_attempt) and not runs
            if runs and not (there is not None and there.open_attempt):
                now = holder.sight.trial(number).standing.state
                if there is None or now in ("runnable", "doubtful"):
                    waiting.append(number)
        assert [plan.number for plan in found.waiting] == waiting
        assert found.leaving == leaving
        self.compared += 1


class Users:
    """Workers, trials and users of one experiment, who do anything at any time."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.dice, self.play = world, dice, world.play()
        self.running: dict[str, AttemptPaths] = {}

    def step(self, holder: Holder) -> None:
        self.play.start_all()
        for worker in list(holder.watch.files.newest.values()):
            one = self.running.get(worker.name)
            if one is None:
                self.claim(worker)
            else:
                self.train(worker.name, one)
        if self.dice.random() < 0.1:
            self.command()
        if self.dice.random() < 0.1:
            wakeup.told(self.world.paths)  # all of these nudges are lost

    def claim(self, worker: Any) -> None:
        trials = self.world.paths.trials()
        waits = [trial.number for trial in trials if standing(trial).state == "runnable"]
        if waits:
            self.running[worker.name] = self.play.claim(worker, self.dice.choice(waits))

    def train(self, worker: str, one: AttemptPaths) -> None:
        fate, play = self.dice.random(), self.play
        if fate < 0.5:
            play.report(one, self.dice.choice([20, 50, 70]), round(self.dice.random(), 3))
            return
        if fate < 0.7 and control(self.world, one.trial).action != "run":
            play.end(one, "paused", progressed=True)
        elif fate < 0.75:
            play.end(one, "preempted", progressed=self.dice.random() < 0.5)
        elif fate < 0.8:
            play.fail(one)
        elif fate < 0.9:
            play.finish(one, round(self.dice.random(), 3))
        else:
            return
        del self.running[worker]

    def command(self) -> None:
        trial = self.dice.choice([0, 0, self.dice.randint(1, 6)])
        last: Verb = "cancel" if trial else "pause"
        verbs: list[Verb] = ["pause", "resume", "resume", "retry", last]
        commands.ask(self.world.paths, self.dice.choice(verbs), trial)


@pytest.mark.parametrize("method", [Promotion, Moody])
def test_what_is_kept_of_all_trials_is_what_is_found_anew_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: type[Promotion]
) -> None:
    checks = Checks(monkeypatch)
    for seed in range(3):
        dice = random.Random(seed)
        world = World.make(
            tmp_path / str(seed),
            method(9, 4, 3),
            searcher={"max_concurrent_trials": 4},
            max_restarts=1,
        )
        monkeypatch.setattr(leader, "Sight", functools.partial(Sight, clock=world.clock))
        users, holder = Users(world, dice), world.holder()
        for _ in range(80):
            if controller.advance(world.paths, holder, everything=dice.random() < 0.05).closed:
                break
            world.clock.now += dice.choice([11, 11, ALL_S / 2])
            holder.lease.beat()
            if dice.random() < 0.5:  # else nothing happens
                users.step(holder)
            if dice.random() < 0.05:  # its term is lost, and it begins again
                holder.close()
    assert checks.passed_over > 100 and checks.compared > 100, "it is kept at all"


class Again(Waves):
    """It lets trial 1 go on, as it does already, when trial 2 reports."""

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        state, actions = super().on_event(state, event)
        if isinstance(event, events.Report) and event.trial == 2:
            actions.append(events.Continue(1, None))
        return state, actions


def test_a_trial_of_which_something_is_decided_after_it_was_learnt_is_learnt_again(
    tmp_path: Path,
) -> None:
    world = World.make(tmp_path, Again(count=2, width=2))
    play, holder, workers = begun(world)
    attempts = [play.claim(worker) for worker in workers]
    holder.sight = Sight(world.paths, world.clock)
    for after in (ALL_S + 1, 11, ALL_S + 1):
        world.clock.now += after
        holder.lease.beat()
        controller.advance(world.paths, holder)
    assert {1, 2} <= holder.sight.settled
    play.report(attempts[1], 10)
    wakeup.told(world.paths)  # lost, so that both are learnt in their order
    controller.advance(world.paths, holder, everything=True)
    assert 1 not in holder.sight.settled
    controller.advance(world.paths, holder)
    assert {1, 2} <= holder.sight.settled
