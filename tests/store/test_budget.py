"""Budgets: the arithmetic, and claims at the same moment that must not both pass."""

from __future__ import annotations

import math
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.base import Capabilities, TaskState, Usage
from hpcdet.store.cost.budget import (
    Account,
    Budget,
    Charge,
    GrantedAllocation,
    Stretch,
    Terms,
    account,
)
from hpcdet.store.cost.cost_records import Charges
from hpcdet.store.cost.spending import Spending
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import Claim, End
from hpcdet.store.fs import files, freshness, packed
from hpcdet.store.trials import observer
from hpcdet.store.trials.standing import standing
from hpcdet.worker.allocation.time_left import of_attempt
from hpcdet.worker.claims import claims
from tests.control.worlds import later
from tests.paper import Waves, World


def test_what_workers_hold_beyond_their_trials_is_overhead() -> None:
    stretches = [
        Stretch("a", 2, 10, 40, 1000),
        Stretch("a", 2, 50, None, 200),
        Stretch("b", 2, 20, 30),
    ]
    found = account(
        stretches, [GrantedAllocation("a", 2, 0), GrantedAllocation("b", 2, 15, 35)], now=100
    )
    assert (found.training_slot_s, found.overhead_slot_s) == (60 + 100 + 20, 40 + 20)
    assert (found.reserved_slot_s, found.running, found.begun) == (100, 1, 0)
    assert [row.overhead_slot_s for row in found.rows] == [40, 20]
    terms = Terms(Budget(slot_hours=1), slots=2, least_s=300)
    assert terms.slot_s_left(found) == 3600 - 240 - 100
    assert terms.room(found, 100) == 3260 // 600
    # shared evenly with those that wait, but never too short to be of use
    assert terms.grant(found, 2, math.inf, 100) == pytest.approx(3260 / 4)
    assert terms.grant(found, 50, math.inf, 100) == 300
    assert terms.grant(found, 2, 90, 100) == 90
    assert terms.exhausted(found, 100) == ""


def test_wall_time_counts_from_the_first_allocation() -> None:
    terms = Terms(Budget(wall_s=1000), slots=1, least_s=300)
    assert terms.grant(Account(), 1, math.inf, 5.0) == 1000
    begun = account([], [GrantedAllocation("a", 1, 50)], now=200)
    assert terms.grant(begun, 3, math.inf, 200) == 850
    assert terms.room(begun, 760) == 0
    assert terms.exhausted(begun, 760) == "budget.wall_s"
    assert str(Budget(2.5, 60)) == "2.5 slot hours and 60 s of wall time"


@given(
    st.floats(0.01, 100),
    st.integers(1, 16),
    st.floats(0, 600),
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
)
def test_grants_never_exceed_the_budget(
    hours: float, slots: int, least_s: float, parts: list[float]
) -> None:
    """Whoever asks until nothing is granted any more, and however much of it each one uses."""
    terms = Terms(Budget(slot_hours=hours), slots, least_s)
    spent, granted = 0.0, math.inf
    for part in parts:
        granted = terms.grant(Account(training_slot_s=spent), 1, math.inf, 0.0)
        assert spent + granted * slots <= hours * 3600 * (1 + 1e-9)
        spent += granted * slots * part
    assert granted == 0 or terms.slot_s_left(Account(training_slot_s=spent)) >= -1e-6


def test_what_accounting_charges_replaces_what_was_counted() -> None:
    stretches = [Stretch("a", 2, 10, 40), Stretch("b", 2, 20, None, 500)]
    held = [
        GrantedAllocation("a", 2, 5, 45),
        GrantedAllocation("b", 2, 15),
        GrantedAllocation("c", 2, 90),
    ]
    charges = [
        Charge("a", "7_0", 2, 0, 50, 100),
        Charge("b", "7_1", 2, 12, 42, 60),  # killed: nobody has closed its attempt yet
        Charge("", "7_2", 2, 12, 20, 16),  # no worker ever came up in it
    ]
    found = account(stretches, held, 100, charges)
    assert (found.spent_slot_s, found.charged_slot_s) == (100 + 60 + 16 + 20, 176)
    assert found.counted_slot_s == 80 + 170 + 20
    assert (found.training_slot_s, found.reserved_slot_s) == (60 + 44, 0)
    by_job = {row.job: (row.counted_slot_s, row.charged_slot_s) for row in found.rows}
    assert by_job == {"7_0": (80, 100), "7_1": (170, 60), "7_2": (0, 16), "": (20, None)}
    assert found.begun == 5


