"""The present state of a run's dependencies: config, code, data, packages, machine."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdet import units
from hpcdet.config.load import load_config
from hpcdet.config.load.load_config import LoadedConfig
from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.jobs.create import data_files, provenance, snapshot
from hpcdet.jobs.create.data_files import DataFiles
from hpcdet.jobs.repeat import restored_data
from hpcdet.jobs.script import interpreters, lanes
from hpcdet.policy.provenance.source_manifests import Watch
from hpcdet.read.capsule import factors, recorded
from hpcdet.read.capsule.factors import Factor, RunFacts
from hpcdet.read.capsule.recorded import Capsule
from hpcdet.schedulers import opening
from hpcdet.schedulers.common import machine
from hpcdet.site import Site
from hpcdet.store.config import numerics
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.checkpoint_storage import OF_STORES
from hpcdet.store.config.sections.checkpoint_storage import SECTION as STORAGE
from hpcdet.store.folder import trust
from hpcdet.store.folder.derived_store import KnownDigests
from hpcdet.store.fs import yaml12
from hpcdet.store.fs.yaml12 import Document

_ASK = (
    "import json, platform; from importlib import metadata; "
    "print(json.dumps([platform.python_version(), "
    "{d.metadata['Name']: d.version for d in metadata.distributions() if d.metadata['Name']}]))"
)
_ASK_S = 120


@dataclass(frozen=True)
class Present:
    """The parts of a submission, as of now.

    Attributes:
        model_dir: the code; None where nobody said where it is.
        data: the files of ``data.paths`` as they are now.
        notes: what could not be looked at, for people.
    """

    loaded: LoadedConfig
    site: Site
    model_dir: Path | None
    data: Sequence[DataFiles]
    run_facts: RunFacts
    notes: Sequence[str] = ()


def look(
    capsule: Capsule,
    site: Site,
    model_dir: Path | None = None,
    sets: Sequence[str] = (),
    watch: Watch = lambda _: None,
) -> Present:
    """Return what a run would depend on now; nothing is run, and nothing is changed.

    Args:
        site: where it would run.
        model_dir: the code, and the config beside it; None: where they were.
        sets: assignments of the config, as of ``--set``. Those of the submission are not among
            them: what stands in no file is what is forgotten first.
        watch: told of the bytes of data that are read.

    Raises:
        ConfigError: the config of now is wrong, or there is no such folder.
        IntegrityError: the capsule is damaged.
    """
    if model_dir is not None and not model_dir.is_dir():
        raise ConfigError("no such model folder", where=str(model_dir))
    notes: list[str] = []
    unknown: dict[Factor, str] = {}
    folder = model_dir or _own_folder(capsule)
    loaded = lanes.settled(_config(capsule, model_dir, site, sets, notes), site)
    facts = factors.of_config(loaded.config, loaded.origins, site.env)
    summaries: dict[Factor, str] = {}
    _code(capsule, folder, facts["code"], summaries, unknown)
    data = _data(capsule, loaded.config, folder, watch, facts["data"], summaries, unknown)
    _policy(loaded.config, facts["hyperparameters"], folder or capsule.paths.root)
    facts["libraries"] |= _libraries(loaded.config, site, unknown)
    _machine(capsule, loaded.config, site, facts, unknown)
    idle = factors.settled(loaded.config)
    found = RunFacts(facts, summaries, unknown, factors.given(loaded.origins), idle)
    return Present(loaded, site, folder, data, found, notes)


def _is_anothers(capsule: Capsule) -> bool:
    """True for another user's experiment, which could name any file of this user's."""
    return capsule.paths.root.stat().st_uid != os.getuid()


def _own_folder(capsule: Capsule) -> Path | None:
    """Return the model folder of the submission; None if it is gone, or another user names it."""
    given = capsule.record.get("model_dir")
    if not isinstance(given, str) or _is_anothers(capsule) or not Path(given).is_dir():
        return None
    return Path(given)


def _config(
    capsule: Capsule,
    given: Path | None,
    site: Site,
    sets: Sequence[str],
    notes: list[str],
) -> LoadedConfig:
    """Load the files that the config was read from as they are now.

    With a model folder, those of them that lie in it are read there. Where the config itself is
    gone, the recorded one stands for it.
    """
    known = [] if _is_anothers(capsule) and given is None else capsule.config_files
    before = Path(str(capsule.record.get("model_dir", "")))
    if given is not None and not _is_anothers(capsule):
        known = [
            given / path.relative_to(before) if path.is_relative_to(before) else path
            for path in known
        ]
    elif given is not None:
        known = [given / path.name for path in known]
    if not known or not known[-1].is_file():
        where = str(known[-1]) if known else "its config"
        notes.append(f"{where} is not there: the recorded config stands for it")
        raw = {
            name: value
            for name, value in capsule.config.raw.items()
            if name not in ("governance", "notify")
        }
        raw["data"] = {n: v for n, v in raw.get("data", {}).items() if n != "secrets"}
        if _is_anothers(capsule):  # whose interpreter is not asked what it has: that runs it
            own = raw.get("environment", {}).items()
            raw["environment"] = {n: v for n, v in own if n != "python"}
        raw[STORAGE] = {n: v for n, v in raw.get(STORAGE, {}).items() if n not in OF_STORES}
        return load_config.check(Document("the recorded config", raw), sets, site)
    template = known[0] if len(known) > 1 else None
    for path in known:
        trust.refuse_writable_by_others(path, "config")
    return load_config.check(yaml12.read(known[-1]), sets, site, template)


def _code(
    capsule: Capsule,
    folder: Path | None,
    facts: dict[str, str],
    summaries: dict[Factor, str],
    unknown: dict[Factor, str],
) -> None:
    if not capsule.code:
        return
    if folder is None:
        unknown["code"] = _nowhere(capsule)
        facts |= dict(capsule.code)
        return
    more = [Path(one) for one in capsule.record.get("include", []) if Path(one).exists()]
    entries = snapshot.scan(folder, capsule.paths.root.parent, more)
    for entry in entries:
        then = capsule.code.get(entry.path)
        same = then is not None and snapshot.is_same(entry, then)
        facts[entry.path] = then if same and then is not None else snapshot.digest(entry)
    summaries["code"] = units.counted(len(entries), "file")


def _nowhere(capsule: Capsule) -> str:
    if _is_anothers(capsule):
        return "the experiment is somebody else's: --model-dir says where the code is"
    return f"{capsule.record.get('model_dir') or 'the model folder'} is gone: --model-dir"


def _data(
    capsule: Capsule,
    config: Resolved,
    folder: Path | None,
    watch: Watch,
    facts: dict[str, str],
    summaries: dict[Factor, str],
    unknown: dict[Factor, str],
) -> list[DataFiles]:
    """Read the files of ``data.paths`` now; none where none were recorded then."""
    if capsule.data is None:
        return []
    if _is_anothers(capsule) and folder is None:
        unknown["data"] = _nowhere(capsule)
        facts |= recorded.file_facts([one.manifest for one in capsule.data])
        return []
    try:
        with KnownDigests() as known:
            found = [
                restored_data.digested(place, capsule.paths.root.parent, watch, known)
                for place in data_files.located(config.data, folder or Path())
            ]
    except (ConfigError, IntegrityError) as error:
        unknown["data"] = error.what
        return []
    manifests = [one.manifest for one in found]
    facts |= recorded.file_facts(manifests)
    summaries["data"] = recorded.summary(manifests)
    return found


def _policy(config: Resolved, facts: dict[str, str], folder: Path) -> None:
    """Add the digest of the policy as it is now."""
    if config.governance is None:
        return
    from hpcdet.config.policy.policy_file import read_policy  # it brings numpy

    with contextlib.suppress(ConfigError, OSError):
        policy = read_policy(config.governance.policy, folder)
        facts["governance.digest"] = policy.compiled.digest


def _libraries(config: Resolved, site: Site, unknown: dict[Factor, str]) -> dict[str, str]:
    if config.environment.image is not None:
        unknown["libraries"] = "they are in the image"
        return {}
    python = interpreters.of_jobs(config, site)
    asked = packages_of(python)
    if asked is None:
        unknown["libraries"] = f"{python} does not say what it has"
        return {}
    version, found = asked
    modules = os.environ.get("LOADEDMODULES", "")
    return {**found, "python": version, **({"modules": modules} if modules else {})}


def packages_of(python: str) -> tuple[str, Mapping[str, str]] | None:
    """Return the version and the packages of an interpreter; None if it cannot be asked."""
    if python == sys.executable:
        return platform.python_version(), provenance.packages()
    try:
        ran = subprocess.run(
            [python, "-P", "-c", _ASK], capture_output=True, timeout=_ASK_S, check=True
        )
        version, found = json.loads(ran.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return str(version), dict(found)


def _machine(
    capsule: Capsule,
    config: Resolved,
    site: Site,
    facts: dict[Factor, dict[str, str]],
    unknown: dict[Factor, str],
) -> None:
    """Add what this machine is, where it is the one that ranks run on."""
    then = capsule.run_facts
    if opening.of(site).cluster:
        unknown["hardware"] = f"the nodes of {site.name} are known once they run it"
        facts["hardware"] |= dict(then.of("hardware"))
        facts["threads"] |= {n: v for n, v in then.of("threads").items() if n == factors.CORES}
        return
    if not then.of("hardware").get("processor"):
        return
    facts["hardware"] |= {"processor": numerics.processor(), "machine": platform.machine()}
    models = machine.accelerator_models() if config.reproducibility.device is None else []
    if models:
        facts["hardware"]["device"] = models[0]
    if factors.CORES in then.of("threads"):
        facts["threads"][factors.CORES] = str(numerics.cores())
