"""Views of trials under a policy: permissions, exposure, and measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hpcdet.goals import RESERVED
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.ledger.records import AttemptLedger
from hpcdet.policy.memorization import canary_evidence, twin_evidence
from hpcdet.policy.memorization.canary_evidence import CanaryEvidence
from hpcdet.policy.memorization.twin_evidence import TwinEvidence
from hpcdet.read.governed.attested_trials import AttestedTrial, GovernedExperiment
from hpcdet.read.governed.routing_cost import RoutingCostView, routing_cost
from hpcdet.read.governed.trained_policies import TrialPolicyChangeView
from hpcdet.store.folder.layout import CHECKPOINT_NAME, ExperimentPaths

if TYPE_CHECKING:  # other verbs on policies need neither journals nor numpy
    from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, GatheredTrial


RECORDED = "permission and exposure, not influence"
"""What the account of a governed model is about."""

RESIDUAL_CHANNELS = (
    "activations: a source that changes one layer changes what other sources teach the next",
    "learning rates and their schedules, chosen by metrics of all data",
    "early stopping, and choosing a checkpoint or a trial, by metrics of all data",
)
"""How a source may influence layers that it is denied; under ``isolated`` the last two only."""


DEPTH = "Restricting a source to some layers reduces memorization and never removes it."
"""What is said beside results on memorization."""


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
    """``passed``, ``recorded``, ``warned``, ``dropped`` (a source), ``unknown``, or ``overridden``:
    it has failed, and a signed record answers for it; else a check that fails stops the trial."""
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
class ChainView:
    """The provenance chain of a source, as it was verified before training."""

    source: str
    """The source."""
    head: str
    """Digest of its last link."""
    complete: bool
    """True if all that is required of it is there and holds."""
    active: bool
    """True if it is complete and records of the source were trained."""
    reason: str
    """Why it is not complete; "" if it is."""


@dataclass(frozen=True)
class GovernedNodesView:
    """The nodes of an attempt."""

    attempt: int
    """The attempt's number."""
    nodes: list[str]
    """Names of its nodes."""
    statement: Literal["signed", "declared", "none"]
    """How they state what the policy requires of them; ``none``: it requires nothing. Each was
    verified before the attempt touched code or data."""


@dataclass(frozen=True)
class GovernanceView:
    """A trial under a policy."""

    trial: int
    """The trial's number."""
    step: int
    """Batches trained at the last checkpoint, of which the counts are."""
    checkpoint: str
    """The name of that checkpoint; "" if there is none."""
    unverified: str
    """Why the account of that checkpoint is not what its ledgers and its signature say, or why that
    cannot be known; "" if it is. What is not verified proves nothing."""
    assurance: str
    """``direct``, ``state_clean`` or ``isolated``; ``none`` of the control of an ablation. The
    least under which its weights were trained, where the policy was changed."""
    statement: Literal["signed", "declared", "none"]
    """How nodes state what the policy requires of them."""
    ablates: str
    """The experiment of which this is the control, trained without routing; "" if it is none."""
    cost: list[RoutingCostView]
    """Of a control: the trial of the same number, with routing and without."""
    records: str
    """What the account is about."""
    residual_channels: list[str]
    """How a source may influence layers that it is denied."""
    policy_digest: str
    """Digest of the compiled policy that was in effect at that checkpoint."""
    changes: list[TrialPolicyChangeView]
    """Records of what was changed under the policy, in order."""
    sources: list[str]
    """Sources, in the order of their codes; behind them others that parents were trained on."""
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
    """Sources and layers with a gradient that the policy denied then, over all probes; null: none
    was made."""
    entropy: list[float | None]
    """Entropy of each layer's sources in [0, 1]; null without exposure."""
    memorization: dict[str, TwinEvidence] | None
    """Twins of the last validation that has any, by source; null if none is measured."""
    canaries: dict[str, CanaryEvidence] | None
    """Canaries of the last validation that has any, by source; null if none is measured."""
    complete: bool
    """False if the weights have a history that is not known."""
    measured: list[MeasuredView]
    """All probes, in order."""
    checks: list[CheckView]
    """Checks of all resumes."""
    rollbacks: list[RollbackView]
    """Steps that were trained and lost."""
    chains: list[ChainView]
    """Provenance chains that were verified, by source."""
    nodes: list[GovernedNodesView]
    """Nodes, by attempt."""
    recorded: dict[str, Any]
    """What the checkpoint records besides, by its name: the ledger's head, spectral entropies."""


def governance(
    source: ExperimentPaths | Gathered, trial: int = 0, checkpoint: str = ""
) -> list[GovernanceView]:
    """Return an item for each trial under the experiment's policy; none without a policy.

    Args:
        trial: only this one; 0 means all.
        checkpoint: the one that is reported, by its name; "" means the latest of each trial.

    Raises:
        GovernanceBroken: the policy, or a change of it, is not what was written.
    """
    from hpcdet.read.experiment.gather import gather

    gathered = gather(source)
    experiment = GovernedExperiment(gathered.paths)
    if experiment.history is None:
        return []
    chosen = [one for one in gathered.trials if trial in (0, one.number)]
    return [_view(gathered, one, experiment, checkpoint) for one in chosen]