@given(
    st.floats(1, 20),
    st.integers(1, 4),
    st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60
    ),
)
def test_what_is_charged_exceeds_the_budget_by_a_segment_per_slot_at_most(
    hours: float, slots: int, turns: list[tuple[int, float, float]]
) -> None:
    """Three workers, one allocation after the other. Each is charged for more than its worker has
    noted, and that is known only when the next one has begun."""
    least_s, now = 300.0, 0.0
    terms = Terms(Budget(slot_hours=hours), slots, least_s)
    stretches: dict[int, list[Stretch]] = {0: [], 1: [], 2: []}
    held: dict[int, list[GrantedAllocation]] = {0: [], 1: [], 2: []}
    owed: dict[int, list[Charge]] = {0: [], 1: [], 2: []}
    charges: list[Charge] = []
    bill = 0.0
    for worker, part, more in turns:
        now += 1
        if stretches[worker] and stretches[worker][-1].end is None:
            last = stretches[worker].pop()
            assert last.reserved_slot_s is not None
            took = part * last.reserved_slot_s / slots
            now = max(now, last.start + took)
            before = more * least_s / 2  # until its worker was up
            stretches[worker].append(
                Stretch(last.worker, slots, last.start, last.start + took, last.reserved_slot_s)
            )
            held[worker][-1] = GrantedAllocation(last.worker, slots, last.start, last.start + took)
            cost = slots * (took + before)
            name, begin = last.worker, last.start - before
            owed[worker].append(Charge(name, name, slots, begin, last.start + took, cost))
            bill += cost
            continue
        charges += owed[worker][:-1]
        owed[worker] = owed[worker][-1:]
        every = [one for each in stretches.values() for one in each]
        standing = account(every, [one for each in held.values() for one in each], now, charges)
        seconds = terms.grant(standing, 2, 4000, now)
        if seconds > 0:
            name = f"{worker}-{len(held[worker])}"
            stretches[worker].append(Stretch(name, slots, now, None, seconds * slots))
            held[worker].append(GrantedAllocation(name, slots, now))
    running = [one for each in stretches.values() for one in each if one.end is None]
    most = bill + sum(one.reserved_slot_s or 0 for one in running)
    assert most <= hours * 3600 + 3 * slots * least_s + 1e-6


def test_ends_are_charged_by_accounting_once_and_stop_what_it_cannot_pay(tmp_path: Path) -> None:
    world = _world(tmp_path, 2, slot_hours=1)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    one, two = play.start_all()
    began = time.time()
    world.scheduler.able = Capabilities(accounting=True)
    play.finish(play.claim(one, 1))
    play.vanish(one, TaskState.NODE_FAIL)  # it did not come to say goodbye
    world.scheduler.used["1"] = [
        Usage("1", 0, began - 2480, began - 1000, 1480),  # ended before a worker was up
        Usage("1", 0, began - 10, began + 1209, 1219, 1),
        Usage("1", 1, began, None, 30),
    ]
    later(world, holder, 3)
    spending = Spending(world.paths, world.resolved)
    found = spending.account()
    assert found.charged_slot_s == 1480 + 1219
    rows = {(row.held.worker, row.charged_slot_s) for row in found.rows}
    assert {("", 1480), (one.name, 1219), (two.name, None)} == rows
    assert spending.room() == 3  # of five minutes each
    play.finish(play.claim(two, 2))
    play.leave(two)
    world.scheduler.used["1"][-1] = Usage("1", 1, began, began + 901, 901)
    assert later(world, holder, 3).closed
    assert Spending(world.paths, world.resolved).account().charged_slot_s == 3600
    written = packed.numbers(world.paths.charges(0).parent, ".json")
    records = [Charges.read(world.paths.charges(number)) for number in written]
    assert [record.settled for record in records if record] == [[], [1]]


def test_a_run_is_not_charged_before_its_worker_can_be_seen(tmp_path: Path) -> None:
    world = _world(tmp_path, 2, slot_hours=1)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    began = time.time() - 60
    worker, _ = play.start_all()
    play.finish(play.claim(worker, 1))
    play.leave(worker)
    unseen = worker.claim.rename(tmp_path / "unseen")
    world.scheduler.able = Capabilities(accounting=True)
    world.scheduler.used["1"] = [Usage("1", 0, began, began + 60, 60)]
    later(world, holder, 3)
    assert not packed.numbers(world.paths.charges(0).parent, ".json")
    unseen.rename(worker.claim)
    later(world, holder, 3)
    assert [one.worker for one in holder.spending.book.read()] == [worker.name]


