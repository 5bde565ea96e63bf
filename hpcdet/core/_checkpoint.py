"""``context.checkpoint``: states as trees, or Determined's folders of files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdet import checkpoint
from hpcdet.checkpoint import LoadedState, Manifest
from hpcdet.checkpoint.format import remove
from hpcdet.core import _files as stored
from hpcdet.core._preempt import DownloadMode
from hpcdet.core._train import TrainContext
from hpcdet.core._virtual import VirtualContext
from hpcdet.core.governance.own_loop import LoopGovernance
from hpcdet.data import rng
from hpcdet.errors import NotFound, Unrecoverable, UsageError
from hpcdet.store.trials.manifests import ManifestMeta
from hpcdet.train.attempt.session import Session
from hpcdet.train.telemetry.tracker import plain
from hpcdet.units import Units

STEPS = "steps_completed"


class CheckpointContext:
    """Checkpoints are durable and verified when a call returns.

    All ranks call together, but for Determined's folders without ``shard``: those are rank 0's.
    """

    def __init__(
        self,
        session: Session,
        train: TrainContext,
        virtual: VirtualContext,
        governance: LoopGovernance,
    ) -> None:
        self._session = session
        self._train = train
        self._virtual = virtual
        self._governance = governance
        self._begun = False
        self._loaded: Manifest | None = None  # what the code has asked for, before it began

    def latest(self, *, sharded: bool = False) -> Any:
        """The newest valid state of this trial, or None at its beginning.

        Random generators are put back to where they were when it was saved.

        Args:
            sharded: give of tensors that were saved as DTensors only the rows that this rank has
                in such a tensor (``hpcdet.checkpoint.Sharded``), and not the whole.

        Raises:
            Unrecoverable: it is the state of a ``PyTorchTrial``.
        """
        loaded = self._session.keeper.restore(self._session.record, sharded=sharded)
        state = None if loaded is None else _state(loaded)
        if loaded is not None:
            self._go_on_from(loaded)
        self.begin()
        if loaded is None:
            return None
        own = loaded.private.get("registered") if loaded.private else None
        self._session.registered.load(loaded.shared.get("registered", {}), own)
        if self._session.virtual is not None and "rng" in loaded.shared:
            rng.restore(loaded.shared["rng"], self._session.registered.generators)
        elif loaded.private:
            rng.restore(loaded.private["rng"], self._session.registered.generators)
        else:
            # another number of ranks: new streams, the same ones at each such resume
            self._session.seed(self._session.ranks.rank, self._train.units.batches)
        return state

    @property
    def inherited(self) -> bool:
        """Whether what ``latest`` gave is another trial's, from which this one begins.

        What its code has made of its hyperparameters (options of optimizers, arguments of
        schedules) is in there, too, and not this trial's own.
        """
        return self._loaded is not None and self._loaded.inherited

    def latest_private(self) -> Any:
        """This rank's ``private`` of the newest checkpoint; None if the ranks' number changed."""
        loaded = self._session.keeper.restore(self._session.record)
        return loaded.private["state"] if loaded and loaded.private else None

    def latest_id(self) -> str | None:
        """Name of the checkpoint that a call of ``latest`` would give."""
        found = next(checkpoint.newest(*self._session.keeper.places), None)
        return found.name if found else None

    def save(
        self,
        state: Any,
        steps_completed: int,
        *,
        private: Any = None,
        metadata: Mapping[str, Any] | None = None,
        wait: bool = True,
    ) -> str:
        """Save a tree of plain values, arrays and tensors; equal on all ranks.

        Args:
            steps_completed: batches trained; must not shrink. A step is saved once in an attempt:
                what is saved of it again changes nothing.
            private: what this rank has for itself. Its random generators are added.
            wait: until it is durable. Else the state is copied, and written while training goes
                on; the next save, and leaving the ``with`` block, wait for it.

        Returns:
            The checkpoint's name; the newest older one's if the disk would not take it.

        Raises:
            StateError: the state holds something that cannot be saved.
        """
        self._save(state, steps_completed, private, metadata, wait=wait)
        return self._session.keeper.under_way or self._session.keeper.latest

    def _save(
        self,
        state: Any,
        steps_completed: int,
        private: Any,
        metadata: Mapping[str, Any] | None,
        *,
        wait: bool = True,
        alone: bool = False,
    ) -> None:
        session = self._session
        session.refuse_ungoverned()
        self.begin()
        self._train.advance(steps_completed)
        ranks, peers = session.ranks, session.peers
        if not alone:
            state = checkpoint.spread(
                state, ranks.rank, ranks.world, peers.allgather, peers.open_swap
            )
        shared, own = {"state": state}, {"state": private}
        if common := session.registered.shared(None if alone else session.peers):
            shared["registered"] = common
        if of_rank := session.registered.private():
            own["registered"] = of_rank
        described: ManifestMeta = {
            "metadata": plain(metadata or {}, "metadata"),
            "validated": dataclasses.asdict(self._train.validated),
        }
        attest = self._governance.save(steps_completed, shared, described, alone=alone)
        drawn = rng.capture(session.registered.generators)
        if session.virtual is None:
            own["rng"] = drawn
        else:
            self._virtual.check(private)
            shared["rng"] = drawn if alone else session.peers.broadcast(drawn)
            own = {}
        session.save(
            self._train.units,
            shared,
            own,
            kept=("user",),
            metric=self._train.saved(steps_completed),
            meta=described,
            attest=attest,
            wait=wait,
            alone=alone,
        )

    def begin(self) -> None:
        """Once: say what this attempt goes on from."""
        if self._begun:
            return
        self._begun = True
        self._session.begin(self._loaded, _units(self._loaded) if self._loaded else Units())

    def _go_on_from(self, loaded: LoadedState) -> None:
        self._loaded = manifest = loaded.manifest
        self._governance.restored(loaded)
        units, known = _units(manifest), manifest.meta.get("validated")
        # a parent's validation is not this trial's, which is not to begin with one nonetheless
        there = Units(**known) if known and not manifest.inherited else units
        self._train.go_on(units, there)
        self._session.keeper.begin_from(manifest)

    # -- Determined's folders ----------------------------------------------------------------

    @contextlib.contextmanager
    def store_path(
        self, metadata: Mapping[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """A folder to write files into; it becomes a checkpoint at the end of the block.

        Args:
            metadata: must hold ``steps_completed``; with ``shard``, that of any rank, and what
                all ranks say is kept together.
            shard: all ranks call this and write into the (same) folder; else only rank 0 does.

        Yields:
            The folder and the checkpoint's name.

        Raises:
            UsageError: another rank than 0 calls it without ``shard``, ``steps_completed`` is
                missing, or ranks say different things of the same key.
            Unavailable: the ranks do not see each other's files.
        """
        self._session.refuse_ungoverned()
        if not shard and not self._session.ranks.chief:
            raise UsageError(
                "only rank 0 stores a folder that is not sharded",
                where="checkpoint.store_path",
                hint="call it on rank 0 alone, or on every rank with shard=True",
            )
        metadata = plain(metadata or {}, "metadata")
        if shard:
            metadata = stored.merged(self._session.peers.allgather(metadata))
        if STEPS not in metadata:
            raise UsageError(f"{STEPS} is missing in metadata", where="checkpoint.store_path")
        steps = int(metadata[STEPS])
        place = self._session.place
        name = place.trial.checkpoint(steps, place.attempt.number).name
        folder = place.trial.checkpoints / f"{remove.STAGING}{name}"
        self._session.keeper.prepare()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            yield folder, name
            if shard:
                self._session.peers.barrier()
                stored.seen_by_all(folder, self._session.peers)
            self._save({"files": stored.pack(folder)}, steps, None, metadata, alone=not shard)
            if shard:
                self._session.peers.barrier()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: stored.Selector | None = None,
    ) -> Iterator[Path]:
        """The files of a checkpoint, in a folder that lasts as long as the block.

        Args:
            download_mode: Determined's; each rank has a folder of its own.
            selector: of the files, by their paths.
        """
        with tempfile.TemporaryDirectory(prefix="hpcdet-") as folder:
            self.download(storage_id, folder, selector=selector)
            yield Path(folder)

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: stored.Selector | None = None,
    ) -> str:
        """Store a copy of a folder's files as a checkpoint; returns its name.

        Args:
            ckpt_dir: None with ``shard`` on a rank that has no files.
            selector: of the files, by their paths.
        """
        with self.store_path(metadata, shard=shard) as (folder, name):
            if ckpt_dir is not None:
                stored.copy(Path(ckpt_dir), folder, selector)
        return name

    def delete(self, storage_id: str) -> None:
        """Remove a checkpoint of this trial, wherever it lies; called by rank 0 alone.

        Raises:
            NotFound: there is none of this name.
            UsageError: another rank calls it.
        """
        if not self._session.ranks.chief:
            raise UsageError(
                "only rank 0 removes checkpoints",
                where="checkpoint.delete",
                hint="call it on rank 0 alone",
            )
        name = self._folder(storage_id).name
        for place in self._session.keeper.places:
            remove.folder(place / name)

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: stored.Selector | None = None,
    ) -> None:
        """Write a checkpoint's files into a folder; the arguments are those of ``restore_path``.

        Raises:
            NotFound: there is no such checkpoint, or it holds a state instead of files.
            IntegrityError: it is damaged.
        """
        state = self.load(storage_id)
        if not isinstance(state, dict) or "files" not in state:
            raise NotFound("the checkpoint holds a state, not files", where=storage_id)
        chosen = {
            name: data
            for name, data in state["files"].items()
            if selector is None or selector(name)
        }
        stored.unpack(chosen, Path(ckpt_dir))

    def load(self, storage_id: str) -> Any:
        """The state in a given checkpoint of this trial.

        Code that does this before anything else, as Determined's does, goes on from there, and
        random generators are put back as by ``latest``; later on they are left alone.
        """
        session = self._session
        ranks = session.ranks
        loaded = checkpoint.load(self._folder(storage_id), ranks.rank, ranks.world)
        state = _state(loaded)
        if not self._begun and not self._train.units.batches:
            self._go_on_from(loaded)
            of_this_rank = loaded.shared if session.virtual is not None else loaded.private
            if of_this_rank and "rng" in of_this_rank:
                rng.restore(of_this_rank["rng"], session.registered.generators)
        return state

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """Return the ``metadata`` that was given when the checkpoint was stored."""
        for one in checkpoint.committed(*self._session.keeper.places):
            if one.name == storage_id:
                return dict(one.meta.get("metadata", {}))
        raise NotFound("there is no such checkpoint", where=storage_id)

    def _folder(self, storage_id: str) -> Path:
        for place in self._session.keeper.places:
            folder = place / Path(storage_id).name
            if folder.is_dir():
                return folder
        raise NotFound("there is no such checkpoint", where=storage_id)


def _units(manifest: Manifest) -> Units:
    known = manifest.meta
    return Units(manifest.step, known.get("records", 0), known.get("epochs", 0))


def _state(loaded: LoadedState) -> Any:
    """Return the state that a user's own loop has saved.

    Raises:
        Unrecoverable: it is the state of a ``PyTorchTrial``.
    """
    if "state" not in loaded.shared:
        raise Unrecoverable(
            "the checkpoint holds the state of a PyTorchTrial, and this is a custom loop",
            where=loaded.manifest.name,
            hint="continue with its class, or load its weights: hpcdet.checkpoint.load",
        )
    return loaded.shared["state"]