def _view(
    gathered: Gathered, trial: GatheredTrial, experiment: GovernedExperiment, checkpoint: str
) -> GovernanceView:
    from hpcdet.policy import measures
    from hpcdet.read.governed import governed_checkpoint

    assert experiment.history is not None
    said = governed_checkpoint.read(trial, experiment.history.newest, checkpoint)
    beside = AttestedTrial(experiment, trial.paths)  # read behind it: the trial may be training
    trained = beside.policies
    assert trained is not None
    policy = trained.of_digest(said.policy_digest) or trained.last
    total = sum(said.rows.values()) + said.dropped
    lines = [
        (attempt.number, line)
        for attempt in trial.attempts
        for line in attempt.of_kind("governance")
    ]
    until, last = (said.step, said.attempt) if checkpoint else (math.inf, math.inf)
    probes = [(at, _measured(line)) for at, line in lines if line.get("event") == "probe"]
    probes = [(at, one) for at, one in probes if one.step <= until and at <= last]
    measured = [one for _, one in probes]
    found = [_conforms(one, trained.of_attempt(at), said.parameters) for at, one in probes]
    least = [one for each in found for one in each[0] if not math.isnan(one)]
    more = said.sources[len(policy.sources) :]
    tested = _tested(trial, policy, until)
    assurance = trained.assurance(policy, said.attempt)
    uncovered = measures.coverage(said.exposure, [False] * len(said.sources))
    return GovernanceView(
        trial=trial.number,
        step=said.step,
        checkpoint=said.name,
        unverified=_unreadable(trial) if said.folder is None else beside.doubt(said.folder),
        assurance=assurance,
        statement=_statement(policy),
        ablates=policy.ablates,
        cost=routing_cost(gathered, trial, policy) if policy.ablates else [],
        records=RECORDED,
        residual_channels=list(RESIDUAL_CHANNELS[assurance == "isolated" :]),
        policy_digest=policy.digest,
        changes=trained.changes(trial.number),
        sources=said.sources,
        layers=[one.id for one in policy.layers],
        matrix=[*map(list, policy.matrix), *([0.0] * len(policy.layers) for _ in more)],
        exposure=said.exposure,
        rows=said.rows,
        coverage=_known(uncovered.tolist()) if said.coverage is None else said.coverage,
        admission=measures.admission(total - said.dropped, said.dropped) if total else None,
        conformance=min(least, default=None),
        violations=sum(each[1] for each in found) if measured else None,
        entropy=_known(measures.source_entropy(said.exposure).tolist()),
        memorization=tested.twins,
        canaries=tested.canaries,
        complete=said.complete,
        measured=measured,
        checks=_checks(lines),
        rollbacks=_rollbacks(trial, beside.ledgers),
        chains=[one for given in said.chains if (one := _chain(given)) is not None],
        nodes=[_nodes(one, policy) for one in trial.attempts if any(one.of_kind("start"))],
        recorded=said.others,
    )


def _unreadable(trial: GatheredTrial) -> str:
    """Return the note on a trial without readable checkpoints; "" if it has none at all."""
    try:
        names = sorted(one.name for one in trial.paths.checkpoints.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ""
    saved = [name for name in names if CHECKPOINT_NAME.fullmatch(name)]
    return f"G103: the manifest of checkpoint {saved[-1]} cannot be read" if saved else ""


def _checks(lines: Iterable[tuple[int, Mapping[str, Any]]]) -> list[CheckView]:
    """The checks of all attempts, in the order of their numbers."""
    found = [
        CheckView(attempt, one["number"], one["code"], one["outcome"], one["detail"])
        for attempt, line in lines
        for one in line.get("checks", ())
    ]
    return sorted(found, key=lambda one: (one.attempt, one.number))


def _chain(given: Any) -> ChainView | None:
    """A chain as a checkpoint records it; None of what has no source."""
    if not isinstance(given, Mapping) or not isinstance(given.get("source"), str):
        return None
    return ChainView(
        source=given["source"],
        head=str(given.get("head") or ""),
        complete=given.get("complete") is True,
        active=given.get("active") is True,
        reason=str(given.get("reason") or ""),
    )


def _statement(policy: CompiledPolicy) -> Literal["signed", "declared", "none"]:
    asked = policy.on_nodes
    return asked.statement if asked.capabilities else "none"


def _nodes(attempt: GatheredAttempt, policy: CompiledPolicy) -> GovernedNodesView:
    claim = attempt.claim
    names = (claim.nodes or [claim.host]) if claim is not None else []
    return GovernedNodesView(attempt.number, names, _statement(policy))


class _Tested(NamedTuple):
    twins: dict[str, TwinEvidence] | None = None
    canaries: dict[str, CanaryEvidence] | None = None


def _tested(trial: GatheredTrial, policy: CompiledPolicy, until: float) -> _Tested:
    """The evidence of twins and canaries in the last validation up to a step that has any."""
    from hpcdet.read.experiment import series

    if policy.memorization is None or not policy.memorization.tested:
        return _Tested()
    rows = [row for row in series.of_trial(trial) if row["group"] == "validation"]
    rows = [row for row in rows if row["name"].startswith(RESERVED) and not row["superseded"]]
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_step.setdefault(row["step"], {})[row["name"]] = row["value"]
    for step in sorted((one for one in by_step if one <= until), reverse=True):
        twins = twin_evidence.by_source(by_step[step])
        canaries = canary_evidence.by_source(by_step[step])
        if twins or canaries:
            return _Tested(twins or None, canaries or None)
    return _Tested()


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


def _rollbacks(trial: GatheredTrial, ledgers: Iterable[AttemptLedger]) -> list[RollbackView]:
    """Steps that were lost: a ledger may know of more than the journal of a killed attempt."""
    recorded = {one.attempt: one.records[-1].step for one in ledgers if one.records}
    reached, found = 0, []
    for attempt in trial.attempts:
        for line in attempt.of_kind("start"):
            begun = int(line["batches"])
            if begun < reached:
                found.append(RollbackView(attempt.number, reached, begun))
        reached = max(reached, attempt.position or 0, recorded.get(attempt.number, 0))
    return found
