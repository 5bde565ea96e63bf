"""From the text of a policy to the weights of its sources in its layers."""

from __future__ import annotations

import datetime
import difflib
import fnmatch
import hashlib
from collections.abc import Iterator, Sequence

from hpcdet.config.policy.policy_keys import (
    AgreementKeys,
    CanariesKeys,
    LayerKeys,
    PolicyKeys,
    RuleKeys,
    SourceKeys,
    SpectralKeys,
)
from hpcdet.config.policy.policy_text import Load, PolicyProblem, failure, read
from hpcdet.policy import compiled as to

Cells = dict[str, dict[str, str]]
"""By source and layer the rule that decides on them; those of ``default`` are not in it."""
_MOST = 8
"""Names that a hint lists."""


def compile_policy(
    text: str, source: str, today: datetime.date, load: Load | None = None
) -> to.CompiledPolicy:
    """Compile a policy. Pure: the same text, and what it names, on the same day gives the same.

    Rules decide in their order; where none fits, ``default`` does, and a frozen layer has weight
    0 for all.

    Args:
        source: what messages call the file.
        today: agreements that ended before are refused.
        load: returns what a JSON file holds that it names; None: it may name none.

    Raises:
        PolicyRefused: a key is wrong (P01), or the policy as a whole: a starved layer (P05), a
            source without a chain (P06), a rule that decides nothing (P09), lanes that isolate
            nothing (P11).
    """
    policy, document = read(text, source, load)
    problems = list(_names(policy))
    if not problems:
        decided = _decide(policy)
        matrix = _matrix(policy, decided)
        problems += [
            *_agreements(policy, today),
            *_idle_rules(policy, decided),
            *_starved(policy, matrix),
            *_without_chain(policy),
            *_lanes(policy, matrix),
        ]
    if problems:
        raise failure(problems, document)
    return _assembled(policy, matrix, hashlib.sha256(text.encode()).hexdigest())


def _in_order(policy: PolicyKeys) -> list[SourceKeys]:
    return sorted(policy.sources, key=lambda one: one.id)


# -- rules ---------------------------------------------------------------------------------


def _decide(policy: PolicyKeys) -> Cells:
    """Find the first rule that fits each source and layer."""
    chosen = [
        (rule, {one.id for one in _selected(rule, policy.layers) if not one.frozen})
        for rule in policy.rules
    ]
    decided: Cells = {}
    for source in policy.sources:
        of_source = decided[source.id] = {}
        for rule, layers in chosen:
            left = layers - of_source.keys()
            if left and rule.match(source.id, source.labels):
                of_source.update(dict.fromkeys(left, rule.id))
    return decided


def _selected(rule: RuleKeys, layers: Sequence[LayerKeys]) -> list[LayerKeys]:
    """The layers that a rule is about; those after ``!`` are not, wherever they stand."""
    some = [name for name in rule.layers if not name.startswith("!")]
    without = [name.removeprefix("!") for name in rule.layers if name.startswith("!")]
    return [
        layer
        for layer in layers
        if any(fnmatch.fnmatchcase(layer.id, each) for each in some)
        and not any(fnmatch.fnmatchcase(layer.id, each) for each in without)
    ]


def _matrix(policy: PolicyKeys, decided: Cells) -> list[list[float]]:
    weights = {rule.id: rule.weight for rule in policy.rules}
    return [
        [
            0.0
            if layer.frozen
            else weights[decided[source.id][layer.id]]
            if layer.id in decided[source.id]
            else policy.default
            for layer in policy.layers
        ]
        for source in _in_order(policy)
    ]


# -- what may be wrong with the whole ------------------------------------------------------


def _names(policy: PolicyKeys) -> Iterator[PolicyProblem]:
    """Names that stand twice, and those that nothing has."""
    for kind in ("layers", "sources", "rules", "trust"):
        seen: dict[str, int] = {}
        for place, one in enumerate(getattr(policy, kind)):
            if one.id in seen:
                what = f"the name {one.id!r} is taken: {kind}.{seen[one.id]}"
                yield PolicyProblem(f"{kind}.{place}.id", what, "names are different")
            seen.setdefault(one.id, place)
    layers, sources = [one.id for one in policy.layers], [one.id for one in policy.sources]
    for place, rule in enumerate(policy.rules):
        yield from _selectors(f"rules.{place}.layers", rule, policy.layers)
    for key, named in (
        ("min_mass", list(policy.min_mass)),
        ("entropy.spectral.expected", _expected(policy)),
    ):
        for name in named:
            if name not in layers:
                yield PolicyProblem(
                    f"{key}.{name}", f"no layer has the name {name!r}", _near(name, layers)
                )
    memory = policy.memorization
    for key, listed in (
        ("twins.withhold", memory.twins.withhold if memory and memory.twins else []),
        ("canaries.sources", memory.canaries.sources if memory and memory.canaries else []),
    ):
        for place, name in enumerate(listed):
            if name not in sources:
                what = f"no source has the name {name!r}"
                yield PolicyProblem(f"memorization.{key}.{place}", what, _near(name, sources))
    if memory is not None and memory.canaries is not None:
        yield from _canaries(_of_canaries(memory.canaries))


