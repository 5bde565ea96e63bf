"""The provenance of a policy's sources: their manifests, chains and data, as they are on disk."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError, HpcdetError
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, DataSource
from hpcdet.policy.provenance import chain_verdicts, source_manifests
from hpcdet.policy.provenance.chain_verdicts import ChainVerdict
from hpcdet.policy.provenance.chains import SourceChain
from hpcdet.policy.provenance.source_manifests import SourceManifest


@dataclass(frozen=True)
class SourceProvenance:
    """The verified provenance of a source; plain data, the same on all ranks.

    Attributes:
        head: digest of the ``admit`` link of its chain; "" without a chain.
        root: Merkle root of its manifest; "" without a manifest.
        complete: its chain is complete, and its data are what was admitted.
        reason: why it is not complete; "" if it is.
        failed: what the check of it has found that stops a trial (G111), where that may be
            overridden; "" else.
        links_verified, links_required: of its chain; 0 without one.
        agreement, expires: of its use, "" without one.
        digests: file of its records' digests; "" if its manifest has none.
        records: as many.
    """

    source: str
    head: str = ""
    root: str = ""
    complete: bool = False
    reason: str = "the source has no provenance chain"
    failed: str = ""
    links_verified: int = 0
    links_required: int = 0
    agreement: str = ""
    expires: str = ""
    digests: str = ""
    records: int = 0


def verified(
    policy: CompiledPolicy,
    folder: Path,
    *,
    deep: bool = False,
    without: Collection[str] = (),
    today: datetime.date | None = None,
    tolerant: bool = False,
) -> list[SourceProvenance]:
    """Verify the manifests, chains and data that a policy names, before training reads the data.

    A chain that is as the policy names it but lacks a link or a trusted signature is not complete:
    its source counts as uncovered where ``coverage.min`` is below 1.

    Args:
        folder: where relative paths begin: the model's.
        deep: read all of the data; else the contents of a few files, drawn anew each time.
        without: sources that are trained no more, of which nothing is demanded.
        today: in UTC if not given.
        tolerant: G111 is not raised: who calls finds it in ``failed``.

    Returns:
        An item for each other source, in their order.

    Raises:
        GovernanceBroken: a file is not what the policy names, data are not what their manifest
            lists, or ``coverage.min`` is 1 and a chain is not complete (G111); or a source was
            revoked, or its agreement has ended (G112).
    """
    trust = [one.key for one in policy.trust if one.role == "data"]
    found = []
    for one in policy.sources:
        if one.id in without:
            continue
        try:
            found.append(_verified(one, policy, folder, trust, deep=deep, today=today))
        except GovernanceBroken as error:
            if not tolerant or error.check != "G111":
                raise
            what = f"{error.where}: {error.what.removeprefix('G111: ')}"
            found.append(SourceProvenance(one.id, reason=what, failed=what))
    return found


def refuse_incomplete(policy: CompiledPolicy, folder: Path) -> None:
    """Refuse a policy whose chains cannot be complete, before anything is submitted under it.

    Of what lies in the model's folder the chains are verified; data are not read, nor is anything
    with an absolute path, which nodes may see and this machine not.

    Raises:
        PolicyRefused: a file is not there; or ``coverage.min`` is 1 and a chain lacks something,
            or others than its owner may change a file (P06).
    """
    trust = [one.key for one in policy.trust if one.role == "data"]
    for source in policy.sources:
        named = [one for one in (source.manifest, source.chain) if one is not None]
        for one in named:
            if not Path(one.uri).is_absolute() and not (folder / one.uri).is_file():
                what = f"{one.uri} of source {source.id!r} is not in the model's folder"
                hint = "put it there, or give an absolute path"
                raise PolicyRefused("P06", what, where=str(folder / one.uri), hint=hint)
        if source.chain is None or policy.coverage.min < 1:
            continue
        if reason := _lack(source, trust, folder):
            raise PolicyRefused(
                "P06",
                f"the provenance chain of source {source.id!r} is not complete: {reason}",
                where=source.chain.uri,
                hint="complete it (hpcdet data chain), or lower coverage.min",
            )


def _lack(source: DataSource, trust: list[str], folder: Path) -> str:
    """Return why a source's chain is incomplete, without reading its data; "" if it is not.

    Raises:
        PolicyRefused: P06: others than its owner may change a file.
    """
    assert source.chain is not None
    if source.manifest is None:
        return "the policy names no manifest of what was admitted"
    if not trust:
        return "the policy trusts no key of role data"
    if any(Path(one.uri).is_absolute() for one in (source.manifest, source.chain)):
        return ""
    try:
        manifest = SourceManifest.load(folder / source.manifest.uri)
        chain = SourceChain.load(folder / source.chain.uri)
    except ConfigError as error:
        raise PolicyRefused("P06", error.what, where=error.where, hint=error.hint) from None
    except (HpcdetError, OSError) as error:
        return str(getattr(error, "what", error))
    if manifest.root != source.manifest.digest:
        return f"{source.manifest.uri} is not the manifest that the policy names"
    verdict = chain_verdicts.verify(chain, manifest, trust, head=source.chain.digest)
    return "; ".join(one.what for one in verdict.problems)


def _verified(
    source: DataSource,
    policy: CompiledPolicy,
    folder: Path,
    trust: list[str],
    *,
    deep: bool,
    today: datetime.date | None,
) -> SourceProvenance:
    agreed = source.agreement
    about: Any = {"agreement": agreed.id, "expires": agreed.expires} if agreed else {}
    manifest, digests = _manifest(source, folder, deep=deep)
    root = manifest.root if manifest else ""
    if manifest is not None and manifest.records is not None:
        about["records"] = manifest.records.count
    if source.chain is None:
        return SourceProvenance(source.id, root=root, digests=digests, **about)
    path = folder / source.chain.uri
    chain = _loaded(SourceChain.load, path, source)
    verdict = chain_verdicts.verify(
        chain,
        manifest,
        trust,
        head=source.chain.digest,
        expires=about.get("expires", ""),
        today=today,
    )
    head = next((one.digest for one in chain.links if one.kind == "admit"), "")
    reason = _judged(verdict, chain, head == source.chain.digest, path, policy)
    found = SourceProvenance(source.id, head, root, verdict.complete, reason, digests=digests)
    counts = (verdict.links_verified, verdict.links_required)
    return replace(found, links_verified=counts[0], links_required=counts[1], **about)


def _judged(
    verdict: ChainVerdict, chain: SourceChain, named: bool, path: Path, policy: CompiledPolicy
) -> str:
    """Return why a chain is not complete, if that is tolerated.

    Raises:
        GovernanceBroken: it is not, or the chain is another one than what the policy names.
    """
    ended = next((one for one in verdict.problems if one.code == "G112"), None)
    if verdict.complete and ended is None:
        return ""
    first = next((one for one in verdict.problems if one.code != "G112"), ended)
    assert first is not None
    whole = named and verdict.links_verified == len(chain.links)
    if whole and policy.coverage.min < 1 and ended is None:
        return first.what
    hint = (
        "hpcdet data verify CHAIN --policy FILE tells all that is wrong; put the chain back from "
        "a backup, or fork the experiment under a policy that names another"
    )
    if ended is not None:
        first, hint = ended, "fork the experiment under a policy without the source"
    code = first.code if first.code == "G112" else "G111"
    raise GovernanceBroken(code, first.what, where=str(path), hint=hint)


def _manifest(source: DataSource, folder: Path, *, deep: bool) -> tuple[SourceManifest | None, str]:
    """A source's manifest, whose data are as it lists them, and the file of record digests.

    Raises:
        GovernanceBroken: G111.
    """
    if source.manifest is None:
        return None, ""
    path = folder / source.manifest.uri
    found = _loaded(SourceManifest.load, path, source)
    if found.source != source.id or found.root != source.manifest.digest:
        raise GovernanceBroken(
            "G111",
            f"it is not the manifest that the policy names for source {source.id}",
            where=str(path),
            hint="put the manifest back from a backup, or fork the experiment under a policy that "
            "names this one",
        )
    digests = path.with_name(path.name + source_manifests.RECORDS) if found.records else None
    wrong = _differences(found, path, digests, deep=deep)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise GovernanceBroken(
            "G111",
            f"the data of source {source.id} are not what was admitted: {wrong[0]}{more}",
            where=str(path),
            hint="put the data back from a backup: hpcdet data verify MANIFEST --deep lists all "
            "that differs; data that changed on purpose need a new manifest and chain",
        )
    return found, str(digests or "")


def _differences(
    manifest: SourceManifest, path: Path, digests: Path | None, *, deep: bool
) -> list[str]:
    try:
        wrong = source_manifests.verify(manifest, path.parent / manifest.folder, deep=deep)
        if digests is not None and manifest.records is not None:
            what = source_manifests.verify_records(manifest.records, digests)
            wrong += [f"{digests.name}: {what}"] if what else []
    except HpcdetError as error:
        wrong = [f"{error.where}: {error.what}"]
    except OSError as error:
        wrong = [f"{error.filename or path.parent}: {error.strerror}"]
    return wrong


def _loaded(load: Any, path: Path, source: DataSource) -> Any:
    """Read a file of a source. Raises ``GovernanceBroken`` if that fails (G111)."""
    try:
        return load(path)
    except GovernanceBroken:
        raise
    except (HpcdetError, OSError) as error:
        why = error.what if isinstance(error, HpcdetError) else error.strerror
        hint = "relative paths begin at the model's folder, as it was when the experiment was "
        hint += "submitted; for other places give the policy absolute ones"
        raise GovernanceBroken(
            "G111",
            f"cannot read what the policy names for source {source.id}: {why}",
            where=str(path),
            hint=error.hint if isinstance(error, ConfigError) else hint,
        ) from None
