"""Saves that are killed after any one of their system calls leave the old checkpoint or the new."""

from __future__ import annotations

import os
import random
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint import Frozen, Image
from hpcdet.checkpoint.write import unchanged
from tests import dose
from tests.checkpoint.test_faults import kill_after
from tests.checkpoint.test_frozen import state, trial
from tests.ranks import elsewhere
from tests.trees import same

LAST = 4
ALSO = ("link", "unlink")
ALL = 80
"""With so many blows (``HPCDET_CHAOS``) every call is the last one once, with fewer some are."""

Save = Callable[[Path, int], Any]


def at_once(folder: Path, _: int) -> None:
    checkpoint.save(folder / "00000005.g1", state(LAST + 1), image=Image())


def beside(folder: Path, _: int) -> None:
    checkpoint.begin(folder / "00000005.g1", state(LAST + 1), image=Image()).result()


def linking(folder: Path, _: int) -> None:
    known = Frozen.after(folder, f"{LAST:08d}.g1", 0)
    checkpoint.save(folder / "00000005.g1", state(LAST + 1), image=Image(), frozen=known)


def of_two(folder: Path, rank: int) -> None:
    """Each links what has not changed and writes the rest."""
    known = Frozen.after(folder, f"{LAST:08d}.g1", rank)
    how: dict[str, Any] = {"rank": rank, "world": 2, "image": Image(), "frozen": known}
    checkpoint.begin(folder / "00000005.g1", state(LAST + 1), {"rank": rank}, **how).result()


def killed(save: Save, folder: Path, nth: int, world: int, whose: int) -> bool:
    """Ranks save; one is killed by its n-th call, and the others then; False if it makes fewer.

    What one raises is shown on standard error, and fails this process.
    """
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            try:
                if rank == whose:
                    kill_after(nth, ALSO)
                save(folder, rank)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    ends = []
    while children:
        child, status = os.wait()
        children.remove(child)
        ends.append(status)
        if os.WIFSIGNALED(status):
            for other in children:
                os.kill(other, signal.SIGKILL)
    assert set(ends) <= {0, signal.SIGKILL}, ends
    return any(ends)


def sweep(folder: Path, save: Save, world: int, whose: int, stride: int) -> None:
    """Kill after one call after the other, or some of them; look at what can be loaded."""
    torch.set_num_threads(1)
    unchanged.WORTH, unchanged.WORTH_ALL = 1000, 2000
    trial(
        folder,
        world,
        [state(step) for step in range(1, LAST + 1)],
        [Frozen() for _ in range(world)],
    )
    dice, nth, found, more = random.Random(f"{dose.SEED} {save.__name__} {whose}"), 0, [], True
    while more:
        nth += dice.randint(1, stride)
        more = killed(save, folder, nth, world, whose)
        loaded = checkpoint.restore(folder)
        assert loaded is not None
        step = loaded.shared["step"]
        assert same(loaded.shared, state(step)), (nth, step)
        if not more and save in (linking, of_two):
            linked = folder / "00000003.g1" / f"rank-00000-of-0000{world}.frozen.h5"
            assert linked.samefile(folder / "00000005.g1" / linked.name)
        found.append(step)
        shutil.rmtree(folder / "00000005.g1", ignore_errors=True)
    assert nth > 15 and len(found) > 3, found
    assert set(found) == {LAST, LAST + 1} and found[-1] == LAST + 1, found
    if world == 1:
        assert found == sorted(found)  # the old one, and from its commit on the new one
    assert not list(folder.glob(".bad-*"))


@pytest.mark.parametrize(
    ("save", "world", "whose"),
    [(at_once, 1, 0), (beside, 1, 0), (linking, 1, 0), (of_two, 2, 0), (of_two, 2, 1)],
    ids=["at once", "beside", "linking", "first of two", "second of two"],
)
def test_kill_after_each_system_call_leaves_the_old_or_the_new(
    tmp_path: Path, save: Save, world: int, whose: int
) -> None:
    stride = max(1, ALL // dose.BLOWS) if save in (linking, of_two) else 1
    print(f"seed {dose.SEED}, each of {stride} calls")
    elsewhere(sweep, tmp_path, save, world, whose, stride)
