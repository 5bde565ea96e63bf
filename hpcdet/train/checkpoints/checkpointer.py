"""Checkpoints of one attempt: names, order of commits, failures, and what is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcdet import checkpoint
from hpcdet.checkpoint import Attest, CheckpointFailed, Frozen, Image, LoadedState, Manifest, Saved
from hpcdet.checkpoint.io import memory_limit
from hpcdet.checkpoint.keep import retention
from hpcdet.process.console import say
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs.json_record import number
from hpcdet.store.trials.manifests import ManifestMeta
from hpcdet.store.trials.standing import MANIFEST
from hpcdet.train.checkpoints import parent
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.train.checkpoints.local_staging import Stage
from hpcdet.train.checkpoints.pending import SaveRequest, UnderWay, agreed, fence, is_there
from hpcdet.train.checkpoints.replication import Copies
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.tracker import Tracker

_LOOK_S, _ABANDON_S = 0.2, 60.0


class Keeper:
    """Saves and restores. All ranks call together.

    Attributes:
        latest: name of the newest checkpoint that this attempt made or began from; "" if none.
        digest: of its content.
        donates: the search has not given the trial up, and may have others begin from it.
    """

    def __init__(
        self,
        place: AttemptLocation,
        peers: Peers,
        config: Resolved,
        tracker: Tracker,
        deadline: Deadline,
    ) -> None:
        self.latest = self.digest = self._root = ""
        self.donates, self._step = True, -1
        # ranks of a node take their memory at the same time
        self._image = Image(lambda: memory_limit.available() // peers.ranks.local_world)
        self._frozen = Frozen()
        self._under_way: UnderWay | None = None
        self._written, self._complained = list[str](), False
        self._place, self._peers, self._config = place, peers, config
        self._tracker, self._deadline = tracker, deadline
        self._copies = Copies(place, peers, config, tracker)
        self._stage = Stage(place, peers, config, tracker, self._copies.request)

    def restore(
        self, record: Trial, *, sharded: bool = False, into: Any = None
    ) -> LoadedState | None:
        """The newest valid state of the trial; None if it has none yet.

        Args:
            record: of the trial; it may name a checkpoint of another one to begin from.
            sharded: of tensors that lie in parts, only this rank's rows (``checkpoint.load``).
            into: tensors that may be overwritten and given back (``checkpoint.restore``).

        Raises:
            IntegrityError: there are checkpoints and none can be used, or its parent's is gone.
        """
        ranks, trial = self._peers.ranks, self._place.trial
        if ranks.chief and self._place.experiment is not None:
            parent.see_to_it(trial, record)
        loaded = checkpoint.restore(
            trial.checkpoints,
            ranks.rank,
            ranks.world,
            self._peers.allgather,
            trial.kept,
            staged=self._stage.folder,
            node=ranks.node,
            sharded=sharded,
            into=into,
        )
        if loaded is None:
            parent.refuse_nothing(trial, record)
        else:
            self.begin_from(loaded.manifest)
            if ranks.chief and loaded.folder.parent == trial.kept:
                say(f"going on from {loaded.folder}: scratch holds nothing newer that is whole")
        return loaded

    def begin_from(self, manifest: Manifest) -> None:
        """This attempt goes on from a checkpoint."""
        self.latest, self.digest, self._root = manifest.name, manifest.digest, manifest.root
        self._deadline.learn_save(float(manifest.meta.get("save_s", 0)))
        where = self._stage.folder or self._place.trial.checkpoints
        self._frozen = Frozen.after(where, manifest.name, self._peers.ranks.rank)
        self._copies.request()  # what an attempt before had no time to copy
        self._stage.request()

    def save(  # noqa: PLR0913 - the parts of a checkpoint
        self,
        step: int,
        shared: Any,
        private: Any,
        *,
        kept: Sequence[str] = (),
        metric: float | None = None,
        meta: ManifestMeta | None = None,
        must: bool = False,
        wait: bool = True,
        alone: bool = False,
        attest: Attest | None = None,
    ) -> bool:
        """Make a checkpoint after ``step`` batches.

        Args:
            kept: reasons why the rules of retention see it (``policy``, ``period``, ``end``);
                none for a resume checkpoint, which rotates.
            metric: the searcher's metric at this step, if it was validated here.
            must: raise if it cannot be written; else complain and go on with the older ones.
            wait: it is durable and verified when this returns; else the state is copied, and
                what comes of it is heard of later (``conclude``, ``drain``).
            alone: rank 0 saves, and no other rank calls.
            attest: adds to ``meta`` on rank 0, right before the commit (``checkpoint.save``).

        Returns:
            Whether there is one: it was or is being written, now or by an earlier call.

        Raises:
            StateError: the state holds something that cannot be saved.
            UsageError: this attempt has saved at a later step, or ranks save different ones.
        """
        self.drain(together=not alone)
        if not alone:
            self._step, self.latest = agreed(self._peers, step, self._step, self.latest)
        if is_there(step, self._step):
            if self._peers.ranks.chief:
                say(f"{self.latest} is there already, and stays")
            return True
        described: ManifestMeta = {
            **(meta or {}),
            "save_s": round(self._deadline.save_s, 3),
            "journal_bytes": self._tracker.flush(sync=wait),
        }
        if untold := self._tracker.untold():
            described["untold"] = untold
        known = None if metric is None else number(metric)
        order = SaveRequest(step, tuple(kept), known, shared, private, described, attest)
        try:
            (self._copies.prepare if alone else self._copies.prepare_together)()
            where = None if alone else self._stage.takes()
            if not wait and not alone:
                self._begin(where, order)
                return True
            try:
                saved = self._save_now(where, order, alone)
            except CheckpointFailed as error:
                if where is None:
                    raise
                self._stage.failed(error)
                saved = self._save_now(None, order, alone)
        except CheckpointFailed as error:
            self._failed(step, error)
            if must:
                raise
            return False
        self._deadline.learn_save(saved.seconds)
        return True

    def _folder(self, where: Path | None, step: int) -> Path:
        """Return the folder of a checkpoint, on this node (``where``) or in the experiment."""
        folder = self._place.trial.checkpoint(step, self._place.attempt.number)
        return folder if where is None else where / folder.name

    def _how(self, alone: bool = False) -> dict[str, Any]:
        """Return the arguments that saving at once and saving in the background share."""
        ranks = Ranks() if alone else self._peers.ranks
        return {
            "rank": ranks.rank,
            "world": ranks.world,
            "previous": self._root,
            # alone are folders of files, which lie on a disk already: no copy of them is kept
            "image": Image(lambda: 0) if alone else self._image,
            "frozen": None if alone else self._frozen,
            "swap": self._peers.swap,
            "fence": lambda: fence(self._place),
        }

    def _save_now(self, where: Path | None, order: SaveRequest, alone: bool) -> Saved:
        folder = self._folder(where, order.step)
        saved = checkpoint.save(
            folder,
            order.shared,
            order.private,
            exchange=checkpoint.alone if alone else self._peers.allgather,
            meta=order.meta(),
            attest=order.attest,
            **self._how(alone),
        )
        self._committed(folder, order, saved)
        return saved

    def _begin(self, where: Path | None, order: SaveRequest) -> None:
        folder = self._folder(where, order.step)
        about = order.without_state()  # what was copied is not kept alive

        def meta() -> ManifestMeta:
            self._tracker.flush(sync=True)  # what was told before this step stays told
            if not self._tracker.untold():
                about.described.pop("untold", None)
            return about.meta()

        saving = checkpoint.begin(
            folder,
            order.shared,
            order.private,
            meta=meta,
            attest=about.attest,
            committed=lambda saved: self._committed(folder, about, saved),
            **self._how(),
        )
        self._under_way = UnderWay(order.step, saving, where is not None)
        if not saving.copied and not self._complained:
            self._complained = True
            say("no memory for a copy of the state: training pauses while checkpoints are written")

    def _committed(self, folder: Path, order: SaveRequest, saved: Saved) -> None:
        """There is a checkpoint; called by the thread that has written it."""
        self.latest, self.digest, self._root = saved.name, saved.digest, saved.root
        if self._peers.ranks.chief:
            self._stage.committed(folder.parent, order.record(saved), self._tracker)
        self.sweep()
        self._step = order.step  # last: what fails here is lost for all ranks, so also for this one

    def _failed(self, step: int, error: CheckpointFailed) -> None:
        self._tracker.record("checkpoint_failed", step=step, error=str(error))
        say(f"no checkpoint at step {step}: {error}")

    # -- beside the training -----------------------------------------------------------------

    @property
    def under_way(self) -> str:
        """Name of the checkpoint that is being written, as far as all have agreed; "" if none."""
        return self._under_way.saving.name if self._under_way is not None else ""

    @property
    def busy(self) -> bool:
        """Whether this rank is not through with the checkpoint under way (``UnderWay.busy``)."""
        return self._under_way is not None and self._under_way.busy()

    @property
    def lost(self) -> bool:
        """Rank 0: the checkpoint under way has come to nothing."""
        under_way = self._under_way
        if under_way is None or not self._peers.ranks.chief or not under_way.saving.done():
            return False
        return under_way.outcome() is None

    def conclude(self, lost: bool) -> None:
        """End the checkpoint under way on all ranks; ``lost`` is rank 0's finding.

        Raises:
            StateError: on rank 0: the ranks' states do not fit together.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        step, saving, staged = under_way
        if lost:
            try:
                saving.result()
            except CheckpointFailed as error:
                self._failed(step, error)
                if staged:
                    self._stage.failed(error)
            return
        if self._peers.ranks.chief:
            saved = saving.result()
            assert saved is not None
            self._deadline.learn_save(saved.seconds)
        if step > self._step:  # else rank 0 has meanwhile stored a folder of a later one, alone
            self._step, self.latest = step, saving.name
        self._written.append(saving.name)

    def drain(self, together: bool = True) -> bool:
        """Wait for the checkpoint under way; False if it has come to nothing.

        Args:
            together: all ranks call; else this one waits for its own part, and it stays under
                way for the others.
        """
        if self._under_way is None:
            return True
        self._under_way.wait()
        if not together:
            return not self.lost
        lost = self._peers.broadcast(self.lost)
        self.conclude(lost)
        return not lost

    def give_up(self, hurry: Callable[[], bool]) -> None:
        """One rank, which fails: give what is under way the time it needs, within reason."""
        limit = time.monotonic() + _ABANDON_S
        saving = self._under_way.saving if self._under_way is not None else None
        while saving and not saving.done() and not hurry() and time.monotonic() < limit:
            saving.wait(_LOOK_S)

    def take_written(self) -> list[str]:
        """Names of checkpoints that were written beside the training and not asked for yet."""
        written, self._written = self._written, []
        return written

    def skips(self, step: int) -> bool:
        """All ranks leave in haste: whether to keep to what is under way, and save no more.

        So if the end of the allocation is known, and a save after the one under way would not
        be through before it.
        """
        if self._under_way is None:
            return False
        saves = 2 if self.busy else 1
        skips = self._peers.broadcast(not self._deadline.fits(saves))
        if skips:
            self._tracker.record(
                "checkpoint_skipped",
                step=step,
                needed_s=round(saves * self._deadline.save_s, 3),
                left_s=round(self._deadline.left_to_save_s or 0.0, 3),
                instead=self.under_way,
            )
        return skips

    def sweep(self, resume: int = retention.RESUME) -> None:
        """Rank 0 removes what the rules of retention do not keep.

        Args:
            resume: how many of the newest are kept to go on from.
        """
        experiment, ranks = self._place.experiment, self._peers.ranks
        if experiment is None or not ranks.chief:
            return
        policy = checkpoint.RetentionRules.of(self._config)
        every = self._config.searcher.compared_every if self.donates else None
        own = self._place.trial.number, self._place.attempt.number
        try:
            gone = checkpoint.sweep(experiment, policy, *own, resume, every)
        except OSError as error:
            say(f"old checkpoints cannot be removed: {error}")
            return
        for name in gone:
            self._tracker.record("checkpoint_deleted", name=name, why="retention")
        self._copies.request()
        self._copies.note()

    # -- places ------------------------------------------------------------------------------

    @property
    def places(self) -> tuple[Path, ...]:
        """Every folder that may hold checkpoints of this trial, this node's own first."""
        there = self._place.trial.checkpoint_places
        return there if self._stage.folder is None else (self._stage.folder, *there)

    def prepare(self) -> None:
        """See that there is a folder to save in (``Copies.prepare``)."""
        self._copies.prepare()

    def settle(
        self, hurry: Callable[[], bool], together: bool = True, *, ends: bool = False
    ) -> None:
        """Wait until what is to be copied to scratch, or to project storage, is there.

        Args:
            hurry: whether to give up what is being copied; a later attempt does it then.
            together: all ranks call, and none goes on before the others.
            ends: perhaps there is no later attempt: what only this node has is waited for.

        Raises:
            CheckpointFailed: what is on this node's own disk could not be copied to scratch.
        """
        self._stage.settle((lambda: False) if ends else hurry, together)
        if ends and self._stage.folder is not None and self._peers.broadcast(self._is_gone()):
            raise CheckpointFailed(f"{self.latest} is not on scratch, nor whole on this node")
        self._copies.settle(hurry, together)

    def _is_gone(self) -> bool:
        """Whether the last checkpoint is in no place that outlives this node."""
        places = self._place.trial.checkpoint_places
        return bool(self.latest) and not any((p / self.latest / MANIFEST).exists() for p in places)

    def leave(self, done: bool) -> None:
        """Rank 0: the trial will not go on here; ``done``: nor anywhere."""
        if done and self._stage.folder is not None:
            self.sweep(resume=1)  # what came to scratch last
        self._stage.leave()
