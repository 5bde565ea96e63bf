"""A checkpoint of a governed trial, and all that exports say of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet import __version__
from hpcdet.errors import IntegrityError, NotFound, UsageError
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import MIX, CompiledPolicy, DataSource
from hpcdet.policy.provenance.chains import SourceChain
from hpcdet.policy.provenance.source_manifests import SourceManifest
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.read.governed.attested_trials import AttestedTrial, GovernedExperiment
from hpcdet.read.governed.governed_trials import GovernanceView, governance
from hpcdet.read.lookup import source_checkpoint
from hpcdet.read.views import views
from hpcdet.read.views.checkpoints import CheckpointView
from hpcdet.store.fs import files
from hpcdet.store.trials import manifests
from hpcdet.store.trials.standing import MANIFEST

_CHUNK = 1 << 20


@dataclass(frozen=True)
class ModelFile:
    """A file of a checkpoint; ``sha256`` in hex."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class SourceAccount:
    """A source, and what layers were exposed to of it.

    Attributes:
        source: as the policy has it; by its name alone, if only a parent was trained on it.
        license: as its labels or its manifest say; "" if neither does.
        rows: of it that were trained, each time they were seen; of mixed rows each counts.
        exposure: rows times weight, by layer.
        records, bytes, files: by its manifest; None if that is not in the experiment's folder.
        acquired: times of its chain's links of kind ``acquire``.
    """

    source: DataSource
    license: str
    rows: int
    exposure: Mapping[str, float]
    records: int | None = None
    bytes: int | None = None
    files: int | None = None
    acquired: tuple[str, ...] = ()


@dataclass(frozen=True)
class GovernedModel:
    """A checkpoint of a trial under a policy.

    Attributes:
        name: of the experiment in its config; ``experiment``: its id.
        folder: of the checkpoint; ``digest``: of its training state, ``root``: of its manifest.
        metric: the searcher's, and its value at the checkpoint, if it has one.
        begun: when training began, ``saved``: when the checkpoint was saved; ISO 8601 or "".
        software: versions that the trial ran with.
    """

    experiment: str
    name: str
    folder: Path
    step: int
    digest: str
    root: str
    files: tuple[ModelFile, ...]
    policy: CompiledPolicy
    account: GovernanceView
    sources: tuple[SourceAccount, ...]
    hyperparameters: Mapping[str, Any]
    metric: tuple[str, float | None]
    begun: str
    saved: str
    software: Mapping[str, str]

    @property
    def called(self) -> str:
        """The model's name: ``EXP/TRIAL@STEP``."""
        return f"{self.experiment}/{self.account.trial}@{self.step}"


def governed_model(gathered: Gathered, trial: int = 0, checkpoint: str = "") -> GovernedModel:
    """Gather what is known of a checkpoint, and the digests of its files; nothing is run.

    Args:
        trial: 0: that of the best checkpoint of all.
        checkpoint: its name, step or path; "": the best of the trial, and where none was validated
            the newest.

    Raises:
        NotFound: there is no policy, or no such checkpoint.
        PolicyRefused: P18: it is the control of an ablation.
        UsageError: a checkpoint without a trial.
        IntegrityError: a file is missing, is not listed, or has another size.
        GovernanceBroken: the policy, a ledger or the checkpoint's account is not as written.
    """
    experiment = GovernedExperiment(gathered.paths)
    if experiment.history is None:
        hint = "only models that trained under a policy are exported: hpcdet policy ls"
        raise NotFound("the experiment has no policy", where=gathered.id, hint=hint)
    policy = experiment.history.newest
    if policy.ablates:
        raise PolicyRefused(
            "P18",
            "it is the control of an ablation, whose layers every source has changed",
            where=gathered.id,
            hint=f"export {policy.ablates}; of a control, policy report says what there is",
        )
    if checkpoint and not trial and len(gathered.trials) == 1:
        trial = gathered.trials[0].number
    if checkpoint and not trial:
        raise UsageError("which trial's checkpoint", where=gathered.id, hint=f"{gathered.id}/1")
    row = _chosen(gathered, trial, checkpoint)
    found = next(one for one in gathered.trials if one.number == row.trial)
    folder = Path(row.path)
    manifest = manifests.read(folder)
    beside = AttestedTrial(experiment, found.paths)
    beside.check(folder)
    assert beside.policies is not None
    [account] = governance(gathered, row.trial, row.name)
    policy = beside.policies.of_digest(account.policy_digest) or policy
    before = (DataSource(name) for name in account.sources[len(policy.sources) :])
    metric = gathered.config.searcher.metric
    print_ = manifest["meta"].get("fingerprint")
    software = {"hpcdet": __version__} | (print_ if isinstance(print_, dict) else {})
    return GovernedModel(
        gathered.id,
        gathered.config.name,
        folder,
        account.step,
        manifest["digest"],
        manifest["root"],
        tuple(_files(folder, manifest)),
        policy,
        account,
        tuple(_source(gathered, one, account) for one in (*policy.sources, *before)),
        found.record.params if found.record else {},
        (metric, series.number(row.metric)),
        _begun(found),
        row.time,
        {name: str(software[name]) for name in ("hpcdet", "python", "torch") if name in software},
    )