def _canaries(asked: to.Canaries) -> Iterator[PolicyProblem]:
    """Canaries that cannot be drawn, and repeats that none of them has."""
    key = "memorization.canaries"
    if asked.space_bits < asked.least_bits:
        what = f"there are too few codes for {asked.per_source} canaries and their references"
        yield PolicyProblem(f"{key}.space_bits", what, f"at least {asked.least_bits}", "P14")
    if len(asked.repeats) > asked.per_source:
        what = f"{asked.per_source} canaries cannot have {len(asked.repeats)} numbers of repeats"
        yield PolicyProblem(f"{key}.per_source", what, f"at least {len(asked.repeats)}")


def _selectors(key: str, rule: RuleKeys, layers: Sequence[LayerKeys]) -> Iterator[PolicyProblem]:
    """Patterns of a rule that no layer fits, and frozen layers that it names."""
    names = [layer.id for layer in layers]
    frozen = [layer.id for layer in layers if layer.frozen]
    for place, pattern in enumerate(rule.layers):
        name = pattern.removeprefix("!")
        if not any(fnmatch.fnmatchcase(each, name) for each in names):
            hint = _near(name, names)
            yield PolicyProblem(f"{key}.{place}", f"no layer has the name {name!r}", hint)
        elif pattern in frozen and rule.weight:
            what = f"layer {name!r} is frozen: nothing may change it"
            yield PolicyProblem(f"{key}.{place}", what, "leave it out, or frozen")
    if all(pattern.startswith("!") for pattern in rule.layers):
        yield PolicyProblem(
            key, "the rule leaves layers out and names none", "layers: ['*', '!NAME']"
        )


def _expected(policy: PolicyKeys) -> list[str]:
    spectral = policy.entropy.spectral
    return list(spectral.expected) if isinstance(spectral, SpectralKeys) else []


