"""Saving: every rank its file, then rank 0 the manifest: a checkpoint is there whole or not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hpcdet.checkpoint import committing, outline, remove, reports, shard, wholes
from hpcdet.checkpoint import manifest as manifests
from hpcdet.checkpoint.committing import CheckpointFailed
from hpcdet.checkpoint.frozen import Frozen
from hpcdet.checkpoint.image import Filled, Image, NoRoom
from hpcdet.checkpoint.outline import Content, File, Part, Report, digests_of
from hpcdet.checkpoint.reports import PATIENCE_S
from hpcdet.checkpoint.shard import Shard, Written
from hpcdet.checkpoint.task import Task
from hpcdet.checkpoint.tree import StateError
from hpcdet.checkpoint.wholes import Swap, Wholes
from hpcdet.store import files

Exchange = Callable[[Any], list[Any]]
"""Gives a plain JSON value to all ranks and returns everyone's, in order of rank."""

_NONE: frozenset[str] = frozenset()
_FileOf = tuple[File, Sequence[Any], Image, Callable[[Shard, Path], bool] | None]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is durable.

    Attributes:
        name: of its folder.
        digest: of its content (``Manifest.digest``).
        bytes: size of all its files.
        linked: how much of that lay on the disk already, and was not written again.
        root: to be handed to the next ``save`` as ``previous``.
        seconds: how long this rank was busy with it.
        blocked_s: how much of that its caller had to wait for.
    """

    name: str
    digest: str
    bytes: int
    linked: int
    root: str
    seconds: float
    blocked_s: float


def alone(value: Any) -> list[Any]:
    """The exchange of a single rank."""
    return [value]


def save(
    folder: Path,
    shared: Any,
    private: Any = None,
    *,
    rank: int = 0,
    world: int = 1,
    exchange: Exchange = alone,
    swap: Swap = wholes.alone,
    meta: Mapping[str, Any] | None = None,
    previous: str = "",
    image: Image | None = None,
    frozen: Frozen | None = None,
) -> Saved:
    """Write a checkpoint; called by all ranks together, returns on all when it is durable.

    Args:
        folder: ``TrialPaths.checkpoint(step, attempt)``; must not hold a checkpoint yet.
        shared: state that is equal on all ranks, given on each; every rank writes a part.
        private: state of this rank alone, e.g. its random number generators.
        exchange: see ``Exchange``; called two or three times.
        swap: see ``Swap``; called where tensors lie in parts.
        meta: what rank 0 wants to remember beside the state; plain JSON.
        previous: root of the checkpoint before.
        image: memory to copy the state into, written while it is copied; by default some that
            is given back. Where there is none, the state is written from where it lies.
        frozen: the same one at each save of a trial, for what does not change between them; by
            default all is written.

    Raises:
        StateError: the state cannot be saved (on each rank that has such a state).
        CheckpointFailed: the disk is full or failed on some rank; raised on all ranks, after
            the folder was removed.
    """
    start = time.monotonic()
    taken = manifests.is_committed(folder)
    failure: Exception | None = None
    report: Report = {}
    content: Content = _nothing
    part: Part | None = None
    try:
        _refuse(taken)
        part = outline.take_apart(shared, private, rank, world, frozen.names if frozen else _NONE)
        content = part.shared
        files.make_folder(folder)
        report = _written_at_once(folder, part, Image() if image is None else image, frozen)
    except Exception as error:  # the others must not wait for a rank that has failed
        failure, report = error, {"error": _say(error)}
    everyone = _with_wholes(exchange(report), part, swap, exchange)
    commit: dict[str, Any] = {}
    if rank == 0:
        try:
            commit = committing.commit(folder, everyone, content, meta or {}, previous)
        except Exception as error:
            if not taken:
                remove.folder(folder)
            failure, commit = failure or error, {"error": _say(error)}
    commit = exchange(commit)[0]
    if isinstance(failure, StateError):
        raise failure
    if "error" in commit:
        raise _failed(folder, commit["error"]) from failure
    seconds = time.monotonic() - start
    return Saved(folder.name, **commit, seconds=seconds, blocked_s=seconds)


def _with_wholes(
    everyone: list[Report], part: Part | None, swap: Swap, exchange: Exchange
) -> list[Report]:
    """Everyone's reports, and in them the digests of tensors that lie in parts.

    All ranks see by the reports whether all will swap: whether none has failed, and all have the
    same tensors.
    """
    first = everyone[0].get("structure")
    good = all("error" not in one and one["structure"] == first for one in everyone)
    if part is None or not good or not everyone[0]["parts"]:
        return everyone
    own: dict[str, memoryview] = {}
    for file, sources in zip(part.files, part.sources, strict=True):
        own |= wholes.in_place([extent.leaf for extent in file.plan.extents], sources)
    found = exchange(_wholes(part, swap).digests(own))
    pairs = zip(everyone, found, strict=True)
    return [{**one, "shared": {**one["shared"], **more}} for one, more in pairs]


def _wholes(part: Part, swap: Swap) -> Wholes:
    of = part.outline
    return Wholes(of.leaves, of.rank, of.world, swap)


def _nothing(_: Callable[[str], str]) -> bytes:
    """What a state says that could not be taken apart; it is not asked for then."""
    return b""


def _refuse(taken: bool) -> None:
    if taken:
        raise FileExistsError("a checkpoint of this name exists")


def _failed(folder: Path, what: str) -> CheckpointFailed:
    hint = "the checkpoints before it are kept"
    return CheckpointFailed(what, where=str(folder), hint=hint)


def _written_at_once(folder: Path, part: Part, image: Image, frozen: Frozen | None) -> Report:
    """Write this rank's files while its state is being copied."""
    written = []
    for file, sources, memory, link in _files(part, image, frozen):
        try:
            memory.arrange(file.plan)
        except NoRoom:
            written.append(shard.write(folder, file.name, sources, file.plan))
            continue
        filled = Filled()
        persist = partial(shard.persist, folder, file.name, memory, filled, file.plan, link)
        writing = Task(persist, "checkpoint")
        try:
            memory.fill(sources, filled)
        finally:
            writing.wait()
        written.append(writing.result())
    return _reported(folder, part, written, {}, frozen)


