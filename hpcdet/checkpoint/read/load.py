"""Loading: nothing is believed unchecked, and damaged checkpoints are passed over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.format import rank_file, remove
from hpcdet.checkpoint.format.manifest import Manifest, NewerFormat, state_digest
from hpcdet.checkpoint.format.shard import HINT, Shard
from hpcdet.checkpoint.io.shared_ring import ALONE, PeerFailed, Readers, share
from hpcdet.checkpoint.read import reader
from hpcdet.checkpoint.read.reader import Use
from hpcdet.checkpoint.read.sharded_reader import PartDigests, Parts
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.state.tree import Leaf, StateError
from hpcdet.checkpoint.write.leaf_plan import SKELETON, digest, digest_of_private
from hpcdet.checkpoint.write.save import Exchange, alone
from hpcdet.errors import IntegrityError, Unrecoverable

_PRIVATE = ("private", f"{SKELETON}/private")


@dataclass(frozen=True)
class LoadedState:
    """A state that is what was saved. Tensors are in main memory and belong to the caller.

    Attributes:
        private: this rank's own, or None if the checkpoint was made by another number of
            ranks: there is no such thing as its rank 3 then.
    """

    folder: Path
    shared: Any
    private: Any
    manifest: Manifest


def load(
    folder: Path,
    rank: int = 0,
    world: int = 1,
    *,
    sharded: bool = False,
    into: Any = None,
    readers: Readers = ALONE,
) -> LoadedState:
    """The state in a checkpoint.

    Only what this rank needs is read: the shared state and its own private one. Ranks begin at
    different files, so that those of a node do not all ask for the same bytes at once.

    Args:
        sharded: of tensors that lie in parts, give only the rows that this rank has among
            ``world`` (as ``tree.Sharded``); else they are put together.
        into: a shared state whose tensors are overwritten and given back, where they are in main
            memory, share none of it, and have the same path, type and shape. After an error they
            may hold anything.
        readers: the ranks of this node that load it at the same time. With a ring they must all
            want the same, so nothing is sharded.

    Raises:
        IntegrityError: something in it is not what was written; names file and dataset.
    """
    manifest = manifests.read(folder)
    shards = manifest.shards
    own = shards[rank].file if world == manifest.world else ""
    ring, here = readers.ring, set[str]()
    if ring is not None:
        ring.begin(manifest.root)
        here = {shards[other].file for other in ring.ranks if own}

    parts = Parts((rank, world) if sharded else None, manifest.bytes)

    def use(shard: Shard, leaf: Leaf) -> Use:
        wanted = shard.file == own or not _is_private(leaf.name)
        if wanted and leaf.part is not None:
            wanted = parts.wants(leaf)
        passes = shard.file in here  # through the ring, to another rank
        return Use.GIVE if wanted else Use.CHECK if passes else Use.SKIP

    def there() -> dict[str, Leaf]:
        with contextlib.suppress(StateError):  # then all is read into new memory
            return {leaf.name: leaf for leaf in _apart(tree.encode(into, "shared").leaves)}
        return {}

    first = rank % len(shards) if ring is None else 0
    shared: dict[str, Any] = {}
    private: dict[str, Any] = {}
    ordered = (*shards[first:], *shards[:first])
    digests: dict[str, str] = {}
    for entry in reader.read(folder, ordered, use, into=there, readers=readers):
        name = entry.leaf.name
        if _is_private(name) and entry.shard.file != own:
            continue
        kept = private if _is_private(name) else shared
        if name in kept or (name in parts) != (entry.leaf.part is not None):
            raise IntegrityError(f"{name} is there twice", where=str(folder), hint=HINT)
        if entry.leaf.part is not None:
            parts.add(entry)
            continue
        digests[name] = entry.digest
        kept[name] = entry.value()
    with _refusing(folder):
        skeletons = {
            "shared": tree.from_text(shared[f"{SKELETON}/shared"]),
            "private": tree.from_text(private[f"{SKELETON}/private"]) if own else None,
        }
        if not (sharded and parts):  # else nobody has what all of it says
            said = tree.content(skeletons["shared"], (digests | parts.digests()).__getitem__)
            _compare(digest(said), manifest.shared, "shared", folder)
        if own:
            said = tree.content(skeletons["private"], digests.__getitem__)
            _compare(digest_of_private(said), manifest.private[rank], "private", folder)
        found = {name: parts.value(name) for name in parts}
        return LoadedState(
            folder,
            tree.decode(skeletons["shared"], (shared | found).__getitem__),
            tree.decode(skeletons["private"], private.__getitem__) if own else None,
            manifest,
        )


@contextlib.contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """A skeleton that is none is damage, whatever its reading raises."""
    try:
        yield
    except (LookupError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        what = f"what its tree says is none ({type(error).__name__}: {error})"
        raise IntegrityError(what[:400], where=str(folder), hint=HINT) from error


def _compare(found: str, expected: str, name: str, folder: Path) -> None:
    if found != expected:
        raise IntegrityError(f"the {name} state is another one", where=str(folder), hint=HINT)


def _apart(leaves: Sequence[Leaf]) -> Iterator[Leaf]:
    """Those of tensors in main memory that share no byte of it with another.

    Of a tensor and a view of it, which are no ties, a file may say different things. What is
    read for one would be overwritten for the other before it is checked.
    """
    ranges = sorted(
        ((*_memory(leaf), leaf) for leaf in leaves if _is_in_memory(leaf)),
        key=lambda each: each[:2],
    )
    reached = 0  # by all that begin before
    for number, (start, end, leaf) in enumerate(ranges):
        beyond = ranges[number + 1][0] if number + 1 < len(ranges) else end
        if start >= reached and beyond >= end:
            yield leaf
        reached = max(reached, end)


def _is_in_memory(leaf: Leaf) -> bool:
    source = leaf.source
    return isinstance(source, torch.Tensor) and source.is_cpu and leaf.nbytes > 0


def _memory(leaf: Leaf) -> tuple[int, int]:
    """Addresses of its tensor's first byte and of the one after its last, whatever its strides."""
    tensor: torch.Tensor = leaf.source
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + leaf.nbytes
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((length - 1) * step for length, step in steps)  # strides are never negative
    return start, start + (last + 1) * tensor.element_size()


