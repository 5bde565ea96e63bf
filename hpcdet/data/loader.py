"""Loaders that give a rank its shares of the global batches, from any position on.

A sample's augmentation draws from generators seeded by (seed, epoch, sample), and what joins
samples to a batch from ones seeded by the batch's first sample, whichever process does it and
however many there are. Where that is the training process, its own generators are left as they
were.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import random
import select
import selectors
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, default_collate, get_worker_info

from hpcdet.data import rng
from hpcdet.data.sample_order import Slice, subseed
from hpcdet.data.sample_rng import Draws, Own, Plant, nothing
from hpcdet.errors import Unavailable
from hpcdet.process import signals
from hpcdet.process.console import say

_STARTS = 3
_BEGIN_S = 300.0
"""Seconds in which all workers of a loader begin; spawned ones import torch first."""

_running = weakref.WeakSet[Any]()
_starting: list[Any] = []
os.register_at_fork(after_in_child=_running.clear)
os.register_at_fork(after_in_child=_starting.clear)

Wanted = tuple[int, list[int]]
"""Samples: their epoch, and their indices."""


def wanted_of(part: Slice) -> Wanted:
    """The samples of a slice, in order."""
    return part.epoch, part.indices.tolist()


class Sources:
    """The sources of random numbers that a data set or a sampler may draw from.

    Python, numpy, torch, and generators of its own (in its attributes, its transforms, …).
    """

    def __init__(self, *roots: Any) -> None:
        self._own = Own.of(*roots)

    def plant(self, *seed: int | str) -> None:
        """Seed them all; equal parts give equal numbers for ever."""
        number = subseed(*seed)
        random.seed(number)
        np.random.seed(number % 2**32)
        # torch.manual_seed would ask for accelerators as well: 100 times slower
        torch.default_generator.manual_seed(number % 2**63)
        self._own.seed(number)

    def capture(self) -> tuple[Any, list[Any]]:
        """Return the state that ``restore`` puts back."""
        return rng.capture_cpu(), self._own.mark()

    def restore(self, state: tuple[Any, list[Any]]) -> None:
        rng.restore_cpu(state[0])
        self._own.restore(state[1])


class Seeded(Dataset[Any]):
    """A data set that gives whole batches, drawn with generators of their own.

    A data set that fetches its samples together (``__getitems__``) is seeded once per batch.
    Subsets of one that does not are no such data sets, though they have the method.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], *seed: int | str) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._draws: Draws | None = None

    def __getitems__(self, wanted: Wanted) -> Any:
        if self._draws is None:  # in the process that draws: a worker has copies of its own
            self._draws = Draws(own=Own.of(self._dataset, self._collate))
        alone = get_worker_info() is None
        return self._draws.batch(functools.partial(self._batch, wanted), keep=alone)

    def _batch(self, wanted: Wanted, plant: Plant) -> Any:
        samples = self._samples(*wanted, plant)
        plant("batch", *self._seed, wanted[0], wanted[1][0])
        return self._collate(samples)

    def _samples(self, epoch: int, indices: list[int], plant: Plant) -> list[Any]:
        together = getattr(self._dataset, "__getitems__", None)
        if together is not None and (plant is nothing or fetches_together(self._dataset)):
            plant("sample", *self._seed, epoch, indices[0])
            return list(together(indices))
        if plant is nothing:
            return [self._dataset[index] for index in indices]
        samples: list[Any] = []
        for index in indices:
            plant("sample", *self._seed, epoch, index)
            samples += [self._dataset[index]] if together is None else together([index])
        return samples


def fetches_together(dataset: Any) -> bool:
    """Whether a batch of a data set is more than its samples, one after the other."""
    if getattr(type(dataset), "__getitems__", None) is Subset.__getitems__:
        return fetches_together(dataset.dataset)
    return hasattr(dataset, "__getitems__")


class ShardedLoader(Iterable[tuple[Slice, Any]]):
    """Each slice with the batch of its samples; may be gone through again and again.

    Args:
        slices: gives the same slices at each call.
        options: of ``torch.utils.data.DataLoader``: ``num_workers``, ``collate_fn``, …
    """

    def __init__(
        self,
        dataset: Any,
        slices: Callable[[], Iterator[Slice]],
        seed: Sequence[int | str],
        **options: Any,
    ) -> None:
        collate = options.pop("collate_fn", None) or default_collate
        self._slices = slices
        self._data = Seeded(dataset, collate, *seed)
        self._here = not (options.get("num_workers") or options.get("pin_memory"))
        self._keys = _Keys(slices)
        self._batches: DataLoader[Any] = DataLoader(
            self._data,
            batch_sampler=cast("Any", self._keys),
            collate_fn=as_is,
            **process_options(options, *seed),
        )

    def __iter__(self) -> Iterator[tuple[Slice, Any]]:
        if self._here:  # torch's loader would only pass them on
            return ((one, self._data.__getitems__(wanted_of(one))) for one in self._slices())
        batches = started(self._batches)
        ahead = self._keys.ahead  # this iterator's, whoever iterates as well
        return ((ahead.popleft(), batch) for batch in batches)


