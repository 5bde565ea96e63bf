"""Checkpoints of one attempt: names, order of commits, failures, and what is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed, Loaded, Manifest, Saved, Secured, retention
from hpcdet.errors import HpcdetError, UsageError
from hpcdet.store import scratch
from hpcdet.store.config import Resolved
from hpcdet.store.records import number
from hpcdet.train.background import Background
from hpcdet.train.clock import Deadline
from hpcdet.train.peers import Peers
from hpcdet.train.place import Place
from hpcdet.train.ranks import Ranks
from hpcdet.train.tracking import Tracker

_LOOK_S = 0.2
_GIVE_UP_S = 2.0


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
        split = place.experiment is not None and place.trial.kept is not None
        self._safe = Background(self._secure) if split and peers.ranks.chief else None

    def restore(self) -> Loaded | None:
        """The newest valid state of the trial; None if it has none yet.

        Raises:
            IntegrityError: there are checkpoints and none can be used.
        """
        ranks = self._peers.ranks
        trial = self._place.trial
        loaded = checkpoint.restore(
            trial.checkpoints, ranks.rank, ranks.world, self._peers.allgather, trial.kept
        )
        if loaded is not None:
            self.begin_from(loaded.manifest)
            if ranks.chief and loaded.folder.parent == trial.kept:
                print(
                    f"hpcdet: going on from {loaded.folder}: scratch holds nothing newer that is "
                    "whole",
                    file=sys.stderr,
                )
        return loaded

    def begin_from(self, manifest: Manifest) -> None:
        """This attempt goes on from a checkpoint."""
        self.latest, self.digest, self._root = manifest.name, manifest.digest, manifest.root
        self._deadline.learn_save(float(manifest.meta.get("save_s", 0)))
        if self._safe is not None:  # what an attempt before had no time to copy
            self._safe.request()

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
        alone: bool = False,
    ) -> Saved | None:
        """Make a checkpoint after ``step`` batches; durable and verified when this returns.

        Args:
            kept: reasons why the rules of retention see it (``policy``, ``period``, ``end``);
                none for a resume checkpoint, which rotates.
            metric: the searcher's metric at this step, if it was validated here.
            must: raise if it cannot be written; else complain and go on with the older ones.
            alone: rank 0 saves, and no other rank calls.

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
        ranks = Ranks() if alone else self._peers.ranks
        journal_bytes = self._tracker.flush(sync=True)
        try:
            if alone:
                self.prepare()
            else:
                self._prepare_together()
            saved = checkpoint.save(
                self._place.trial.checkpoint(step, self._place.attempt.number),
                shared,
                private,
                rank=ranks.rank,
                world=ranks.world,
                exchange=checkpoint.alone if alone else self._peers.allgather,
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
        if self._safe is not None:
            self._safe.request()
            self._note()

    # -- two places --------------------------------------------------------------------------

    def prepare(self) -> None:
        """See that there is a folder to save in: a purge may have taken it while this ran.

        Raises:
            ConfigError: it is not this experiment's (``scratch.prepare``).
            Unavailable: scratch cannot be used.
        """
        if self._place.experiment is not None and self._place.trial.kept is not None:
            scratch.prepare(self._place.experiment)

    def _prepare_together(self) -> None:
        if self._place.experiment is None or self._place.trial.kept is None:
            return
        problem = ""
        try:
            self.prepare()
        except HpcdetError as error:
            problem = str(error)
        problems = [text for text in self._peers.allgather(problem) if text]
        if problems:
            raise CheckpointFailed(problems[0])

    def settle(self, hurry: Callable[[], bool], together: bool = True) -> None:
        """Wait until what the policy keeps has its copy on project storage.

        Args:
            hurry: whether to give up what is being copied; a later attempt does it then.
            together: all ranks call, and none goes on before the others.
        """
        if self._place.experiment is None or self._place.trial.kept is None:
            return
        settled = False
        while not settled:
            settled = self._safe is None or self._settled(self._safe, hurry())
            if together:
                settled = self._peers.broadcast(settled)
        self._note()

    def _settled(self, safe: Background[Secured], hurry: bool) -> bool:
        if not hurry:
            return safe.wait(_LOOK_S)
        safe.stop()
        safe.wait(_GIVE_UP_S)  # while it verifies it does not listen; to be cut off is harmless
        return True

    def _secure(self, stop: Callable[[], bool]) -> Secured:
        experiment, trial = self._place.experiment, self._place.trial.number
        assert experiment is not None
        policy = checkpoint.Policy.of(self._config)
        try:
            return checkpoint.secure(
                experiment, policy, trial, self._place.attempt.number, stop=stop
            )
        except Exception as error:  # nothing that goes wrong with a copy ends training
            return Secured(failed=(("", f"{type(error).__name__}: {error}"),))

    def _note(self) -> None:
        """Record what has become of copies."""
        for result in self._safe.results() if self._safe is not None else ():
            for name in result.copied:
                self._tracker.record("checkpoint_copied", name=name)
            for name, error in result.failed:
                self._tracker.record("copy_failed", name=name, error=error)
                print(f"hpcdet: no copy of {name} on project storage: {error}", file=sys.stderr)
