"""Verdicts on provenance chains: whether one is complete and active, and every reason why not."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpcdet.policy.provenance.chains import NEXT, REQUIRED, Artifact, ChainLink, SourceChain
from hpcdet.policy.provenance.source_manifests import SourceManifest
from hpcdet.store.fs import typed_fields


@dataclass(frozen=True)
class ChainProblem:
    """A defect that keeps a chain from being complete or active: its code, and the reason."""

    code: str
    what: str


@dataclass(frozen=True)
class ChainVerdict:
    """The result of a verification.

    Attributes:
        head: digest of the chain's last link.
        links_verified: links before the first that does not follow the one before it;
            ``links_required``: all of them, at least one of each required kind.
        complete, active: as ``verify`` says.
    """

    head: str
    links_verified: int
    links_required: int
    problems: tuple[ChainProblem, ...]

    @property
    def complete(self) -> bool:
        return not any(one.code in ("G111", "P06") for one in self.problems)

    @property
    def active(self) -> bool:
        return not self.problems


def verify(
    chain: SourceChain,
    manifest: SourceManifest | None,
    trust: Collection[str],
    *,
    head: str = "",
    expires: str = "",
    admitted: int | None = None,
    today: datetime.date | None = None,
) -> ChainVerdict:
    """Find out whether a chain is complete and active, and every reason why it is not.

    Complete: the kinds that are required are there, in order; each link has the digest of the one
    before; its materials were made by earlier links; what was admitted is the Merkle root of the
    manifest, which ``shard`` made; the last link is signed by a trusted key. Active: complete, not
    expired, not revoked, and examples of it were admitted.

    Args:
        manifest: None: what was admitted is compared with nothing, which is a problem.
        trust: Ed25519 public keys, hex, that may sign for data.
        head: digest of ``admit`` that a policy names; "": none does.
        expires: last day of the agreement, ISO 8601; "": it has none.
        admitted: examples in this run; None: before one.
        today: in UTC if not given.
    """
    if not chain.links:
        empty = (ChainProblem("P06", "the source has no provenance chain: no link is there"),)
        return ChainVerdict("", 0, len(REQUIRED), empty)
    linked, verified = _linked(chain.links)
    last = next((one for one in chain.links if one.kind == "admit"), None)
    found = [*linked, *_materials(chain.links), *_admitted(chain.links, last, manifest)]
    if head and (last is None or last.digest != head):
        found.append(f"it does not end with what the policy names, {head[:19]}…")
    trusted = set(trust)
    for place, link in enumerate(chain.links):
        final = link.kind in ("admit", "revoke") or place == len(chain.links) - 1
        by = (one for one in chain.signatures.get(place, ()) if one.key in trusted)
        if final and not any(one.is_of(link) for one in by):
            found.append(f"link {place} ({link.kind}) is not signed by a trusted key")
    problems = [ChainProblem("G111", what) for what in found]
    problems += _ended(chain.links, expires, today)
    if admitted == 0:
        problems.append(ChainProblem("G112", "no example of the source was admitted"))
    required = max(len(chain.links), len(REQUIRED))
    return ChainVerdict(chain.head, verified, required, tuple(problems))


def _linked(links: Sequence[ChainLink]) -> tuple[list[str], int]:
    """Return what is wrong with the order and digests of links, and how many precede it."""
    wrong: list[str] = []
    verified, before = 0, ""
    for place, link in enumerate(links):
        if link.seq != place:
            wrong.append(f"link {place} says that it is link {link.seq}")
        if link.prev != before:
            wrong.append(f"link {place} does not follow the one before it")
        before = link.digest
        verified += not wrong
    kinds = [link.kind for link in links]
    missing = [kind for kind in REQUIRED if kind not in kinds]
    if missing:
        wrong.append(f"it has no link of kind {', '.join(missing)}")
    elif any(kind not in NEXT[last] for last, kind in pairwise(["", *kinds])):
        wrong.append(f"its links are not in order: {', '.join(kinds)}")
    return wrong, verified


def _materials(links: Sequence[ChainLink]) -> list[str]:
    made: set[str] = set()
    wrong: list[str] = []
    for place, link in enumerate(links):
        wrong += [
            f"link {place} uses {typed_fields.short(one.name)}, which no earlier link has made"
            for one in link.materials
            if one.sha256 not in made
        ]
        if place and link.kind != "acquire" and not link.materials:
            wrong.append(f"link {place} ({link.kind}) uses nothing that an earlier link has made")
        made |= {one.sha256 for one in link.subject}
    return wrong


def _admitted(
    links: Sequence[ChainLink], last: ChainLink | None, manifest: SourceManifest | None
) -> list[str]:
    """Return what is wrong with what was admitted."""
    if last is None:
        return []
    if manifest is None:
        return ["there is no manifest to compare what was admitted with"]
    if last.subject != (Artifact(manifest.source, manifest.root),):
        return [f"what was admitted is not the data of {manifest.source} by their manifest"]
    shards = {one.sha256 for link in links if link.kind == "shard" for one in link.subject}
    if manifest.root not in shards:
        return ["what was admitted is not what was made into shards"]
    return []


def _ended(
    links: Sequence[ChainLink],
    expires: str,
    today: datetime.date | None,
) -> list[ChainProblem]:
    """Return why the source may not be used any more."""
    found: list[str] = []
    day = today or datetime.datetime.now(datetime.UTC).date()
    if expires and day > datetime.date.fromisoformat(expires):
        found.append(f"the agreement on the source has expired on {expires}")
    if links[-1].kind == "revoke":
        found.append(f"the source was revoked by {links[-1].actor or 'its owner'}")
    return [ChainProblem("G112", what) for what in found]