def _files(part: Part, image: Image, frozen: Frozen | None) -> Iterator[_FileOf]:
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
    part: Part,
    written: Sequence[Written],
    found: Mapping[str, str],
    frozen: Frozen | None,
) -> Report:
    """What rank 0 is told of files that are there."""
    if frozen is not None:
        second = written[1].shard if len(written) > 1 else None
        leaves = (part.outline.leaves[n] for file in part.files for n in file.chosen)
        frozen.learn(folder, second, leaves, digests_of(written))
    return part.report(written, found)


@dataclass(frozen=True)
class Saving:
    """A checkpoint that is being written beside the training.

    Attributes:
        name: of its folder.
        copied: this rank's state was copied; else there was no memory for that, and its file
            was written at once.
    """

    name: str
    copied: bool
    _folder: Path
    _task: Task[Saved | None]

    def done(self) -> bool:
        """Whether this rank is through with it: rank 0 once it is committed or has failed."""
        return self._task.done()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until ``done``, so long at most; whether it is."""
        return self._task.wait(seconds)

    def result(self) -> Saved | None:
        """Wait until ``done``; what rank 0 has committed, None on the other ranks.

        Raises:
            StateError: rank 0: the ranks' states do not fit together.
            CheckpointFailed: rank 0: the disk is full or failed on some rank; the folder was
                removed. Other ranks: here it did.
        """
        try:
            return self._task.result()
        except StateError:
            raise
        except Exception as error:
            raise _failed(self._folder, _say(error)) from error


def begin(
    folder: Path,
    shared: Any,
    private: Any = None,
    *,
    rank: int = 0,
    world: int = 1,
    meta: Callable[[], Mapping[str, Any]] = dict,
    previous: str = "",
    image: Image,
    swap: Swap = wholes.alone,
    frozen: Frozen | None = None,
    committed: Callable[[Saved], None] = lambda _: None,
    patience_s: float = PATIENCE_S,
) -> Saving:
    """Copy the state and return; it is written and committed by threads, one on each rank.

    Called by all ranks, which need not talk: each leaves a report in the folder, for rank 0.
    None may begin another checkpoint before this one is ``done`` on all.

    Args:
        folder, shared, private, previous, frozen: as for ``save``.
        meta: gives what rank 0 wants to remember, when all but the manifest is there.
        committed: called on rank 0, by its thread, before the checkpoint is ``done``.
        image: memory to copy the state into; not to be used before this one is ``done``.
        swap: see ``Swap``; where tensors lie in parts it is called by a thread, before ``done``.
        patience_s: how long rank 0 waits for the others after its own file is written.

    Raises:
        StateError: the state cannot be saved.
    """
    start = time.monotonic()
    taken = manifests.is_committed(folder)
    try:
        part = outline.take_apart(shared, private, rank, world, frozen.names if frozen else _NONE)
    except StateError as error:
        with contextlib.suppress(OSError):
            files.make_folder(folder)
            reports.leave(folder, rank, world, {"error": _say(error)})
        raise
    content = part.shared
    own, copied = _begun(folder, part, image, frozen, taken, swap)

    blocked_s = time.monotonic() - start

    def work() -> Saved | None:
        report: Report = {}
        failure: Exception | None = None
        try:
            report = own()
        except Exception as error:
            failure, report = error, {"error": _say(error)}
            if rank:
                with contextlib.suppress(OSError):
                    files.make_folder(folder)
        if rank:
            reports.leave(folder, rank, world, report)
            if failure is not None:
                raise failure
            return None
        everyone = reports.collect(folder, report, world, patience_s)
        try:
            commit = committing.commit(folder, everyone, content, meta(), previous)
        except Exception:
            if not taken:
                remove.folder(folder)
            raise
        reports.clear(folder, world)
        seconds = time.monotonic() - start
        saved = Saved(folder.name, **commit, seconds=seconds, blocked_s=blocked_s)
        committed(saved)
        return saved

    return Saving(folder.name, copied, folder, Task(work, "checkpoint"))


def _begun(
    folder: Path, part: Part, image: Image, frozen: Frozen | None, taken: bool, swap: Swap
) -> tuple[Callable[[], Report], bool]:
    """What is left to be done once this rank's state may change again, and whether it was copied.

    No more than the copy is done here: even to make the folder durable takes its time. Only where
    there is no copy, tensors that lie in parts are hashed from where they lie. A rank that has
    failed swaps with the others all the same: they do not know of it yet.
    """
    rest: list[Callable[[], Written]] = []
    copied = True
    split = _wholes(part, swap)
    own: dict[str, memoryview] = {}
    hash_now = False
    try:
        _refuse(taken)
        for file, sources, memory, link in _files(part, image, frozen):
            try:
                memory.arrange(file.plan)
            except NoRoom:
                files.make_folder(folder)
                written = shard.write(folder, file.name, sources, file.plan)
                rest.append(partial(_same, written))
                rows = wholes.in_place([extent.leaf for extent in file.plan.extents], sources)
                own |= rows
                hash_now = hash_now or bool(rows)
                copied = False
                continue
            filled = Filled()
            memory.fill(sources, filled)
            own |= wholes.in_file(file.plan, memory.take)
            rest.append(partial(shard.persist, folder, file.name, memory, filled, file.plan, link))
    except Exception as error:  # rank 0 waits for a word of all
        return partial(_fail, split, error), True
    now = split.digests(own) if hash_now else None
    plain = part.without_data()

    def write() -> Report:
        hashing = Task(lambda: split.digests(own) if now is None else now, "checkpoint parts")
        try:
            files.make_folder(folder)
            written = [each() for each in rest]
        finally:
            hashing.wait()
        return _reported(folder, plain, written, hashing.result(), frozen)

    return write, copied


def _same(written: Written) -> Written:
    return written


def _fail(split: Wholes, error: Exception) -> Report:
    split.digests({})
    raise error


def _say(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
    return f"{error}" if isinstance(error, CheckpointFailed) else f"{type(error).__name__}: {error}"