def process_options(options: dict[str, Any], *seed: int | str) -> dict[str, Any]:
    """Options for a torch loader whose workers leave signals to their rank."""
    generator = torch.Generator()  # its own: making an iterator draws nothing from the global one
    generator.manual_seed(subseed("loader", *seed) % 2**63)
    prepare = options.pop("worker_init_fn", None)
    init = _Prepare(prepare) if options.get("num_workers") else None
    return {**options, "generator": generator, "worker_init_fn": init}


def started(loader: DataLoader[Any]) -> Iterator[Any]:
    """Return an iterator of a loader, all of whose workers have begun.

    A fork may leave a worker stuck before its first line of Python: that of CPython 3.11.7 takes
    a lock of the runtime before it makes the lock anew. The rank would wait for it without end,
    and the other ranks for this one. So the worker is killed, and all of them start once more.

    Args:
        loader: made with ``process_options``.

    Raises:
        Unavailable: a worker was stuck at each of ``_STARTS`` starts.
    """
    prepare, generator = loader.worker_init_fn, loader.generator
    if not isinstance(prepare, _Prepare) or loader._iterator is not None:  # persistent ones
        return iter(loader)
    seeds = generator.get_state()
    for _ in range(_STARTS):
        generator.set_state(seeds)
        reports, prepare.reports = multiprocessing.Pipe(duplex=False)
        with reports, prepare.reports:
            batches: Any = iter(loader)
            _starting.append(batches)  # torch may raise here: the stuck end with this process
            late = _late(reports, batches._workers)
        if not late:
            _running.add(batches)
            if all(worker.is_alive() for worker in batches._workers):
                _starting.remove(batches)
            return batches  # type: ignore[no-any-return]
        loader._iterator = None
        _end(batches)
        _starting.remove(batches)
        found = f"DataLoader worker (pid {late[0].pid}) did not begin within {_BEGIN_S:.0f} s"
        say(found)
    raise Unavailable(f"{found}, at any of {_STARTS} starts; killed by signal: Killed")


def _end(batches: Any) -> None:
    """End the workers of an iterator, whatever they are doing; they ignore SIGTERM."""
    batches._shutdown_workers()  # first: torch takes the end of a worker that it knows for an error
    for worker in batches._workers:
        worker.kill()
        worker.join()


@atexit.register
def _end_all() -> None:
    """Else ``multiprocessing`` sends SIGTERM to those that are left, and waits for them."""
    for batches in {*_running, *_starting}:
        _end(batches)


def _late(reports: Any, workers: Sequence[BaseProcess]) -> list[BaseProcess]:
    """Wait until all workers have begun; those that have not in time. One that ends is torch's."""
    late = dict(enumerate(workers))
    until = time.monotonic() + _BEGIN_S
    while late:
        with selectors.DefaultSelector() as selector:
            for one in (reports.fileno(), *(worker.sentinel for worker in late.values())):
                selector.register(one, selectors.EVENT_READ)
            found = selector.select(max(0.0, until - time.monotonic()))
        ready = {key.fd for key, _ in found}
        if reports.fileno() in ready:
            late.pop(int(reports.recv_bytes()))
        elif ready:
            return []
        else:
            break
    return list(late.values())


def as_is(batch: Any) -> Any:
    """Collates nothing: the batch is one already."""
    return batch


def end_with(process: int) -> None:
    """Let this process end when another one has, however that ends.

    A worker would look after its parent itself, but where a server forks the workers
    (``forkserver``), that is another process than the rank and outlives it.
    """
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:  # it has ended already
        os._exit(1)
    except (AttributeError, OSError):  # a system without pidfd
        return
    threading.Thread(target=_wait, args=(watched,), daemon=True).start()


def _wait(watched: int) -> None:
    select.select([watched], [], [])
    os._exit(1)


class _Keys:
    """The requests of a torch loader to its workers, one batch after the other.

    Attributes:
        ahead: the slices that the latest iterator was asked for and whose batches are not there
            yet; they come in the same order.
    """

    def __init__(self, slices: Callable[[], Iterator[Slice]]) -> None:
        self._slices = slices
        self.ahead: deque[Slice] = deque()

    def __iter__(self) -> Iterator[Wanted]:
        self.ahead = deque()
        return self._asked(self.ahead)

    def _asked(self, ahead: deque[Slice]) -> Iterator[Wanted]:
        for one in self._slices():
            ahead.append(one)
            yield wanted_of(one)


class _Prepare:
    """First thing in a loader's worker: signals are its rank's business, its end is its own.

    Attributes:
        reports: where a worker writes its number once it has begun.
    """

    reports: Any

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then
        self._rank = os.getpid()

    def __call__(self, number: int) -> None:
        signals.ignore()
        end_with(self._rank)
        with self.reports:
            self.reports.send_bytes(str(number).encode())
        if self._then is not None:
            self._then(number)