def _near(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    listed = ", ".join(names[:_MOST]) + (", ..." if len(names) > _MOST else "")
    return f"did you mean {close[0]!r}?" if close else f"there are: {listed}"


def _agreements(policy: PolicyKeys, today: datetime.date) -> Iterator[PolicyProblem]:
    for place, source in enumerate(policy.sources):
        agreed = source.agreement
        if agreed and agreed.expires and datetime.date.fromisoformat(agreed.expires) < today:
            what = f"agreement {agreed.id} on source {source.id!r} ended on {agreed.expires}"
            hint = "take the source out, or agree anew with its owner"
            yield PolicyProblem(f"sources.{place}.agreement.expires", what, hint)


def _idle_rules(policy: PolicyKeys, decided: Cells) -> Iterator[PolicyProblem]:
    used = {rule for of_source in decided.values() for rule in of_source.values()}
    for place, rule in enumerate(policy.rules):
        if rule.id not in used:
            fits = any(rule.match(one.id, one.labels) for one in policy.sources)
            why = "rules before it decide on all that it is about" if fits else "no source fits it"
            hint = "move it up, or take it out" if fits else "correct its match, or take it out"
            what = f"rule {rule.id!r} decides nothing: {why}"
            yield PolicyProblem(f"rules.{place}.match", what, hint, "P09")


def _starved(policy: PolicyKeys, matrix: list[list[float]]) -> Iterator[PolicyProblem]:
    """Layers that learn from nothing, or from less than ``min_mass`` of the planned data."""
    shares = [source.share for source in _in_order(policy)]
    if None in shares and any(shares):
        place = next(n for n, source in enumerate(policy.sources) if source.share is None)
        what = f"source {policy.sources[place].id!r} has no share, and others have"
        yield PolicyProblem(f"sources.{place}", what, "give all sources a share, or none")
        return
    parts = [share or 1.0 for share in shares]
    for place, layer in enumerate(policy.layers):
        column = [row[place] for row in matrix]
        mass = sum(p * w for p, w in zip(parts, column, strict=True)) / sum(parts)
        least = policy.min_mass.get(layer.id, 0.0)
        if layer.frozen and not least:
            continue
        if mass == 0:
            what = f"layer {layer.id!r} learns from no source"
            hint = "let a rule allow one, or set frozen: true"
            yield PolicyProblem(f"layers.{place}", what, hint, "P05")
        elif mass < least:
            what = f"layer {layer.id!r} gets {mass:.3g} of the planned data, less than {least:g}"
            yield PolicyProblem(
                f"min_mass.{layer.id}", what, "allow it more, or lower min_mass", "P05"
            )


def _without_chain(policy: PolicyKeys) -> Iterator[PolicyProblem]:
    if policy.coverage.min < 1:
        return
    for place, source in enumerate(policy.sources):
        if source.chain is None:
            what = f"source {source.id!r} has no provenance chain, and coverage.min is 1"
            hint = "give it a chain (hpcdet data chain), or lower coverage.min"
            yield PolicyProblem(f"sources.{place}", what, hint, "P06")


def _lanes(policy: PolicyKeys, matrix: list[list[float]]) -> Iterator[PolicyProblem]:
    """``isolated``: a source that may change a lane may change nothing that others use."""
    if policy.assurance != "isolated":
        return
    if not any(layer.lane for layer in policy.layers):
        what = "isolated needs a layer with lane: true, which only its sources use"
        yield PolicyProblem("assurance", what, "add a lane, or take state_clean", "P11")
        return
    for source, row in zip(_in_order(policy), matrix, strict=True):
        found = [layer for layer, weight in zip(policy.layers, row, strict=True) if weight]
        if any(layer.lane for layer in found) and not all(layer.lane for layer in found):
            lane = next(layer.id for layer in found if layer.lane)
            trunk = next(layer.id for layer in found if not layer.lane)
            what = f"source {source.id!r} may change the lane {lane!r} and {trunk!r}, too"
            hint = "under isolated a source changes lanes, or layers that all use"
            yield PolicyProblem("rules", what, hint, "P11")
    yield from _parts_of_the_trunk(policy, matrix)


def _parts_of_the_trunk(policy: PolicyKeys, matrix: list[list[float]]) -> Iterator[PolicyProblem]:
    """Sources that may change one layer of the trunk and not another, which they reach by it."""
    trunk = [place for place, one in enumerate(policy.layers) if not one.lane and not one.frozen]
    for source, row in zip(_in_order(policy), matrix, strict=True):
        changes = [policy.layers[place].id for place in trunk if row[place]]
        spared = [policy.layers[place].id for place in trunk if not row[place]]
        if changes and spared:
            what = (
                f"source {source.id!r} may change {changes[0]!r} and not {spared[0]!r}, and all "
                "rows use both"
            )
            hint = "under isolated a source changes all layers that all use, or lanes alone"
            yield PolicyProblem("rules", what, hint, "P11")


# -- the compiled policy -------------------------------------------------------------------


def _assembled(policy: PolicyKeys, matrix: list[list[float]], digest: str) -> to.CompiledPolicy:
    return to.CompiledPolicy(
        name=policy.name,
        version=policy.version,
        text_digest=f"sha256:{digest}",
        layers=tuple(_layer(one, policy.min_mass.get(one.id, 0.0)) for one in policy.layers),
        sources=tuple(map(_source, _in_order(policy))),
        matrix=tuple(map(tuple, matrix)),
        assurance=policy.assurance,
        normalize=policy.normalize,
        unknown_source=policy.unknown_source,
        mixed=policy.mixed_examples,
        trust=tuple(to.TrustedKey(one.id, one.role, one.key) for one in policy.trust),
        coverage=to.Coverage(policy.coverage.min, policy.coverage.per_layer),
        entropy=_entropy(policy),
        memorization=_memorization(policy),
        requires=to.Requires(tuple(policy.requires.capabilities), policy.requires.statement),
        ledger=to.LedgerRules(policy.ledger.segment_records, tuple(policy.ledger.anchor)),
        changes=to.Changes(
            policy.changes.tighten.approvals,
            policy.changes.loosen.approvals,
            policy.changes.revoke.action,
        ),
        probe_every=policy.probe_every.batches,
        ablation=policy.ablation,
    )


def _layer(layer: LayerKeys, least: float) -> to.LayerGroup:
    near, far = layer.depth
    return to.LayerGroup(layer.id, layer.match, (near, far), layer.lane, layer.frozen, least)


def _source(source: SourceKeys) -> to.DataSource:
    manifest, chain = source.manifest, source.chain
    return to.DataSource(
        source.id,
        dict(sorted(source.labels.items())),
        to.FileDigest(manifest.uri, manifest.merkle_root) if manifest else None,
        to.FileDigest(chain.uri, chain.head) if chain else None,
        _agreement(source.agreement) if source.agreement else None,
        source.share or 0.0,
    )


def _agreement(agreed: AgreementKeys) -> to.UseAgreement:
    return to.UseAgreement(agreed.id, agreed.expires, tuple(agreed.requires))


def _entropy(policy: PolicyKeys) -> to.Entropy:
    sigmas, spectral = policy.entropy.source_exposure.sigmas, policy.entropy.spectral
    if not isinstance(spectral, SpectralKeys):
        return to.Entropy(sigmas=sigmas, spectral=False)
    return to.Entropy(
        sigmas=sigmas,
        max_side=spectral.max_side,
        probes=spectral.probes,
        seed=spectral.seed,
        reference={name: (mean, sd) for name, (mean, sd) in spectral.expected.items()},
        sd_mult=spectral.band.sd_mult,
        floor=spectral.band.floor,
        on_violation=spectral.on_violation,
    )


def _memorization(policy: PolicyKeys) -> to.Memorization | None:
    asked = policy.memorization
    if asked is None:
        return None
    twins, canaries = asked.twins, asked.canaries
    return to.Memorization(
        to.Twins(twins.pairs, tuple(twins.withhold), twins.metric, twins.alpha) if twins else None,
        _of_canaries(canaries) if canaries else None,
        asked.max_advantage,
        asked.on_violation,
    )


def _of_canaries(asked: CanariesKeys) -> to.Canaries:
    return to.Canaries(
        asked.per_source, asked.space_bits, tuple(asked.repeats), tuple(asked.sources)
    )
