"""What loaders give depends on seed, epoch and sample, and goes on where it was left."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from hpcdet.data import loader, object_graph, rng
from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Slice
from hpcdet.data.streams import Stream
from hpcdet.errors import ConfigError, Unavailable
from hpcdet.train.attempt.verdicts import verdict_on
from hpcdet.worker.attempts import exit_reason
from hpcdet.worker.attempts.exit_reason import Evidence


class OwnNoise:
    """Samples drawn from generators that hide in attributes, containers and closures."""

    def __init__(self) -> None:
        noise = np.random.default_rng(1)
        self.parts = {"old": [np.random.RandomState(2)], "python": random.Random(3)}
        self.torch = torch.Generator()
        self.transform = lambda index: [index, noise.random()]

    def __getitem__(self, index: int) -> list[float]:
        drawn = [float(torch.rand((), generator=self.torch)), self.parts["python"].random()]
        return [*self.transform(index), *drawn, self.parts["old"][0].random_sample()]  # type: ignore[index]


def mask(samples: list[Any]) -> list[Any]:
    """A collate function that draws, as those that mask words do."""
    return [samples, random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_generators_of_a_data_set_and_of_collate_are_seeded_wherever_they_draw() -> None:
    def slices() -> Iterator[Slice]:
        for epoch, indices in itertools.product(range(2), ([4, 2], [0])):
            yield Slice(epoch, len(indices), np.array(indices), len(indices), False)

    def drawn(workers: int) -> tuple[list[Any], Any]:
        noise = OwnNoise()
        before = [rng.state_of(noise.torch), rng.state_of(noise.parts["python"])]  # type: ignore[arg-type]
        made = loader.ShardedLoader(noise, slices, (1,), num_workers=workers, collate_fn=mask)
        found = [batch for _, batch in made]
        after = [rng.state_of(noise.torch), rng.state_of(noise.parts["python"])]  # type: ignore[arg-type]
        assert torch.equal(before[0], after[0]) and before[1] == after[1], "they are put back"
        return found, [batch for _, batch in made]

    here, again = drawn(0)
    assert here == again, "gone through once more, the same"
    assert here == drawn(2)[0]
    assert here[0] != here[2], "another epoch, other numbers"
    assert len({number for batch in here for number in batch[1:]}) == 3 * len(here)


def _worker(rank: int) -> None:
    loader.end_with(rank)
    threading.Event().wait()


def test_a_worker_ends_with_its_rank_whoever_forked_it() -> None:
    rank = subprocess.Popen(["sleep", "1000"])
    worker = multiprocessing.get_context("fork").Process(target=_worker, args=(rank.pid,))
    try:
        worker.start()
        rank.kill()
        rank.wait()
        worker.join(120)
        assert worker.exitcode == 1
    finally:
        for process in (rank, worker):
            process.kill()
        rank.wait()
        worker.join()


class Forks:
    """Stops children of this process at their fork, before they run any code of their own.

    Attributes:
        stop: the numbers of the forks, from 1, whose children stop; 0: every one.
    """

    def __init__(self) -> None:
        self.stop: set[int] = set()
        self.count = 0
        os.register_at_fork(before=self._before, after_in_child=self._child)

    def begin(self, *stop: int) -> None:
        self.stop, self.count = {*stop}, 0

    def _before(self) -> None:
        self.count += 1

    def _child(self) -> None:
        if self.count in self.stop or 0 in self.stop:
            os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture(scope="module")
def all_forks() -> Forks:
    return Forks()  # a hook of forks stays for the life of the process


@pytest.fixture
def forks(all_forks: Forks, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forks]:
    monkeypatch.setattr(loader, "_BEGIN_S", 2.0)
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)  # to join one
    yield all_forks
    all_forks.begin()
    for child in multiprocessing.active_children():
        child.kill()  # who is stopped keeps the output of this process open


class Seeds:
    """Each item is a number from the worker's own seed, which the loader draws at its start."""

    def __getitems__(self, indices: list[int]) -> list[float]:
        return [torch.initial_seed() + index for index in indices]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_is_stuck_at_its_fork_is_replaced(
    forks: Forks, capfd: pytest.CaptureFixture[str], persistent: bool
) -> None:
    def drawn() -> list[Any]:
        def slices() -> Iterator[Slice]:
            yield from (Slice(0, 1, np.array([index]), 1, False) for index in range(6))

        made = loader.ShardedLoader(
            OwnNoise(), slices, (1,), num_workers=2, persistent_workers=persistent
        )
        return [[batch for _, batch in made] for _ in range(2)]

    expected = drawn()
    assert "did not begin" not in capfd.readouterr().err
    forks.begin(2)
    assert drawn() == expected
    assert forks.count == (4 if persistent else 6)
    assert capfd.readouterr().err.count("did not begin within 2 s") == 1
    assert not multiprocessing.active_children()


