"""The plan of one rank's part of a save: its leaves, their places in its file, its report.

The structure of a state hardly ever changes from save to save. All that follows from it alone is
worked out once: it is what training waits for.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from blake3 import blake3

from hpcdet.checkpoint.format.hdf5_layout import Layout, layout
from hpcdet.checkpoint.format.shard import Written, file_name, frozen_name
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.state.structure_cache import Pattern
from hpcdet.checkpoint.state.tree import Leaf
from hpcdet.store.fs import files

SKELETON = "skeleton"
_PADDED = 4096

Content = Callable[[Callable[[str], str]], bytes]
"""``tree.content`` of a state, given the digests of its leaves by name."""
Report = Mapping[str, Any]
"""What rank 0 needs to know of a rank's file, or ``error``; plain JSON."""


@dataclass(frozen=True)
class File:
    """One file of a rank.

    Attributes:
        chosen: numbers of the leaves that are in it.
        plan: where they lie.
    """

    name: str
    chosen: tuple[int, ...]
    plan: Layout


@dataclass(frozen=True)
class Outline:
    """The consequences of a state's structure, worked out once.

    Attributes:
        leaves: of the shared and the private state and of their skeletons, without data.
        frozen: names of leaves that are in the second file, if this rank has any of them.
        files: of this rank: one, or two.
        structure: digest of the structure of the shared state.
    """

    rank: int
    world: int
    leaves: tuple[Leaf, ...]
    frozen: frozenset[str]
    files: tuple[File, ...]
    structure: str


@dataclass(frozen=True)
class PlannedPart:
    """One rank's part of a state.

    Attributes:
        sources: of the leaves of each of its files.
        shared, private: what they say, but for the digests.
    """

    outline: Outline
    sources: Sequence[Sequence[Any]]
    shared: Content
    private: Content

    @property
    def files(self) -> tuple[File, ...]:
        return self.outline.files

    def without_data(self) -> PlannedPart:
        """The same, not keeping alive what was copied."""
        return replace(self, sources=())

    def report(self, written: Sequence[Written], wholes: Mapping[str, str]) -> Report:
        """Return the report to rank 0, once the files are there.

        Args:
            wholes: digests of tensors that lie in parts, by name, as far as this rank knows them.
        """
        digests = digests_of(written)
        parts = {leaf.name for leaf in self.outline.leaves if leaf.part}
        report = {
            "shard": written[0].shard.encode(),
            "structure": self.outline.structure,
            "shared": {
                **{n: digests[n] for n in digests if n.startswith("shared") and n not in parts},
                **wholes,
            },
            "parts": bool(parts),
            "private": digest_of_private(self.private(digests.__getitem__)),
        }
        if len(written) > 1:
            report |= {"frozen": written[1].shard.encode(), "linked": written[1].linked}
        return report


def digests_of(written: Sequence[Written]) -> dict[str, str]:
    """The digests of all leaves of a rank's files, by name."""
    return {name: digest for each in written for name, digest in each.digests.items()}


def take_apart(
    shared: Any, private: Any, rank: int, world: int, frozen: frozenset[str] = frozenset()
) -> PlannedPart:
    """The part of a rank.

    Args:
        frozen: names of leaves that are to be in a file of their own.

    Raises:
        StateError: the state holds something that cannot be saved.
    """
    common, own = _apart(shared, "shared"), _apart({} if private is None else private, "private")
    texts = [_text("private", own.text)]
    if rank == 0:
        texts.append(_text("shared", common.text))
    leaves = (*common.leaves, *own.leaves, *texts)
    outline = _outline(leaves, len(common.leaves), rank, world, frozen)
    sources = [*common.sources, *own.sources, *(text.source for text in texts)]
    chosen = [[sources[number] for number in file.chosen] for file in outline.files]
    return PlannedPart(outline, chosen, common.content, own.content)


@dataclass(frozen=True)
class _Apart:
    """A tree taken apart: its leaves and their sources, its skeleton's text, and its content."""

    leaves: Sequence[Leaf]
    sources: Sequence[Any]
    text: bytes
    content: Content


def _apart(value: Any, name: str) -> _Apart:
    with _lock:
        seen = _seen[name]
        known = list(seen.patterns)
    for pattern in reversed(known):
        match = pattern.match(value)
        if match is not None:
            return _Apart(pattern.leaves, match.sources, match.text, match.content)
    encoded = tree.encode(value, name)
    leaves: Sequence[Leaf] = encoded.leaves
    if seen.wants_pattern(leaves):
        with contextlib.suppress(ValueError, RecursionError):
            made = Pattern(value, name, encoded)
            leaves = made.leaves
            with _lock:
                seen.patterns.append(made)
    return _Apart(
        leaves,
        [leaf.source for leaf in encoded.leaves],
        tree.to_text(encoded.skeleton),
        partial(tree.content, encoded.skeleton),
    )


