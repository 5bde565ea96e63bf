"""The state of a guard in a checkpoint, and its verification before training goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Order
from hpcdet.guard.exposure import Exposure
from hpcdet.guard.guard import Guard
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.governed_metrics import ADMISSION, COVERAGE, VIOLATIONS
from hpcdet.policy.measures import admission
from hpcdet.policy.weight_changes import differences, kind_of

KEY = "governance"
"""Of the state in a checkpoint's shared state, and of its summary in the manifest's meta."""
SCHEMA = 1

State = dict[str, Any]
Models = Mapping[str, torch.nn.Parameter]


@dataclass(frozen=True)
class Check:
    """A check of a resume.

    Attributes:
        number: in the reference; ``code``: its G code.
        outcome: ``passed``, ``recorded`` or ``unknown``; what stops a trial is raised.
        detail: what was found.
    """

    number: int
    code: str
    outcome: str
    detail: str = ""


class GovernanceState:
    """The part of a trial's governance that outlives an attempt.

    Attributes:
        begun: samples that were seen when this trial's own data began; of an heir those of its
            parent.
        inherited: what the parent was trained on up to there.
        complete: the history of the weights is known from their beginning.
    """

    def __init__(self, guard: Guard) -> None:
        self.begun = 0
        self.inherited = Exposure()
        self.complete = True
        self._guard = guard
        self._forbidden: dict[str, str] = {}

    def start(self, parameters: Models) -> None:
        """A trial begins: remember what the layers hold that nothing may change."""
        self._forbidden = self._digests(parameters)

    def encode(self) -> State:
        """The state for a checkpoint, equal on all ranks; all call together."""
        guard = self._guard
        policy = guard.policy
        return {
            "schema": SCHEMA,
            "policy": policy.digest,
            "compiled": policy.to_json(),
            "layers": [one.encode() for one in guard.maps],
            "exposure": guard.exposure.encode(),
            "E": guard.exposure.matrix(policy),
            "begun": self.begun,
            "inherited": self.inherited.encode(),
            "complete": self.complete,
            "windows": guard.windows(),
            "forbidden": dict(self._forbidden),
        }

    def metrics(self) -> dict[str, float]:
        """Metrics of a validation: of the whole trial, and never of users' code.

        No chain is verified, so that nothing is covered. A probe that finds a violation ends the
        trial: one that validates has none.
        """
        exposure = self._guard.exposure
        total = sum(exposure.rows.values()) + exposure.dropped
        admitted = admission(total - exposure.dropped, exposure.dropped) if total else 1.0
        return {COVERAGE: 0.0, VIOLATIONS: 0.0, ADMISSION: admitted}

    def summary(self) -> dict[str, Any]:
        """The summary in the manifest's meta, for readers who do not open the state."""
        guard = self._guard
        policy = guard.policy
        return {
            "policy_digest": policy.digest,
            "assurance": policy.assurance,
            "sources": [one.id for one in policy.sources],
            "layers": [one.id for one in policy.layers],
            "exposure": guard.exposure.matrix(policy).tolist(),
            "rows": guard.exposure.encode()["rows"],
            "dropped": guard.exposure.dropped,
            "complete": self.complete,
            "parameters": guard.sizes(),
        }

    def load(
        self,
        state: Any,
        parameters: Models,
        *,
        records: int,
        order: Order | BatchOrder | None,
        inherited: bool,
    ) -> list[Check]:
        """Verify a checkpoint's state and go on from it; the weights have been put back.

        Args:
            parameters: of the models, by name.
            records: samples that the checkpoint says were seen.
            order: of this trial's data; None: they have no indices.
            inherited: it is another trial's.

        Raises:
            GovernanceBroken: a check has failed that stops the trial.
        """
        if state is None:
            if not inherited:
                raise _broken("G101", "it has no governance state, and the trial has a policy")
            self.complete, self.begun = False, records
            self.start(parameters)
            return [Check(1, "G101", "unknown", "the parent was trained without a policy")]
        if not isinstance(state, dict) or state.get("schema") != SCHEMA:
            raise _broken("G101", "the version of its governance state is unknown")
        checks = [Check(1, "G101", "passed")]
        checks += self._policy(state, inherited)
        for found, saved in zip(self._guard.maps, state["layers"], strict=False):
            found.check(saved)
        if len(self._guard.maps) != len(state["layers"]):
            raise _broken("G109", "it is of another number of models")
        checks.append(Check(9, "G109", "passed"))
        self.complete = bool(state["complete"])
        exposure = Exposure.decode(state["exposure"])
        if inherited:
            self.begun, self.inherited = records, Exposure.decode(state["exposure"])
        else:
            self.begun, self.inherited = state["begun"], Exposure.decode(state["inherited"])
            checks += self._exposure(exposure, state, records, order)
            self._guard.load_windows(state["windows"])
        self._guard.exposure = exposure
        checks += self._unchanged(state, parameters, inherited)
        return checks

    def _policy(self, state: State, inherited: bool) -> list[Check]:
        """The policy is the one that was in effect (G108), and its weights are (G110)."""
        before = CompiledPolicy.from_json(state["compiled"], "checkpoint")
        now = self._guard.policy
        if before.digest != state["policy"]:
            raise _broken("G110", "its policy's weights are not those of its digest")
        if now.digest == before.digest:
            return [Check(8, "G108", "passed"), Check(10, "G110", "passed")]
        kind = kind_of(differences(before, now))
        if not inherited or kind in ("loosen", "mixed"):
            changes = "; ".join(
                f"{one.source} in {one.layer}: {one.before} to {one.after}"
                for one in differences(before, now)[:3]
            )
            raise _broken(
                "G108",
                f"its policy is another one ({kind}): {changes or before.name}",
                hint="go on under the policy it was made under, or change it by "
                "`hpcdet policy change`, with the approvals it asks for",
            )
        return [Check(8, "G108", "recorded", kind), Check(10, "G110", "passed")]

    def _exposure(
        self, saved: Exposure, state: State, records: int, order: Order | BatchOrder | None
    ) -> list[Check]:
        """The rows that were counted are those that the order of the data gives (G114, G119)."""
        if not np.array_equal(np.asarray(state["E"]), saved.matrix(self._guard.policy)):
            raise _broken("G114", "its exposure is not that of its counts of rows")
        again = None if order is None else self._guard.recount(order, self.begun, records)
        if again is None:
            detail = "the code names the rows of its batches: there is no order to count again"
            return [Check(14, "G114", "unknown", detail), Check(19, "G119", "unknown", detail)]
        again.join(self.inherited)
        total = sum(saved.rows.values()) + saved.dropped
        if total != sum(again.rows.values()) + again.dropped:
            raise _broken(
                "G119",
                f"its position is {records} samples, and it has counted {total}",
                hint="the checkpoint is not of this trial's data, or was changed",
            )
        if again.encode() != saved.encode():
            raise _broken(
                "G114",
                "its counts of rows are not those that the order of the data gives: "
                f"{saved.encode()['rows']}, not {again.encode()['rows']}",
                hint="the sources of the data have changed since, or the checkpoint has",
            )
        return [Check(14, "G114", "passed"), Check(19, "G119", "passed")]

    def _unchanged(self, state: State, parameters: Models, inherited: bool) -> list[Check]:
        """Layers that nothing may change hold what they held at the beginning (G115)."""
        known, now = state["forbidden"], self._digests(parameters)
        changed = sorted(name for name in known if name in now and now[name] != known[name])
        if changed:
            raise _broken(
                "G115",
                f"nothing may change {changed[0]}, and it is not what it was at the beginning",
                hint="a gradient has leaked, or the checkpoint was changed: begin again from one "
                "that `hpcdet ledger verify` accepts",
            )
        self._forbidden = now if inherited else dict(known)
        return [Check(15, "G115", "passed", f"{len(now)} parameters")]

    def _digests(self, parameters: Models) -> dict[str, str]:
        """Digests of the parameters of layers that the policy lets nothing change."""
        weights = self._guard.policy.weights()
        found: dict[str, str] = {}
        for number, layer_map in enumerate(self._guard.maps):
            closed = (layer_map.weights(weights) == 0).all(axis=0).tolist()
            for one in layer_map.parameters:
                name = f"{number}.{one.name}"
                if closed[one.layer] and name in parameters:
                    found[name] = _digest(parameters[name])
        return found


def _digest(parameter: torch.Tensor) -> str:
    whole: Any = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    values = whole.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()


def _broken(code: str, what: str, hint: str = "") -> GovernanceBroken:
    return GovernanceBroken(code, what, where="checkpoint", hint=hint)
