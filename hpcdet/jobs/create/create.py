"""Creation of an experiment's folder, whole or not at all."""

from __future__ import annotations

import json
import re
import secrets as random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpcdet.errors import ConfigError, Unavailable
from hpcdet.jobs.create import begin_from, data_files, provenance, snapshot
from hpcdet.jobs.create import likely_secrets as secrets
from hpcdet.jobs.create.data_files import DataFiles
from hpcdet.jobs.script import environment
from hpcdet.jobs.script.render import search_path
from hpcdet.policy import experiment_policy, named_policy
from hpcdet.policy.keys import key_files
from hpcdet.policy.memorization import twin_keys
from hpcdet.schedulers import opening
from hpcdet.site import Site, folders
from hpcdet.site_files import load_site
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.config import resolved_config
from hpcdet.store.folder import home, scratch, trust
from hpcdet.store.folder.held_folder import hold
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.names import POLICY, slug
from hpcdet.store.fs import files
from hpcdet.store.trials import hard_links
from hpcdet.store.trials.history import History
from hpcdet.store.trials.parents import Donation

if TYPE_CHECKING:  # it brings numpy
    from hpcdet.policy.compiled import CompiledPolicy, PolicyText

_ELSEWHERE = "make room for it, or say by HPCDET_ROOT where experiments shall be"


class CheckedConfig(Protocol):
    """A checked config, as ``hpcdet.config.load`` returns it."""

    @property
    def origins(self) -> Mapping[str, str]:
        """Where values come from, by dotted key."""

    @property
    def sources(self) -> Sequence[str]:
        """The files that it was read from, the one that wins last."""

    @property
    def secrets(self) -> Mapping[str, Any]:
        """Literal ``data.secrets``, which stand in no other place."""

    @property
    def policy(self) -> PolicyText | None:
        """The policy to train under, if there is one."""

    @property
    def images(self) -> Mapping[str, Mapping[str, str]]:
        """By image, what it is (``images.resolved``)."""

    def resolved(self) -> dict[str, Any]:
        """The whole config as plain data, every default filled in."""


def create(  # noqa: PLR0913, PLR0917 - the parts of an experiment
    loaded: CheckedConfig,
    site: Site,
    model_dir: Path,
    root: Path,
    name: str | None = None,
    skip: Path | None = None,
    include: Sequence[Path] = (),
    whole: bool = False,
    past: History | None = None,
    begin: Donation | None = None,
    argv: Sequence[str] = (),
    data: Sequence[DataFiles] = (),
    entries: Sequence[snapshot.SnapshotEntry] | None = None,
) -> ExperimentPaths:
    """Make the folder of a new experiment and everything in it that never changes.

    ``experiment.yaml`` is written last: a folder that has it is complete. If anything is
    refused, nothing remains. At a site with project storage it has a second folder, of the same
    name, on scratch (``folders.scratch``).

    Args:
        root: the folder of all experiments; made if it is missing.
        name: instead of the config's name, for the id.
        skip: a folder inside the code that is left out; ``root`` if it is not given.
        include: files and folders that belong to the code, too (``snapshot.scan``).
        whole: all of it in one folder, whatever the site has: it is about to be removed again.
        past: what former experiments have shown (``past.collect``).
        begin: the checkpoint that all trials begin from (``origin.look``).
        argv: the words of the command that asks for it.
        data: the files of ``data.paths``, digested.
        entries: the code, where it is not all of ``model_dir``.

    Raises:
        ConfigError: the code is refused (``snapshot.scan``), or the folder is one that others
            may write.
        IntegrityError: the checkpoint is gone by now.
        Unavailable: the folder cannot be written.
    """
    resolved = loaded.resolved()
    literal = dict(loaded.secrets)
    if loaded.policy is not None:
        resolved = _governed(resolved, loaded.policy, literal)
    if begin is not None:
        resolved = begin_from.placed(resolved, begin)
        if loaded.policy is not None:
            begin_from.refuse_other_tests(resolved, begin, loaded.policy.compiled)
    if not model_dir.is_dir():
        raise ConfigError("no such model folder", where=str(model_dir))
    for folder in (model_dir, root):
        if re.search(r"[\ud800-\udfff]", str(folder.resolve())):  # bytes that are no UTF-8
            hint = "rename it: records and scripts could not name it"
            raise ConfigError("a folder with an odd name", where=ascii(str(folder)), hint=hint)
    if entries is None:
        entries = snapshot.scan(model_dir, (skip or root).resolve(), include)
    purged = None if whole else folders.scratch(site, root)
    wanted = slug(name or str(resolved.get("name") or ""))
    paths = ExperimentPaths(_new_folder(root, wanted, purged))
    try:
        if past is not None:
            past.write(paths.history)
        if begin is not None:
            begin_from.give(begin, paths)
        if loaded.policy is not None:
            files.write_once(paths.policy, loaded.policy.text.encode())
            files.write_once(paths.compiled_policy, loaded.policy.compiled.to_json().encode())
        more = provenance.submission(argv, literal, resolved, loaded) | _known(loaded)
        more["account"] = opening.account(site, resolved_config.resolve(resolved))
        if data:
            more["data"] = data_files.write(data, paths)
        _fill(paths, resolved, literal, site, model_dir, entries, include, purged, more)
    except OSError as error:
        _undo(paths, purged)
        what = f"cannot write: {error.strerror}"
        raise Unavailable(what, where=str(paths.root), hint=_ELSEWHERE) from error
    except BaseException:
        _undo(paths, purged)
        raise
    return paths