def _world(folder: Path, trials: int, **budget: float) -> World:
    search = {"max_concurrent_trials": trials}
    return World.make(folder, Waves(trials, trials), searcher=search, budget=budget)


@pytest.mark.parametrize("limited", ["cost", "number"])
def test_claims_at_the_same_moment_do_not_both_pass(tmp_path: Path, limited: str) -> None:
    """Eight at once that see nothing of each other before they claim, and room for three."""
    world = _world(tmp_path, 8, **({"slot_hours": 1000 / 3600} if limited == "cost" else {}))
    holder = world.holder()
    advance(world.paths, holder)
    reserved: float | None = 300.0
    if limited == "number":
        commands.ask(world.paths, "set", max_concurrent_trials=3)
        advance(world.paths, holder)
        reserved = Spending(world.paths, world.resolved).admit(None, time.time())
    barrier = threading.Barrier(8)
    kept: list[int] = []

    def work(number: int) -> None:
        attempt = world.paths.trial(number).attempt(1)
        claim = Claim(f"0001-{number:04d}.0", "n", at=files.now(), reserved_slot_s=reserved)
        assert claim.write_once(attempt.claim)
        barrier.wait(60)
        if Spending(world.paths, world.resolved).keep(attempt, claim):
            kept.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(kept) == 3
    for number in range(1, 9):
        trial = world.paths.trial(number)
        end, stands = End.read(trial.attempt(1).end), standing(trial)
        assert (end is None) is (number in kept)
        # what was given back counts for nothing, and is there for the next one
        assert (stands.state, stands.idle_ends) == (
            ("running", 0) if number in kept else ("runnable", 0)
        )
    assert packed.numbers(world.paths.reservation(0).parent, ".json") == list(range(1, 9))
    # one that cannot see who was before it gives way, unless nobody ever will
    trial = world.paths.trial(kept[0])
    End("completed", at=files.now()).write_once(trial.attempt(1).end)

    def again() -> bool:
        attempt = trial.attempt(1 + len(trial.attempts()))
        claim = Claim("w", "n", at=files.now(), reserved_slot_s=0.0)
        assert claim.write_once(attempt.claim)
        return Spending(world.paths, world.resolved).keep(attempt, claim)

    spoilt = next(one for one in world.paths.trials() if one.number not in kept)
    spoilt.attempt(1).claim.unlink()
    assert not again()
    packed.archive(spoilt.root, 1).write_bytes(b"{")
    assert again()
    world.paths.reservation(2).write_bytes(b"{")
    assert not again()


def test_a_claim_reads_what_may_have_changed_and_not_every_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world(tmp_path, 6, slot_hours=10)
    holder = world.holder()
    advance(world.paths, holder)
    read, hidden, now = list[int](), set[int](), [0.0]
    real = TrialPaths.numbers

    def numbers(trial: TrialPaths) -> list[int]:
        read.append(trial.number)
        return [] if trial.number in hidden else real(trial)

    def begin(number: int, kept: bool = True) -> AttemptPaths:
        attempt = world.paths.trial(number).attempt(1)
        claim = Claim("0001-0000.0", "n", at=files.now(), reserved_slot_s=60.0)
        assert claim.write_once(attempt.claim)
        assert not kept or Spending(world.paths, world.resolved).keep(attempt, claim)
        return attempt

    def looked() -> tuple[int, list[int]]:
        read.clear()
        running = spending.account().running
        return running, sorted(read)

    monkeypatch.setattr(observer, "A_ROUND", 6)
    monkeypatch.setattr(TrialPaths, "numbers", numbers)
    one = begin(1)
    # no time passes, so that what was just read may have changed within a tick of the clock of
    # files: however slow this machine is, it is read again
    spending = Spending(world.paths, world.resolved, clock=lambda: now[0])
    assert looked() == (1, [1, 2, 3, 4, 5, 6])
    monkeypatch.setattr(observer, "A_ROUND", 2)
    seen = [looked() for _ in range(6)]
    assert all(running == 1 and 1 in who and len(who) <= 4 for running, who in seen)
    assert {number for _, who in seen for number in who} == {1, 2, 3, 4, 5, 6}
    End("completed", at=files.now()).write_once(one.end)
    begin(4)  # its reservation tells of it
    running, who = looked()
    assert running == 1 and {1, 4} <= {*who}
    assert not all(1 in looked()[1] for _ in range(3)), "it has ended"
    begin(5, kept=False)  # as if there had been no limits when it was claimed
    assert max(looked()[0] for _ in range(3)) == 2
    states = [standing(trial).state for trial in world.paths.trials()]
    assert spending.ledger.waiting() == states.count("runnable") > 0
    hidden.add(2)
    begin(2)
    assert [looked()[0] for _ in range(4)] == [3] * 4, "a listing may come from a cache"
    begin(6, kept=False)
    commands.ask(world.paths, "set", max_concurrent_trials=5)
    advance(world.paths, holder)
    assert looked() == (4, [1, 2, 3, 4, 5, 6]), "before, perhaps nobody took numbers"
    monkeypatch.setattr(observer, "A_ROUND", 6)
    now[0] += 2 * freshness.TICK_S
    assert looked() == (4, [1, 2, 3, 4, 5, 6]), "each once more, a tick later"
    assert looked() == (4, []), "and then none that looks as before"