def test_a_loader_draws_the_same_seeds_at_its_second_start(forks: Forks) -> None:
    def seeds() -> list[int]:
        options = loader.process_options({"num_workers": 1}, 7)
        made: DataLoader[Any] = DataLoader(
            Seeds(),  # type: ignore[arg-type]
            batch_sampler=[[0], [1]],
            collate_fn=list,
            **options,
        )
        return [batch[0] for _ in range(2) for batch in loader.started(made)]

    expected = seeds()
    forks.begin(1)
    assert seeds() == expected


def test_workers_that_are_always_stuck_end_the_attempt_and_no_code_is_to_blame(
    forks: Forks,
) -> None:
    forks.begin(0)
    with pytest.raises(Unavailable, match="at any of 3 starts") as raised:
        next(Stream(Numbers(), 5, 7, 0, num_workers=1).endless())
    assert forks.count == 3
    assert not multiprocessing.active_children()
    seen = Evidence(verdict_on(raised.value, ""), None, 1, first_step=True)
    assert exit_reason.judge(seen) == ("lost", "a rank was killed")


def test_a_worker_that_dies_before_it_begins_is_an_error_at_once(forks: Forks) -> None:
    def kill() -> None:
        for child in multiprocessing.active_children():
            if psutil.Process(child.pid).status() == psutil.STATUS_STOPPED:
                child.kill()

    forks.begin(1)
    threading.Timer(1.0, kill).start()
    with pytest.raises(RuntimeError, match=r"killed by signal: Killed|exited unexpectedly"):
        next(Stream(Numbers(), 5, 7, 0, num_workers=2).endless())


def test_a_worker_that_is_stuck_when_another_dies_ends_with_the_process(forks: Forks) -> None:
    def kill() -> None:
        for child in multiprocessing.active_children():
            if psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
                child.kill()

    forks.begin(1)
    threading.Timer(1.0, kill).start()
    with pytest.raises(RuntimeError, match=r"killed by signal: Killed|exited unexpectedly"):
        next(Stream(Numbers(), 5, 7, 0, num_workers=2).endless())
    loader._end_all()
    loader._starting.clear()
    assert not multiprocessing.active_children()


LEFT = """
import numpy as np
from hpcdet.data import loader
from hpcdet.data.sample_order import Slice

slices = lambda: (Slice(0, 1, np.array([index]), 1, False) for index in range(9))
kept = loader.ShardedLoader(range(9), slices, (1,), num_workers=2, persistent_workers=True)
print(sum(int(batch) for _, batch in kept))
half = iter(loader.ShardedLoader(range(9), slices, (1,), num_workers=2))
print(next(half)[1])
"""


def test_a_script_ends_though_workers_of_its_loaders_are_left() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("36\ntensor([0])\n", "", 0)


def batches(epoch: int) -> list[list[int]]:
    draw = random.Random(epoch)
    lengths = [3, 1, 2, 4, 2]
    draw.shuffle(lengths)
    ends = list(itertools.accumulate(lengths))
    order = draw.sample(range(12), 12)
    return [order[end - size : end] for end, size in zip(ends, lengths, strict=True)]


