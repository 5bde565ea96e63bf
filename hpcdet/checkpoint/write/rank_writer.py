"""One rank's files of a checkpoint: written while its state is copied, or once it has been."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcdet.checkpoint.format import shard
from hpcdet.checkpoint.format.host_image import Filled, Image, NoRoom
from hpcdet.checkpoint.format.shard import Shard, Written
from hpcdet.checkpoint.io.task import BackgroundTask
from hpcdet.checkpoint.write import sharded_digests
from hpcdet.checkpoint.write.leaf_plan import File, PlannedPart, Report, digests_of
from hpcdet.checkpoint.write.sharded_digests import Own, Swap, Wholes
from hpcdet.checkpoint.write.unchanged import Frozen
from hpcdet.store.fs import files

_FileOf = tuple[File, Sequence[Any], Image, Callable[[Shard, Path], bool] | None]


def refuse(taken: bool) -> None:
    """Raise if a checkpoint of the name exists."""
    if taken:
        raise FileExistsError("a checkpoint of this name exists")


def parts_of(part: PlannedPart, swap: Swap) -> Wholes:
    """The tensors that lie in parts."""
    of = part.outline
    return Wholes(of.leaves, of.rank, of.world, swap)


def at_once(
    folder: Path, part: PlannedPart, image: Image, frozen: Frozen | None
) -> tuple[Report, Own]:
    """Write this rank's files while its state is being copied; also where its rows lie now."""
    written = []
    own: dict[str, Callable[[], memoryview]] = {}
    for file, sources, memory, link in _files(part, image, frozen):
        try:
            memory.arrange(file.plan)
        except NoRoom:
            written.append(shard.write(folder, file.name, sources, file.plan))
            own |= sharded_digests.in_place(file.plan, sources)
            continue
        filled = Filled()
        persist = partial(shard.persist, folder, file.name, memory, filled, file.plan, link)
        try:
            writing = BackgroundTask(persist, "checkpoint")
        except RuntimeError:  # a limit on threads: one after the other
            memory.fill(sources, filled)
            written.append(persist())
        else:
            try:
                memory.fill(sources, filled)
            finally:
                writing.wait()
            written.append(writing.result())
        own |= sharded_digests.in_file(file.plan, memory.take)
    return _reported(folder, part, written, {}, frozen), own


def _files(part: PlannedPart, image: Image, frozen: Frozen | None) -> Iterator[_FileOf]:
    """A rank's files, with what is in each, memory for it, and what may link it."""
    if len(part.files) == 1:
        image.release_second()
        memories: tuple[Image, ...] = (image,)
    else:
        memories = (image, image.second)
    links = (None, frozen.link if frozen is not None else None)
    yield from zip(part.files, part.sources, memories, links, strict=False)


def _reported(
    folder: Path,
    part: PlannedPart,
    written: Sequence[Written],
    found: Mapping[str, str],
    frozen: Frozen | None,
) -> Report:
    """Return the report to rank 0 of files that are there."""
    if frozen is not None:
        second = written[1].shard if len(written) > 1 else None
        leaves = (part.outline.leaves[n] for file in part.files for n in file.chosen)
        frozen.learn(folder, second, leaves, digests_of(written))
    return part.report(written, found)


def begun(
    folder: Path, part: PlannedPart, image: Image, frozen: Frozen | None, split: Wholes, taken: bool
) -> tuple[Callable[[], Report], bool]:
    """Copy this rank's state; return the work left for later, and True if there is a copy.

    No more than the copy is done here: even to make the folder durable takes its time. Only where
    there is no copy, tensors that lie in parts are hashed from where they lie. The others wait for
    those of a rank that has failed: it tells them while they swap.

    Args:
        split: the tensors that lie in parts.
    """
    rest: list[Callable[[], Written]] = []
    copied = True
    own: dict[str, Callable[[], memoryview]] = {}
    hash_now = False
    try:
        refuse(taken)
        for file, sources, memory, link in _files(part, image, frozen):
            try:
                memory.arrange(file.plan)
            except NoRoom:
                files.make_folder(folder)
                written = shard.write(folder, file.name, sources, file.plan)
                rest.append(partial(_same, written))
                rows = sharded_digests.in_place(file.plan, sources)
                own |= rows
                hash_now = hash_now or bool(rows)
                copied = False
                continue
            filled = Filled()
            memory.fill(sources, filled)
            own |= sharded_digests.in_file(file.plan, memory.take)
            rest.append(partial(shard.persist, folder, file.name, memory, filled, file.plan, link))
    except Exception as error:  # rank 0 waits for a word of all
        return partial(_fail, split, error), True
    found: dict[str, str] = {}
    if hash_now:
        try:
            found = split.digests(own)
        except Exception as error:
            return partial(_raise, error), copied
    beside = partial(split.digests, own) if split.any and not hash_now else None
    plain = part.without_data()

    def write() -> Report:
        hashing: BackgroundTask[dict[str, str]] | None = None
        if beside is not None:
            hashing = BackgroundTask(beside, "checkpoint parts", or_here=True)
        try:
            files.make_folder(folder)
            written = [each() for each in rest]
        finally:
            if hashing is not None:
                hashing.wait()
        digests = found if hashing is None else hashing.result()
        return _reported(folder, plain, written, digests, frozen)

    return write, copied


def _same(written: Written) -> Written:
    return written


def _fail(split: Wholes, error: Exception) -> Report:
    split.refuse()
    raise error


def _raise(error: Exception) -> Report:
    raise error
