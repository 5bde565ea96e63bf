"""What users get wrong: the search pauses and says why, nothing is lost, and it goes on after."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.read.views import views
from hpcdet.search import searcher_factory
from hpcdet.search.api import codec, events
from hpcdet.search.methods.program import Program
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import chain
from hpcdet.store.decisions.chain import Chain
from hpcdet.store.decisions.lease import Lease
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.records import Closed, Verdict
from hpcdet.store.fs import files, journal, packed
from tests.paper import Player, Waves, World

HALVING = {"name": "async_halving", "max_length": {"batches": 9}, "divisor": 3, "num_rungs": 2}


def search(root: Path, told: Path | None = None, **searcher: Any) -> World:
    """A search of the factory; ``told``: where its hook notes what it is told."""
    asked: dict[str, Any] = {**HALVING, "max_trials": 4, "max_concurrent_trials": 4, **searcher}
    hook = {"notify": {"command": f'echo "$HPCDET_EVENT" >> {told}', "on": ["stuck", "end"]}}
    settings = hook if told else {}
    world = World.make(root, searcher=asked, hyperparameters={"rate": {"vals": [1, 2]}}, **settings)  # type: ignore[arg-type]
    files.write_once(world.paths.config, resolved_config.dump(world.resolved.raw))
    world.method = searcher_factory.searcher(world.resolved, world.paths.root)
    return world


def later(world: World, holder: Holder, times: int = 2) -> None:
    for _ in range(times):
        world.clock.now += 11
        advance(world.paths, holder)


def report(attempt: AttemptPaths, step: int, metrics: dict[str, Any]) -> None:
    with journal.Writer(attempt.journal) as writer:
        units = {"batches": step}
        said: dict[str, Any] = {
            "group": "validation",
            "step": step,
            "metrics": metrics,
            "units": units,
        }
        writer.append("metrics", **said)


def ends_by_itself(play: Player, attempt: AttemptPaths, batches: int) -> None:
    Verdict("done", "completed", batches, None).write_once(attempt.verdict)
    play.end(attempt, "completed", progressed=True)


def everybody(world: World, holder: Holder, act: Callable[[AttemptPaths], None]) -> None:
    """All trials that may run train, until there is none."""
    play = world.play()
    play.start_all()
    while not world.paths.closed.exists() and holder.decided.state[0] != "PAUSED":
        workers = [worker for worker in world.paths.workers() if not worker.end.exists()]
        act(play.claim(workers[0]))
        later(world, holder, 1)


def decisions(world: World) -> list[dict[str, Any]]:
    return [line["action"] for line in chain.read(world.paths) if line["kind"] == "action"]


@pytest.mark.parametrize(
    ("asked", "metrics", "batches", "why"),
    [
        ({}, {"accuracy": 1}, 9, "no trial of 3 has shown a finite number as 'loss' from"),
        (
            {},
            {"loss": "NaN", "f1": 1},
            9,
            "from length 3 on; the last one reports f1, loss = nan",
        ),
        ({}, {"loss": "0.5"}, 9, "no trial of 3 has shown a finite number as 'loss' from"),
        (
            {"max_length": None, "time_metric": "seen", "max_time": 9},
            {"loss": 1.0},
            9,
            "no trial of 3 has shown a finite number as 'loss' with 'seen'",
        ),
        (
            {"max_length": None, "time_metric": "seen", "max_time": 9},
            {"loss": 1.0, "seen": 4},
            4,
            "ended by themselves before their next rung, the last one before 9 seen",
        ),
        ({"stopping": {"nan": {}}}, {"accuracy": 1}, 9, "would end by nan, but nobody has ever"),
    ],
)
def test_what_looks_wrong_is_asked_about_once(
    tmp_path: Path, asked: dict[str, Any], metrics: dict[str, Any], batches: int, why: str
) -> None:
    told = tmp_path / "told"
    world = search(tmp_path, told, max_concurrent_trials=1, max_trials=9, **asked)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)

    def train(attempt: AttemptPaths) -> None:
        report(attempt, batches, metrics)
        ends_by_itself(play, attempt, batches)

    everybody(world, holder, train)
    status = views.status(world.paths)
    assert (status.state, status.stuck) == ("PAUSED", True) and why in status.why
    assert any(why in event.text for event in views.events(world.paths))
    assert told.read_text() == "stuck\n"
    while not world.paths.closed.exists():  # a policy and the rungs may both ask
        commands.ask(world.paths, "resume")
        holder.close()
        holder = world.holder()
        later(world, holder, 1)
        everybody(world, holder, train)
    closed = Closed.read(world.paths.closed)
    assert closed is not None and closed.state == "COMPLETED"
    asks = [action["why"] for action in decisions(world) if action["kind"] == "ask"]
    assert len(asks) == len(set(asks)) == 1 + ("stopping" in asked)
    assert told.read_text() == len(asks) * "stuck\n" + "end\n"


@pytest.mark.parametrize("name", ["single", "random", "async_halving"])
def test_a_search_that_ends_before_anybody_could_be_asked_says_what_nobody_has_shown(
    tmp_path: Path, name: str
) -> None:
    number = 1 if name == "single" else 2
    world = search(tmp_path, name=name, max_trials=number)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    attempts = [play.claim(worker) for worker in play.start_all()]
    for attempt in attempts:
        report(attempt, 9, {"accuracy": 1, "loss": "NaN"})
        ends_by_itself(play, attempt, 9)
    later(world, holder, 1)
    if name == "async_halving":  # it can tell nobody from another: it asks as soon as all lack it
        assert holder.decided.searcher.asks
        return
    unseen = f"no trial of {number} has shown a finite number as 'loss'"
    why = f"{number} of {number} trials succeeded; {unseen}; the last one reports accuracy, "
    status = views.status(world.paths)
    assert (status.state, status.why) == ("COMPLETED", f"{why}loss = NaN")
    assert status.best is None


GOOD = """case "$q" in
*'"kind": "start"'*) say '{"kind": "create"}, {"kind": "create"}';;
*segment_end*'"trial": 2'*) say '{"kind": "shutdown"}';;
*) say '';; esac"""


def program(world: World, at_an_end: str = "") -> None:
    """The search's code: two trials; ``at_an_end``: what it does instead when the first ends."""
    trap = f'case "$q" in *segment_end*\'"trial": 1\'*) {at_an_end}; continue;; esac\n'
    say = 'say() { echo "{\\"state\\": 1, \\"actions\\": [$1]}"; }'
    path = world.paths.root / "search.sh"
    path.write_text(
        f"#!/bin/sh\n{say}\nwhile read -r q; do\n{trap * bool(at_an_end)}{GOOD}\ndone\n"
    )
    path.chmod(0o700)