def again(
    source: ExperimentPaths,
    fill: Callable[[ExperimentPaths], None],
    name: str | None = None,
    policy: CompiledPolicy | None = None,
) -> ExperimentPaths:
    """Make another experiment beside one: of the same config, code, site and secrets.

    Args:
        fill: makes what else there is to be, before the folder counts as complete. What it
            raises leaves nothing behind.
        name: for the id, instead of the config's name.
        policy: instead of the compiled policy of ``source``, of the same text.

    Raises:
        ConfigError: as ``create``, or the config of ``source`` cannot be read.
        GovernanceBroken: G110: ``source`` has lost its policy.
        Unavailable: as ``create``.
    """
    held, root = hold(source.root), source.root.parent
    source = held.paths  # what is checked is what is copied
    resolved, site = resolved_config.load(source.config), from_resolved(source.site)
    named_policy.require(source, resolved)
    purged = folders.scratch(site, root)
    paths = ExperimentPaths(_new_folder(root, slug(name or resolved.name), purged))
    try:
        trust.refuse_writable_by_others(paths.root, "experiment")
        if purged is not None:
            trust.refuse_writable_by_others(purged / paths.id, "experiment's folder on scratch")
        shutil.copytree(source.code, paths.code, symlinks=True)
        files.write_once(paths.provenance, _provenance_again(source, policy))
        if purged is not None:
            scratch.link(paths, purged / paths.id)
            scratch.prepare(paths)
        for mine, theirs in (
            (paths.site, source.site),
            (paths.secrets, source.secrets),
            (paths.history, source.history),
            (paths.policy, source.policy),
            (paths.compiled_policy, None if policy else source.compiled_policy),
        ):
            if theirs is not None and theirs.exists():
                files.write_once(mine, files.read(theirs))
        if policy is not None:
            files.write_once(paths.compiled_policy, policy.to_json().encode())
            governance = {**resolved.raw["governance"], "digest": policy.digest}
            config = resolved_config.dump({**resolved.raw, "governance": governance})
        else:
            config = files.read(source.config)
        for change in sorted(source.policy_changes.glob("*.json")):
            files.write_once(paths.policy_changes / change.name, files.read(change))
        for theirs, mine in (
            (source.origin.root, paths.origin.root),
            (source.fingerprints, paths.fingerprints),
            (source.data, paths.data),
        ):
            if theirs.is_dir():
                hard_links.tree(theirs, mine)
        fill(paths)
        home.settle(paths)
        files.write_once(paths.config, config)
    except OSError as error:
        _undo(paths, purged)
        what = f"cannot write: {error.strerror}"
        raise Unavailable(what, where=str(paths.root), hint=_ELSEWHERE) from error
    except BaseException:
        _undo(paths, purged)
        raise
    return paths


def _provenance_again(source: ExperimentPaths, policy: CompiledPolicy | None) -> bytes:
    """The provenance of ``source``, under another policy if one is given."""
    text = files.read(source.provenance)
    if policy is None:
        return text
    return files.canonical({**json.loads(text), "policy": _record(policy)}) + b"\n"