class _Seen:
    """The patterns remembered for the trees of one name.

    Attributes:
        patterns: the latest last. Few: each may be looked at in vain.
    """

    def __init__(self) -> None:
        self.patterns: deque[Pattern] = deque(maxlen=_KNOWN)
        self._missed: deque[list[tuple[str, str, tuple[int, ...]]]] = deque(maxlen=_KNOWN)

    def wants_pattern(self, leaves: Sequence[Leaf]) -> bool:
        """Whether one is worth its making, for a tree with these leaves that fitted none.

        It takes several times as long as to take the tree apart, and is of no use for a state
        that has other leaves at each save (a list of tensors that grows): so it is made for what
        has come again.
        """
        now = [(leaf.name, leaf.dtype, leaf.shape) for leaf in leaves]
        with _lock:
            again = now in self._missed
            self._missed.append(now)
            return again


_KNOWN = 4
_seen: defaultdict[str, _Seen] = defaultdict(_Seen)
_outlines: deque[Outline] = deque(maxlen=8)
_lock = threading.Lock()


def _outline(
    leaves: tuple[Leaf, ...], common: int, rank: int, world: int, frozen: frozenset[str]
) -> Outline:
    """Return the outline of a structure; the first ``common`` leaves are shared."""
    with _lock:
        for known in reversed(_outlines):
            same = (known.rank, known.world, known.frozen) == (rank, world, frozen)
            if same and len(known.leaves) == len(leaves) and known.leaves == leaves:
                return known
    # what is remembered must not keep the tensors of this save alive
    plain = tuple(leaf if leaf.source is None else leaf.plain() for leaf in leaves)
    numbers = {id(leaf): number for number, leaf in enumerate(plain)}
    chosen = [numbers[id(leaf)] for leaf in share(plain[:common], rank, world)]
    chosen += range(common, len(plain))
    halves = [(file_name(rank, world), [n for n in chosen if plain[n].name not in frozen])]
    if len(halves[0][1]) < len(chosen):
        halves.append((frozen_name(rank, world), [n for n in chosen if plain[n].name in frozen]))
    made = Outline(
        rank=rank,
        world=world,
        leaves=plain,
        frozen=frozen,
        files=tuple(
            File(name, tuple(half), layout(tuple(plain[n] for n in half), rank, world))
            for name, half in halves
        ),
        structure=digest(files.canonical([list(row) for row in tree.structure(plain[:common])])),
    )
    with _lock:
        _outlines.append(made)
    return made


def _text(name: str, text: bytes) -> Leaf:
    """Text as a leaf; padded, so that the file's layout stays the same from save to save."""
    text += b" " * (-len(text) % _PADDED)
    return Leaf(f"{SKELETON}/{name}", "bytes", "bytes", (len(text),), len(text), text)


def digest_of_private(content: bytes) -> str:
    """Digest of one rank's private state, given its content; "" for an empty one."""
    return "" if content == b'{"dict":[]}' else digest(content)


def digest(data: bytes) -> str:
    """BLAKE3."""
    return str(blake3(data).hexdigest())


def partition(leaves: Sequence[Leaf], world: int) -> list[list[Leaf]]:
    """The leaves of each rank, balanced by bytes, each list in the order of ``leaves``.

    A pure function of the structure and the number of ranks: every rank computes the same
    answer without asking the others. The largest leaf goes first, each to the rank that has
    the least so far. Leaves that are parts already are not dealt out: each is its rank's.
    """
    leaves = [leaf for leaf in leaves if leaf.part is None]
    loads = [(0, rank) for rank in range(world)]
    owner: dict[str, int] = {}
    for leaf in sorted(leaves, key=lambda leaf: (-leaf.nbytes, leaf.name)):
        load, rank = heapq.heappop(loads)
        owner[leaf.name] = rank
        heapq.heappush(loads, (load + leaf.nbytes, rank))
    return [[leaf for leaf in leaves if owner[leaf.name] == rank] for rank in range(world)]


def share(leaves: Sequence[Leaf], rank: int, world: int) -> list[Leaf]:
    """The leaves that a rank writes: its share of the common ones, and its parts of the others."""
    mine = {leaf.name for leaf in partition(leaves, world)[rank]}
    return [leaf for leaf in leaves if leaf.name in mine or (leaf.part and leaf.shape[0])]
