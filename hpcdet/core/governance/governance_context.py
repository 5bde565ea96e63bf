"""``context.governance``: training under the experiment's policy, for loops of one's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hpcdet.checkpoint import LoadedState
from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Order
from hpcdet.data.sourced import SourceTable
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.process.console import say
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.trials.parents import Parent
from hpcdet.train.attempt.session import Session

if TYPE_CHECKING:  # imported where there is a policy only
    from hpcdet.guard.accounts.attempt_accounts import AttemptAccounts
    from hpcdet.guard.guard import Guard
    from hpcdet.guard.keyed_records import Losses
    from hpcdet.guard.memorization_tests import MemorizationTests
    from hpcdet.guard.resume.fingerprints import Fingerprints
    from hpcdet.guard.resume.governance_state import GovernanceState
    from hpcdet.guard.resume.resume_verdicts import Overrides
    from hpcdet.guard.stepping.step_watch import StepWatch
    from hpcdet.policy.compiled import CompiledPolicy
    from hpcdet.policy.provenance.source_provenance import SourceProvenance


class GovernanceContext:
    """The policy of the experiment, if it has one.

    Attributes:
        guard: what enforces it on this rank; None without a policy.
        state: what of it outlives this attempt; None without a policy.
        accounts: the ledger of this attempt; None without a policy.
        fingerprints: of weights and states in checkpoints; None without a policy.
    """

    guard: Guard | None = None
    state: GovernanceState | None = None
    accounts: AttemptAccounts | None = None
    fingerprints: Fingerprints | None = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watch: StepWatch | None = None
        if session.config.governance is not None:
            self._begin(session, session.config.governance)

    def _begin(self, session: Session, named: Governance) -> None:
        """Take up the policy that the config names by its digest."""
        from hpcdet.guard.accounts.attempt_accounts import AttemptAccounts
        from hpcdet.guard.guard import Guard
        from hpcdet.guard.resume.active_chains import ActiveChains
        from hpcdet.guard.resume.deciding import decide
        from hpcdet.guard.resume.fingerprints import Fingerprints
        from hpcdet.guard.resume.governance_state import GovernanceState
        from hpcdet.guard.stepping.step_watch import StepWatch

        experiment = session.place.experiment
        assert experiment is not None  # where a script runs alone its config has all defaults
        trial, chief = session.place.trial, session.ranks.chief
        decided = decide(trial, experiment, named, session.peers, chief=chief)
        policy, ended = decided.policy, decided.ended
        _refuse_compression(policy, session.config.optimizations.gradient_compression)
        codes = {act["code"] for act in decided.overrides(session.record.number)}
        how = {"deep": named.data == "all", "without": ended, "tolerant": "G111" in codes}
        found = _provenance(session, policy, experiment.code, how)
        self.guard = Guard(policy, session.device, session.peers.allgather)
        self.state = GovernanceState(self.guard, ActiveChains(policy, found, ended), decided)
        ranks, gather = session.ranks, session.peers.allgather
        self.fingerprints = Fingerprints(self.guard, ranks.rank, ranks.world, gather)
        self.accounts = AttemptAccounts(self.guard, session, named, decided)
        self._watch = StepWatch(self._refuse_step, self.guard.optimizers.accounted)

    def _refuse_step(self) -> None:
        self._session.refuse_ungoverned()
        raise PolicyRefused(
            "P15",
            "an optimizer steps, and nothing has divided its gradients by what layers admit",
            where="optimizer.step()",
            hint="call context.step_optimizer(optimizer), or governance.step(optimizer) in a loop "
            "of your own",
        )

    def close(self) -> None:
        """The attempt is over in this process."""
        if self._watch is not None:
            self._watch.close()

    def take(self, model: torch.nn.Module) -> None:
        """Route the gradients of a model that learns; nothing without a policy.

        Raises:
            PolicyRefused: its parameters are not each in one layer, or it cannot be routed.
        """
        if self.guard is not None:
            self.guard.take(model)
            self._session.governed = True
            for line in self.guard.models.maps[-1].torn(self.guard.policy):
                if self._session.ranks.chief:
                    say(line)

    def overrides(self, loaded: LoadedState) -> Overrides:
        """The overrides in effect where the trial goes on from this checkpoint.

        One of another experiment has seen other changes: all of this one's count for it.
        """
        from hpcdet.guard.resume.resume_verdicts import Overrides

        assert self.state is not None
        record, saved = self._session.record, loaded.shared.get("governance")
        parent = Parent.parse(record.parent) if loaded.manifest.inherited else None
        abroad = parent is not None and parent.experiment != ""
        made = 0 if abroad or not isinstance(saved, dict) else int(saved.get("changes", 0))
        decided = self.state.decided
        others = {act["code"]: act["number"] for act in decided.overrides(record.number)}
        return Overrides(decided.overriding(record.number, made, loaded.manifest.step), others)

    def test_memorization(
        self, order: Order | BatchOrder | None, sources: SourceTable | None
    ) -> MemorizationTests | None:
        """Choose the twins and canaries that the policy asks for.

        Args:
            order: of all training data; None: they have no indices.
            sources: of each record by its index; None: nothing says them.

        Returns:
            None if it asks for none.

        Raises:
            PolicyRefused: there are too few records or codes, or the data have no indices (P14), or
                there is no key or another one than the experiment has committed to (P10).
        """
        if self.guard is None or self.state is None:
            return None
        memory = self.guard.policy.memorization
        if memory is None or not memory.tested:
            return None
        if order is None or sources is None:
            raise PolicyRefused(
                "P14",
                "twins and canaries have places in an order by index, and these data have none"
                if order is None
                else "the data do not say which source each sample is from",
                where="build_training_data_loader",
                hint="give hpcdet.pytorch.DataLoader a data set with __len__, __getitem__ and "
                "sources; or leave memorization out of the policy",
            )
        from hpcdet.guard.memorization_tests import MemorizationTests
        from hpcdet.policy.memorization.planned_tests import PlannedTests

        config, trial = self._session.config, self._session.record.number
        planned, alpha = PlannedTests.of(config), memory.alpha
        self.state.tests = MemorizationTests.of(
            self.guard.policy,
            self._twin_key(),
            order,
            sources,
            lambda look, tested: planned.level(alpha, trial, look, tested),
        )
        return self.state.tests

    def _twin_key(self) -> bytes:
        from hpcdet.policy import experiment_policy
        from hpcdet.policy.memorization import twin_keys

        named, experiment = self._session.config.governance, self._session.place.experiment
        assert named is not None
        assert experiment is not None
        key = experiment_policy.key(experiment, named, "twin_key").encode()
        if named.commitment and not twin_keys.reveals(key, named.commitment):
            raise PolicyRefused(
                "P10",
                "the twin key is not the one that the experiment has committed to",
                where="governance.twin_key",
                hint="put back the key that was there at submission, or fork the experiment",
            )
        return key

    def metrics(self, losses: Losses | None = None) -> dict[str, float]:
        """Return the metrics of governance, ``gov.…``; none without a policy.

        Args:
            losses: of twins and canaries, at this validation; None: there are none.
        """
        if self.state is None:
            return {}
        found = self.state.metrics(losses)
        for kind, evidence in self.state.tests.evidence() if losses is not None else ():
            self._session.tracker.record("governance", event=kind, **evidence)
        return found


def _refuse_compression(policy: CompiledPolicy, compression: str | bool) -> None:
    """Refuse gradients that reach a step other than the one whose rows they are of.

    Raises:
        PolicyRefused: PowerSGD keeps parts of them back, and the policy routes (P15).
    """
    if compression == "powersgd" and (policy.weights() < 1).any():
        raise PolicyRefused(
            "P15",
            "powersgd keeps parts of gradients back and adds them to later ones, which are "
            "divided by what other batches admit, or dropped",
            where="optimizations.gradient_compression",
            hint="send gradients as bf16 or fp16, or as they are",
        )


def _provenance(
    session: Session, policy: CompiledPolicy, folder: Path, how: Mapping[str, Any]
) -> list[SourceProvenance]:
    """Verify the chains and data that a policy names, on rank 0; all ranks call together.

    Args:
        how: options of ``source_provenance.verified``.

    Raises:
        GovernanceBroken: as ``source_provenance.verified``, on all ranks.
    """
    from hpcdet.policy.provenance import source_provenance

    mine: dict[str, Any] = {}
    if session.ranks.chief:
        try:
            found = source_provenance.verified(policy, folder, **how)
            mine["sources"] = [dataclasses.asdict(one) for one in found]
        except GovernanceBroken as error:
            mine["broken"] = [error.check, error.what.partition(": ")[2], error.where, error.hint]
    told = session.peers.broadcast(mine)
    if "broken" in told:
        code, what, where, hint = told["broken"]
        raise GovernanceBroken(code, what, where=where, hint=hint)
    return [source_provenance.SourceProvenance(**one) for one in told["sources"]]
