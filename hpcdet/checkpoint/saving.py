"""Saving: every rank its file, then rank 0 the manifest: a checkpoint is there whole or not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hpcdet.checkpoint import manifest as manifests
from hpcdet.checkpoint import outline, remove, reports, shard
from hpcdet.checkpoint.image import Filled, Image, NoRoom
from hpcdet.checkpoint.manifest import Manifest
from hpcdet.checkpoint.outline import Part, Report, digest, shared_digest
from hpcdet.checkpoint.reports import PATIENCE_S
from hpcdet.checkpoint.shard import Shard
from hpcdet.checkpoint.task import Task
from hpcdet.checkpoint.tree import StateError
from hpcdet.errors import Unavailable
from hpcdet.store import files, records
from hpcdet.store.trials import MANIFEST

Exchange = Callable[[Any], list[Any]]
"""Gives a plain JSON value to all ranks and returns everyone's, in order of rank."""


class CheckpointFailed(Unavailable):
    """The checkpoint could not be written; the ones before it are as they were."""

    code = "CHECKPOINT_FAILED"


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is durable.

    Attributes:
        name: of its folder.
        digest: of its content (``Manifest.digest``).
        bytes: size of all its files.
        root: to be handed to the next ``save`` as ``previous``.
        seconds: how long this rank was busy with it.
        blocked_s: how much of that its caller had to wait for.
    """

    name: str
    digest: str
    bytes: int
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
    meta: Mapping[str, Any] | None = None,
    previous: str = "",
    image: Image | None = None,
) -> Saved:
    """Write a checkpoint; called by all ranks together, returns on all when it is durable.

    Args:
        folder: ``TrialPaths.checkpoint(step, attempt)``; must not hold a checkpoint yet.
        shared: state that is equal on all ranks, given on each; every rank writes a part.
        private: state of this rank alone, e.g. its random number generators.
        exchange: see ``Exchange``; called twice.
        meta: what rank 0 wants to remember beside the state; plain JSON.
        previous: root of the checkpoint before.
        image: memory to copy the state into, written while it is copied; by default some that
            is given back. Where there is none, the state is written from where it lies.

    Raises:
        StateError: the state cannot be saved (on each rank that has such a state).
        CheckpointFailed: the disk is full or failed on some rank; raised on all ranks, after
            the folder was removed.
    """
    start = time.monotonic()
    taken = manifests.is_committed(folder)
    failure: Exception | None = None
    report: Report = {}
    try:
        _refuse(taken)
        part = outline.take_apart(shared, private, rank, world)
        files.make_folder(folder)
        report = _written_at_once(folder, part, Image() if image is None else image)
    except Exception as error:  # the others must not wait for a rank that has failed
        failure, report = error, {"error": _say(error)}
    everyone = exchange(report)
    commit: dict[str, Any] = {}
    if rank == 0:
        try:
            commit = _commit(folder, everyone, meta or {}, previous)
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


def _refuse(taken: bool) -> None:
    if taken:
        raise FileExistsError("a checkpoint of this name exists")


def _failed(folder: Path, what: str) -> CheckpointFailed:
    hint = "the checkpoints before it are kept"
    return CheckpointFailed(what, where=str(folder), hint=hint)


def _written_at_once(folder: Path, part: Part, image: Image) -> Report:
    """Write this rank's file while its state is being copied."""
    plan = part.plan
    try:
        image.arrange(plan)
    except NoRoom:
        return part.report(shard.write(folder, part.leaves, plan, part.rank, part.world))
    filled = Filled()
    writing = Task(
        lambda: shard.persist(folder, image, filled, plan, part.rank, part.world), "checkpoint"
    )
    try:
        image.fill(part.leaves, filled)
    finally:
        writing.wait()
    return part.report(writing.result())


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
    committed: Callable[[Saved], None] = lambda _: None,
    patience_s: float = PATIENCE_S,
) -> Saving:
    """Copy the state and return; it is written and committed by threads, one on each rank.

    Called by all ranks, which need not talk: each leaves a report in the folder, for rank 0.
    None may begin another checkpoint before this one is ``done`` on all.

    Args:
        folder, shared, private, previous: as for ``save``.
        meta: gives what rank 0 wants to remember, when all but the manifest is there.
        committed: called on rank 0, by its thread, before the checkpoint is ``done``.
        image: memory to copy the state into; not to be used before this one is ``done``.
        patience_s: how long rank 0 waits for the others after its own file is written.

    Raises:
        StateError: the state cannot be saved.
    """
    start = time.monotonic()
    taken = manifests.is_committed(folder)
    try:
        part = outline.take_apart(shared, private, rank, world)
    except StateError as error:
        with contextlib.suppress(OSError):
            files.make_folder(folder)
            reports.leave(folder, rank, world, {"error": _say(error)})
        raise
    own, copied = _begun(folder, part, image, taken)

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
            commit = _commit(folder, everyone, meta(), previous)
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
    folder: Path, part: Part, image: Image, taken: bool
) -> tuple[Callable[[], Report], bool]:
    """What is left to be done once this rank's state may change again, and whether it was copied.

    No more than the copy is done here: even to make the folder durable takes its time.
    """
    plan, filled = part.plan, Filled()
    try:
        _refuse(taken)
        try:
            image.arrange(plan)
        except NoRoom:
            files.make_folder(folder)
            written = part.report(shard.write(folder, part.leaves, plan, part.rank, part.world))
            return (lambda: written), False
        image.fill(part.leaves, filled)
    except Exception as error:  # rank 0 waits for a word of all
        return partial(_raise, error), True
    rest = part.without_data()

    def write() -> Report:
        files.make_folder(folder)
        return rest.report(shard.persist(folder, image, filled, plan, rest.rank, rest.world))

    return write, True


