"""The checkpoints of a loop: what goes into them, when there is one, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpcdet.checkpoint import Attest, LoadedState, Manifest
from hpcdet.core.training import Cause
from hpcdet.data import rng
from hpcdet.errors import ConfigError, Unrecoverable
from hpcdet.policy.codes import ALARMS, RESUME_CODES
from hpcdet.process.console import say
from hpcdet.pytorch.api.callback import PyTorchCallback
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.gradients import accumulated
from hpcdet.pytorch.loop import trial_state
from hpcdet.pytorch.loop.feeds import Feed
from hpcdet.pytorch.loop.loop_progress import LoopProgress
from hpcdet.store.trials.manifests import ManifestMeta

if TYPE_CHECKING:  # imported where there is a policy only
    from hpcdet.guard.resume.fingerprints import Measured
    from hpcdet.guard.resume.resume_verdicts import Check


class Saves:
    """All ranks call together.

    Args:
        progress: how far the loop is.

    Attributes:
        feed: what batches are drawn from; set before anything is saved or loaded.
        changed: something has happened since the last checkpoint.
    """

    feed: Feed

    def __init__(
        self,
        context: PyTorchTrialContext,
        callbacks: Mapping[str, PyTorchCallback],
        progress: LoopProgress,
    ) -> None:
        self.changed = True
        self._context = context
        self._session = context.core.session
        self._callbacks = callbacks
        self._progress = progress
        self._saved_at = -1

    # -- saving ------------------------------------------------------------------------------

    def save(
        self,
        kept: tuple[str, ...],
        *,
        metric: float | None = None,
        must: bool = False,
        wait: bool = False,
        in_haste: bool = False,
    ) -> None:
        """A checkpoint of this step, unless this attempt has one or went on from this state.

        Args:
            kept: why it is to be kept; nothing: to go on from.
            metric: the searcher's, where the trial was validated at this step.
            must: an error if the disk will not take it.
            wait: it is durable when this returns; else training goes on while it is written.
            in_haste: the allocation is about to end.
        """
        wait = wait or must
        there = self._saved_at == self._progress.units.batches or not self.changed
        if there and (not wait or self._session.keeper.drain()):
            return
        with self._session.profile.phases.within("checkpoint"):
            measured: Measured = (
                "in haste" if in_haste else "always" if kept or wait else "if cheap"
            )
            self._save(kept, metric, must=must, wait=wait, measured=measured)

    def save_last(self, kept: tuple[str, ...], cause: Cause) -> None:
        """Before leaving: a checkpoint of this step, unless there is only time for the last."""
        in_haste = cause in ("signal", "walltime")
        if not (in_haste and self._session.keeper.skips(self._progress.units.batches)):
            self.save(kept, wait=True, in_haste=in_haste)

    def _save(
        self,
        kept: tuple[str, ...],
        metric: float | None,
        *,
        must: bool,
        wait: bool,
        measured: Measured,
    ) -> None:
        context, session, units = self._context, self._session, self._progress.units
        context.reducer.sync_buffers()
        common, own = accumulated.waiting(trial_state.parameters(context), session.peers)
        self._progress.stop = session.coordinator.stop.anywhere(session.peers)
        self._progress.stopped = session.coordinator.stop.obeyed
        state = trial_state.shared(context, self._callbacks, self._progress.encode(), common)
        for callback in self._callbacks.values():
            callback.on_checkpoint_save_start(state)
        governance = context.core.governance.state
        if governance is not None:  # after the callbacks, which might change it
            state["governance"] = governance.encode()
        state = context.reducer.spread(state)
        private = {}
        if context.division.own_state:
            private = trial_state.private(context, self._callbacks, own)
        if (position := self.feed.state()) is not None:
            private["data"] = position
        meta: ManifestMeta = {"global_batch": self.feed.batch}
        attest: Attest | None = None
        if governance is not None:
            meta["governance"] = governance.summary() | self._fingerprints(
                state, private.get("rng"), measured
            )
            attest = self._account(state["governance"], meta["governance"])
        if self.feed.batch is None and (step := context.learning.step) is not None:
            meta["starts_epoch"] = step.starts
        if not session.save(
            units,
            state,
            private,
            kept=kept,
            metric=metric,
            must=must,
            wait=wait,
            meta=meta,
            attest=attest,
        ):
            return
        self._saved_at, self.changed = units.batches, False
        self.announce()
        if wait:
            self._tell(session.keeper.latest)

    def _account(self, state: Mapping[str, Any], summary: dict[str, Any]) -> Attest | None:
        """Let the ledger account for a checkpoint before it is made."""
        accounts = self._context.core.governance.accounts
        if accounts is None:
            return None
        return accounts.checkpointed(self._progress.units.batches, state, summary)

    def announce(self) -> None:
        """Tell callbacks of what was written beside the training."""
        for name in self._session.keeper.take_written():
            self._tell(name)

    def _tell(self, name: str) -> None:
        places = [place / name for place in self._session.keeper.places]
        folder = next((place for place in places if place.is_dir()), places[0])
        for callback in self._callbacks.values():
            if self._session.ranks.chief:
                callback.on_checkpoint_end(str(folder))
                callback.on_checkpoint_write_end(str(folder))
            callback.on_checkpoint_upload_end(name)

    # -- going on ----------------------------------------------------------------------------

    def restore(self) -> LoadedState | None:
        """The newest checkpoint, if there is any, and how far it is; nothing else is put back.

        Raises:
            Unrecoverable: a loop of the user's own has saved it.
        """
        reducer = self._context.reducer
        sharded = reducer.shares_parameters
        weights = [] if sharded else [one.state_dict() for one in reducer.plain()]
        loaded = self._session.keeper.restore(
            self._session.record, sharded=sharded, into={"models": weights}
        )
        if loaded is not None:
            if "progress" not in loaded.shared:
                raise Unrecoverable(
                    "the checkpoint holds the state of a custom loop, and this is a PyTorchTrial",
                    where=loaded.manifest.name,
                    hint="continue with the script that made it, or load its weights in __init__: "
                    "hpcdet.checkpoint.load",
                )
            self._progress.decode(loaded.shared["progress"])
            if loaded.manifest.inherited:
                self._progress.best = self._progress.stop = None  # they were its parent's
                self._progress.stopped = False
            self._session.coordinator.stop.learn(self._progress.stop)
            self.changed = False
        return loaded

    def load(self, loaded: LoadedState, size: int | None) -> None:
        """Put everything back but random numbers.

        Of what another trial has left, what follows from hyperparameters stays this trial's own.

        Args:
            size: of the loader's batches.

        Raises:
            ConfigError: a step has another number of samples now.
        """
        self._check(loaded, size)
        for callback in self._callbacks.values():
            callback.on_checkpoint_load_start(loaded.shared)
        known = self._known(loaded)
        shared, private = loaded.shared, loaded.private or None
        trial_state.load_shared(self._context, shared, inherited=loaded.manifest.inherited)
        trial_state.load_gradients(self._context, shared, private)
        own = private.get("registered") if private is not None else None
        self._session.registered.load(shared.get("registered", {}), own)
        self.feed.load(private.get("data") if private is not None else None)
        self._verify(loaded, known)
        if self._context.division.is_in(shared):
            trial_state.load_callbacks(self._callbacks, shared["callbacks"])
            self._context.division.load(shared, self._session.device)
        elif private is None:
            trial_state.load_callbacks(self._callbacks, shared["callbacks"])
        else:
            trial_state.load_private(self._context, self._callbacks, private)

    def _known(self, loaded: LoadedState) -> list[Check]:
        """Verify the checkpoint beside the ledgers that it was made with.

        Raises:
            GovernanceBroken: one of these checks has failed.
        """
        governance = self._context.core.governance
        accounts = governance.accounts
        return [] if accounts is None else accounts.verify(loaded, governance.overrides(loaded))

    def _verify(self, loaded: LoadedState, known: list[Check]) -> None:
        """Verify what the checkpoint holds of the policy, and record all checks.

        Raises:
            GovernanceBroken: one has failed that stops the trial.
        """
        found = loaded.shared.get("governance")
        governance, inherited = self._context.core.governance, loaded.manifest.inherited
        if governance.state is None:
            self._session.refuse_lost_policy(loaded)
            return
        governance.state.planned.plan(self.feed.order, governance.state.tests.rows)
        checks = known + governance.state.load(
            found,
            trial_state.parameters(self._context),
            records=self._progress.units.records,
            order=self.feed.order,
            inherited=inherited,
            overrides=governance.overrides(loaded),
        )
        checks += self._compare_fingerprints(loaded) + governance.state.settle()
        governance.state.judge(checks)
        checks.sort(key=lambda one: one.number)
        self._session.tracker.record("governance", checks=[asdict(one) for one in checks])
        for one in checks if self._session.ranks.chief else ():
            if one.outcome in ALARMS:
                say(f"{one.code} {one.outcome}: {RESUME_CODES[one.code]}: {one.detail}")
        self._begin_accounts(loaded.manifest, checks)

    def _fingerprints(
        self, state: Mapping[str, Any], generators: Any, measured: Measured
    ) -> dict[str, Any]:
        """Fingerprints of what a checkpoint is about to hold."""
        prints = self._context.core.governance.fingerprints
        assert prints is not None
        parameters = trial_state.parameters(self._context)
        optimizers, account = state["optimizers"], state["governance"]
        return prints.take(parameters, optimizers, generators, when=measured, state=account)

    def _compare_fingerprints(self, loaded: LoadedState) -> list[Check]:
        """Compare the restored state with the fingerprints in its checkpoint."""
        governance = self._context.core.governance
        prints = governance.fingerprints
        assert prints is not None
        private = loaded.private or {}
        block = loaded.manifest.meta.get("governance") or {}
        if (state := governance.state) and not loaded.manifest.inherited:
            state.conformance = block.get("conformance")  # until a probe measures it again
        return prints.compare(
            block,
            trial_state.parameters(self._context),
            trial_state.optimizers(self._context),
            private.get("rng"),
            governance.overrides(loaded),
            inherited=loaded.manifest.inherited,
        )

    def _check(self, loaded: LoadedState, size: int | None) -> None:
        """See that a step means what it meant when the checkpoint was made."""
        batch, before = self.feed.batch, loaded.manifest.meta.get("global_batch")
        if None not in (batch, before) and before != batch:
            raise ConfigError(
                f"a step would be {batch} samples, and was {before} with {loaded.manifest.world} "
                "ranks",
                where=f"DataLoader(batch_size={size})",
                hint="set the hyperparameter global_batch_size and take batch_size from "
                "get_per_slot_batch_size(), or continue with the same number of slots",
            )

    def begin_governance(self) -> None:
        """A trial begins under its policy, if it has one."""
        if (governance := self._context.core.governance.state) is not None:
            governance.planned.plan(self.feed.order, governance.tests.rows)
            checks = governance.start(trial_state.parameters(self._context))
            checks += governance.chains.checks()
            self._session.tracker.record("governance", checks=[asdict(one) for one in checks])
            self._begin_accounts(None, checks)

    def _begin_accounts(self, origin: Manifest | None, checks: Sequence[Check]) -> None:
        """Open the ledger of this attempt behind what it goes on from."""
        governance = self._context.core.governance
        if governance.accounts is not None and governance.state is not None:
            heir = origin is not None and origin.inherited
            inherited = governance.state.inherited if heir else None
            governance.accounts.begin(origin, self._progress.units, checks, inherited)
            rows = governance.state.tests.rows
            governance.accounts.admit(self.feed.records, self.feed.order, rows)
            governance.accounts.changed(governance.state.applied)

    def begin_random(self, loaded: LoadedState | None) -> None:
        """Random numbers, last: nothing may draw between here and the first batch."""
        division = self._context.division
        if loaded is not None and division.is_in(loaded.shared):
            return  # each step begins its own
        if loaded is not None and loaded.private:
            rng.restore(loaded.private["rng"], self._session.registered.generators)
        else:  # at the beginning, and with another number of ranks
            division.begin_random(self._progress.units.batches)
