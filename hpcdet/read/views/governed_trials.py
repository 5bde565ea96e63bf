"""Views of trials under a policy: permissions, exposure, and measurements."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcdet.errors import IntegrityError
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.trials import manifests
from hpcdet.store.trials.standing import latest_checkpoint

if TYPE_CHECKING:  # other verbs on policies need neither journals nor numpy
    from hpcdet.read.experiment.gather import Gathered, GatheredTrial


@dataclass(frozen=True)
class CheckView:
    """A check of a resume."""

    attempt: int
    """The attempt that made it."""
    number: int
    """Its number in the reference."""
    code: str
    """Its G code."""
    outcome: str
    """``passed``, ``recorded`` or ``unknown``; a check that fails stops the trial."""
    detail: str
    """What was found."""


@dataclass(frozen=True)
class RollbackView:
    """Steps that were trained and lost, since the trial went on from an earlier checkpoint."""

    attempt: int
    """The attempt that went on."""
    lost: int
    """The step up to which the trial had been trained."""
    to: int
    """The step it went on from."""


@dataclass(frozen=True)
class MeasuredView:
    """Norms of each source's own gradient in each layer, on some rows of one batch."""

    step: int
    """Batches trained before."""
    sources: list[str]
    """The kinds of rows that the batch had: a source, or several joined by ``+``."""
    layers: list[str]
    """Layers of the model."""
    routed: list[list[float]]
    """As it was routed, by source and layer: exactly 0 where the policy denies it."""
    unrouted: list[list[float]]
    """As it would have been without routing."""


@dataclass(frozen=True)
class GovernanceView:
    """A trial under a policy."""

    trial: int
    """The trial's number."""
    step: int
    """Batches trained at the last checkpoint, of which the counts are."""
    assurance: str
    """``direct``, ``state_clean`` or ``isolated``."""
    policy_digest: str
    """Digest of the compiled policy."""
    sources: list[str]
    """Sources, in the order of their codes."""
    layers: list[str]
    """Layers, in the order of the policy."""
    matrix: list[list[float]]
    """Weights, by source and layer."""
    exposure: list[list[float]]
    """Rows times weight that each source had in each layer."""
    rows: dict[str, int]
    """Rows that were trained, by source; ``a+b`` of several."""
    coverage: list[float | None]
    """The share of each layer's exposure that comes from complete chains; null without exposure."""
    admission: float | None
    """The share of rows that the policy did not drop; null before any."""
    conformance: float | None
    """The least conformance of a source, measured; null if it was not."""
    violations: int | None
    """Sources and layers with a gradient that the policy denies, over all probes; null: none was
    made."""
    entropy: list[float | None]
    """Entropy of each layer's sources in [0, 1]; null without exposure."""
    memorization: dict[str, float] | None
    """Advantage by source; null if it is not measured."""
    complete: bool
    """False if the weights have a history that is not known."""
    measured: list[MeasuredView]
    """All probes, in order."""
    checks: list[CheckView]
    """Checks of all resumes."""
    rollbacks: list[RollbackView]
    """Steps that were trained and lost."""
    chains: list[str]
    """Provenance chains that are complete and active."""


def governance(source: ExperimentPaths | Gathered, trial: int = 0) -> list[GovernanceView]:
    """Return an item for each trial under the experiment's policy; none without a policy.

    Args:
        trial: only this one; 0 means all.

    Raises:
        GovernanceBroken: the policy is not what was written.
    """
    from hpcdet.read.experiment.gather import gather

    gathered = gather(source)
    if gathered.config.governance is None:
        return []
    policy = CompiledPolicy.load(gathered.paths.compiled_policy)
    chosen = [one for one in gathered.trials if trial in (0, one.number)]
    return [_view(one, policy) for one in chosen]


def _view(trial: GatheredTrial, policy: CompiledPolicy) -> GovernanceView:
    from hpcdet.policy import measures

    step, block = _block(trial)
    sources = [one.id for one in policy.sources]
    matrix = [list(row) for row in policy.matrix]
    exposure = block.get("exposure") or [[0.0] * len(policy.layers) for _ in sources]
    rows, dropped = dict(block.get("rows") or {}), int(block.get("dropped") or 0)
    total = sum(rows.values()) + dropped
    lines = [
        (attempt.number, line)
        for attempt in trial.attempts
        for line in attempt.of_kind("governance")
    ]
    measured = [_measured(line) for _, line in lines if line.get("event") == "probe"]
    found = [_conforms(one, policy, block.get("parameters", {})) for one in measured]
    least = [one for each in found for one in each[0] if not math.isnan(one)]
    return GovernanceView(
        trial=trial.number,
        step=step,
        assurance=policy.assurance,
        policy_digest=policy.digest,
        sources=sources,
        layers=[one.id for one in policy.layers],
        matrix=matrix,
        exposure=exposure,
        rows=rows,
        coverage=_known(measures.coverage(exposure, [False] * len(sources)).tolist()),
        admission=measures.admission(total - dropped, dropped) if total else None,
        conformance=min(least, default=None),
        violations=sum(each[1] for each in found) if measured else None,
        entropy=_known(measures.source_entropy(exposure).tolist()),
        memorization=None,
        complete=bool(block.get("complete", True)),
        measured=measured,
        checks=[
            CheckView(attempt, **{key: one[key] for key in ("number", "code", "outcome", "detail")})
            for attempt, line in lines
            for one in line.get("checks", ())
        ],
        rollbacks=_rollbacks(trial),
        chains=[],
    )


def _block(trial: GatheredTrial) -> tuple[int, Mapping[str, Any]]:
    """The last checkpoint's step and its summary of governance; empty if there is none."""
    name = latest_checkpoint(trial.paths)
    for place in trial.paths.checkpoint_places if name else ():
        with contextlib.suppress(IntegrityError, OSError):
            meta = manifests.read(place / name)["meta"]
            return int(meta.get("batches", 0)), meta.get("governance", {})
    return 0, {}


def _measured(line: Mapping[str, Any]) -> MeasuredView:
    return MeasuredView(line["step"], line["sources"], line["layers"], line["on"], line["off"])


def _conforms(
    one: MeasuredView, policy: CompiledPolicy, sizes: Mapping[str, int]
) -> tuple[list[float], int]:
    """Conformance of each kind of rows in a probe, and its violations."""
    from hpcdet.policy import measures

    weights = [_weights(kind, one.layers, policy) for kind in one.sources]
    counts = [sizes.get(layer, 1) for layer in one.layers]
    found = measures.conformance(one.routed, one.unrouted, weights, counts)
    denied = zip(weights, one.routed, strict=True)
    leaks = sum(w == 0 and norm != 0 for row in denied for w, norm in zip(*row, strict=True))
    return found.tolist(), leaks


def _known(values: Iterable[float]) -> list[float | None]:
    return [None if math.isnan(one) else one for one in values]


def _weights(kind: str, layers: Sequence[str], policy: CompiledPolicy) -> list[float]:
    """Weights of a kind of rows in layers of a model; of several sources or layers the least."""
    places = {one.id: place for place, one in enumerate(policy.layers)}
    rows = [policy.matrix[policy.codes[name]] for name in kind.split("+")]
    return [min(row[places[name]] for row in rows for name in layer.split("+")) for layer in layers]


def _rollbacks(trial: GatheredTrial) -> list[RollbackView]:
    reached, found = 0, []
    for attempt in trial.attempts:
        for line in attempt.of_kind("start"):
            begun = int(line["batches"])
            if begun < reached:
                found.append(RollbackView(attempt.number, reached, begun))
        reached = max(reached, attempt.position or 0)
    return found