def _raise(error: Exception) -> Report:
    raise error


def _commit(
    folder: Path, everyone: Sequence[Report], meta: Mapping[str, Any], previous: str
) -> dict[str, Any]:
    """Rank 0: make the folder a checkpoint."""
    for rank, report in enumerate(everyone):
        if "error" in report:
            raise CheckpointFailed(f"rank {rank}: {report['error']}")
        if report["structure"] != everyone[0]["structure"]:
            raise StateError(
                f"ranks 0 and {rank} have tensors of different names, types or shapes",
                where="shared state",
                hint="state that differs between ranks belongs into the private part",
            )
    shards = tuple(Shard.decode(report["shard"]) for report in everyone)
    for each in shards:
        with (folder / each.file).open("rb") as file:
            file.seek(0, 2)
            if file.tell() != each.bytes:
                raise CheckpointFailed(f"{each.file} has {file.tell()} bytes, not {each.bytes}")
    digests = {name: digest for report in everyone for name, digest in report["shared"].items()}
    shared = shared_digest(everyone[0]["skeleton"], digests.__getitem__)
    private = tuple(report["private"] for report in everyone)
    made = Manifest(
        name=folder.name,
        world=len(everyone),
        digest=state_digest(shared, private),
        shared=shared,
        private=private,
        shards=shards,
        meta={key: _json(value) for key, value in meta.items()},
        prev_root=previous,
        schema=2 if everyone[0]["parts"] else 1,
    ).sealed()
    files.replace(folder / MANIFEST, made.encode())
    files.sync_folder(folder.parent)
    return {"digest": made.digest, "bytes": made.bytes, "root": made.root}


def state_digest(shared: str, private: tuple[str, ...]) -> str:
    """Digest of a whole state. Ranks without private state do not count."""
    filled = [[rank, digest] for rank, digest in enumerate(private) if digest]
    return digest(files.canonical({"shared": shared, "private": filled}))


def _json(value: Any) -> Any:
    """A metric may be NaN, which JSON cannot say."""
    return records.number(value) if isinstance(value, float) else value


def _say(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
    return f"{error}" if isinstance(error, CheckpointFailed) else f"{type(error).__name__}: {error}"
