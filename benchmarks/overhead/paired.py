"""Other loops that train inside of one of hpcdet's, on its very model, optimizer and samples.

Two processes that do the same differ by where their memory lies. Here all loops work on the same
tensors, block by block in turn, in an order that is drawn for each round; so what is left between
them is what they do.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import peers
import task
import torch


def _by_hand(model: Any, optimizer: Any) -> Iterator[None]:
    return peers.by_hand(model, optimizer)


def _fabric(model: Any, optimizer: Any) -> Iterator[None]:
    sys.path.append(task.SIZE["packages"])
    made = peers.launched(ready=True)
    return peers.with_fabric(made, *made.setup(model, optimizer))


LOOPS = {"hand-written": _by_hand, "Lightning Fabric": _fabric}


class Paired:
    """``step`` is called at the beginning of each step of ours; the others train inside of it.

    What is said at the end are the mean steps of each round: seconds of the clock, and of the
    processor. Ours has all threads of the process, some of which work now and then whoever trains
    (monitors, writers of checkpoints). So a rank that is alone counts the training thread alone for
    the others; several ranks need threads to talk to each other, which cannot be told apart.
    """

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        self._others = {name: LOOPS[name](model, optimizer) for name in task.SIZE["beside"]}
        self._words = task.Words()
        self._turns = self._rounds()
        self._left = 0

    def step(self) -> None:
        """A step of ours begins."""
        if not self._left:
            self._left = next(self._turns)
        self._left -= 1

    def _rounds(self) -> Iterator[int]:
        """All rounds; gives way where ours trains so many steps."""
        self._words.say({})
        names, chance = [task.SIZE["ours"], *self._others], random.Random(task.SIZE["seed"])
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for steps in task.SIZE["rounds"]:
            chance.shuffle(names)
            for name in names:
                wall, all_threads, own = _clocks()
                if name not in self._others:
                    yield steps
                else:
                    for _ in range(steps):
                        next(self._others[name])
                now, all_now, own_now = _clocks()
                alone = name in self._others and peers.WORLD == 1
                used = own_now - own if alone else all_now - all_threads
                times[name].append(((now - wall) / steps, used / steps))
        self._words.say(times)


def _clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.process_time(), time.thread_time()
