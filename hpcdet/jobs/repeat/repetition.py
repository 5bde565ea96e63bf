"""A run that is submitted again, with some of its factors as they were and the others as now."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdet.config.load import load_config
from hpcdet.config.load.load_config import LoadedConfig
from hpcdet.errors import ConfigError, IntegrityError, NotFound
from hpcdet.jobs.create import begin_from, create, images, provenance
from hpcdet.jobs.create.data_files import DataFiles
from hpcdet.jobs.create.snapshot import SnapshotEntry
from hpcdet.jobs.repeat import restored_data, restored_packages
from hpcdet.jobs.repeat.present import Present, packages_of
from hpcdet.jobs.repeat.restored_packages import RestoredPackages
from hpcdet.jobs.script import lanes
from hpcdet.policy.provenance.source_manifests import Watch
from hpcdet.read.capsule.factors import CORES, FACTORS, Factor, compare, factor_of
from hpcdet.read.capsule.recorded import Capsule
from hpcdet.site import Site
from hpcdet.store.config.sections import checkpoint_storage
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.fs.yaml12 import Document
from hpcdet.store.trials.parents import ORIGIN

KeyPath = tuple[str, ...]
_PYTHON = ("environment", "python")
_VARIABLES = ("environment", "environment_variables")
OF_MACHINE = frozenset({"processor", "machine", "device", CORES})
"""Facts of the machine on which it runs."""
_DROPPED: tuple[KeyPath, ...] = (
    ("notify",), ("budget",), ("resources", "slots_per_node"), ("searcher", "max_trials"),
    *(("checkpoint_storage", key) for key in checkpoint_storage.OF_STORES),
)  # fmt: skip
"""Keys that follow from others, and those by which a repetition would disturb or be disturbed."""


@dataclass(frozen=True)
class Restored:
    """The restored parts of a capsule, each restored once for all repetitions.

    Attributes:
        code: the snapshot, verified.
        data: the recorded files alone; None where none were recorded.
        packages: an interpreter that has them, or is to do; None where an image has them.
    """

    code: Sequence[SnapshotEntry]
    data: Sequence[DataFiles] | None
    packages: RestoredPackages | None


@dataclass(frozen=True)
class Repetition:
    """An experiment that is ready to be made.

    Attributes:
        entries: the code; None: all of ``model_dir``.
        unrestored: what is not as it was although it should be, each with why.
    """

    loaded: LoadedConfig
    site: Site
    model_dir: Path
    entries: Sequence[SnapshotEntry] | None
    data: Sequence[DataFiles]
    unrestored: Sequence[str]

    def create(self, root: Path, argv: Sequence[str] = ()) -> ExperimentPaths:
        """Make the experiment.

        Raises:
            IntegrityError: the checkpoint that the run began from is gone.
            ConfigError, Unavailable: as ``create.create``.
        """
        try:
            begin = begin_from.look(self.loaded.config, root)
        except NotFound as error:
            raise IntegrityError(error.what, where=error.where, hint=error.hint) from error
        return create.create(
            self.loaded,
            self.site,
            self.model_dir,
            root,
            begin=begin,
            argv=argv,
            data=self.data,
            entries=self.entries,
        )


def refuse_impossible(capsule: Capsule) -> None:
    """Refuse runs of which a repetition would say nothing.

    Raises:
        ConfigError: a policy governs it, or its trial was never started, or began from a checkpoint
            that its config does not name.
        NotFound: as ``Capsule.one``.
    """
    if capsule.config.governance is not None:
        raise ConfigError(
            "it was trained under a policy: the keys that draw twins and canaries and sign its "
            "evidence are its own, and no other experiment gets them",
            where=capsule.paths.id,
            hint="hpcdet reproduce without --run compares it all the same",
        )
    named, record = f"{capsule.paths.id}/{capsule.one.number}", capsule.one.record
    if not capsule.one.attempts:
        what = "the trial was never started: there is nothing to compare with"
        raise ConfigError(what, where=named)
    if record is not None and record.parent not in ("", str(ORIGIN)):
        raise ConfigError(
            f"it began from trial {record.parent.replace('@', ' at ')}, by a fork or its search; "
            "its config, from which a repetition is made, begins from nothing",
            where=named,
            hint="repeat the trial that it began from; without --run it is compared all the same",
        )


def restore(
    capsule: Capsule,
    now: Sequence[Path],
    root: Path,
    lock: bool,
    watch: Watch = lambda _: None,
) -> Restored:
    """Put back what the capsule records.

    Args:
        now: where ``data.paths`` leads now.
        lock: also the packages; else those of this interpreter have to do.

    Raises:
        IntegrityError: something recorded is gone or has changed.
    """
    code = _code(capsule)
    data = None
    if capsule.data is not None:
        data = restored_data.restore(capsule.data, now, root, watch)
    packages = None
    if capsule.config.environment.image is None:
        if lock:
            packages = _packages(capsule, root)
        else:
            packages = restored_packages.as_now(capsule.packages, capsule.python)
    return Restored(code, data, packages)


def _packages(capsule: Capsule, root: Path) -> RestoredPackages:
    """Return an interpreter with the recorded packages: that of the run, if it still has them."""
    here = provenance.packages().get(restored_packages.OURS)
    if capsule.packages.get(restored_packages.OURS) == here:
        for python in (capsule.config.environment.python, capsule.record.get("executable")):
            if python and packages_of(str(python)) == (capsule.python, capsule.packages):
                return RestoredPackages("" if python == sys.executable else str(python))
    return restored_packages.restore(capsule.packages, capsule.python, root)


def _code(capsule: Capsule) -> list[SnapshotEntry]:
    """Return the snapshot. Raises IntegrityError where it is not what was recorded."""
    entries, wrong = [], []
    for name, digest in capsule.code.items():
        source = capsule.paths.code / name
        try:
            link = str(source.readlink()) if source.is_symlink() else ""
            contents = link.encode() if link else source.read_bytes()
        except OSError as error:
            wrong.append(f"{name}: {error.strerror}")
            continue
        if hashlib.sha256(contents).hexdigest() != digest:
            wrong.append(f"{name} has changed")
        entries.append(SnapshotEntry(name, source, 0 if link else len(contents), link))
    if wrong or not entries:
        what = f"the snapshot of the code is not what was recorded: {'; '.join(wrong[:5])}"
        raise IntegrityError(
            what if wrong else "no snapshot of the code was recorded",
            where=str(capsule.paths.code),
            hint="put it back from a backup",
        )
    return entries


def whole(capsule: Capsule, site: Site, restored: Restored) -> Repetition:
    """Return the run as it was, every factor restored.

    Raises:
        IntegrityError: what a trial began from is gone.
    """
    try:
        raw = capsule.repeated
    except NotFound as error:
        raise IntegrityError(error.what, where=error.where, hint=error.hint) from error
    return _made(capsule, site, raw, FACTORS, restored, None, [])


def mixed(
    capsule: Capsule, now: Present, restored: Restored, factors: Collection[Factor]
) -> Repetition:
    """Return the run as of now, with some factors as they were.

    Raises:
        ConfigError: the mixture is no possible config.
    """
    leaves = dict(_leaves(now.loaded.resolved()))
    kept = {path: one for path, one in leaves.items() if factor_of(".".join(path)) not in factors}
    back = {
        path: one for path, one in _leaves(capsule.repeated) if factor_of(".".join(path)) in factors
    }
    raw = _tree({**kept, **back})
    unrestored = _variables(capsule, now, factors, raw)
    return _made(capsule, now.site, raw, factors, restored, now, unrestored)


def _variables(
    capsule: Capsule, now: Present, factors: Collection[Factor], raw: dict[str, Any]
) -> list[str]:
    """Set variables of the site as they were; return those that cannot be."""
    lacking = []
    for row in compare(capsule.run_facts, now.run_facts):
        for name in row.names if row.factor in factors else ():
            value = capsule.run_facts.of(row.factor).get(name)
            if name.startswith("$") and value is not None:
                section = raw.setdefault(_VARIABLES[0], {}).setdefault(_VARIABLES[1], {})
                section.setdefault(name[1:], value)
            elif name.startswith("$") or name in OF_MACHINE:
                lacking.append(f"{name}: was {value or 'not there'}")
    return lacking


def unrestorable(restored: Restored) -> frozenset[str]:
    """Return the names of facts that no repetition can have as they were."""
    packages = restored.packages
    lacking = packages.unrestored if packages is not None else ()
    return OF_MACHINE | {one.partition(" ")[0] for one in lacking}


def _made(
    capsule: Capsule,
    site: Site,
    raw: dict[str, Any],
    factors: Collection[Factor],
    restored: Restored,
    now: Present | None,
    unrestored: Sequence[str],
) -> Repetition:
    leaves = {
        path: one
        for path, one in _leaves(raw)
        if not any(path[: len(dropped)] == dropped for dropped in _DROPPED)
    }
    leaves[("name",)] = f"{capsule.config.name}-again"
    leaves[("labels",)] = [f"reproduces:{capsule.paths.id}"]
    leaves[("site",)] = site.name
    lacking = list(unrestored)
    leaves[_PYTHON] = now.loaded.config.environment.python if now is not None else None
    if "libraries" in factors and restored.packages is not None:
        leaves[_PYTHON] = restored.packages.python or None
        lacking += restored.packages.unrestored
    data: Sequence[DataFiles] = now.data if now is not None else ()
    if "data" in factors and restored.data is not None:
        data = restored.data
        given = [one.place.given for one in data]
        was_list = isinstance(capsule.config.data.get("paths"), list)
        leaves[("data", "paths")] = given if was_list else given[0]
    raw = _with_secrets(_tree(leaves), capsule, now)
    loaded = load_config.check(Document(f"the capsule of {capsule.paths.id}", raw), (), site)
    loaded = _with_image(capsule, lanes.settled(loaded, site), site, "libraries" in factors)
    if now is None or now.model_dir is None or "code" in factors:
        return Repetition(loaded, site, capsule.paths.code, restored.code, data, lacking)
    return Repetition(loaded, site, now.model_dir, None, data, lacking)


def _with_secrets(raw: dict[str, Any], capsule: Capsule, now: Present | None) -> dict[str, Any]:
    """Return a config with the literals of ``data.secrets`` that its references stand for."""
    section = raw.get("data", {}).get("secrets")
    if not isinstance(section, dict):
        return raw
    kept = files.read_json(capsule.paths.secrets)
    known = {**(kept if isinstance(kept, dict) else {}), **(now.loaded.secrets if now else {})}
    found = {
        name: known.get(name, one) if isinstance(one, dict) and "stored" in one else one
        for name, one in section.items()
    }
    return {**raw, "data": {**raw["data"], "secrets": found}}


def _with_image(capsule: Capsule, loaded: LoadedConfig, site: Site, as_was: bool) -> LoadedConfig:
    """Return the config with its image found. Raises IntegrityError where it is another one."""
    if loaded.config.environment.image is None:
        return loaded
    image, records = images.resolved(loaded.config, site, None)
    known = capsule.record.get("images", {})
    then = {one.get("digest") for one in known.values()} if isinstance(known, dict) else set()
    if as_was and {one.get("digest") for one in records.values()} != then:
        what = "the image is not the one that was recorded"
        raise IntegrityError(what, where=images.IMAGE, hint="put that image back")
    origin = loaded.origins.get(images.IMAGE, "derived")
    return replace(loaded.with_value(images.IMAGE, image, origin), images=records)


def _leaves(value: Mapping[str, Any], above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and value of every leaf; an empty map is one."""
    for name, one in value.items():
        if isinstance(one, Mapping) and one:
            yield from _leaves(one, (*above, str(name)))
        else:
            yield (*above, str(name)), one


def _tree(leaves: Mapping[KeyPath, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in leaves.items():
        place = found
        for name in path[:-1]:
            inner = place.get(name)
            if not isinstance(inner, dict):
                inner = place[name] = {}
            place = inner
        if not (value == {} and isinstance(place.get(path[-1]), dict)):
            place[path[-1]] = value
    return found