def test_batches_of_a_sampler_are_taken_once_at_any_number_of_ranks() -> None:
    order = BatchOrder.of(batches)
    records, seen = 0, []
    for world in (2, 3, 1, 4):  # one step with each, in turn, over three epochs
        steps = [next(order.slices(records, rank, world)) for rank in range(world)]
        assert len({(one.records, one.last, one.epoch) for one in steps}) == 1
        assert sum(one.weight for one in steps) == steps[0].records
        assert all(len(one.indices) for one in steps), "none is empty"
        seen += [int(index) for one in steps for index in one.indices[: one.weight]]
        records += steps[0].records
    assert (
        seen
        == [index for epoch in range(2) for batch in batches(epoch) for index in batch][: len(seen)]
    )
    assert len(seen) > 12


def test_a_batch_sampler_that_changes_its_mind_is_refused() -> None:
    with pytest.raises(ConfigError, match="epoch 1 of the batch sampler has 2 samples"):
        list(itertools.islice(BatchOrder.of(lambda epoch: [[0, 1, 2][epoch:]]).slices(0, 0, 1), 2))
    with pytest.raises(ConfigError, match="1 of it lie behind"):
        next(BatchOrder.of(lambda _: [[0, 1, 2]]).slices(1, 0, 1))


class Numbers(IterableDataset[float]):
    """A stream that workers share, with a shuffle buffer: its state is not just a number."""

    def __init__(self, size: int = 23) -> None:
        self.size = size
        self.at, self.buffer = 0, list[int]()

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        step, first = (info.num_workers, info.id) if info else (1, 0)
        while self.at < self.size or self.buffer:
            while self.at < self.size and len(self.buffer) < 4:
                if self.at % step == first:
                    self.buffer.append(self.at)
                self.at += 1
            if not self.buffer:
                break
            value = self.buffer.pop(random.randrange(len(self.buffer)))
            yield [value, float(torch.rand(())), float(np.random.rand())]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "buffer": self.buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.buffer = state["at"], state["buffer"]


def read(count: int, workers: int, state: Any = None) -> tuple[list[Any], Any]:
    """So many batches of five, and the position behind them; more than those are prefetched."""
    stream = Stream(Numbers(), 5, 7, 0, num_workers=workers, collate_fn=list)
    if state is not None:
        stream.load(state)
    found = [batch for batch, _ in itertools.islice(stream.endless(), count)]
    return found, stream.state()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_where_it_was_left(workers: int) -> None:
    whole, end = read(13, workers)
    first, state = read(6, workers)
    second, same_end = read(7, workers, state)
    assert first + second == whole
    assert same_end == end
    values = [sample[0] for batch in whole[:10] for sample in batch]
    assert sorted(values[:23]) == list(range(23)), "none twice, none missed"
    assert values[:23] != values[23:], "and another order in the next pass"


def test_one_worker_reads_what_none_reads_and_another_number_is_refused() -> None:
    first, state = read(3, 0)
    assert read(3, 1) == (first, state)
    assert read(4, 1, state)[0] == read(7, 0)[0][3:]
    with pytest.raises(ConfigError, match=r"by 1 loader workers.*now there are 2"):
        read(1, 2, state)


def test_a_pass_that_was_left_begins_anew() -> None:
    stream = Stream(Numbers(), 5, 7, 0, collate_fn=list)
    next(stream.once())
    passed = list(stream.once())
    assert [size for size, _, _ in passed] == [5, 5, 5, 5, 3]
    assert [batch for _, batch, _ in passed] == read(5, 0)[0]


def test_an_empty_stream_is_no_endless_loop() -> None:
    with pytest.raises(ConfigError, match="pass 0 of the stream has no sample"):
        next(Stream(Numbers(0), 5, 7, 0).endless())


def test_the_walk_names_the_shortest_path_and_calls_nothing() -> None:
    class Thing:
        def __init__(self) -> None:
            self.deep = {"a": [(random.Random(),)]}
            self.short = self.deep["a"][0]
            self.itself = self

        @property
        def fails(self) -> None:
            raise AssertionError

    found = [path for path, one in object_graph.walk({"x": Thing()}) if rng.is_own(one)]
    assert found == ["x.short[0]"]
    assert not any(rng.is_own(one) for _, one in object_graph.walk({"r": [np.random.mtrand._rand]}))