def _is_private(name: str) -> bool:
    return name.startswith(_PRIVATE)


def verify(folder: Path, seen: Callable[[int], None] = lambda _: None) -> Manifest:
    """Check every byte of a checkpoint, and that its digest is the one of its content.

    Args:
        seen: told how many more bytes have been checked.

    Raises:
        IntegrityError: something in it is not what was written.
    """
    manifest = manifests.read(folder)
    if content_digest(folder, seen) != manifest.digest:
        raise IntegrityError("the digest is not the one of the content", where=str(folder))
    return manifest


def look(folder: Path) -> Manifest:
    """Check what can be checked of a checkpoint without reading its data.

    That is the manifest, that all files are there and of their sizes, and their tables.

    Raises:
        IntegrityError: something of it is not what was written.
    """
    manifest = manifests.read(folder)
    rank_file.check_tables(folder, manifest.shards)
    return manifest


def content_digest(folder: Path, seen: Callable[[int], None] = lambda _: None) -> str:
    """Digest of the state in a checkpoint, computed from its bytes, which are checked.

    Equal states have equal digests, whatever the number of ranks and files.

    Args:
        seen: told how many more bytes have been checked.

    Raises:
        IntegrityError: something in it is not what was written.
    """
    manifest = manifests.read(folder)
    with _refusing(folder):
        return _content_digest(folder, manifest, seen)


def _content_digest(folder: Path, manifest: Manifest, seen: Callable[[int], None]) -> str:
    digests: dict[str, str] = {}
    of_rank: dict[str, dict[str, str]] = {}
    skeletons: dict[str, Any] = {}
    parts = PartDigests()
    for entry in reader.read(folder, manifest.shards, _digests_only, seen):
        file, name = entry.shard.file, entry.leaf.name
        if entry.leaf.part is not None:
            parts.add(entry)
            continue
        if name in digests and not _is_private(name):
            raise IntegrityError(f"{name} is there twice", where=str(folder), hint=HINT)
        of_rank.setdefault(file, {})[name] = entry.digest
        digests[name] = entry.digest
        if name.startswith(SKELETON):
            skeletons[f"{file}/{name}" if _is_private(name) else name] = tree.from_text(
                entry.value()
            )
    wholes = parts.whole()
    if both := wholes.keys() & digests.keys():
        raise IntegrityError(f"{min(both)} is there twice", where=str(folder), hint=HINT)
    digests |= wholes
    private = [
        digest_of_private(
            tree.content(
                skeletons[f"{shard.file}/{SKELETON}/private"], of_rank[shard.file].__getitem__
            )
        )
        for shard in manifest.shards[: manifest.world]
    ]
    shared = tree.content(skeletons[f"{SKELETON}/shared"], digests.__getitem__)
    return state_digest(digest(shared), tuple(private))


def _digests_only(_: Shard, leaf: Leaf) -> Use:
    """Parts are hashed again, as what they are a part of."""
    given = leaf.name.startswith(SKELETON) or leaf.part is not None
    return Use.GIVE if given else Use.CHECK


def newest(*places: Path) -> Iterator[Manifest]:
    """A trial's committed checkpoints, newest first. Their files have not been checked yet.

    Raises:
        NewerFormat: the next one was made by a newer hpcdet.
    """
    for name in reversed(manifests.current(*places)):
        for place in places:
            try:
                yield manifests.read(place / name)
                break
            except NewerFormat:
                raise
            except IntegrityError:
                continue


