"""Saving: every rank its file, then rank 0 the manifest: a checkpoint is there whole or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from hpcdet.checkpoint import manifest as manifests
from hpcdet.checkpoint import remove, shard, tree
from hpcdet.checkpoint.manifest import Manifest
from hpcdet.checkpoint.partition import partition
from hpcdet.checkpoint.shard import Shard
from hpcdet.checkpoint.tree import Encoded, Leaf, StateError
from hpcdet.errors import Unavailable
from hpcdet.store import files, records
from hpcdet.store.trials import MANIFEST

Exchange = Callable[[Any], list[Any]]
"""Gives a plain JSON value to all ranks and returns everyone's, in order of rank."""

SKELETON = "skeleton"
_PAGE = 4096


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
    """

    name: str
    digest: str
    bytes: int
    root: str
    seconds: float


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
) -> Saved:
    """Write a checkpoint; called by all ranks together, returns on all when it is durable.

    Args:
        folder: ``TrialPaths.checkpoint(step, attempt)``; must not hold a checkpoint yet.
        shared: state that is equal on all ranks, given on each; every rank writes a part.
        private: state of this rank alone, e.g. its random number generators.
        exchange: see ``Exchange``; called twice.
        meta: what rank 0 wants to remember beside the state; plain JSON.
        previous: root of the checkpoint before.

    Raises:
        StateError: the state cannot be saved (on each rank that has such a state).
        CheckpointFailed: the disk is full or failed on some rank; raised on all ranks, after
            the folder was removed.
    """
    start = time.monotonic()
    taken = manifests.is_committed(folder)
    failure: Exception | None = None
    report: dict[str, Any] = {}
    try:
        if taken:
            raise FileExistsError("a checkpoint of this name exists")
        report = _write(folder, shared, private, rank, world)
    except Exception as error:  # the others must not wait for a rank that has failed
        failure, report = error, {"error": _say(error)}
    reports = exchange(report)
    commit: dict[str, Any] = {}
    if rank == 0:
        try:
            commit = _commit(folder, reports, meta or {}, previous)
        except Exception as error:
            if not taken:
                remove.folder(folder)
            failure, commit = failure or error, {"error": _say(error)}
    commit = exchange(commit)[0]
    if isinstance(failure, StateError):
        raise failure
    if "error" in commit:
        raise CheckpointFailed(
            commit["error"], where=str(folder), hint="the checkpoints before it are kept"
        ) from failure
    seconds = time.monotonic() - start
    return Saved(folder.name, commit["digest"], commit["bytes"], commit["root"], seconds)


def _write(folder: Path, shared: Any, private: Any, rank: int, world: int) -> dict[str, Any]:
    """Write this rank's file; returns what rank 0 needs to know of it."""
    common = tree.encode(shared, "shared")
    own = tree.encode({} if private is None else private, "private")
    leaves = partition(common.leaves, world)[rank]
    leaves += [*own.leaves, _text_leaf("private", own)]
    if rank == 0:
        leaves.append(_text_leaf("shared", common))
    files.make_folder(folder)
    written, digests = shard.write(folder, leaves, rank, world)
    return {
        "shard": written.encode(),
        "structure": _digest(files.canonical([list(row) for row in tree.structure(common.leaves)])),
        "shared": {name: digests[name] for name in digests if name.startswith("shared")},
        "private": private_digest(own.skeleton, digests.__getitem__),
        "skeleton": common.skeleton if rank == 0 else None,
    }


def _commit(
    folder: Path, reports: list[dict[str, Any]], meta: Mapping[str, Any], previous: str
) -> dict[str, Any]:
    """Rank 0: make the folder a checkpoint."""
    for rank, report in enumerate(reports):
        if "error" in report:
            raise CheckpointFailed(f"rank {rank}: {report['error']}")
        if report["structure"] != reports[0]["structure"]:
            raise StateError(
                f"ranks 0 and {rank} have tensors of different names, types or shapes",
                where="shared state",
                hint="state that differs between ranks belongs into the private part",
            )
    shards = tuple(Shard.decode(report["shard"]) for report in reports)
    for each in shards:
        with (folder / each.file).open("rb") as file:
            file.seek(0, 2)
            if file.tell() != each.bytes:
                raise CheckpointFailed(f"{each.file} has {file.tell()} bytes, not {each.bytes}")
    digests = {name: digest for report in reports for name, digest in report["shared"].items()}
    shared = shared_digest(reports[0]["skeleton"], digests.__getitem__)
    private = tuple(report["private"] for report in reports)
    made = Manifest(
        name=folder.name,
        world=len(reports),
        digest=state_digest(shared, private),
        shared=shared,
        private=private,
        shards=shards,
        meta={key: _json(value) for key, value in meta.items()},
        prev_root=previous,
    ).sealed()
    files.replace(folder / MANIFEST, made.encode())
    files.sync_folder(folder.parent)
    return {"digest": made.digest, "bytes": made.bytes, "root": made.root}


def _text_leaf(name: str, encoded: Encoded) -> Leaf:
    """A skeleton as a leaf; padded, so that the file's layout stays the same from save to save."""
    text = tree.to_text(encoded.skeleton)
    text += b" " * (-len(text) % _PAGE)
    return Leaf(f"{SKELETON}/{name}", "bytes", "bytes", (len(text),), len(text), text)


def shared_digest(skeleton: Any, leaf: Callable[[str], str]) -> str:
    """Digest of the shared state, given the digests of its leaves by name."""
    return _digest(tree.content(skeleton, leaf))


def private_digest(skeleton: Any, leaf: Callable[[str], str]) -> str:
    """Digest of one rank's private state; "" for an empty one."""
    if skeleton == {"dict": []}:
        return ""
    return _digest(tree.content(skeleton, leaf))


def state_digest(shared: str, private: tuple[str, ...]) -> str:
    """Digest of a whole state. Ranks without private state do not count."""
    filled = [[rank, digest] for rank, digest in enumerate(private) if digest]
    return _digest(files.canonical({"shared": shared, "private": filled}))


def _json(value: Any) -> Any:
    """A metric may be NaN, which JSON cannot say."""
    return records.number(value) if isinstance(value, float) else value


def _digest(data: bytes) -> str:
    return str(blake3(data).hexdigest())


def _say(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
    return f"{error}" if isinstance(error, CheckpointFailed) else f"{type(error).__name__}: {error}"
