"""Checkpoints of one attempt: names, order of commits, failures, and what is kept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed, Loaded, Manifest, Saved, retention
from hpcdet.errors import UsageError
from hpcdet.store.config import Resolved
from hpcdet.store.records import number
from hpcdet.train.clock import Deadline
from hpcdet.train.peers import Peers
from hpcdet.train.place import Place
from hpcdet.train.tracking import Tracker


class Keeper:
    """Saves and restores. All ranks call together.

    Attributes:
        latest: name of the newest checkpoint that this attempt made or began from; "" if none.
        digest: of its content.
    """

    def __init__(
        self, place: Place, peers: Peers, config: Resolved, tracker: Tracker, deadline: Deadline
    ) -> None:
        self.latest = ""
        self.digest = ""
        self._step = -1
        self._root = ""
        self._place = place
        self._peers = peers
        self._config = config
        self._tracker = tracker
        self._deadline = deadline

    def restore(self) -> Loaded | None:
        """The newest valid state of the trial; None if it has none yet.

        Raises:
            IntegrityError: there are checkpoints and none can be used.
        """
        ranks = self._peers.ranks
        folder = self._place.trial.checkpoints
        loaded = checkpoint.restore(folder, ranks.rank, ranks.world, self._peers.allgather)
        if loaded is not None:
            self.begin_from(loaded.manifest)
        return loaded

    def begin_from(self, manifest: Manifest) -> None:
        """This attempt goes on from a checkpoint."""
        self.latest, self.digest, self._root = manifest.name, manifest.digest, manifest.root
        self._deadline.learn_save(float(manifest.meta.get("save_s", 0)))

    def save(
        self,
        step: int,
        shared: Any,
        private: Any,
        *,
        kept: Sequence[str] = (),
        metric: float | None = None,
        meta: dict[str, Any] | None = None,
        must: bool = False,
    ) -> Saved | None:
        """Make a checkpoint after ``step`` batches; durable and verified when this returns.

        Args:
            kept: reasons why the rules of retention see it (``policy``, ``period``, ``end``);
                none for a resume checkpoint, which rotates.
            metric: the searcher's metric at this step, if it was validated here.
            must: raise if it cannot be written; else complain and go on with the older ones.

        Returns:
            None if it could not be written.

        Raises:
            StateError: the state holds something that cannot be saved.
            UsageError: this attempt has saved at this step or a later one.
        """
        if step <= self._step:
            raise UsageError(
                f"a checkpoint of step {step} would not be newer than that of step {self._step}",
                hint="save each step once, with steps_completed growing",
            )
        ranks = self._peers.ranks
        journal_bytes = self._tracker.flush(sync=True)
        try:
            saved = checkpoint.save(
                self._place.trial.checkpoint(step, self._place.attempt.number),
                shared,
                private,
                rank=ranks.rank,
                world=ranks.world,
                exchange=self._peers.allgather,
                meta={
                    **(meta or {}),
                    "kind": "kept" if kept else "resume",
                    "kept": list(kept),
                    "metric": None if metric is None else number(metric),
                    "save_s": round(self._deadline.save_s, 3),
                    "journal_bytes": journal_bytes,
                },
                previous=self._root,
            )
        except CheckpointFailed as error:
            self._tracker.record("checkpoint_failed", step=step, error=str(error))
            if must:
                raise
            print(f"hpcdet: no checkpoint at step {step}: {error}", file=sys.stderr)
            return None
        self._deadline.learn_save(saved.seconds)
        self._step = step
        self.latest, self.digest, self._root = saved.name, saved.digest, saved.root
        self._tracker.record(
            "checkpoint",
            sync=True,
            name=saved.name,
            step=step,
            digest=saved.digest,
            bytes=saved.bytes,
            metric=None if metric is None else number(metric),
            kept=list(kept),
        )
        self.sweep()
        return saved

    def sweep(self, resume: int = retention.RESUME) -> None:
        """Rank 0 removes what the rules of retention do not keep.

        Args:
            resume: how many of the newest are kept to go on from.
        """
        experiment, ranks = self._place.experiment, self._peers.ranks
        if experiment is None or not ranks.chief:
            return
        trial, attempt = self._place.trial.number, self._place.attempt.number
        policy = checkpoint.Policy.of(self._config)
        try:
            gone = checkpoint.sweep(experiment, policy, trial, attempt, resume)
        except OSError as error:
            print(f"hpcdet: old checkpoints cannot be removed: {error}", file=sys.stderr)
            return
        for name in gone:
            self._tracker.record("checkpoint_deleted", name=name, why="retention")