def restore(
    checkpoints: Path,
    rank: int = 0,
    world: int = 1,
    exchange: Exchange = alone,
    kept: Path | None = None,
    *,
    staged: Path | None = None,
    sharded: bool = False,
    into: Any = None,
    node: int = 0,
) -> LoadedState | None:
    """The newest valid state of a trial; called by all ranks together, all get the same one.

    A checkpoint that some rank finds damaged is set aside (renamed ``.bad-…``, never deleted)
    and the one before it is taken. One that merely cannot be read just now (a storage server is
    away) is passed over and stays.

    Args:
        checkpoints: ``TrialPaths.checkpoints``.
        kept: ``TrialPaths.kept``: where copies may be, if ``checkpoints`` can be purged. Of two
            copies the one in ``checkpoints`` is tried first; and that files are missing or
            damaged there alone, where purges leave halves behind, is no error then.
        staged: a folder on this node, which all ranks share, where checkpoints may be that are
            newer, or copies, which are tried before all others; it may be gone at any time.
        sharded: as for ``load``.
        node: the number of this rank's node: those of one read for each other.
        into: as for ``load``. It is as it was if None is returned: it is left alone where that
            may be said after something was read.

    Returns:
        None if the trial has no checkpoint yet, or none that a purge has left.

    Raises:
        NewerFormat: the newest was made by a newer hpcdet: going on from one before it would
            lose what was trained since.
        Unrecoverable: it has some, or had some that were set aside, and none can be used.
        IntegrityError: none can be used, but some could merely not be read just now.
    """
    places = tuple(place for place in (staged, checkpoints, kept) if place is not None)
    problems: list[tuple[str, bool]] = []
    passed: set[Path] = set()
    while True:
        at, name, damaged, newer = exchange(_choose(places, passed) if rank == 0 else None)[0]
        if newer:
            raise NewerFormat(newer[0], where=newer[1], hint=newer[2])
        problems += damaged
        if not name:
            break
        folder = places[at] / name
        loaded: LoadedState | None = None
        problem, bad, echo = "", False, False
        there = into if len(places) == 1 else None
        with share(rank, None if sharded else node, exchange) as readers:
            try:
                loaded = load(folder, rank, world, sharded=sharded, into=there, readers=readers)
            except (IntegrityError, OSError) as error:
                problem, bad = str(error), isinstance(error, IntegrityError)
                echo = isinstance(error, PeerFailed)
        told = sorted(exchange([not bad, echo, problem]))  # damage, other causes, then echoes
        found = [(text, not sound) for sound, _, text in told if text]
        if loaded is not None and not found:
            return loaded
        problems += [one for one in found[:1] if not _purgeable(folder, places, one[1])]
        passed.add(folder)
        if rank == 0 and any(is_bad for _, is_bad in found):
            remove.set_aside(folder)
    if problems:
        kind = Unrecoverable if all(bad for _, bad in problems) else IntegrityError
        raise kind(
            f"none of its checkpoints can be used: {problems[0][0]}",
            where=str(places[-1]),
            hint="damaged ones are renamed .bad-…; to begin anew, move all of them away",
        )
    return None


def _purgeable(folder: Path, places: Sequence[Path], bad: bool) -> bool:
    """Whether a checkpoint that cannot be used is what a purge leaves behind."""
    return bad and folder.parent != places[-1]


def _choose(
    places: Sequence[Path], passed: set[Path]
) -> tuple[int, str, list[tuple[str, bool]], tuple[str, str, str] | None]:
    """The newest checkpoint with a sound manifest, or ""; and what is wrong with newer ones.

    Where there is none, those that were set aside count as damaged: an attempt before has found
    them so, and what was trained is not to be lost in silence.

    Those in ``passed`` were tried; they may still be there where the folder is read-only.

    Returns:
        Which of the places it is in, its name, the problems that are no purge's doing and whether
        each is damage, and what is to be said of one of a newer format, which ends the search.
    """
    damaged: list[tuple[str, bool]] = []
    there = [(name, at) for name in manifests.current(*places) for at in range(len(places))]
    for name, at in sorted(there, key=lambda each: (manifests.position(each[0]), -each[1]))[::-1]:
        path = places[at] / name
        if path in passed or not manifests.is_committed(path):
            continue
        try:
            manifests.read(path)
        except NewerFormat as error:
            return at, "", damaged, (error.what, error.where, error.hint)
        except (IntegrityError, OSError) as error:
            bad = isinstance(error, IntegrityError)
            passed.add(path)
            if not _purgeable(path, places, bad):
                damaged.append((str(error), bad))
            if bad:
                remove.set_aside(path)
            continue
        return at, name, damaged, None
    damaged += [(f"{path} is damaged", True) for path in remove.aside(places[-1])]
    return 0, "", damaged, None
