"""One attempt, seen from one of its ranks: its parts, its reports, and its end.

Everything that a training loop shares with the world outside goes through here; ``core`` and
``pytorch`` are faces of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch

from hpcdet.checkpoint import CheckpointFailed, LoadedState, Manifest
from hpcdet.data import rng
from hpcdet.data.sample_order import subseed
from hpcdet.data.virtual_ranks import Virtual
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.process import signals
from hpcdet.process.console import say_error
from hpcdet.process.installed_packages import installed
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.decisions import wakeup
from hpcdet.store.folder.records import Trial, Verdict
from hpcdet.store.fs import files
from hpcdet.store.trials.manifests import ManifestMeta
from hpcdet.store.trials.parents import Parent
from hpcdet.train.attempt import fingerprint, stop_request
from hpcdet.train.attempt.coordinator import Coordinator
from hpcdet.train.attempt.verdicts import (
    InvalidHP,
    clearer,
    of_governance,
    peers_lost,
    verdict_on,
)
from hpcdet.train.checkpoints.checkpointer import Keeper
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.train.checkpoints.pending import SaveOptions
from hpcdet.train.checkpoints.user_objects import Registry
from hpcdet.train.comm.agreement import Cause
from hpcdet.train.comm.collectives import Peers, is_peer_loss
from hpcdet.train.meeting.rendezvous import device_of
from hpcdet.train.telemetry.profile import Profile
from hpcdet.train.telemetry.tracker import Tracker, plain
from hpcdet.units import Units


class Session:
    """Made by ``startup.join``; one per process.

    Attributes:
        ranks, peers: this rank among all, and messages to the others.
        place: where its files are.
        record: the trial's hyperparameters and seed.
        config: the experiment's config; all defaults where a script runs alone.
        device: what to train on.
        virtual: the ranks that the run is cut into, whatever their number; None: as many.
        tracker: the journal.
        profile: where this rank's time goes.
        keeper: checkpoints.
        registered: what the code has given to checkpoints.
        length: how long to train, and where the search compares trials.
        coordinator: what all ranks agree to do after each step.
        finished: the verdict has been given.
        governed: the experiment's policy routes the gradients of a model here.
    """

    def __init__(
        self,
        ranks: Ranks,
        place: AttemptLocation,
        record: Trial,
        config: Resolved,
        deadline: Deadline,
    ) -> None:
        self.ranks = ranks
        self.place = place
        self.record = record
        self.config = config
        self.device = device_of(ranks)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.peers = Peers(ranks)
        self.virtual = Virtual.of(config, ranks, record.seed)
        journal = place.attempt.journal if self.attached and ranks.chief else None
        self.tracker = Tracker(journal, self._tell_of_report)
        self.profile = Profile.of(
            place, ranks, self.tracker, self.device, wanted=config.profiling.measure
        )
        self.keeper = Keeper(place, self.peers, config, self.tracker, deadline)
        self.registered = Registry()
        self.coordinator = Coordinator(
            place, config, self.peers, self.keeper, deadline, self.tracker, self.profile
        )
        self.length = self.coordinator.length
        self.finished = False
        self.governed = False
        self._fingerprint: fingerprint.Fingerprint = {}
        self._environment = ""
        self._verdict = place.attempt.verdict

    @property
    def attached(self) -> bool:
        """True in an experiment; False where a script runs alone."""
        return self.place.experiment is not None

    def refuse_ungoverned(self) -> None:
        """Refuse training of which the experiment's policy governs nothing.

        Raises:
            PolicyRefused: there is a policy, and no model was given to it (P16).
        """
        if self.config.governance is not None and not self.governed:
            raise PolicyRefused(
                "P16",
                "the experiment has a policy, and this training is not governed by it",
                where="governance.policy",
                hint="train a PyTorchTrial, or give a loop of your own its models and batches by "
                "context.governance",
            )

    def refuse_lost_policy(self, loaded: LoadedState) -> None:
        """Refuse a governed checkpoint of this experiment where its config names no policy.

        Weights of another experiment may be gone on from: that one answers for its policy.

        Raises:
            GovernanceBroken: G110.
        """
        parent = Parent.parse(self.record.parent)
        strange = parent is not None and parent.experiment and loaded.manifest.inherited
        if self.config.governance is None and "governance" in loaded.shared and not strange:
            raise GovernanceBroken(
                "G110",
                "the checkpoint was trained under a policy, and the experiment's config names none",
                where=loaded.manifest.name,
                hint="put experiment.yaml back from a backup: it is written once, at submission",
            )

    # -- beginning ---------------------------------------------------------------------------

    def seed(self, *parts: int) -> None:
        """Seed all generators: equal on all ranks without ``parts``, else a stream of its own."""
        base = self.record.seed
        rng.seed_all(subseed("rng", base, *parts) if parts else base)

    def begin(self, origin: Manifest | None, units: Units) -> None:
        """Say that this attempt goes on from a checkpoint (None: from the beginning)."""
        if self.ranks.chief:  # for all ranks: it may be the only one that has begun by now
            self._take_fingerprint(origin.meta.get("fingerprint", {}) if origin else {})
        self.coordinator.begin(units)
        self.tracker.record(
            "start",
            world=self.ranks.world,
            host=socket.gethostname(),
            pid=os.getpid(),
            checkpoint=origin.name if origin else "",
            batches=units.batches,
            fingerprint=self._environment,
        )
        self.tracker.retell(origin.meta.get("untold", ()) if origin else ())
        self.profile.begin()

    def _take_fingerprint(self, before: fingerprint.Fingerprint) -> None:
        """Take this attempt's fingerprint, and compare it with the checkpoint's, if it has one."""
        # with virtual ranks the number of real ones has no say in the bits
        world = self.virtual.count if self.virtual else self.ranks.world
        experiment, threads = self.place.experiment, torch.get_num_threads()
        record = fingerprint.submitted(experiment)
        packages = installed(record.get("packages"))
        now = fingerprint.take(experiment, world, threads, packages, record)
        self._fingerprint = now
        if experiment is not None:
            self._environment = fingerprint.keep(experiment, now, packages)
        if before:
            now = {**now, "world": before.get("world", "")} if self.virtual else now
            fingerprint.compare(before, now, refuse=self.config.on_env_change == "refuse")

    # -- while it trains ---------------------------------------------------------------------

    def stopped_before(self) -> bool:
        """Return True if the checkpoint records a stop that no verdict has reported yet.

        All call together. Told once, it is over, and who goes on is to train longer; where a
        script runs alone there are no verdicts, and it goes on.
        """
        untold = self.attached and self.ranks.chief
        untold = untold and not stop_request.told(self.place.trial, self.keeper.latest)
        if untold := self.peers.broadcast(untold):
            self.coordinator.preemption.notice("stopped")
        return untold

    def report(self, group: str, units: Units, metrics: Mapping[str, Any]) -> None:
        """Record metrics; rank 0's count. Validations, on which searchers decide, durably.

        Raises:
            TypeError: a value that is no number, text, list or dict.
        """
        values = plain(metrics)
        if not self.ranks.chief:
            return
        self.tracker.look_for_nan(group, units.batches, values)
        if not self.attached:
            print(f"hpcdet: {group} after {units.batches} batches: {values}", flush=True)
        self.tracker.record(
            "metrics",
            group=group,
            step=units.batches,
            metrics=values,
            units=dataclasses.asdict(units),
        )
        if group == "validation":
            self.coordinator.validated(units)

    def _tell_of_report(self) -> None:
        if self.place.experiment is not None:
            wakeup.tell(self.place.experiment, self.record.number, "report")

    def save(
        self,
        units: Units,
        shared: Any,
        private: Any,
        *,
        meta: ManifestMeta | None = None,
        **options: Unpack[SaveOptions],
    ) -> bool:
        """Make a checkpoint (``Keeper.save``); True if there is one now, or will be."""
        described: ManifestMeta = {
            **(meta or {}),
            "batches": units.batches,
            "records": units.records,
            "epochs": units.epochs,
            "trial": self.record.number,
            "fingerprint": self._fingerprint,
        }
        with self.profile.phases.within("checkpoint"):
            saved = self.keeper.save(units.batches, shared, private, meta=described, **options)
        self.coordinator.saved(alone=options.get("alone", False))
        return saved

    # -- end ---------------------------------------------------------------------------------

    def finish(self, cause: Cause, units: Units) -> None:
        """Say why this attempt ends, on all ranks together, after the last save."""
        self.refuse_ungoverned()
        done = cause in ("completed", "stopped")
        reached = cause == "completed" and self.length.until and units.reached(self.length.until)
        self.coordinator.settle()
        self.keeper.drain()
        self.profile.close(units)
        self.peers.barrier()
        if done:
            self.keeper.donates = cause == "completed"
            self.keeper.sweep(resume=1)
        hurried = cause in ("signal", "walltime")
        preemption = self.coordinator.preemption
        self.keeper.settle(lambda: hurried or preemption.hurries(), ends=not hurried)
        if self.ranks.chief:
            if not hurried:
                self.keeper.leave(done)
            self._conclude(
                Verdict(
                    "done" if done else "resume",
                    cause,
                    batches=units.batches,
                    until=self.length.until if reached else None,
                    checkpoint=self.keeper.latest,
                    digest=self.keeper.digest,
                    at=files.now(),
                )
            )
        self.peers.barrier()
        self.coordinator.stop.close()
        self.finished = True

    def fail(self, error: BaseException) -> int:
        """Say what went wrong, on any rank; returns the exit code for this process.

        A rank whose peers vanished says nothing: the one that failed has said it, and if it was
        killed there is nothing to say.
        """
        self.finished = True
        self.profile.close(None)
        if is_peer_loss(error):
            self.tracker.close()
            return peers_lost(error)
        error = clearer(error)
        say_error(error, own_frames=not of_governance(error))
        self.keeper.give_up(lambda: bool(signals.heard()))
        self._conclude(verdict_on(error, self.keeper.latest))
        if self.ranks.chief:
            with contextlib.suppress(CheckpointFailed):  # which has been said
                self.keeper.settle(lambda: bool(signals.heard()), together=False)
        return 0 if isinstance(error, InvalidHP) else 1

    def publish_at(self, path: Path) -> None:
        """Write the verdict to another file, for a process that publishes it later."""
        self._verdict = path

    def _conclude(self, verdict: Verdict) -> None:
        self.tracker.record("end", sync=True, verdict=verdict.verdict, cause=verdict.cause)
        self.tracker.close()
        if self.attached:
            verdict.write_once(self._verdict)
