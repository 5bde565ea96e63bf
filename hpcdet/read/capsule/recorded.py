"""The capsule of an experiment: what it recorded of itself when it was submitted, and ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcdet import units
from hpcdet.errors import NotFound
from hpcdet.policy.provenance.source_manifests import SourceManifest
from hpcdet.read.capsule import factors
from hpcdet.read.capsule.factors import Factor, RunFacts
from hpcdet.read.capsule.training_outcome import Outcome, of_trials
from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, GatheredTrial, gather
from hpcdet.read.lookup import find, lineage
from hpcdet.read.lookup.find import Reference
from hpcdet.store.config import overrides
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files, yaml_bounds

_BY_NUMERICS = ("processor", "machine")


@dataclass(frozen=True)
class RecordedPath:
    """One of ``data.paths``: where it was, and the manifest of its files."""

    given: str
    path: Path
    manifest: SourceManifest

    @property
    def folder(self) -> Path:
        """The folder in which its files are named."""
        alone = [one.name for one in self.manifest.files] == [self.path.name]
        return self.path.parent if alone and not self.path.is_dir() else self.path


@dataclass(frozen=True)
class Capsule:
    """The records of an experiment, or of one of its trials.

    Attributes:
        trial: the one that is asked for; 0: the experiment as a whole.
    """

    gathered: Gathered
    trial: int = 0

    @staticmethod
    def of(reference: Reference) -> Capsule:
        """Return the capsule of what ``reproduce`` was asked for."""
        return Capsule(gather(reference.paths), reference.trial)

    @property
    def paths(self) -> ExperimentPaths:
        return self.gathered.paths

    @property
    def record(self) -> Mapping[str, Any]:
        """``provenance.json``."""
        return self.gathered.provenance

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each value of the config came from; empty in older experiments."""
        found = self.record.get("origins")
        return found if isinstance(found, dict) else {}

    @cached_property
    def one(self) -> GatheredTrial:
        """The trial to repeat. Raises NotFound: there are several, and none is named."""
        named = f"{self.paths.id}/{self.trial}" if self.trial else self.paths.id
        number = find.trial(named, self.paths.root.parent).number
        found = self.gathered.trial(number)
        if found is None or found.record is None:
            raise NotFound("there is no such trial", where=f"{self.paths.id}/{number}")
        return found

    @cached_property
    def attempts(self) -> list[GatheredAttempt]:
        """The attempts that left a fingerprint, of the trial or of all."""
        trials = [one for one in self.gathered.trials if self.trial in (0, one.number)]
        return [one for trial in trials for one in trial.attempts if _fingerprint(one)]

    @cached_property
    def fingerprints(self) -> list[Mapping[str, Any]]:
        """The environments that they ran in, each once, in the order of the attempts."""
        names = dict.fromkeys(_fingerprint(one) for one in self.attempts)
        read = (files.read_json(self.paths.fingerprint(name)) for name in names)
        return [one for one in read if isinstance(one, dict)]

    @cached_property
    def config(self) -> Resolved:
        """The config as the first attempt ran it, with what users had changed by then."""
        if self.attempts:
            return overrides.of_attempt(self.paths, self.attempts[0].paths)
        return self.gathered.submitted

    @cached_property
    def packages(self) -> Mapping[str, str]:
        """The packages of the ranks' interpreter; before they ran, of the submitting one."""
        known = [one.get("packages") for one in self.fingerprints] + [self.record.get("packages")]
        return next((one for one in known if isinstance(one, dict) and one), {})

    @property
    def python(self) -> str:
        """The version of that interpreter; "" if it was not recorded."""
        return self._part("python") or str(self.record.get("python", ""))

    @cached_property
    def data(self) -> list[RecordedPath] | None:
        """The files of ``data.paths``; None where none were recorded."""
        entries = self.record.get("data")
        if not isinstance(entries, list):
            return None
        return [_recorded_path(self.paths, entry) for entry in entries]

    @property
    def code(self) -> Mapping[str, str]:
        """SHA-256 of each file of the snapshot, by its path."""
        found = self.record.get("code")
        return found if isinstance(found, dict) else {}

    @property
    def config_files(self) -> list[Path]:
        """The files that the config was read from, the one that wins last."""
        return [Path(one) for one in self.record.get("config_files", [])]

    def _part(self, name: str) -> str:
        """A part of the first environment; "" if there is none."""
        parts = self.fingerprints[0].get("parts", {}) if self.fingerprints else {}
        return str(parts.get(name, ""))

    @cached_property
    def repeated(self) -> dict[str, Any]:
        """The config that trains this one trial again, as plain data.

        Raises as ``one`` and ``lineage.config``.
        """
        raw = dict(self.config.raw)
        if self.config.searcher.name == "single":
            return raw
        rows = lineage.chain(self.gathered, self.one.number)
        asked = lineage.config(rows, self.gathered)
        return {**raw, **asked}

    @cached_property
    def outcome(self) -> Outcome:
        """The outcome of the trial and of those that it began from. Raises as ``one``."""
        rows = lineage.chain(self.gathered, self.one.number)
        numbers = {row.trial for row in rows}
        trials = [one for one in self.gathered.trials if one.number in numbers]
        return of_trials(self.gathered, trials, self.config.searcher.metric)

    @cached_property
    def run_facts(self) -> RunFacts:
        """The recorded factors that the run's bits depended on."""
        site = yaml_bounds.mapping(self.paths.site) if self.paths.site.exists() else {}
        drawn = {factors.SEED: "recorded"}
        facts = factors.of_config(self.config, {**self.origins, **drawn}, site.get("env") or {})
        unknown: dict[Factor, str] = {}
        summaries: dict[Factor, str] = {}
        facts["code"] |= self.code
        facts["libraries"] |= self._libraries()
        facts["hardware"] |= self._hardware()
        if cores := self._cores():
            facts["threads"][factors.CORES] = cores
        if self.data is None:
            what = "the config names no data.paths" if self.origins else "no files were recorded"
            unknown["data"] = what
        else:
            facts["data"] |= file_facts([one.manifest for one in self.data])
            summaries["data"] = summary([one.manifest for one in self.data])
        if not self.code:
            unknown["code"] = "no snapshot was recorded"
        else:
            summaries["code"] = units.counted(len(self.code), "file")
        if not self.fingerprints:
            unknown["hardware"] = "no attempt recorded what it ran on"
        elif len(self.fingerprints) > 1:
            several = (
                f"{len(self.fingerprints)} environments were recorded, of which this is the first"
            )
            unknown["libraries"] = several
        idle = factors.settled(self.config)
        return RunFacts(facts, summaries, unknown, factors.given(self.origins), idle)

    def _libraries(self) -> dict[str, str]:
        found = dict(self.packages)
        modules = self._part("modules") or ":".join(self.record.get("modules", []))
        more = {"python": self.python, "image": self._part("image"), "modules": modules}
        return found | {name: value for name, value in more.items() if value}

    def _hardware(self) -> dict[str, str]:
        if not self.fingerprints:
            return {}
        parts = (*_BY_NUMERICS, "device")
        return {name: value for name in parts if (value := self._part(name))}

    def _cores(self) -> str:
        """The cores that a rank might use; "" if they were not recorded."""
        if not self.fingerprints:
            return ""
        return str(self.fingerprints[0].get("threads", {}).get("cores", ""))


