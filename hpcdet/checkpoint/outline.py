"""What one rank writes of a state: its leaves, where they lie in its file, what it reports.

The structure of a state hardly ever changes from save to save. All that follows from it alone is
worked out once: it is what training waits for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from blake3 import blake3

from hpcdet.checkpoint import tree
from hpcdet.checkpoint.layout import Layout, layout
from hpcdet.checkpoint.partition import share
from hpcdet.checkpoint.pattern import Pattern
from hpcdet.checkpoint.shard import Written, file_name, frozen_name
from hpcdet.checkpoint.tree import Leaf
from hpcdet.store import files

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
    """What follows from the structure of a state.

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
class Part:
    """One rank's part of a state.

    Attributes:
        sources: of the leaves of each of its files.
        shared, private: what they say, but for the digests.
        whole: digests of the leaves of which this rank has parts, by name.
    """

    outline: Outline
    sources: Sequence[Sequence[Any]]
    shared: Content
    private: Content
    whole: Mapping[str, str]

    @property
    def files(self) -> tuple[File, ...]:
        return self.outline.files

    def without_data(self) -> Part:
        """The same, not keeping alive what was copied."""
        return replace(self, sources=())

    def report(self, written: Sequence[Written]) -> Report:
        """What rank 0 is told once the files are there."""
        digests = digests_of(written)
        report = {
            "shard": written[0].shard.encode(),
            "structure": self.outline.structure,
            "shared": {
                name: self.whole.get(name, digests[name])
                for name in digests
                if name.startswith("shared")
            },
            "parts": any(leaf.part for leaf in self.outline.leaves),
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
) -> Part:
    """The part of a rank.

    Args:
        frozen: names of leaves that are to be in a file of their own.

    Raises:
        StateError: the state holds something that cannot be saved.
    """
    private = {} if private is None else private
    with _lock:
        known = list(_known)
    for one in reversed(known):
        part = one.part(shared, private, rank, world, frozen)
        if part is not None:
            return part
    common, own = tree.encode(shared, "shared"), tree.encode(private, "private")
    texts = [tree.to_text(own.skeleton), tree.to_text(common.skeleton)]
    leaves = (*common.leaves, *own.leaves, *_skeletons(texts, rank))
    outline = _outline(leaves, len(common.leaves), rank, world, frozen)
    with contextlib.suppress(ValueError), _lock:
        patterns = Pattern(shared, "shared", common), Pattern(private, "private", own)
        _known.append(_Known(outline, *patterns))
    return Part(
        outline,
        _chosen(outline, [leaf.source for leaf in leaves]),
        partial(tree.content, common.skeleton),
        partial(tree.content, own.skeleton),
        {leaf.name: leaf.whole for leaf in leaves if leaf.part},
    )


@dataclass(frozen=True)
class _Known:
    """A state that was taken apart before, but for its data."""

    outline: Outline
    shared: Pattern
    private: Pattern

    def part(
        self, shared: Any, private: Any, rank: int, world: int, frozen: frozenset[str]
    ) -> Part | None:
        """What ``take_apart`` gives, if this state is like that one."""
        outline = self.outline
        if (outline.rank, outline.world, outline.frozen) != (rank, world, frozen):
            return None
        own = self.private.match(private)
        common = self.shared.match(shared) if own is not None else None
        if own is None or common is None:
            return None
        skeletons = _skeletons([own.text, common.text], rank)
        first = len(outline.leaves) - len(skeletons)
        if skeletons != list(outline.leaves[first:]):  # their lengths are rounded
            return None
        sources = [*common.sources, *own.sources, *(leaf.source for leaf in skeletons)]
        return Part(outline, _chosen(outline, sources), common.content, own.content, {})


def _chosen(outline: Outline, sources: Sequence[Any]) -> list[list[Any]]:
    return [[sources[number] for number in file.chosen] for file in outline.files]


_known: deque[_Known] = deque(maxlen=8)
_outlines: deque[Outline] = deque(maxlen=8)
_lock = threading.Lock()


def _outline(
    leaves: tuple[Leaf, ...], common: int, rank: int, world: int, frozen: frozenset[str]
) -> Outline:
    """That of a structure; ``common``: how many of the leaves, the first, are shared."""
    with _lock:
        for known in reversed(_outlines):
            same = (known.rank, known.world, known.frozen) == (rank, world, frozen)
            if same and known.leaves == leaves:
                return known
    # what is remembered must not keep the tensors of this save alive
    plain = tuple(replace(leaf, source=None, whole="") for leaf in leaves)
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


def _skeletons(texts: Sequence[bytes], rank: int) -> list[Leaf]:
    """The skeletons as leaves: that of a rank's own state, and on rank 0 that of the shared."""
    names = ("private", "shared") if rank == 0 else ("private",)
    return [_text(*each) for each in zip(names, texts, strict=False)]


def _text(name: str, text: bytes) -> Leaf:
    """Text as a leaf; padded, so that the file's layout stays the same from save to save."""
    text += b" " * (-len(text) % _PADDED)
    return Leaf(f"{SKELETON}/{name}", "bytes", "bytes", (len(text),), len(text), text)


def digest_of_private(content: bytes) -> str:
    """Digest of one rank's private state, given what it says; "" for an empty one."""
    return "" if content == b'{"dict":[]}' else digest(content)


def digest(data: bytes) -> str:
    """BLAKE3."""
    return str(blake3(data).hexdigest())
