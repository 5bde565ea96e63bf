"""Rules of two policies beside their weights: which of them allow less, and which allow more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hpcdet.policy.changes import weight_changes
from hpcdet.policy.changes.weight_changes import Kind
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup, UseAgreement

_ASSURED = ("none", "direct", "state_clean", "isolated")
_UNKNOWN = ("drop", "deny")
_MIXED = ("min", "reject")
_NEVER = "9999-12-31"

COSMETIC = ("name", "version", "text_digest", "layers.depth", "trust.id")
"""Keys of a compiled policy that allow and demand nothing: how it is called, read and drawn."""


@dataclass(frozen=True)
class RuleChange:
    """A rule that differs between two policies, by its dotted key, and how."""

    key: str
    kind: Kind


def kind_between(before: CompiledPolicy, after: CompiledPolicy) -> Kind:
    """The kind of a change of policy: of its weights and of all rules that may change, together."""
    kinds = [one.kind for one in weight_changes.differences(before, after)]
    return together([*kinds, *(kind for _, kind in _rules(before, after))])


def together(kinds: Iterable[Kind]) -> Kind:
    """The kind of a whole change: ``mixed`` if it both tightens and loosens."""
    found = set(kinds) - {"same"}
    return "same" if not found else found.pop() if len(found) == 1 else "mixed"


def rule_changes(before: CompiledPolicy, after: CompiledPolicy) -> list[RuleChange]:
    """The rules that differ beside weights; what is neither less nor more is ``mixed``."""
    every = (*_rules(before, after), *_fixed(before, after))
    found = [RuleChange(key, kind) for key, kind in every if kind != "same"]
    return sorted(found, key=lambda one: one.key)


def fixed_difference(before: CompiledPolicy, after: CompiledPolicy) -> str:
    """Return a difference that no change of policy may make, in words; "" if there is none.

    Layers and sources are the axes of what was counted so far. Twins, requirements of nodes and
    gates of the search (``memorization``, ``coverage.min``) were acted on at submission.
    """
    if [_layer(one) for one in before.layers] != [_layer(one) for one in after.layers]:
        return "its layers"
    if list(before.codes) != list(after.codes):
        missing = sorted(before.codes.keys() - after.codes.keys())
        more = f" ({', '.join(missing)} can be withdrawn by --revoke)" if missing else ""
        return f"its sources{more}"
    if before.ablates != after.ablates:
        return "that it is the control of an ablation"
    if before.normalize != after.normalize:
        return "normalize"
    if before.memorization != after.memorization:
        return "memorization"
    if before.coverage.min != after.coverage.min:
        return "coverage.min"
    if before.on_nodes != after.on_nodes:
        return "requires, or what agreements require,"
    return ""


def _layer(one: LayerGroup) -> tuple[str, str, bool]:
    return one.id, one.match, one.lane


def _rules(before: CompiledPolicy, after: CompiledPolicy) -> Iterator[tuple[str, Kind]]:
    """Yield the key and the kind of each rule beside weights."""
    yield "assurance", _order(_ASSURED.index(before.assurance), _ASSURED.index(after.assurance))
    yield (
        "unknown_source",
        _order(_UNKNOWN.index(before.unknown_source), _UNKNOWN.index(after.unknown_source)),
    )
    yield "mixed_examples", _order(_MIXED.index(before.mixed), _MIXED.index(after.mixed))
    yield "coverage.min", _order(before.coverage.min, after.coverage.min)
    yield "coverage.per_layer", _order(before.coverage.per_layer, after.coverage.per_layer)
    yield "entropy", _other(before.entropy, after.entropy)
    yield "ledger.anchor", _sets(set(before.ledger.anchor), set(after.ledger.anchor))
    longest, longer = before.ledger.segment_records, after.ledger.segment_records
    yield "ledger.segment_records", _order(-longest, -longer)
    was, now = before.changes, after.changes
    yield "changes.tighten.approvals", _order(was.tighten_approvals, now.tighten_approvals)
    yield "changes.loosen.approvals", _order(was.loosen_approvals, now.loosen_approvals)
    yield "changes.revoke.action", _order(was.revoke == "stop", now.revoke == "stop")
    yield "probe_every", _order(-(before.probe_every or 10**9), -(after.probe_every or 10**9))
    yield "ablation", _order(before.ablation == "refused", after.ablation == "refused")
    yield from _trust(before, after)
    layers = {one.id: one for one in after.layers}
    for layer in before.layers:
        if layer.id in layers:
            now_so = layers[layer.id]
            yield f"layers.{layer.id}.frozen", _order(layer.frozen, now_so.frozen)
            yield f"min_mass.{layer.id}", _order(layer.min_mass, now_so.min_mass)
    sources = {one.id: one for one in after.sources}
    for one in before.sources:
        if one.id in sources:
            yield from _source(f"sources.{one.id}", one, sources[one.id])


def _fixed(before: CompiledPolicy, after: CompiledPolicy) -> Iterator[tuple[str, Kind]]:
    """Yield rules that no change may touch, as ``fixed_difference``; layers and sources aside."""
    yield "normalize", _other(before.normalize, after.normalize)
    yield "memorization", _other(before.memorization, after.memorization)
    yield "requires", _other(before.on_nodes, after.on_nodes)
    yield "ablates", _other(before.ablates, after.ablates)
    theirs = {one.id: _layer(one) for one in after.layers}
    for one in before.layers:
        yield f"layers.{one.id}", _other(_layer(one), theirs.get(one.id, _layer(one)))


def _trust(before: CompiledPolicy, after: CompiledPolicy) -> Iterator[tuple[str, Kind]]:
    """A key more may sign more; without keys for ledgers everybody's own key does."""
    for role in ("data", "policy", "run", "site"):
        was, now = (
            {one.key for one in policy.trust if one.role == role} for policy in (before, after)
        )
        kind = _sets(now, was)
        if role in ("run", "site") and bool(was) != bool(now):
            kind = "loosen" if was else "tighten"
        yield f"trust ({role})", kind


def _source(key: str, before: DataSource, after: DataSource) -> Iterator[tuple[str, Kind]]:
    yield f"{key}.labels", _other(dict(before.labels), dict(after.labels))
    yield f"{key}.share", _other(before.share, after.share)
    yield f"{key}.manifest", _other(before.manifest, after.manifest)
    yield f"{key}.chain", _other(before.chain, after.chain)
    was, now = before.agreement, after.agreement
    if was is None or now is None:
        yield f"{key}.agreement", _order(was is not None, now is not None)
        return
    yield f"{key}.agreement.id", _other(was.id, now.id)
    yield f"{key}.agreement.expires", _order(_end(now), _end(was))


def _end(agreement: UseAgreement) -> str:
    return agreement.expires or _NEVER


def _order(before: Any, after: Any) -> Kind:
    """Kind of a change of a number that allows less the larger it is."""
    return "same" if before == after else "tighten" if after > before else "loosen"


def _sets(before: set[str], after: set[str]) -> Kind:
    """Kind of a change of demands: more of them allow less."""
    if before == after:
        return "same"
    return "tighten" if before < after else "loosen" if after < before else "mixed"


def _other(before: Any, after: Any) -> Kind:
    return "same" if before == after else "mixed"