def trained(world: World, holder: Holder) -> None:
    """Both trials train to their end, one turn after the other."""
    play = world.play()
    for worker in play.start_all():
        play.finish(play.claim(worker))
        later(world, holder, 1)


@pytest.mark.parametrize(
    ("at_an_end", "why"),
    [
        (
            "printf 'oh\\n    raise Oh\\n' >&2; exit 3",
            "ended with exit code 3 without an answer; it said: oh",
        ),
        ("sleep 600", "no answer within 1 s"),
        ("echo what", "the answer is not JSON: what"),
        ('printf \'{"state": 1, "act\'; kill -9 $$', "ended by signal SIGKILL without an answer"),
        ('say \'{"kind": "stop", "trial": 9}\'', "wants to stop trial 9, which does not exist"),
        (
            'say \'{"kind": "create", "trial": 1}\'',
            "the program creates trial 1; the next number is 3",
        ),
        ('say \'{"kind": "ask", "why": "is that all?"}\'', "is that all?"),
    ],
)
def test_a_searcher_that_fails_is_repaired_and_decides_as_if_nothing_had_been(
    tmp_path: Path, at_an_end: str, why: str
) -> None:
    asked: dict[str, Any] = {"name": "custom", "program": ["./search.sh"], "max_trials": 2}
    calm, world = search(tmp_path / "calm", **asked), search(tmp_path, tmp_path / "told", **asked)
    program(calm)
    program(world, at_an_end)
    other, holder = calm.holder(), world.holder()
    advance(calm.paths, other)
    trained(calm, other)
    advance(world.paths, holder)
    method = world.method
    assert isinstance(method, Program)
    method.timeout_s = 1.0 if "sleep" in at_an_end else 60.0
    trained(world, holder)  # the second goes on to its end though nobody decides
    status = views.status(world.paths)
    assert (status.state, status.stuck) == ("PAUSED", True) and why in status.why
    assert any(why in event.text for event in views.events(world.paths))
    assert (tmp_path / "told").read_text() == "stuck\n"
    method.close()
    method.timeout_s = 60.0
    program(world)
    commands.ask(world.paths, "resume")
    later(world, holder)
    closed = Closed.read(world.paths.closed)
    assert closed is not None and closed.why == "2 of 2 trials succeeded"
    assert [a for a in decisions(world) if a["kind"] != "ask"] == decisions(calm)


