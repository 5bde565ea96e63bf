"""What ranks agree on at a step: exchanges, notices, stops."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet.process import signals
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.records import Trial
from hpcdet.train.attempt.session import Session
from hpcdet.train.attempt.stop_request import StopRequest
from hpcdet.train.checkpoints.deadline import Deadline, Every
from hpcdet.train.comm.agreement import NOTHING, TOGETHER, Agreement, Orders
from hpcdet.units import Length, Units


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR1, signal.SIGCONT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signals.forget()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "orders",
    [
        *(Orders(), Orders("paused"), Orders(None, Length("epochs", 3), save=True)),
        *(Orders("signal", busy=True), Orders(lost=True)),
    ],
)
def test_orders_survive_their_encoding(orders: Orders) -> None:
    assert Orders.decode(orders.encode()) == orders


def test_the_maximum_of_orders_is_the_most_urgent() -> None:
    both = zip(Orders("walltime").encode(), Orders("stopped", None, True).encode(), strict=True)
    assert Orders.decode([max(pair) for pair in both]) == Orders("stopped", None, True)


class Sent:
    """What the ranks of a test send each other at one step; all do before any of them waits."""

    def __init__(self) -> None:
        self.vectors: list[torch.Tensor] = []

    def wait(self) -> None:
        most = torch.stack(self.vectors).amax(0)
        for vector in self.vectors:
            vector.copy_(most)


class Wire:
    """Carries it."""

    ranks = Ranks(world=2)

    def __init__(self) -> None:
        self._sent = Sent()

    def start_max(self, vector: torch.Tensor) -> Sent:
        if len(self._sent.vectors) == self.ranks.world:
            self._sent = Sent()
        self._sent.vectors.append(vector)
        return self._sent


def test_short_steps_share_an_exchange_and_all_ranks_hear_at_the_same_one() -> None:
    now = 0.0
    wire: Any = Wire()
    both = [Agreement(wire, lambda: now) for _ in range(2)]
    heard: list[tuple[Orders | None, ...]] = []

    step = 0

    def steps(number: int, seconds: float, kind: bool, *wants: Orders) -> int:
        """So many steps; after how many of them something was heard."""
        nonlocal now, step
        heard.clear()
        for _ in range(number):
            now += seconds
            step += kind
            at = step if kind else None
            wanted = zip(both, wants or (NOTHING, NOTHING), strict=True)
            heard.append(tuple(one.exchange(lambda mine=mine: mine, at) for one, mine in wanted))
        assert all(one == other for one, other in heard)
        return sum(one is not None for one, _ in heard)

    assert steps(10, 0.3, True) == 9
    assert steps(200, 0.04, True) < 60  # every 0.16 s
    assert 64 // TOGETHER <= steps(64, 0.0, True) <= 10  # but never more than so many steps
    paused, since = Orders("paused", stop=step), step + 1
    steps(64, 0.0, True, NOTHING, paused)  # which the other rank alone has been told
    assert [one for one, _ in heard if one is not None][-1] == paused
    after = [at for at in range(since, step + 1) if at % TOGETHER == 1]
    assert after and all(heard[at - since][0] for at in after)  # whatever the clock says
    assert steps(4, 10.0, False) >= 3  # validation: its batches may take another time


def test_a_stop_is_heeded_at_a_step_in_which_no_clock_has_a_say() -> None:
    """Asked by the second of two ranks after step 13, they end after step 17."""

    def ends(speed: list[float], since: int = 0, asked: int | None = None) -> int:
        now = 0.0
        wire: Any = Wire()
        both = [Agreement(wire, lambda: now) for _ in range(2)]
        stops = [StopRequest(at_once=False) for _ in range(2)]
        for stop in stops:
            stop.learn(asked)
        for step in range(since + 1, 100):
            now += speed[step % len(speed)]
            if step >= 13:
                stops[1].learn(13)
            for agreement, stop in zip(both, stops, strict=True):
                said = Orders(stop=stop.asked)
                if heard := agreement.exchange(lambda said=said: said, step):
                    stop.learn(heard.stop)
            due = [stop.due(step) for stop in stops]
            assert due[0] is due[1]
            if due[0]:
                return step
        raise AssertionError("never")

    assert {ends(speed) for speed in ([1.0], [0.0], [0.002], [0.0] * 7 + [1.0])} == {17}
    assert {ends([0.0], since=step, asked=13) for step in (13, 15, 16)} == {17}  # interrupted


@pytest.mark.parametrize("starts", [(100, 0), (0, 100)])
def test_ranks_of_which_one_has_loaded_a_checkpoint_keep_in_step(
    tmp_path: Path, starts: tuple[int, int]
) -> None:
    """Code of the Core API may do so on rank 0 alone."""
    wire: Any = Wire()
    told: list[int] = []

    class Talk(Wire):
        """Rank 0 is asked first."""

        def start_max(self, vector: torch.Tensor) -> Sent:
            sent: Sent = wire.start_max(vector)
            return sent

        def broadcast(self, value: int) -> int:
            told.append(value)
            return told[0]

    now = [0.0]
    both = list[Session]()
    for start in starts:
        place = AttemptLocation.alone(tmp_path / str(start))
        one = Session(Ranks(), place, Trial(1, {}, 7), Resolved(), Deadline(None))
        peers: Any = Talk()
        one.coordinator._peers = peers
        one.coordinator._agreement = Agreement(peers, lambda: now[0])
        one.begin(None, Units(start))
        both.append(one)
    ran = list[tuple[bool, ...]]()
    for _ in range(60):
        for one in both:
            one.coordinator.poll(Units())
        ran.append(tuple(one.coordinator._agreement.under_way for one in both))
    assert {here == there for here, there in ran} == {True}
    assert {here for here, _ in ran[20:]} == {True, False}  # one exchange for several steps
    assert both[0].coordinator._steps == both[1].coordinator._steps == starts[0] + 60


def test_a_rank_that_is_alone_looks_now_and_then_and_hears_a_notice_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = AttemptLocation.alone(tmp_path)
    session = Session(Ranks(), place, Trial(1, {}, 7), Resolved(), Deadline(None))
    coordinator, now, looks = session.coordinator, [0.0], list[float]()
    session.begin(None, Units())
    coordinator._look = Every(0.2, lambda: now[0])
    cause = coordinator.preemption.cause
    monkeypatch.setattr(coordinator.preemption, "cause", lambda: looks.append(now[0]) or cause())
    for _ in range(50):
        now[0] += 0.03125
        assert coordinator.poll(Units()) == NOTHING
    assert looks == [0.03125, *(0.21875 * turn for turn in range(1, 8))]
    signals.install()
    signal.raise_signal(signal.SIGUSR2)
    assert coordinator.poll(Units()).leave == "signal"
