"""One attempt, seen from one of its ranks: its identity, its orders, and its reports.

Everything that a training loop shares with the world outside goes through here; ``core`` and
``pytorch`` are faces of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import torch

from hpcdet.checkpoint import CheckpointFailed, Manifest
from hpcdet.data import rng
from hpcdet.data.virtual_ranks import Virtual
from hpcdet.process import signals
from hpcdet.process.console import say_error
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost import limits
from hpcdet.store.folder.records import Trial, Verdict
from hpcdet.store.fs import files
from hpcdet.store.trials.manifests import ManifestMeta
from hpcdet.train.attempt import fingerprint, stop_request
from hpcdet.train.attempt.control_reader import Wanted
from hpcdet.train.attempt.rung_wait import RungWait
from hpcdet.train.attempt.stop_request import StopRequest
from hpcdet.train.attempt.verdicts import InvalidHP, clearer, peers_lost, verdict_on
from hpcdet.train.checkpoints.checkpointer import Keeper
from hpcdet.train.checkpoints.deadline import Deadline, Every
from hpcdet.train.checkpoints.user_objects import Registry
from hpcdet.train.comm.agreement import NOTHING, Agreement, Cause, Orders
from hpcdet.train.comm.collectives import Peers, is_peer_loss
from hpcdet.train.meeting.rendezvous import device_of
from hpcdet.train.telemetry.profile import Profile
from hpcdet.train.telemetry.tracker import Tracker, plain
from hpcdet.units import Length, Units

_CONTROL_EVERY_S = 2.0
_PROGRESS_EVERY_S = 5.0


class Session:
    """Made by ``joining.join``; one per process.

    Attributes:
        ranks: this rank among all.
        record: the trial's hyperparameters and seed.
        config: the experiment's config; all defaults where a script runs alone.
        place: where its files are.
        device: what to train on.
        virtual: the ranks that the run is cut into, whatever their number; None: as many.
        until: length at which training ends, as far as anybody has said.
        rungs: where the search compares trials, ascending; none if it does not.
        says: the file of the verdict.
        profile: where this rank's time goes.
        wanted: what rank 0 reads of what a searcher or a user wants.
        stop: that the code asks to end.
        generators, registered: what the code has given to checkpoints, by name.
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
        self.attached = place.experiment is not None
        self.tracker = Tracker(place.attempt.journal if self.attached and ranks.chief else None)
        self.profile = Profile.of(
            place, ranks, self.tracker, self.device, wanted=config.profiling.measure
        )
        self.keeper = Keeper(place, self.peers, config, self.tracker, deadline)
        self.generators: dict[str, rng.Generator] = {}
        self.virtual = Virtual.of(config, ranks, record.seed)
        self.registered = Registry()
        self.until: Length | None = None
        self.rungs = config.searcher.rungs
        self.wanted = Wanted(place, config, self.tracker)
        self._rung_wait = RungWait(place, config, self.wanted, self.tracker)
        self._deadline = deadline
        self._agreement = Agreement(self.peers)
        self._steps = 0
        # with virtual ranks a run ends alike, whatever the number of real ones
        self.stop = StopRequest(at_once=ranks.world == 1 and self.virtual is None)
        self._control = Every(_CONTROL_EVERY_S)
        self._progress = Every(_PROGRESS_EVERY_S)
        self._save = Every(config.checkpoint_every_s)
        self._fingerprint: fingerprint.Fingerprint = {}
        self._noticed = False
        self._polled: set[bool] = set()  # after a step (True), while validating (False)
        self._saved = False  # since what is under way was said
        self._last_step = time.monotonic()
        self.finished = False
        self.says = place.attempt.verdict

    # -- beginning ---------------------------------------------------------------------------

    def seed(self, *parts: int) -> None:
        """Seed all generators: equal on all ranks without ``parts``, else a stream of its own."""
        from hpcdet.data.sample_order import subseed

        base = self.record.seed
        rng.seed_all(subseed("rng", base, *parts) if parts else base)

    def learn_length(self) -> None:
        """Read how long to train: from the control in force, else from the config."""
        longer = list[int]()
        if self.ranks.chief:
            self.wanted.read()
            longer = self.wanted.longer()
        until = self.wanted.said.until
        told, longer = self.peers.broadcast((until and until.encode(), longer))
        self.until = Length.decode(told) if told else self.config.searcher.max_length
        self.rungs = limits.lengthen(self.rungs, longer)

    def at_rung(self, before: Units, after: Units) -> bool:
        """Whether a step has come to a length at which the search compares trials."""
        return any(after.reached(rung) and not before.reached(rung) for rung in self.rungs)

    def begin(self, origin: Manifest | None, units: Units) -> None:
        """Say that this attempt goes on from a checkpoint (None: from the beginning)."""
        if self.ranks.chief:
            # with virtual ranks the number of real ones has no say in the bits
            world = self.virtual.count if self.virtual else self.ranks.world
            self._fingerprint = fingerprint.take(
                self.place.experiment, world, torch.get_num_threads()
            )
        self._compare(origin)
        self._steps = units.batches
        self.tracker.record(
            "start",
            world=self.ranks.world,
            host=socket.gethostname(),
            pid=os.getpid(),
            checkpoint=origin.name if origin else "",
            batches=units.batches,
            fingerprint=fingerprint.digest(self._fingerprint) if self._fingerprint else "",
        )
        self.tracker.retell(origin.meta.get("untold", ()) if origin else ())
        self._last_step = time.monotonic()
        self.profile.begin()

    def _compare(self, origin: Manifest | None) -> None:
        """Rank 0 compares for all: it may be the only one that has begun by now."""
        before = origin.meta.get("fingerprint", {}) if origin else {}
        if not (self.ranks.chief and before):
            return
        now = self._fingerprint
        if self.virtual is not None:  # its bits are those of any number of ranks
            now = {**now, "world": before.get("world", "")}
        fingerprint.compare(before, now, refuse=self.config.on_env_change == "refuse")

    # -- while it trains ---------------------------------------------------------------------

    def poll(self, units: Units, *, stepped: bool = True, stop: bool = False) -> Orders:
        """Agree on what all ranks do now; every rank calls it equally often, after each step.

        Args:
            stepped: a step of training lies behind (not one of validation).
            stop: the code of this rank has asked to end; all end at the same step, a few later.
        """
        now = time.monotonic()
        first = stepped not in self._polled
        self._polled.add(stepped)
        if not first:  # which compiles, starts loaders and fills caches
            self._deadline.learn_step(now - self._last_step)
        self._last_step = now
        if first and stepped:
            self.tracker.record("first_step")
            self._rung_wait.begin(units)
        if self.ranks.chief and self._progress.take():
            self.tracker.record("progress", **dataclasses.asdict(units))
        with self.profile.phases.within("communication"):
            if first and stepped:  # of the Core API's ranks one alone may have loaded a checkpoint
                self._steps = self.peers.broadcast(self._steps)
            self._steps += stepped
            self.stop.learn(self._steps if stop else None)
            heard = self._agreement.exchange(self._mine, self._steps if stepped else None)
        if stepped:
            self.profile.step(units)
        orders = NOTHING if heard is None else self._obey(heard)
        if orders.wait and orders.leave is None:
            orders = orders._replace(leave=self.wait_at_rung())
        if stepped and self.stop.due(self._steps):
            orders = orders._replace(leave="stopped")
            self.stop.obey()
            self._notice("stopped")
        return orders

    def wait_at_rung(self) -> Cause | None:
        """After a validation, together: see ``rung_waits``; why to leave, if that is so."""
        if not self._rung_wait.bound_s:
            return None
        with self.profile.phases.within("waiting"):
            leave = self._rung_wait.wait(self.peers, lambda: self._leaves(look=True))
        self._last_step = time.monotonic()
        if leave is not None:
            self._notice(leave)
        return leave

    def stops(self, asked: bool) -> bool:
        """Whether the code of any rank has asked to end, so that all do, here; all call together.

        Args:
            asked: that of this rank has.
        """
        self.stop.learn(self._steps if asked else None)
        if self.stop.anywhere(self.peers) is None:
            return False
        self.stop.obey()
        self._notice("stopped")
        return True

    def stopped_before(self) -> bool:
        """Return True if the checkpoint records a stop that no verdict has reported yet.

        All call together. Told once, it is over, and who goes on is to train longer; where a
        script runs alone there are no verdicts, and it goes on.
        """
        untold = self.attached and self.ranks.chief
        untold = untold and not stop_request.told(self.place.trial, self.keeper.latest)
        if untold := self.peers.broadcast(untold):
            self._notice("stopped")
        return untold

    def _obey(self, orders: Orders) -> Orders:
        """Take in what all agreed on; what is left for the loop to do."""
        if self._saved:  # what is heard now was said before that
            orders = orders._replace(save=False, busy=True)
        self._saved = False
        if not orders.busy:
            self.keeper.conclude(orders.lost)
        if self.keeper.under_way:  # the next one is due once this one is there
            orders = orders._replace(save=False)
        if orders.until is not None and orders.until != self.until:
            self.until = orders.until
            self.rungs = limits.lengthen(self.rungs, [orders.until.value])
        self.stop.learn(orders.stop)
        if orders.leave:
            self._notice(orders.leave)
        return orders

    def _notice(self, why: Cause) -> None:
        if not self._noticed:
            self._noticed = True
            self._deadline.hear(signals.heard(), signals.heard_at())
            self.tracker.record("notice", signal=signals.heard() or why)

    def _mine(self) -> Orders:
        busy = self.keeper.busy
        if not self.ranks.chief:
            return Orders(self._leaves(look=False), busy=busy, stop=self.stop.asked)
        leave = self._leaves(look=self._control.take())
        until, lost = self.wanted.said.until, not busy and self.keeper.lost
        save, wait = self._save.due(), self._rung_wait.due()
        return Orders(leave, until, save, busy, lost, self.stop.asked, wait)

    def _leaves(self, *, look: bool) -> Cause | None:
        """Why this rank would leave; rank 0 may look for a control first."""
        leave: Cause | None = "signal" if signals.heard() else None
        if not self.ranks.chief:
            return leave
        if self.attached and (look or leave):
            with contextlib.suppress(OSError):  # storage that is away for a moment ends nothing
                self.wanted.read()
        over = self._deadline.over(self.keeper.busy)
        return self.wanted.said.leave or leave or ("walltime" if over else None)

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
            sync=group == "validation",
            group=group,
            step=units.batches,
            metrics=values,
            units=dataclasses.asdict(units),
        )
        if group == "validation":
            self._rung_wait.report(units, self.rungs)

    def save(
        self,
        units: Units,
        shared: Any,
        private: Any,
        *,
        kept: tuple[str, ...] = (),
        metric: float | None = None,
        must: bool = False,
        wait: bool = True,
        meta: ManifestMeta | None = None,
        alone: bool = False,
    ) -> bool:
        """Make a checkpoint (``saving.Keeper.save``); whether there is one now, or will be."""
        described: ManifestMeta = {
            **(meta or {}),
            "batches": units.batches,
            "records": units.records,
            "epochs": units.epochs,
            "trial": self.record.number,
            "fingerprint": self._fingerprint,
        }
        with self.profile.phases.within("checkpoint"):
            saved = self.keeper.save(
                units.batches,
                shared,
                private,
                kept=kept,
                metric=metric,
                meta=described,
                must=must,
                wait=wait,
                alone=alone,
            )
        self._save.restart()
        self._saved = self._saved or (self._agreement.under_way and not alone)
        self._last_step = time.monotonic()
        return saved

    # -- end ---------------------------------------------------------------------------------

    def finish(self, cause: Cause, units: Units) -> None:
        """Say why this attempt ends, on all ranks together, after the last save."""
        done = cause in ("completed", "stopped")
        reached = cause == "completed" and self.until and units.reached(self.until)
        self._agreement.settle()
        self.keeper.drain()
        self.profile.close(units)
        self.peers.barrier()
        if done:
            self.keeper.donates = cause == "completed"
            self.keeper.sweep(resume=1)
        hurried = cause in ("signal", "walltime")
        self.keeper.settle(
            lambda: hurried or bool(signals.heard()) or self._deadline.over(), ends=not hurried
        )
        if self.ranks.chief:
            if not hurried:
                self.keeper.leave(done)
            self._conclude(
                Verdict(
                    "done" if done else "resume",
                    cause,
                    batches=units.batches,
                    until=self.until if reached else None,
                    checkpoint=self.keeper.latest,
                    digest=self.keeper.digest,
                    at=files.now(),
                )
            )
        self.peers.barrier()
        self.stop.obeyed, self.finished = False, True

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
        say_error(error)
        self.keeper.give_up(lambda: bool(signals.heard()))
        self._conclude(verdict_on(error, self.keeper.latest))
        if self.ranks.chief:
            with contextlib.suppress(CheckpointFailed):  # which has been said
                self.keeper.settle(lambda: bool(signals.heard()), together=False)
        return 0 if isinstance(error, InvalidHP) else 1

    def _conclude(self, verdict: Verdict) -> None:
        self.tracker.record("end", sync=True, verdict=verdict.verdict, cause=verdict.cause)
        self.tracker.close()
        if self.attached:
            verdict.write_once(self.says)