def _fingerprint(attempt: GatheredAttempt) -> str:
    digest = str(next(attempt.of_kind("start"), {}).get("fingerprint", ""))
    return digest if digest.isalnum() else ""


def _recorded_path(paths: ExperimentPaths, entry: Any) -> RecordedPath:
    """Read an entry of the provenance, and its manifest.

    Raises:
        IntegrityError: they are not what was written.
    """
    try:
        given, path, digest = (str(entry[key]) for key in ("given", "path", "digest"))
        where = paths.root / str(entry["manifest"])
    except (KeyError, TypeError):
        raise files.damaged(paths.provenance, "data has no valid entry") from None
    try:
        found = SourceManifest.load(where)
    except OSError as error:
        raise files.damaged(where, f"the manifest cannot be read: {error.strerror}") from error
    if found.root != digest:
        raise files.damaged(where, "it is not the manifest that the experiment recorded")
    return RecordedPath(given, Path(path), found)


def file_facts(manifests: Sequence[SourceManifest]) -> dict[str, str]:
    """Return the digest of each file by its name; of several paths the number stands before it."""
    found: dict[str, str] = {}
    for number, manifest in enumerate(manifests, start=1):
        above = f"{number}:" if len(manifests) > 1 else ""
        found |= {f"{above}{one.name}": one.sha256 for one in manifest.files}
    return found


def summary(manifests: Sequence[SourceManifest]) -> str:
    """Return how many files there are, and of which size."""
    every = [one for manifest in manifests for one in manifest.files]
    return f"{units.counted(len(every), 'file')}, {units.size(sum(one.bytes for one in every))}"