def test_a_worker_claims_within_budget_and_limit(tmp_path: Path) -> None:
    world = _world(tmp_path, 3, slot_hours=1)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    workers, here = play.start_all(), Allocation("1", ("n",), end_at=time.time() + 10_000)
    spending = Spending(world.paths, world.resolved)
    one = claims.next_attempt(world.paths, workers[0], here, spending)
    assert one is not None
    first = Claim.read(one.claim)
    assert first is not None and first.reserved_slot_s == pytest.approx(1200, abs=60)
    commands.ask(world.paths, "set", max_concurrent_trials=1)
    advance(world.paths, holder)
    assert claims.next_attempt(world.paths, workers[1], here, spending) is None
    commands.ask(world.paths, "set", **{"max_concurrent_trials": 0, "budget.slot_hours": None})  # type: ignore[arg-type]
    advance(world.paths, holder)
    two = claims.next_attempt(world.paths, workers[1], here, spending)
    assert two is not None and two.trial == 2
    second = Claim.read(two.claim)
    assert second is not None and second.reserved_slot_s is None
    commands.ask(world.paths, "set", max_concurrent_trials=3)
    advance(world.paths, holder)
    three = claims.next_attempt(world.paths, workers[2], here, spending)
    assert three is not None and of_attempt(here, three, 1) is here


def test_a_budget_that_is_used_up_pauses_until_it_is_raised(tmp_path: Path) -> None:
    hook = {"command": 'echo "$HPCDET_EVENT $HPCDET_WHY" >>heard', "on": ["stuck"]}
    search = {"max_concurrent_trials": 2}
    world = World.make(
        tmp_path, Waves(2, 2), searcher=search, budget={"slot_hours": 1}, notify=hook
    )
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    worker = play.start("1")
    assert world.scheduler.live == [("1", 0), ("1", 1)]
    attempt = world.paths.trial(1).attempt(1)
    Claim(worker.name, "n1", at=_ago(4000), reserved_slot_s=3600.0).write_once(attempt.claim)
    turn = later(world, holder)
    # what runs has reserved all there is: nobody waits in the queue for the other trial
    assert (turn.state, world.scheduler.live) == ("RUNNING", [("1", 0)])
    play.end(attempt, "walltime", at=_ago(450))
    assert later(world, holder).state == "PAUSED"
    play.leave(worker)
    assert later(world, holder, 3).state == "PAUSED"
    [line] = (world.paths.root / "heard").read_text().splitlines()
    assert line.startswith("stuck budget of 1 slot hours is used up")
    assert "hpcdet set paper-0001 budget.slot_hours=MORE" in line
    commands.ask(world.paths, "resume")
    assert later(world, holder).state == "PAUSED"
    assert world.scheduler.live == []
    commands.ask(world.paths, "set", **{"budget.slot_hours": 1.12})  # type: ignore[arg-type]
    assert later(world, holder).state == "RUNNING"
    assert world.scheduler.live == [("2", 0)]  # room for one


def _ago(seconds: float) -> str:
    at = datetime.now(UTC) - timedelta(seconds=seconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
