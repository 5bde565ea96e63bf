"""Checks of two ranks on two nodes: ``python -m hpcdet.rank_check FOLDER BACKEND``.

BACKEND is that of ``distributed.backend``. Each rank leaves ``BACKEND-RANK.json`` in the folder,
written anew after each part, so that what was found stays where a later part fails.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcdet.process import launcher_watch
from hpcdet.process.ranks import Ranks, node_name
from hpcdet.store.fs import files

_LIMIT_S = 60.0
_LOOK_S = 0.002
_ROUNDS = 5
_ENOUGH_S = 15.0
_FILES = 100
_WHOLE = 4096
_NUMBERS = 1 << 20
_TIMES = 10


def main(argv: list[str]) -> int:
    """Run one rank; 0 if every part ended."""
    folder, backend = Path(), argv[1]
    os.chdir(argv[0])  # nothing is made in a folder that was removed meanwhile, nor it itself
    launcher_watch.end_with_it()
    os.umask(0o077)
    ranks = Ranks.from_environment()
    found: dict[str, Any] = {"node": node_name(), "world": ranks.world}
    parts: list[Callable[[], Iterator[tuple[str, Any]]]] = [
        lambda: _collectives(ranks, folder, backend)
    ]
    if backend == "auto":
        shared = folder / "between"
        shared.mkdir(exist_ok=True)
        parts = [
            lambda: _turns(ranks, shared),
            lambda: _creation(ranks, shared),
            lambda: _rename(ranks, shared),
            *parts,
        ]
    for part in parts:
        try:
            found.update(part())
        except Exception as error:
            found["error"] = f"{type(error).__name__}: {error}"
            return 1
        finally:
            files.replace(folder / f"{backend}-{ranks.rank}.json", files.canonical(found))
    return 0


def _await(folder: Path, name: str) -> Path:
    """Wait until a file is listed in a folder, as searchers and workers look for news.

    Raises:
        TimeoutError: it is not.
    """
    limit = time.monotonic() + _LIMIT_S
    while name not in os.listdir(folder):
        if time.monotonic() > limit:
            raise TimeoutError(f"{name} of the other node is not seen after {_LIMIT_S:.0f} s")
        time.sleep(_LOOK_S)
    return folder / name


def _turns(ranks: Ranks, folder: Path) -> Iterator[tuple[str, Any]]:
    """Two ranks answer each other by files. The first round waits for the other to start.

    Half of a round is what the other node sees later, and its clock is compared with the middle.
    """
    if not ranks.chief:
        _answer(folder)
        return
    rounds = list(_ask(folder))[1:]
    took, skew = min(rounds)
    yield "visible_s", max(rounds)[0] / 2
    yield "clock_s", skew
    yield "clock_error_s", took / 2


def _ask(folder: Path) -> Iterator[tuple[float, float]]:
    """Yield seconds and difference of the clocks for each round; few of them where each is long."""
    start, number, last = time.monotonic(), 0, False
    while not last:
        begin, clock = time.monotonic(), time.time()
        last = number > 0 and (number == _ROUNDS or begin - start > _ENOUGH_S)
        files.write_once(folder / f"asked-{number}", b"last" if last else b"")
        theirs = float(_await(folder, f"answered-{number}").read_text())
        took = time.monotonic() - begin
        yield took, theirs - clock - took / 2
        number += 1


def _answer(folder: Path) -> None:
    number, last = 0, False
    while not last:
        last = _await(folder, f"asked-{number}").read_bytes() == b"last"
        files.write_once(folder / f"answered-{number}", str(time.time()).encode())
        number += 1


def _creation(ranks: Ranks, folder: Path) -> Iterator[tuple[str, Any]]:
    """Both create the same files: of each, one rank shall be told that it is its own."""
    own = [
        n for n in range(_FILES) if files.write_once(folder / f"once-{n}", ranks.rank.to_bytes())
    ]
    yield "created", own


def _rename(ranks: Ranks, folder: Path) -> Iterator[tuple[str, Any]]:
    """One replaces a file, the other reads it: never a part of it, never nothing."""
    file = folder / "whole"
    if ranks.chief:
        files.replace(file, bytes(_WHOLE))
        (folder / "reads").write_bytes(b"")
        _await(folder, "reader")
        for number in range(1, _FILES):
            files.replace(file, bytes([number]) * _WHOLE)
        return
    _await(folder, "reads")
    files.write_once(folder / "reader", b"")
    limit, torn, last = time.monotonic() + _LIMIT_S, 0, 0
    while last < _FILES - 1 and time.monotonic() < limit:
        try:
            seen = file.read_bytes()
        except OSError:
            seen = b""
        torn += len(seen) != _WHOLE or len(set(seen)) != 1
        last = seen[0] if seen else last
    yield "torn", torn
    yield "last", last == _FILES - 1


def _collectives(ranks: Ranks, folder: Path, backend: str) -> Iterator[tuple[str, Any]]:
    """Meet as the ranks of a trial do, and sum numbers over all of them."""
    import torch
    import torch.distributed as dist

    from hpcdet.train.meeting import rendezvous

    rendezvous.meet(ranks, folder / f"rendezvous-{backend}.json", backend)
    try:
        device = rendezvous.device_of(ranks)
        numbers = torch.full((_NUMBERS,), float(ranks.rank + 1), device=device)
        dist.all_reduce(numbers)
        yield "sum", numbers[0].item() == sum(range(1, ranks.world + 1))
        yield "by", "nccl" if device.type == "cuda" and backend == "auto" else "gloo"
        begin = time.monotonic()
        for _ in range(_TIMES):
            dist.all_reduce(numbers)
        numbers.sum().item()
        yield "bytes_per_s", numbers.nbytes * _TIMES / (time.monotonic() - begin)
    finally:
        rendezvous.leave()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