def _chosen(gathered: Gathered, trial: int, text: str) -> CheckpointView:
    where = f"{gathered.id}/{trial}" if trial else gathered.id
    rows = [row for row in views.checkpoints(gathered, trial) if row.state == "complete"]
    if not rows:
        hint = "hpcdet ckpt ls shows what there is"
        raise NotFound("no checkpoint is there", where=where, hint=hint)
    if text:
        name = source_checkpoint.checkpoint(gathered, trial, text)
        return next(row for row in rows if row.name == name)
    try:
        return source_checkpoint.best(rows, gathered, where)
    except NotFound:  # nothing was validated
        return max(rows, key=lambda row: (row.step or 0, row.attempt or 0))


def _begun(trial: GatheredTrial) -> str:
    lines = [line for attempt in trial.attempts for line in attempt.of_kind("start")]
    return str(lines[0].get("t", "")) if lines else ""


def _files(folder: Path, manifest: Mapping[str, Any]) -> list[ModelFile]:
    """The files of a checkpoint with their digests, in the order of their names."""
    sizes = {one["file"]: one["bytes"] for one in manifest["shards"]}
    there = sorted(path.name for path in folder.iterdir())
    hint = "hpcdet ckpt verify says what is wrong; export another one: --checkpoint STEP"
    for name in sorted({MANIFEST, *sizes} ^ set(there)):
        what = "is not of the checkpoint" if name in there else "is missing"
        raise IntegrityError(f"{name} {what}", where=str(folder), hint=hint)
    found = []
    for name in there:
        digest, size = hashlib.sha256(), 0
        with files.open_file(folder / name) as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
                size += len(piece)
        if sizes.get(name, size) != size:
            what = f"{name} has {size} bytes, not {sizes[name]}"
            raise IntegrityError(what, where=str(folder), hint=hint)
        found.append(ModelFile(name, digest.hexdigest(), size))
    return found


def _source(gathered: Gathered, source: DataSource, account: GovernanceView) -> SourceAccount:
    place = account.sources.index(source.id)
    rows = sum(n for kind, n in account.rows.items() if source.id in kind.split(MIX))
    exposure = dict(zip(account.layers, account.exposure[place], strict=True))
    manifest, chain = _manifest(gathered, source), _chain(gathered, source)
    about = manifest.about if manifest else {}
    return SourceAccount(
        source,
        source.labels.get("license") or about.get("license", ""),
        rows,
        exposure,
        manifest.records.count if manifest and manifest.records else None,
        sum(one.bytes for one in manifest.files) if manifest else None,
        len(manifest.files) if manifest else None,
        tuple(one.time for one in chain.links if one.kind == "acquire") if chain else (),
    )


def _manifest(gathered: Gathered, source: DataSource) -> SourceManifest | None:
    """The manifest that the policy names; None if the experiment has not that one."""
    named = source.manifest
    if named is None:
        return None
    try:
        found = SourceManifest.load(gathered.paths.code / named.uri)
    except (OSError, GovernanceBroken):
        return None
    return found if found.root == named.digest else None


def _chain(gathered: Gathered, source: DataSource) -> SourceChain | None:
    """The chain that the policy names; None if the experiment has not that one."""
    named = source.chain
    if named is None:
        return None
    try:
        found = SourceChain.load(gathered.paths.code / named.uri)
    except (OSError, GovernanceBroken):
        return None
    return found if named.digest in {one.digest for one in found.links} else None
