"""The checkpoint that all trials of an experiment begin from, where its config names one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.errors import ConfigError, NotFound
from hpcdet.read.lookup import find
from hpcdet.registry import model_names, registered_models, registry_place
from hpcdet.registry.model_names import ModelReference
from hpcdet.registry.registered_models import VersionRecord
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.names import REGISTERED
from hpcdet.store.fs import sealed_json
from hpcdet.store.trials import parents
from hpcdet.store.trials.parents import Donation
from hpcdet.units import UNITS, Length

if TYPE_CHECKING:
    from hpcdet.policy.compiled import CompiledPolicy

_TEXT = re.compile(rf"(.+?)(?:@(\d+) ({'|'.join(UNITS)}))?")
_KEY = "searcher.begin_from"


def look(resolved: Resolved, root: Path, registry: Path | None = None) -> Donation | None:
    """Return the checkpoint that ``searcher.begin_from`` names; None without that key.

    Args:
        root: the folder of all experiments.
        registry: that of models; None: the one in ``root``.

    Raises:
        NotFound: there is no such experiment or trial.
        ConfigError: it has no such checkpoint, or there is nothing left to train from there.
    """
    named, until = resolved.searcher.begin_from, resolved.searcher.max_length
    match = _TEXT.fullmatch(named or "")
    if match is None:
        return None
    try:
        trial, added = _trial(match[1], root, registry or registry_place.folder(root))
    except NotFound as error:
        hint = error.hint or "write ID/3, ID/3@400 batches, or model:NAME:3"
        raise NotFound(f"{named}: {error.what}", where=_KEY, hint=hint) from error
    unit = match[3] or (until.unit if until else "batches")
    found = parents.donations(trial, unit)
    if added:  # whatever else lies in the version's folder by now
        found = [one for one in found if one.manifest[sealed_json.ROOT] == added]
    if match[2]:
        found = [one for one in found if one.at <= int(match[2])]
    if not found:
        at = f" at {match[2]} {unit} or before" if match[2] else ""
        hint = f"hpcdet ckpt ls {match[1]} shows which it has"
        hint = f"hpcdet registry verify {match[1]}" if added else hint
        raise ConfigError(f"{match[1]} has no whole checkpoint{at}", where=_KEY, hint=hint)
    meta = found[-1].manifest["meta"]
    if until is not None and int(meta.get(until.unit, 0)) >= until.value:
        what = f"it has trained for {meta[until.unit]} {until.unit}, and trials train until {until}"
        raise ConfigError(what, where=_KEY, hint="a greater searcher.max_length counts from 0, too")
    return found[-1]


def _trial(text: str, root: Path, registry: Path) -> tuple[TrialPaths, str]:
    """Return the trial, and of a version the root of the checkpoint's manifest that was added."""
    if not model_names.is_reference(text):
        return find.trial(text, root), ""
    version = registered_models.version(registry, text)
    return version.paths.trial(version.record.trial), version.record.root


def placed(resolved: dict[str, Any], donation: Donation) -> dict[str, Any]:
    """Return a resolved config as plain data, with the length of the checkpoint in it.

    Of a registered model it names the version by its number: aliases move.
    """
    until = resolved["searcher"].get("max_length")
    at = donation.length(Length.decode(until).unit if until is not None else "batches")
    searcher = {**resolved["searcher"], "begin_at": at.encode() if at is not None else None}
    folder = registered_models.of_path(donation.folder)
    record = VersionRecord.read(folder / REGISTERED) if folder is not None else None
    if record is not None:
        searcher["begin_from"] = str(ModelReference(record.model, record.version))
    return {**resolved, "searcher": searcher}


def refuse_other_tests(
    resolved: dict[str, Any], donation: Donation, policy: CompiledPolicy
) -> None:
    """Refuse weights of which a policy's gate on memorization could not be judged.

    They may have seen what is withheld from the new experiment, and not its canaries. A policy
    that only warns goes on, without a number.

    Args:
        resolved: of the new experiment, with its commitment to the twin key.

    Raises:
        ConfigError: they are from training with other twins or canaries, or with none.
    """
    committed, memory = resolved["governance"].get("commitment"), policy.memorization
    if not committed or memory is None or memory.on_violation == "warn":
        return
    block = donation.manifest["meta"].get("governance", {})
    asked = {"twins": memory.twins, "canaries": memory.canaries}
    had = [block.get(kind, {}) for kind, rules in asked.items() if rules is not None]
    if any(one.get("commitment") != committed or one.get("void") for one in had):
        raise ConfigError(
            "its weights may have seen the twins that this experiment withholds, or not its "
            "canaries, so that its policy could not judge memorization",
            where=_KEY,
            hint="name the same governance.twin_key in both experiments; or "
            "`memorization: {on_violation: warn}` in the policy, and no number is reported",
        )


def give(donation: Donation, paths: ExperimentPaths) -> None:
    """Link it into a new experiment, so that all of its trials can have it whenever they begin.

    Raises:
        IntegrityError: it has been damaged, or is gone by now.
        OSError: the disk is full or fails.
    """
    parents.give(donation, paths.origin.trial(1))
    parents.give_ledgers(donation, paths.origin.trial(1))
