"""Saving: every rank its file, then rank 0 the manifest: a checkpoint is there whole or not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.format import remove
from hpcdet.checkpoint.format.host_image import Image
from hpcdet.checkpoint.io.task import BackgroundTask
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.state.tree import StateError
from hpcdet.checkpoint.write import commit as committing
from hpcdet.checkpoint.write import leaf_plan, rank_writer, reports, sharded_digests
from hpcdet.checkpoint.write.commit import CheckpointFailed
from hpcdet.checkpoint.write.leaf_plan import Content, PlannedPart, Report
from hpcdet.checkpoint.write.reports import PATIENCE_S
from hpcdet.checkpoint.write.sharded_digests import Own, Swap, Wholes, WholesFailed
from hpcdet.checkpoint.write.unchanged import Frozen
from hpcdet.store.fs import files

Exchange = Callable[[Any], list[Any]]
"""Gives a plain JSON value to all ranks and returns everyone's, in order of rank."""

Attest = Callable[[str, Any], Mapping[str, Any]]
"""Given the digest of a content, and what is to be remembered beside it, returns the latter."""

_NONE: frozenset[str] = frozenset()


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


def save(  # noqa: PLR0913 - the parts of a checkpoint
    folder: Path,
    shared: Any,
    private: Any = None,
    *,
    rank: int = 0,
    world: int = 1,
    exchange: Exchange = alone,
    swap: Swap = sharded_digests.alone,
    meta: Mapping[str, Any] | None = None,
    previous: str = "",
    image: Image | None = None,
    frozen: Frozen | None = None,
    fence: Callable[[], None] = lambda: None,
    attest: Attest | None = None,
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
        fence: called on rank 0 right before the commit; raises CheckpointFailed where there shall
            be none.
        attest: called on rank 0 between the two, with the digest of the content and what is to be
            remembered; returns what is remembered.

    Raises:
        StateError: the state cannot be saved (on each rank that has such a state).
        CheckpointFailed: the disk is full or failed on some rank; raised on all ranks, after
            the folder was removed.
        Exception: what ``exchange`` or ``swap`` raises: the ranks do not hear of each other any
            more, and this one has to end, so that the others see it gone.
    """
    start = time.monotonic()
    taken = manifests.is_committed(folder)
    failure: Exception | None = None
    report: Report = {}
    content: Content = _nothing
    part: PlannedPart | None = None
    own: Own = {}
    try:
        rank_writer.refuse(taken)
        part = leaf_plan.take_apart(shared, private, rank, world, frozen.names if frozen else _NONE)
        content = part.shared
        files.make_folder(folder)
        memory = Image() if image is None else image
        report, own = rank_writer.at_once(folder, part, memory, frozen)
    except Exception as error:  # the others must not wait for a rank that has failed
        failure, report = error, _failure(error)
    everyone = _with_wholes(exchange(report), part, own, swap, exchange)
    commit: dict[str, Any] = {}
    if rank == 0:
        try:
            fence()
            said = _attested(lambda: meta or {}, attest)
            commit = committing.commit(folder, everyone, content, said, previous)
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


def _attested(
    meta: Callable[[], Mapping[str, Any]], attest: Attest | None
) -> Callable[[str], Mapping[str, Any]]:
    return lambda digest: meta() if attest is None else attest(digest, meta())


def _with_wholes(
    everyone: list[Report], part: PlannedPart | None, own: Own, swap: Swap, exchange: Exchange
) -> list[Report]:
    """Everyone's reports, and in them the digests of tensors that lie in parts.

    All ranks see by the reports whether all will swap: whether none has failed, and all have the
    same tensors. Where they lose each other in it, there is no report: others are still in it.
    """
    first = everyone[0].get("structure")
    good = all("error" not in one and one["structure"] == first for one in everyone)
    if part is None or not good or not everyone[0]["parts"]:
        return everyone
    more: Report
    try:
        more = {"shared": rank_writer.parts_of(part, swap).digests(own)}
    except WholesFailed as error:
        more = _failure(error)
    return [
        {**one, **more, "shared": {**one["shared"], **more.get("shared", {})}}
        for one, more in zip(everyone, exchange(more), strict=True)
    ]


def _nothing(_: Callable[[str], str]) -> bytes:
    """Return the content of a state that could not be taken apart; it is not used then."""
    return b""


def _failed(folder: Path, what: str) -> CheckpointFailed:
    hint = "the checkpoints before it are kept"
    return CheckpointFailed(what, where=str(folder), hint=hint)


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
    _task: BackgroundTask[Saved | None]
    _wholes: Wholes

    def check(self) -> None:
        """See whether this rank still swaps with the others, or is through with that.

        Raises:
            Exception: they have lost each other. Others may wait for this one, and only its end
                tells them.
        """
        if self._wholes.lost is not None:
            raise self._wholes.lost

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


def begin(  # noqa: PLR0913 - the parts of a checkpoint
    folder: Path,
    shared: Any,
    private: Any = None,
    *,
    rank: int = 0,
    world: int = 1,
    meta: Callable[[], Mapping[str, Any]] = dict,
    previous: str = "",
    image: Image,
    swap: Swap = sharded_digests.alone,
    frozen: Frozen | None = None,
    fence: Callable[[], None] = lambda: None,
    attest: Attest | None = None,
    committed: Callable[[Saved], None] = lambda _: None,
    patience_s: float = PATIENCE_S,
) -> Saving:
    """Copy the state and return; it is written and committed by threads, one on each rank.

    Called by all ranks, which need not talk: each leaves a report in the folder, for rank 0.
    None may begin another checkpoint before this one is ``done`` on all.

    Args:
        folder, shared, private, previous, frozen, fence, attest: as for ``save``.
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
        part = leaf_plan.take_apart(shared, private, rank, world, frozen.names if frozen else _NONE)
    except StateError as error:
        with contextlib.suppress(OSError):
            files.make_folder(folder)
            reports.leave(folder, rank, world, _failure(error))
        with contextlib.suppress(Exception):  # what is no tree at all
            Wholes(tree.parts(shared, "shared"), rank, world, swap).refuse()
        raise
    content = part.shared
    split = rank_writer.parts_of(part, swap)
    own, copied = rank_writer.begun(folder, part, image, frozen, split, taken)

    blocked_s = time.monotonic() - start

    def work() -> Saved | None:
        report: Report = {}
        failure: Exception | None = None
        try:
            report = own()
        except Exception as error:
            failure, report = error, _failure(error)
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
            fence()
            said = _attested(meta, attest)
            commit = committing.commit(folder, everyone, content, said, previous)
        except Exception:
            if not taken:
                remove.folder(folder)
            raise
        reports.clear(folder, world)
        seconds = time.monotonic() - start
        saved = Saved(folder.name, **commit, seconds=seconds, blocked_s=blocked_s)
        committed(saved)
        return saved

    return Saving(
        folder.name, copied, folder, BackgroundTask(work, "checkpoint", or_here=True), split
    )


def _failure(error: Exception) -> Report:
    """Return the report of a rank that has failed; an ``echo`` if it failed because of another."""
    echo = isinstance(error, WholesFailed) and error.cause is None
    return {"error": _say(error)} | ({"echo": True} if echo else {})


def _say(error: Exception) -> str:
    if isinstance(error, WholesFailed) and error.cause is not None:
        return _say(error.cause)
    if isinstance(error, WholesFailed):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
    return f"{error}" if isinstance(error, CheckpointFailed) else f"{type(error).__name__}: {error}"
