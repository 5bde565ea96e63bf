"""The state of a guard in a checkpoint, and its verification before training goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hpcdet.data.sample_order import CountedOrder
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.guard import Guard
from hpcdet.guard.keyed_records import Losses
from hpcdet.guard.memorization_tests import MemorizationTests
from hpcdet.guard.resume import policy_eras
from hpcdet.guard.resume.active_chains import ActiveChains
from hpcdet.guard.resume.closed_layers import Digests, Models, digests, unchanged, without_moments
from hpcdet.guard.resume.exposure_entropy import PlannedEntropy
from hpcdet.guard.resume.policy_eras import EraRows, PolicyEra
from hpcdet.guard.resume.resume_verdicts import (
    NO_OVERRIDES,
    SCHEMA,
    Check,
    Overrides,
    State,
    broken,
    unproven,
)
from hpcdet.guard.resume.same_policy import ended_sources, forget_denied, policy_before, same_policy
from hpcdet.guard.resume.same_rows import same_rows
from hpcdet.guard.resume.same_tests import same_tests
from hpcdet.policy.changes.policy_in_effect import PolicyInEffect
from hpcdet.policy.compiled import CompiledPolicy, Matrix
from hpcdet.policy.governed_metrics import ADMISSION, CONFORMANCE, COVERAGE, VIOLATIONS
from hpcdet.policy.measures import admission, conformance, overall_conformance

KEY = "governance"
"""Of the state in a checkpoint's shared state, and of its summary in the manifest's meta."""


class GovernanceState:
    """The part of a trial's governance that outlives an attempt.

    Attributes:
        begun: samples that were seen when this trial's own data began; of an heir those of its
            parent.
        inherited: what the parent was trained on up to there.
        complete: the history of the weights is known from their beginning.
        tests: of memorization, by records of the trial's data.
        chains: the provenance of the sources.
        planned: how evenly layers are to learn from the sources.
        conformance: as the last probe has measured it, in [0, 1]; None before one.
        decided: the policy in effect, and how it came to be.
        eras: what was trained under other policies before.
        applied: what has changed under the policy since what the attempt goes on from.
    """

    def __init__(
        self,
        guard: Guard,
        chains: ActiveChains | None = None,
        decided: PolicyInEffect | None = None,
    ) -> None:
        self.chains = chains or ActiveChains(guard.policy)
        self.planned = PlannedEntropy(guard)
        self.conformance: float | None = None
        self.chains.trained = self._trained
        self.decided = decided or PolicyInEffect.of(guard.policy)
        self.eras: list[PolicyEra] = []
        self.applied: list[Mapping[str, Any]] = self.decided.since(0, {})
        self.begun = 0
        self.inherited = Exposure()
        self.complete = True
        self.tests = MemorizationTests()
        self._guard = guard
        self._forbidden: Digests = {}
        self._left: CompiledPolicy | None = None

    def start(self, parameters: Models) -> list[Check]:
        """A trial begins: remember what the layers hold that nothing may change.

        Returns:
            What is recorded of the policy in effect.
        """
        self._forbidden = digests(self._guard, parameters)
        return ended_sources(self.decided) if self.decided.dropped else []

    def exposure(self) -> Matrix:
        """E by the policies that were in effect, float64[sources, layers of the policy].

        Behind the sources of the policy stand those of other policies that were trained before.
        """
        return policy_eras.matrix(self._trained(self._guard.exposure))

    def _trained(self, exposure: Exposure) -> list[EraRows]:
        policy = self._guard.policy
        return policy_eras.rows_by_era(self.eras, exposure, policy, self.begun, self.inherited)

    def encode(self) -> State:
        """The state for a checkpoint, equal on all ranks; all call together."""
        guard = self._guard
        policy = guard.policy
        return {
            "schema": SCHEMA,
            "policy": policy.digest,
            "compiled": policy.to_json(),
            "layers": [one.encode() for one in guard.models.maps],
            "exposure": guard.exposure.encode(),
            "E": self.exposure(),
            "eras": [one.encode() for one in self.eras],
            "dropped": dict(self.decided.dropped),
            "changes": len(self.decided.acts),
            "begun": self.begun,
            "inherited": self.inherited.encode(),
            "complete": self.complete,
            "windows": guard.optimizers.encode(),
            "forbidden": dict(self._forbidden),
            **self.tests.encode(),
            "chains": self.chains.encode(guard.exposure),
            "expected": self.planned.encode(self._trained(guard.exposure)),
        }

    def probed(self, found: Mapping[str, Any]) -> None:
        """Take the conformance that a probe has measured, over all sources by their rows.

        Args:
            found: ``sources``: kinds of rows; ``on`` and ``off``: norms of their gradients in each
                layer of the models, with routing and without.
        """
        guard, kinds = self._guard, found["sources"]
        weights = [guard.matrix[guard.kinds.names.index(one)] for one in kinds]
        sizes = [guard.models.sizes()[layer] for layer in found["layers"]]
        each = conformance(found["on"], found["off"], weights, sizes)
        whole = overall_conformance(each, [guard.exposure.rows[one] for one in kinds])
        self.conformance = None if math.isnan(whole) else whole

    def metrics(self, losses: Losses | None = None) -> dict[str, float]:
        """Metrics of a validation: of the whole trial, and never of users' code.

        Args:
            losses: of twins and canaries; None: they were not measured.

        A probe that finds a violation ends the trial: one that validates has none. Conformance is
        that of the last probe, and absent before the first one.
        """
        exposure = self._guard.exposure
        total = sum(exposure.rows.values()) + exposure.dropped
        admitted = admission(total - exposure.dropped, exposure.dropped) if total else 1.0
        covered = self.chains.least(exposure, known=self.complete)
        found = {COVERAGE: covered, VIOLATIONS: 0.0, ADMISSION: admitted}
        if self.conformance is not None:
            found[CONFORMANCE] = self.conformance
        return found if losses is None else found | self.tests.judge(losses)

    def summary(self) -> dict[str, Any]:
        """The summary in the manifest's meta, for readers who do not open the state."""
        guard = self._guard
        policy, trained = guard.policy, self._trained(guard.exposure)
        return {
            "policy_digest": policy.digest,
            "assurance": policy.assurance,
            "sources": policy_eras.sources(trained),
            "layers": [one.id for one in policy.layers],
            "exposure": policy_eras.matrix(trained).tolist(),
            "rows": guard.exposure.encode()["rows"],
            "dropped": guard.exposure.dropped,
            "complete": self.complete,
            "parameters": guard.models.sizes(),
            **self.tests.encode(),
            **self.chains.summary(guard.exposure),
            **self.planned.summary(trained),
            "conformance": self.conformance,
        }

    def load(
        self,
        state: Any,
        parameters: Models,
        *,
        records: int,
        order: CountedOrder | None,
        inherited: bool,
        overrides: Overrides = NO_OVERRIDES,
    ) -> list[Check]:
        """Verify a checkpoint's state and go on from it; the weights have been put back.

        Args:
            parameters: of the models, by name.
            records: samples that the checkpoint says were seen.
            order: of this trial's data; None: its code names their rows.
            inherited: it is another trial's.
            overrides: what somebody answers for.

        Raises:
            GovernanceBroken: a check has failed that stops the trial.
        """
        if state is None:
            if not inherited:
                raise broken("G101", "it has no governance state, and the trial has a policy")
            self.complete, self.begun = False, records
            same_tests(self.tests, {}, overrides, inherited=True)
            begun = [*self.start(parameters), *self.chains.checks(overrides)]
            return [*begun, Check(1, "G101", "unknown", "the parent was trained without a policy")]
        if not isinstance(state, dict) or state.get("schema") != SCHEMA:
            raise broken("G101", "the version of its governance state is unknown")
        checks = [Check(1, "G101", "passed")]
        checks += same_tests(self.tests, state, overrides, inherited=inherited)
        before, dropped = policy_before(state), dict(state["dropped"])
        made = 0 if inherited else int(state["changes"])
        checks += same_policy(self.decided, before, dropped, made, inherited=inherited)
        self.applied = self.decided.since(made, dropped)
        for found, saved in zip(self._guard.models.maps, state["layers"], strict=False):
            found.check(saved)
        if len(self._guard.models.maps) != len(state["layers"]):
            raise broken("G109", "it is of another number of models")
        checks.append(Check(9, "G109", "passed"))
        self.complete = bool(state["complete"])
        exposure = Exposure.decode(state["exposure"])
        self.eras = [PolicyEra.decode(one) for one in state["eras"]]
        chains = state.get("chains", ())
        checks += self.chains.load(chains, exposure, overrides, inherited=inherited)
        if inherited:
            self.begun, self.inherited = records, Exposure.decode(state["exposure"])
        else:
            self.begun, self.inherited = state["begun"], Exposure.decode(state["inherited"])
            expected = policy_eras.matrix(policy_eras.rows_by_era(self.eras, exposure, before))
            rows = same_rows(
                self._guard,
                self.inherited,
                exposure,
                state,
                self.begun,
                records,
                order,
                expected=expected,
                overrides=overrides,
            )
            since = self.begun, self.inherited
            rows += policy_eras.verify(
                self.eras, self.decided, self._guard, order, *since, overrides
            )
            if any(one.outcome == "overridden" for one in rows):  # from here on they are proven
                self.begun, self.inherited = records, Exposure.decode(state["exposure"])
            checks += rows
            self._guard.optimizers.load(state["windows"])
        self._guard.exposure = exposure
        known = dict(state["forbidden"])
        alike = [one.id for one in before.layers] == [one.id for one in self._guard.policy.layers]
        closed = digests(self._guard, parameters, before if alike else None)
        checks += unchanged(known, closed)
        without_moments(self._guard, known, parameters)
        if before.digest != self._guard.policy.digest:
            rest = policy_eras.rest_of(self.eras, exposure)
            self.eras.append(PolicyEra(before, dropped, rest, records))
            self._left = before
        checks += self.planned.check(self._trained(exposure), overrides)
        now = digests(self._guard, parameters)
        self._forbidden = now if inherited else {name: known.get(name, now[name]) for name in now}
        return checks

    def judge(self, checks: Iterable[Check]) -> None:
        """All checks are made: what they leave unproven of the weights' history is not known."""
        self.complete = self.complete and not unproven(checks)

    def settle(self) -> list[Check]:
        """After all that was put back was verified: optimizers forget what a source may do no more.

        Returns:
            What is recorded of it; nothing where the policy is the same.
        """
        before, self._left = self._left, None
        return [] if before is None else forget_denied(self._guard, before)
