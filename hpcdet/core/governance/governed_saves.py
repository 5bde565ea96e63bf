"""The account of a governed loop of one's own, in its checkpoints and reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hpcdet.checkpoint import Attest, LoadedState, Manifest
from hpcdet.core.governance.governance_context import GovernanceContext
from hpcdet.errors import UsageError
from hpcdet.policy.codes import ALARMS, RESUME_CODES
from hpcdet.process.console import say
from hpcdet.store.trials.manifests import ManifestMeta
from hpcdet.train.attempt.session import Session
from hpcdet.units import Units

if TYPE_CHECKING:  # imported where there is a policy only
    from hpcdet.guard.resume.resume_verdicts import Check, Overrides


class AccountedGovernance(GovernanceContext):
    """The policy of an experiment, with the account of it that checkpoints carry."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._loaded: LoadedState | None = None
        self._ready = False

    def restored(self, loaded: LoadedState) -> None:
        """The loop goes on from a checkpoint; it is verified once the weights are put back.

        Raises:
            GovernanceBroken: G110: it was trained under a policy, and the experiment has none.
        """
        if self.state is None:
            self._session.refuse_lost_policy(loaded)
            return
        self._loaded, found = loaded, loaded.shared.get("governance")
        if isinstance(found, dict) and self.guard is not None:  # for reports before the first batch
            from hpcdet.guard.counting.exposure import Exposure

            self.guard.exposure = Exposure.decode(found["exposure"])

    def trainer(self) -> None:
        """A trainer's loop begins or verifies the state by itself."""
        self._ready = True

    def verify(self) -> None:
        """Verify the checkpoint that the loop goes on from; its weights are put back by now.

        The first batch and save do so, where the loop does not. All ranks call together.

        Raises:
            GovernanceBroken: a check has failed that stops the trial.
        """
        if self._ready or self.state is None or self.guard is None:
            return
        self._session.refuse_ungoverned()
        self._ready, loaded = True, self._loaded
        if loaded is None:
            checks = self.state.start(self._parameters()) + self.state.chains.checks()
            self._open(None, checks)
            return
        answered = self.overrides(loaded)
        known = [] if self.accounts is None else self.accounts.verify(loaded, answered)
        checks = known + self.state.load(
            loaded.shared.get("governance"),
            self._parameters(),
            records=loaded.manifest.meta.get("records", 0),
            order=None,
            inherited=loaded.manifest.inherited,
            overrides=answered,
        )
        checks += self._same_weights(loaded, answered) + self.state.settle()
        self.state.judge(checks)
        checks.sort(key=lambda one: one.number)
        self._open(loaded.manifest, checks)
        if self.guard.optimizers.open and all(
            one.grad is None for one in self._parameters().values()
        ):
            raise UsageError(
                "the checkpoint was made between backward passes and their step, and their "
                "gradients are not there",
                where=loaded.manifest.name,
                hint="save after a step, or save the gradients with the state and put them back",
            )

    def _parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """All parameters of governed models by name, the model's number in front."""
        assert self.guard is not None
        return {
            f"{number}.{name}": parameter
            for number, model in enumerate(self.guard.models.models)
            for name, parameter in model.named_parameters()
        }

    def _same_weights(self, loaded: LoadedState, overrides: Overrides) -> list[Check]:
        """Compare the weights that the loop has put back with the fingerprints of its checkpoint.

        An heir's loop may take over some of them only.
        """
        assert self.fingerprints is not None
        assert self.state is not None
        inherited = loaded.manifest.inherited
        block = dict(loaded.manifest.meta.get("governance") or {})
        if inherited:
            block.pop("spectral", None)
        else:
            self.state.conformance = block.get("conformance")  # until a probe measures it again
        parameters = self._parameters()
        return self.fingerprints.compare(
            block, parameters, [], None, overrides, inherited=inherited
        )

    def _open(self, origin: Manifest | None, checks: Sequence[Check]) -> None:
        """Open the ledger of this attempt behind what it goes on from."""
        for one in checks if self._session.ranks.chief else ():
            if one.outcome in ALARMS:
                say(f"{one.code} {one.outcome}: {RESUME_CODES[one.code]}: {one.detail}")
        said = [dataclasses.asdict(one) for one in checks]
        self._session.tracker.record("governance", checks=said)
        if self.accounts is None or self.state is None:
            return
        heir = origin is not None and origin.inherited
        self.accounts.begin(
            origin,
            self._units(0 if origin is None else origin.step),
            checks,
            self.state.inherited if heir else None,
        )
        self.accounts.admit(None, None, {})
        self.accounts.changed(self.state.applied)

    def _units(self, step: int) -> Units:
        assert self.guard is not None
        exposure = self.guard.exposure
        return Units(step, sum(exposure.rows.values()) + exposure.dropped)

    def reported(self, step: int, group: str, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """The loop has trained so many steps, and reports: metrics with those of governance."""
        if self.guard is None or not self._session.governed:
            return metrics
        if self._ready and self.accounts is not None:
            self.accounts.stepped(self._units(step))
        if group != "validation":
            return metrics
        metrics = {**metrics, **self.metrics()}
        if self._ready and self.accounts is not None:
            self.accounts.evaluated(metrics)
        return metrics

    def save(
        self, step: int, shared: dict[str, Any], meta: ManifestMeta, *, alone: bool
    ) -> Attest | None:
        """Put the account into a checkpoint of a loop of one's own; nothing without a policy.

        Args:
            step: of the checkpoint; ``shared``: its state; ``meta``: of its manifest.
            alone: rank 0 saves; else all ranks call together.

        Raises:
            UsageError: rank 0 saves alone before the first batch.
        """
        if self.state is None:
            return None
        if alone and not self._ready and self._session.ranks.world > 1:
            raise UsageError(
                "rank 0 saves alone, and the ranks have not verified the policy yet",
                where="checkpoint.store_path",
                hint="call context.governance.verify() on all ranks before",
            )
        self.verify()
        shared["governance"] = self.state.encode()
        summary = meta["governance"] = self.state.summary()
        if self.fingerprints is not None and not alone:
            prints = self.fingerprints.take(
                self._parameters(), [], None, when="always", state=shared["governance"]
            )
            # what the loop does with states of optimizers is not known
            summary |= {name: prints[name] for name in ("software", "spectral") if name in prints}
        if self.accounts is None:
            return None
        self.accounts.stepped(self._units(step))
        return self.accounts.checkpointed(step, shared["governance"], summary)

    def conclude(self) -> None:
        """The loop has ended well."""
        if self._loaded is not None:
            self.verify()
        if self._ready and self.accounts is not None:
            self.accounts.close()