def test_a_searcher_that_wants_nothing_and_does_not_end_is_asked_again(tmp_path: Path) -> None:
    world = search(tmp_path, name="custom", program=["./search.sh"], max_trials=2)
    program(world)
    path = world.paths.root / "search.sh"
    path.write_text(path.read_text().replace('{"kind": "shutdown"}', ""))
    holder = world.holder()
    advance(world.paths, holder)
    trained(world, holder)
    assert "wants no trial to run, and has not ended the search" in views.status(world.paths).why
    program(world)
    assert isinstance(world.method, Program)
    world.method.close()
    commands.ask(world.paths, "resume")
    later(world, holder)
    assert world.paths.closed.exists()


class Slow(Waves):
    """It takes its time over each answer, in which somebody else reaches for the lease."""

    def __init__(self, taking: Callable[[], None]) -> None:
        super().__init__(count=6, width=6)
        self.taking = taking

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        self.taking()
        return super().on_event(state, event)


def test_a_searcher_that_thinks_for_longer_than_a_term_lasts_keeps_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, searcher={"max_concurrent_trials": 6})
    rival = Lease(world.paths, "rival", world.site.lease_ttl_s, world.clock)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    def taking() -> None:
        for _ in range(3):
            world.clock.now += 0.4 * world.site.lease_ttl_s
            with monkeypatch.context() as disk:
                disk.setattr(files, "replace", full)
                holder.hands.pulse()  # it is tried again
            holder.hands.pulse()  # as one does that waits for a process
            assert not rival.try_acquire()

    world.method = Slow(taking)
    holder = world.holder()
    advance(world.paths, holder)
    play = world.play()
    for worker in play.start_all():
        play.finish(play.claim(worker))
    assert advance(world.paths, holder).state == "COMPLETED"
    world.paths.closed.unlink()
    holder = world.holder()
    assert holder.begin(), "who is told all of it again keeps it, too"
    assert holder.lease.term == 2
    holder.close()


def test_what_a_searcher_said_too_late_for_its_term_need_not_be_asked_again(
    tmp_path: Path,
) -> None:
    world = World.make(tmp_path, searcher={"max_concurrent_trials": 6})
    lease = Lease(world.paths, "test", world.site.lease_ttl_s, world.clock)
    assert lease.try_acquire()
    journal_of_one = Chain.open(world.paths, lease.term, "one that dies over the answer")
    journal_of_one.append("event", event=codec.encode_event(events.Start()))
    journal_of_one.close()
    lease.release()

    def taking() -> None:
        world.clock.now += 2 * world.site.lease_ttl_s

    world.method = Slow(taking)
    assert not advance(world.paths, world.holder()).held
    assert [action["trial"] for action in decisions(world)] == [1, 2, 3, 4, 5, 6]


def test_a_searcher_is_not_asked_again_while_records_are_missing(tmp_path: Path) -> None:
    method = Waves(count=1, width=1, breaks_at=1)
    world = World.make(tmp_path, method)
    first = world.holder()
    advance(world.paths, first)
    first.close()
    play, holder = world.play(), world.holder()
    play.report(play.claim(play.start_all()[0]), 50)
    assert advance(world.paths, holder).state == "PAUSED"
    journal_of_one = world.paths.decisions(1)
    whole = journal_of_one.read_bytes()
    journal_of_one.write_bytes(whole.splitlines(keepends=True)[0])
    method.breaks_at = 0
    commands.ask(world.paths, "resume")
    turns = [advance(world.paths, holder) for _ in range(3)]
    assert not any(turn.held for turn in turns)
    assert all("cannot be read" in " ".join(turn.actions) for turn in turns)
    assert max(packed.numbers(world.paths.terms, ".json")) == 2
    journal_of_one.write_bytes(whole)
    assert advance(world.paths, holder).state == "RUNNING"
    assert holder.decided.trials.plans[1].told == 50


class Vague(Waves):
    """It lets its trial go on, and does not say how far."""

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        state, actions = super().on_event(state, event)
        if isinstance(event, events.Report):
            actions.append(events.Continue(event.trial, None))
        return state, actions


def test_a_trial_that_is_continued_without_a_length_trains_as_far_as_before(
    tmp_path: Path,
) -> None:
    world = World.make(tmp_path, Vague(count=1, width=1))
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    attempt = play.claim(play.start_all()[0])
    for step in (30, 60):
        play.report(attempt, step)
        assert advance(world.paths, holder).held
        holder.close()  # whoever comes next has nothing to write either
    assert packed.numbers(world.paths.trial(1).controls, ".json") == [1]
    Verdict("done", "completed", 80, None).write_once(attempt.verdict)
    play.end(attempt, "completed", progressed=True)
    advance(world.paths, holder)
    told = [line["event"] for line in chain.read(world.paths) if line["kind"] == "event"]
    assert told[-1] == {"kind": "segment_end", "trial": 1, "reason": "user_exit"}
