"""Leaves that stay the same from save to save: written once, and linked from then on.

Frozen layers show in their digests: tensors that have those of the save before go into a file of
their own. Once such a file holds what the next save would write into it, it is given another
name, in the new checkpoint's folder, instead. The data go with the last of its names, so that
checkpoints are still removed by removing their folders.

Only what all ranks share is looked at, or lies in parts on them, of which each rank looks at its
own: readers look for what is a rank's alone in its first file.

Of two checkpoints in a row each has a file of its own: what damages one leaves the other, to which
one goes back, alone. So a file is that of every second checkpoint.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpcdet.checkpoint.format.manifest import Manifest, committed, is_committed, position
from hpcdet.checkpoint.format.rank_file import RankFile
from hpcdet.checkpoint.format.shard import Shard, frozen_name
from hpcdet.checkpoint.state.tree import Leaf
from hpcdet.errors import IntegrityError

WORTH = 64 << 10
"""Bytes: smaller tensors are written each time."""
WORTH_ALL = 1 << 20
"""Bytes: less than this in all is not worth a file."""


class Frozen:
    """The memory that one rank's saves share; for one save at a time.

    Attributes:
        names: of the leaves that go into the file of what stays the same.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._digests: Mapping[str, str] = {}
        self._files: deque[tuple[Path, Shard | None]] = deque(maxlen=2)

    @staticmethod
    def after(checkpoints: Path, name: str, rank: int) -> Frozen:
        """To go on from the checkpoint of this name among a trial's, as if one had made it."""
        made = Frozen()
        there: list[Manifest] = []
        with contextlib.suppress(OSError):  # what cannot be read now: then all is written again
            there = [one for one in committed(checkpoints) if position(one.name) <= position(name)]
        for manifest in there[-2:]:
            wanted = frozen_name(rank, manifest.world)
            shard = next((one for one in manifest.shards if one.file == wanted), None)
            made._files.append((checkpoints / manifest.name, shard))
            made._digests, made.names = {}, frozenset()
            if shard is not None:
                with contextlib.suppress(IntegrityError, OSError):  # then all is written again
                    file = RankFile(checkpoints / manifest.name / shard.file, shard)
                    with contextlib.closing(file):
                        rows = file.table.rows
                        made._digests = {row.leaf.name: row.digest for row in rows if row.leaf}
                    made.names = frozenset(made._digests)
        return made

    def link(self, shard: Shard, folder: Path) -> bool:
        """Have a file of this content in a checkpoint's folder; False if it must be written."""
        if len(self._files) < 2 or self._files[0][1] != shard:
            return False
        if not is_committed(self._files[1][0]):  # then the neighbour is the one before it
            return False
        source = self._files[0][0] / shard.file
        try:
            if source.stat().st_size != shard.bytes:
                return False
            os.link(source, folder / shard.file)
        except OSError:  # no links here, or it was removed: then its writing says what is wrong
            return False
        return True

    def learn(
        self,
        folder: Path,
        shard: Shard | None,
        leaves: Iterable[Leaf],
        digests: Mapping[str, str],
    ) -> None:
        """A save is through.

        Args:
            shard: its file of what stays the same, if it has one.
            leaves, digests: all that this rank has saved.
        """
        same = {
            leaf.name: leaf.nbytes
            for leaf in leaves
            if leaf.nbytes >= WORTH
            and leaf.name.startswith("shared")
            and self._digests.get(leaf.name) == digests[leaf.name]
        }
        self._files.append((folder, shard))
        self._digests = digests
        self.names = frozenset(same) if sum(same.values()) >= WORTH_ALL else frozenset()
