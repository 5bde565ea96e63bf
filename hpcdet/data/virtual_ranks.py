"""Virtual ranks: how a run is cut so that the number of ranks does not change its bits.

Each global batch is cut into ``count`` shares. A rank trains a run of them, one after the other,
each with the shape, the random numbers and the buffers that it has wherever it is trained. What
is left to differ is the order of sums, and that is the order of one binary tree over all
virtual ranks: a rank folds the subtrees that lie within its run, and those of all ranks are
folded on in the same tree. So any number of ranks up to ``count`` gives the same bits; numbers
that divide it share the work evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.distributed as dist

from hpcdet.data import rng
from hpcdet.data.sample_order import subseed
from hpcdet.errors import ConfigError
from hpcdet.process.ranks import Ranks
from hpcdet.store.config.resolved_config import Resolved

T = TypeVar("T")
Add = Callable[[T, T], T]
Block = tuple[int, int]
"""A subtree: its first leaf and the number of its leaves, a power of two that divides the first."""

WHERE = "reproducibility.elastic: exact"
"""What an error names that comes from virtual ranks."""

_PIECE = 1 << 22
# the older name warns in each rank's log, from torch 2.13 on
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Virtual:
    """The virtual ranks of one rank.

    Attributes:
        count: of all ranks together.
        seed: the trial's.
    """

    count: int
    ranks: Ranks
    seed: int

    @staticmethod
    def of(config: Resolved, ranks: Ranks, seed: int) -> Virtual | None:
        """Return the virtual ranks that the config asks for; None if it is not exact.

        Raises:
            ConfigError: there are more ranks than virtual ones.
        """
        wanted = config.reproducibility
        if wanted.elastic is None:
            return None
        count = wanted.virtual_ranks or config.resources.slots_per_trial
        if ranks.world > count:
            raise ConfigError(
                f"{ranks.world} ranks cannot share {count} virtual ranks",
                where="reproducibility.virtual_ranks",
                hint=f"ask for at most {count} slots, or submit anew with more virtual ranks",
            )
        return Virtual(count, ranks, seed)

    @property
    def mine(self) -> range:
        """The virtual ranks of this rank."""
        return self.of_rank(self.ranks.rank)

    def of_rank(self, rank: int) -> range:
        """The virtual ranks of any rank; earlier ones take the remainder."""
        each, more = divmod(self.count, self.ranks.world)
        start = rank * each + min(rank, more)
        return range(start, start + each + (rank < more))

    def plant(self, generators: Mapping[str, rng.Generator], *where: int | str) -> None:
        """Seed all generators by a place in the run (step, virtual rank …) alone."""
        rng.plant(subseed("virtual", self.seed, *where), generators)


# -- the tree ------------------------------------------------------------------------------------


class Fold(Generic[T]):
    """Adds up the values of a run of leaves as far as the tree goes within it.

    Attributes:
        parts: the subtrees so far, from left to right, each as large as can be.
    """

    def __init__(self, add: Add[T]) -> None:
        self._add = add
        self.parts: list[tuple[Block, T]] = []

    def push(self, leaf: int, value: T) -> None:
        """The value of the next leaf."""
        self.parts.append(((leaf, 1), value))
        while len(self.parts) > 1 and _siblings(self.parts[-2][0], self.parts[-1][0]):
            (block, left), (_, right) = self.parts[-2:]
            self.parts[-2:] = [((block[0], 2 * block[1]), self._add(left, right))]


def _siblings(left: Block, right: Block) -> bool:
    return left[1] == right[1] and left[0] % (2 * left[1]) == 0


def blocks(leaves: Iterable[int]) -> list[Block]:
    """The subtrees that a ``Fold`` over these leaves ends with."""
    fold: Fold[None] = Fold(lambda _left, _right: None)
    for leaf in leaves:
        fold.push(leaf, None)
    return [block for block, _ in fold.parts]


def total(parts: Mapping[Block, T], count: int, add: Add[T]) -> T:
    """The sum over all leaves, from the subtrees of all ranks."""

    def at(first: int, size: int) -> T:
        if (found := parts.get((first, size))) is not None:
            return found
        left = 1 << ((size - 1).bit_length() - 1)  # the largest power of two below the size
        return add(at(first, left), at(first + left, size - left))

    return at(0, count)


# -- over ranks ----------------------------------------------------------------------------------


class TreeSum:
    """Sums flat tensors of all virtual ranks in the tree's order, on all ranks.

    Every rank sends each other one its part of what has to be summed, folds its own part, and
    sends the result to all: as many bytes as an all-reduce, whatever the number of ranks. Only
    data travel; every addition is one of torch's own, so that the library that carries them
    (gloo, MPI, NCCL) has no say in the bits. Pieces are summed while others travel.
    """

    def __init__(self, virtual: Virtual) -> None:
        self._virtual = virtual
        world = virtual.ranks.world
        self._blocks = [blocks(virtual.of_rank(rank)) for rank in range(world)]

    def flat(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Lay tensors one behind the other, padded to a size that the ranks can share evenly."""
        size, world = sum(one.numel() for one in tensors), self._virtual.ranks.world
        rest = tensors[0].new_zeros(-size % world)
        return torch.cat([*(one.reshape(-1) for one in tensors), rest])

    @staticmethod
    def parts(flat: torch.Tensor, shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
        """Return the tensors of these shapes that ``flat`` holds, as views of it."""
        sizes = [shape.numel() for shape in shapes]
        found = torch.split(flat[: sum(sizes)], sizes)
        return [one.view(shape) for one, shape in zip(found, shapes, strict=True)]

    def __call__(self, fold: Fold[torch.Tensor]) -> torch.Tensor:
        """The sum, as a new tensor or one of the fold's, which are used up.

        Args:
            fold: over this rank's leaves: tensors of one type and size, as of ``flat``.
        """
        virtual, world = self._virtual, self._virtual.ranks.world
        if world == 1:
            return total(dict(fold.parts), virtual.count, torch.Tensor.add_)
        parts = [value for _, value in fold.parts]
        size = parts[0].numel()
        step = _PIECE // world * world
        spans = [(start, min(start + step, size)) for start in range(0, size, step)]
        coming = [self._exchange([part[start:stop] for part in parts]) for start, stop in spans]
        result = torch.empty_like(parts[0])
        leaving = []
        order = [block for of_rank in self._blocks for block in of_rank]
        for (start, stop), (received, work) in zip(spans, coming, strict=True):
            work.wait()
            rows = received.view(len(order), -1)
            mine = total(dict(zip(order, rows, strict=True)), virtual.count, torch.Tensor.add_)
            gathered = _all_gather(result[start:stop], mine, async_op=True)
            leaving.append((gathered, mine))
        for gathered, _ in leaving:
            gathered.wait()
        return result

    def _exchange(self, parts: list[torch.Tensor]) -> tuple[torch.Tensor, dist.Work]:
        """Begin to send each rank its part of all sums; what comes, and when it is there."""
        world = self._virtual.ranks.world
        part = parts[0].numel() // world
        sent = parts[0]
        if len(parts) > 1:
            sent = torch.cat([one.view(world, part) for one in parts], dim=1).view(-1)
        counts = [len(of_rank) * part for of_rank in self._blocks]
        received = sent.new_empty(sum(counts))
        work: dist.Work = dist.all_to_all_single(
            received, sent, counts, [len(parts) * part] * world, async_op=True
        )
        return received, work