def _governed(
    resolved: dict[str, Any], policy: PolicyText, literal: dict[str, Any]
) -> dict[str, Any]:
    """A config that names the policy beside it, and keys, of which those that it lacks are drawn.

    Args:
        literal: gets the drawn keys.

    Raises:
        PolicyRefused: the run key, or that of twins and canaries where the policy asks for any,
            cannot be read here, or is none (P10).
    """
    digest = policy.compiled.digest
    governance = {**resolved["governance"], "policy": POLICY, "digest": digest}
    for name in resolved_config.GOVERNANCE_KEYS:
        if governance.get(name) is None:
            governance[name] = {"stored": f"governance.{name}"}
            literal[f"governance.{name}"] = random.token_hex(32)
    memory = policy.compiled.memorization
    if memory is not None and memory.tested:
        twin_key = experiment_policy.given_key(governance, "twin_key", literal)
        governance["commitment"] = twin_keys.commitment(twin_key.encode())
    run_key = experiment_policy.given_key(governance, "run_key", literal)
    governance["signer"] = key_files.public(key_files.parse(run_key, "governance.run_key"))
    return {**resolved, "governance": governance}


def _known(loaded: CheckedConfig) -> dict[str, Any]:
    """The records of its policy and of its images, if it has any."""
    found: dict[str, Any] = {}
    if loaded.policy is not None:
        found["policy"] = _record(loaded.policy.compiled)
    if loaded.images:
        found["images"] = {name: dict(one) for name, one in loaded.images.items()}
    return found


def _record(policy: CompiledPolicy) -> dict[str, Any]:
    """The entry for the policy in an experiment's provenance."""
    found = {"name": policy.name, "version": policy.version, "digest": policy.digest}
    return found | ({"ablates": policy.ablates} if policy.ablates else {})


def _undo(paths: ExperimentPaths, purged: Path | None) -> None:
    for folder in (paths.root, purged / paths.id if purged else None):
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _new_folder(root: Path, name: str, purged: Path | None) -> Path:
    """Make a new folder below ``root``, and below ``purged`` if that is given."""
    try:
        files.make_folder(root.resolve())
        if purged is not None:
            files.make_folder(purged)
        while True:
            folder = root.resolve() / f"{name}-{random.token_hex(2)}"
            try:
                folder.mkdir(mode=files.FOLDER_MODE)
            except FileExistsError:
                continue
            if purged is None or _made_beside(folder, purged):
                files.sync_folder(root)
                return folder
    except OSError as error:
        where = str(error.filename or root)
        what = f"cannot make the experiment's folder: {error.strerror}"
        raise Unavailable(what, where=where, hint=_ELSEWHERE) from error


def _made_beside(folder: Path, purged: Path) -> bool:
    """Make the folder of the same name below ``purged``; if that cannot be, neither remains."""
    try:
        (purged / folder.name).mkdir(mode=files.FOLDER_MODE)
    except OSError as error:
        folder.rmdir()
        if not isinstance(error, FileExistsError):
            raise
        return False
    files.sync_folder(purged)
    return True


def _fill(  # noqa: PLR0917 - the parts of an experiment
    paths: ExperimentPaths,
    resolved: dict[str, Any],
    literal: Mapping[str, Any],
    site: Site,
    model_dir: Path,
    entries: Sequence[snapshot.SnapshotEntry],
    include: Sequence[Path],
    purged: Path | None,
    more: Mapping[str, Any],
) -> None:
    trust.refuse_writable_by_others(paths.root, "experiment")
    if purged is not None:
        trust.refuse_writable_by_others(purged / paths.id, "experiment's folder on scratch")
    code = snapshot.copy(entries, paths.code, literal)
    private = snapshot.with_secrets(entries)
    record = provenance.collect(model_dir, code, search_path(site), include, private, more)
    for path, value in (
        (paths.provenance, record),
        (paths.site, site.plain()),
        (paths.config, resolved),
    ):
        text = json.dumps(value, ensure_ascii=False, default=str)
        secrets.refuse_literal(text.encode(), literal, path.name)
    files.write_once(paths.provenance, files.canonical(record) + b"\n")
    if purged is not None:
        scratch.link(paths, purged / paths.id)
        scratch.prepare(paths)
    files.write_once(paths.site, load_site.dump(environment.fold_defaults(site)))
    if literal:
        files.write_once(paths.secrets, files.canonical(dict(literal)) + b"\n")
    home.settle(paths)
    files.write_once(paths.config, resolved_config.dump(resolved))
