"""``MANIFEST.json``: makes a folder of files a checkpoint. What has none does not exist.

It is canonical JSON with the digest of itself, and names the root digest of the checkpoint
before it: the checkpoints of a trial form a chain.
"""

from __future__ import annotations

import builtins
import contextlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from hpcdet import __version__
from hpcdet.checkpoint.format.shard import HINT, Shard
from hpcdet.errors import IntegrityError
from hpcdet.store.folder.layout import CHECKPOINT_NAME, INHERITED, TrialPaths
from hpcdet.store.fs import files
from hpcdet.store.fs import sealed_json as sealed
from hpcdet.store.trials import manifests, standing
from hpcdet.store.trials.manifests import ManifestMeta
from hpcdet.store.trials.manifests import NewerFormat as NewerFormat
from hpcdet.store.trials.standing import MANIFEST


@dataclass(frozen=True)
class Manifest:
    """The description of one checkpoint.

    Attributes:
        name: of its folder, ``00003000.g2``.
        world: number of ranks that wrote it.
        digest: of its content, whatever the layout of its files.
        shared: digest of the shared state alone.
        private: digest of each rank's private state; "" for an empty one.
        shards: one per rank.
        meta: what its writer remembers beside the state; plain JSON.
        prev_root: root of the checkpoint before, or "".
        root: BLAKE3 of everything else in the manifest; ``sealed`` sets it.
        writer: program and version that wrote it.
        schema: version of the format, one of ``store.trials.manifests.SCHEMAS``.
    """

    name: str
    world: int
    digest: str
    shared: str
    private: tuple[str, ...]
    shards: tuple[Shard, ...]
    meta: ManifestMeta = field(default_factory=lambda: ManifestMeta())
    prev_root: str = ""
    root: str = ""
    writer: str = f"hpcdet {__version__}"
    schema: int = 1

    @property
    def bytes(self) -> int:
        """Size of its files, without the manifest."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def step(self) -> int:
        """Batches trained, from the name."""
        return position(self.name)[0]

    @property
    def attempt(self) -> int:
        """The attempt that made it, from the name."""
        return position(self.name)[1]

    def record(self) -> dict[str, Any]:
        """Return the journal's record of the checkpoint, as far as the manifest knows it."""
        return {
            "name": self.name,
            "step": self.step,
            "digest": self.digest,
            "bytes": self.bytes,
            "metric": self.meta.get("metric"),
            "kept": list(self.meta.get("kept", ())),
        }

    @property
    def inherited(self) -> bool:
        """Whether it is another trial's, which this one began from (``layout.INHERITED``)."""
        return self.attempt == INHERITED

    def sealed(self) -> Manifest:
        """The manifest with its root."""
        return replace(self, root=sealed.digest(self._plain()))

    def encode(self) -> builtins.bytes:
        """The file's contents, of a sealed manifest."""
        return sealed.text(self._plain() | {"root": self.root})

    def _plain(self) -> dict[str, Any]:
        return {
            "format": "hpcdet-checkpoint",
            "schema": self.schema,
            "writer": self.writer,
            "name": self.name,
            "world": self.world,
            "digest": self.digest,
            "shared": self.shared,
            "private": list(self.private),
            "shards": [shard.encode() for shard in self.shards],
            "meta": dict(self.meta),
            "prev_root": self.prev_root,
        }


def position(name: str) -> tuple[int, int]:
    """Step and attempt of a checkpoint's name; (-1, -1) for any other name."""
    match = CHECKPOINT_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else (-1, -1)


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        NewerFormat: a newer hpcdet made it.
        IntegrityError: there is none, or it is damaged.
    """
    raw = manifests.read(folder)
    private = tuple(raw["private"])
    if raw["digest"] != state_digest(raw["shared"], private):
        what = "its digest is not that of its parts"
        raise IntegrityError(what, where=str(folder / MANIFEST), hint=HINT)
    return Manifest(
        name=raw["name"],
        world=raw["world"],
        digest=raw["digest"],
        shared=raw["shared"],
        private=private,
        shards=tuple(map(Shard.decode, raw["shards"])),
        meta=raw["meta"],
        prev_root=raw["prev_root"],
        root=raw["root"],
        writer=raw["writer"],
        schema=raw["schema"],
    )


def state_digest(shared: str, private: tuple[str, ...]) -> str:
    """Digest of a whole state. Ranks without private state do not count."""
    filled = [[rank, digest] for rank, digest in enumerate(private) if digest]
    return str(blake3(files.canonical({"shared": shared, "private": filled})).hexdigest())


def is_committed(folder: Path) -> bool:
    """Whether a folder is a checkpoint: it has a manifest, sound or not."""
    return (folder / MANIFEST).exists()


def names(checkpoints: Path) -> list[str]:
    """Names of all folders in a trial's ``checkpoints``, committed or not, oldest first."""
    try:
        found = os.listdir(checkpoints)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((name for name in found if CHECKPOINT_NAME.fullmatch(name)), key=position)


def current(*places: Path) -> list[str]:
    """Like ``names``, without those that a user left behind when he began again from before.

    Args:
        places: ``TrialPaths.checkpoint_places``; what is in several of them is given once.
    """
    there = {name for place in places for name in names(place)}
    if not there:
        return []
    line = standing.lineage(TrialPaths(places[-1].parent, 0))
    return sorted((name for name in there if name in line), key=position)


def committed(*places: Path) -> list[Manifest]:
    """Manifests of a trial's checkpoints, oldest first.

    Those that cannot be read are left out, as are superseded ones.

    Args:
        places: as for ``current``; of two copies the first that can be read is taken.
    """
    found: dict[str, Manifest] = {}
    for name in current(*places):
        for place in places:
            if name not in found:
                with contextlib.suppress(IntegrityError):
                    found[name] = read(place / name)
    return list(found.values())
