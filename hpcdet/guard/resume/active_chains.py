"""The provenance chains of a trial, the coverage that they give, and check 11 of a resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdet.data.sourced import record_of
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.resume import policy_eras
from hpcdet.guard.resume.policy_eras import EraRows
from hpcdet.guard.resume.resume_verdicts import NO_OVERRIDES, Check, Overrides, State, broken
from hpcdet.policy import measures
from hpcdet.policy.compiled import MIX, CompiledPolicy
from hpcdet.policy.provenance.source_manifests import spot_check
from hpcdet.policy.provenance.source_provenance import SourceProvenance

_KEPT = ("source", "head", "root", "agreement", "expires")


class ActiveChains:
    """The sources with a complete chain: what a trial was trained on of them is covered.

    A source of which the trial, or its parent, was trained on other data before, or on data whose
    chain was not complete, is not covered.

    Attributes:
        verified: what was found at the beginning of this attempt, by source; equal on all ranks.
        trained: rows divided by the policies under which they were trained.
    """

    def __init__(
        self,
        policy: CompiledPolicy,
        verified: Sequence[SourceProvenance] = (),
        ended: Collection[str] = (),
    ) -> None:
        """``ended``: sources that are trained no more.

        Theirs, and those of sources that the policy does not name, are as they were before.
        """
        self._policy, self._ended = policy, frozenset(ended)
        self.trained: Callable[[Exposure], list[EraRows]] = lambda exposure: (
            policy_eras.rows_by_era((), exposure, policy)
        )
        self.verified = {one.source: one for one in verified}
        self._held = {one.source: _kept(one) for one in verified if one.complete}

    def differing(self, dataset: Any, indices: Iterable[int]) -> tuple[int, list[str]]:
        """Compare a few samples' records, as the training reads them, with the manifests.

        Returns:
            How many could be compared, and a line for each that differs.

        Raises:
            GovernanceBroken: a record has a number that its manifest does not list (G111).
        """
        compared, wrong = 0, []
        for index in indices:
            told = record_of(dataset, int(index))
            known = self.verified.get(told[0]) if told is not None else None
            if told is None or known is None or not known.digests:
                continue
            compared += 1
            wrong += _differs(known, *told[1:])
        return compared, wrong

    def encode(self, exposure: Exposure) -> list[State]:
        """The complete chains for the state; ``active``: rows of the source were trained."""
        trained = {name for kind in exposure.rows for name in kind.split(MIX)}
        return [
            {**kept, "active": source in trained} for source, kept in sorted(self._held.items())
        ]

    def load(
        self,
        saved: Sequence[State],
        exposure: Exposure,
        overrides: Overrides = NO_OVERRIDES,
        *,
        inherited: bool,
    ) -> list[Check]:
        """Compare with the chains of a checkpoint.

        Args:
            exposure: what the checkpoint has counted.
            inherited: it is another trial's, whose policy may have named other chains.

        Raises:
            GovernanceBroken: a chain that was complete is no more, or is another one (G111).
        """
        checks: list[Check] = []
        before = {one["source"]: {key: one[key] for key in _KEPT} for one in saved}
        over = {one for one in before if one in self._ended or one not in self._policy.codes}
        self._held |= {source: before[source] for source in over}
        for source, known in before.items() if not inherited else ():
            checks += self._same(source, known, overrides)
        trained = {name for kind in exposure.rows for name in kind.split(MIX)}
        self._held = {
            source: kept
            for source, kept in self._held.items()
            if source not in trained or _data(before.get(source)) == _data(kept)
        }
        return [*checks, *self.checks(overrides)]

    def _same(self, source: str, known: State, overrides: Overrides) -> list[Check]:
        named = next((one.chain for one in self._policy.sources if one.id == source), None)
        if named is None or named.digest != known["head"]:
            return []  # the policy was changed, which needs approvals
        now = self._held.get(source)
        found = self.verified.get(source)
        if _data(now) == _data(known) or (found and found.failed):
            return []  # what has failed is told by ``checks``
        why = found.reason if found and found.reason else "it was another one"
        wrong = broken(
            "G111",
            f"the provenance chain of source {source} was complete: {why}",
            hint="put the chain and its signatures back from a backup",
        )
        return [overrides.settle(11, wrong)]

    def checks(self, overrides: Overrides = NO_OVERRIDES) -> list[Check]:
        """The outcome of check 11: ``recorded`` where a source is not covered.

        Raises:
            GovernanceBroken: G111: what was found of a source stops the trial.
        """
        if failed := "; ".join(one.failed for one in self.verified.values() if one.failed):
            hint = "put the data and their chain back from a backup"
            return [overrides.settle(11, broken("G111", failed, hint))]
        lacking = [
            f"{source} is not covered: {one.reason or 'it was trained on other data before'}"
            for source, one in sorted(self.verified.items())
            if source not in self._held
        ]
        if lacking:
            return [Check(11, "G111", "recorded", "; ".join(lacking))]
        return [Check(11, "G111", "passed", f"{len(self._held)} chains")]

    def overall(self, exposure: Exposure) -> float:
        """C: the share of rows from complete chains, in [0, 1]; NaN without rows."""
        rows = exposure.rows
        held = [all(name in self._held for name in kind.split(MIX)) for kind in rows]
        return measures.overall_coverage(list(rows.values()), held) if rows else math.nan

    def of_layers(self, exposure: Exposure) -> list[float]:
        """C_l of each layer of the policy; NaN of one without exposure."""
        trained = self.trained(exposure)
        held = [one in self._held for one in policy_eras.sources(trained)]
        found: list[float] = measures.coverage(policy_eras.matrix(trained), held).tolist()
        return found

    def least(self, exposure: Exposure, *, known: bool) -> float:
        """The coverage that ``coverage.min`` bounds, in [0, 1]: of the least layer, or of all rows.

        1 before anything was trained, and 0 where the history of the weights is not known.
        """
        if not known:
            return 0.0
        per_layer = self._policy.coverage.per_layer
        found = self.of_layers(exposure) if per_layer else [self.overall(exposure)]
        return min((one for one in found if not np.isnan(one)), default=1.0)

    def summary(self, exposure: Exposure) -> dict[str, Any]:
        """``coverage`` and ``chains`` for the manifest's meta; null where there is no exposure."""
        overall = self.overall(exposure)
        active = {one["source"]: one["active"] for one in self.encode(exposure)}
        return {
            "coverage": {
                "overall": None if math.isnan(overall) else overall,
                "layers": [None if math.isnan(one) else one for one in self.of_layers(exposure)],
            },
            "chains": [
                {
                    **_kept(one),
                    "complete": source in active,
                    "active": active.get(source, False),
                    "reason": one.reason,
                    "links_verified": one.links_verified,
                    "links_required": one.links_required,
                }
                for source, one in sorted(self.verified.items())
                if one.head
            ],
        }


def _differs(known: SourceProvenance, number: int, data: bytes) -> list[str]:
    try:
        return spot_check(
            known.source, known.records, Path(known.digests), lambda _: data, [number]
        )
    except OSError as error:
        return [f"{known.digests}: {error.strerror}"]


def _kept(one: SourceProvenance) -> State:
    return {key: getattr(one, key) for key in _KEPT}


def _data(kept: State | None) -> tuple[str, str] | None:
    return None if kept is None else (kept["head"], kept["root"])
