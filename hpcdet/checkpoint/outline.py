"""What one rank writes of a state: its leaves, where they lie in its file, what it reports.

The structure of a state hardly ever changes from save to save. All that follows from it alone is
worked out once: it is what training waits for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3

from hpcdet.checkpoint import tree
from hpcdet.checkpoint.layout import Layout, layout
from hpcdet.checkpoint.partition import share
from hpcdet.checkpoint.shard import Written
from hpcdet.checkpoint.tree import Encoded, Leaf
from hpcdet.store import files

SKELETON = "skeleton"
_PADDED = 4096

Report = Mapping[str, Any]
"""What rank 0 needs to know of a rank's file, or ``error``; plain JSON."""


@dataclass(frozen=True)
class Outline:
    """What follows from the structure of a state.

    Attributes:
        leaves: of the shared and the private state and of their skeletons, without data.
        chosen: numbers of those that are in the file of this rank.
        plan: layout of that file.
        structure: digest of the structure of the shared state.
    """

    rank: int
    world: int
    leaves: tuple[Leaf, ...]
    chosen: tuple[int, ...]
    plan: Layout
    structure: str


@dataclass(frozen=True)
class Part:
    """One rank's part of a state.

    Attributes:
        leaves: those of its file, with their data.
        shared, private: skeletons.
        whole: digests of the leaves of which this rank has parts, by name.
    """

    outline: Outline
    leaves: Sequence[Leaf]
    shared: Any
    private: Any
    whole: Mapping[str, str]

    @property
    def rank(self) -> int:
        return self.outline.rank

    @property
    def world(self) -> int:
        return self.outline.world

    @property
    def plan(self) -> Layout:
        return self.outline.plan

    def without_data(self) -> Part:
        """The same, not keeping alive what was copied."""
        return replace(self, leaves=())

    def report(self, written: Written) -> Report:
        """What rank 0 is told once the file is there."""
        digests = written.digests
        return {
            "shard": written.shard.encode(),
            "structure": self.outline.structure,
            "shared": {
                name: self.whole.get(name, digests[name])
                for name in digests
                if name.startswith("shared")
            },
            "parts": any(leaf.part for leaf in self.outline.leaves),
            "private": private_digest(self.private, digests.__getitem__),
            "skeleton": self.shared if self.rank == 0 else None,
        }


def take_apart(shared: Any, private: Any, rank: int, world: int) -> Part:
    """The part of a rank.

    Raises:
        StateError: the state holds something that cannot be saved.
    """
    common = tree.encode(shared, "shared")
    own = tree.encode({} if private is None else private, "private")
    leaves = (*common.leaves, *own.leaves, _text("private", own))
    if rank == 0:
        leaves = (*leaves, _text("shared", common))
    outline = _outline(leaves, len(common.leaves), rank, world)
    chosen = [leaves[number] for number in outline.chosen]
    whole = {leaf.name: leaf.whole for leaf in chosen if leaf.part}
    return Part(outline, chosen, common.skeleton, own.skeleton, whole)


_outlines: deque[Outline] = deque(maxlen=8)
_lock = threading.Lock()


def _outline(leaves: tuple[Leaf, ...], common: int, rank: int, world: int) -> Outline:
    """That of a structure; ``common``: how many of the leaves, the first, are shared."""
    with _lock:
        for known in reversed(_outlines):
            if (known.rank, known.world) == (rank, world) and known.leaves == leaves:
                return known
    # what is remembered must not keep the tensors of this save alive
    plain = tuple(replace(leaf, source=None, whole="") for leaf in leaves)
    numbers = {id(leaf): number for number, leaf in enumerate(plain)}
    chosen = [numbers[id(leaf)] for leaf in share(plain[:common], rank, world)]
    chosen += range(common, len(plain))
    made = Outline(
        rank=rank,
        world=world,
        leaves=plain,
        chosen=tuple(chosen),
        plan=layout(tuple(plain[number] for number in chosen), rank, world),
        structure=digest(files.canonical([list(row) for row in tree.structure(plain[:common])])),
    )
    with _lock:
        _outlines.append(made)
    return made


def _text(name: str, encoded: Encoded) -> Leaf:
    """A skeleton as a leaf; padded, so that the file's layout stays the same from save to save."""
    text = tree.to_text(encoded.skeleton)
    text += b" " * (-len(text) % _PADDED)
    return Leaf(f"{SKELETON}/{name}", "bytes", "bytes", (len(text),), len(text), text)


def shared_digest(skeleton: Any, leaf: Callable[[str], str]) -> str:
    """Digest of the shared state, given the digests of its leaves by name."""
    return digest(tree.content(skeleton, leaf))


def private_digest(skeleton: Any, leaf: Callable[[str], str]) -> str:
    """Digest of one rank's private state; "" for an empty one."""
    if skeleton == {"dict": []}:
        return ""
    return digest(tree.content(skeleton, leaf))


def digest(data: bytes) -> str:
    """BLAKE3."""
    return str(blake3(data).hexdigest())
