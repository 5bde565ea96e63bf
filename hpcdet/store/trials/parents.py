"""Parents of trials: the trial and checkpoint from which another trial begins.

Written as text, in decisions and in ``trial.json``: ``3`` (trial 3, its newest checkpoint),
``3@400 batches`` (as it was at that length), ``../digits-7f3a/3@2 epochs`` (of another
experiment, whose folder is named as seen from this one's).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import CHECKPOINT_NAME, INHERITED, ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import files, packed, sealed_json
from hpcdet.store.trials import hard_links
from hpcdet.store.trials.standing import MANIFEST, checkpoints, lineage
from hpcdet.units import UNITS, Length, Unit

_TEXT = re.compile(rf"(?:(.+)/)?([1-9]\d*)(?:@(\d+) ({'|'.join(UNITS)}))?")

_CHUNK = 1 << 20
_ITS_OWN = ("untold", "metric", "kept", "kind", "trial", "journal_bytes")
"""What a checkpoint says that holds for the trial that made it, and not for its children."""


@dataclass(frozen=True)
class Parent:
    """A parent: a trial at a length of its training.

    Attributes:
        length: None: as far as it has come.
        experiment: its folder, relative to that of the child's experiment; "": the same one.
    """

    trial: int
    length: Length | None = None
    experiment: str = ""

    def __str__(self) -> str:
        prefix = f"{self.experiment}/" if self.experiment else ""
        return f"{prefix}{self.trial}" + (f"@{self.length}" if self.length else "")

    @staticmethod
    def parse(text: str) -> Parent | None:
        """Return the parent that a text names; None if it names none."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        length = Length(match[4], int(match[3])) if match[4] else None  # type: ignore[arg-type]
        return Parent(int(match[2]), length, match[1] or "")

    def paths(self, child: ExperimentPaths) -> TrialPaths:
        """Return the paths of the parent, for a child of this experiment."""
        there = ExperimentPaths(child.root / self.experiment) if self.experiment else child
        return there.trial(self.trial)


ORIGIN = Parent(1, None, "origin")
"""What all trials begin from that have no other parent, where the config names a checkpoint."""


@dataclass(frozen=True)
class Donation:
    """A committed checkpoint that a trial may begin from.

    Attributes:
        at: the length of its trial then, in the requested unit.
        manifest: the checkpoint's manifest.
        donor: the trial that has it.
    """

    folder: Path
    at: int
    manifest: dict[str, Any]
    donor: TrialPaths | None = None

    @property
    def step(self) -> int:
        """The number of batches that had been trained."""
        return int(self.folder.name.partition(".")[0])

    @property
    def inherited(self) -> bool:
        """Whether it is the one that its trial began from: another one has made it."""
        named = CHECKPOINT_NAME.fullmatch(self.folder.name)
        return named is not None and int(named[2]) == INHERITED

    def length(self, unit: Unit) -> Length | None:
        """Return the length of its trial then; None if it is not recorded in this unit."""
        found = self.manifest["meta"].get(unit)
        return None if found is None else Length(unit, int(found))


def donations(trial: TrialPaths, unit: str) -> list[Donation]:
    """Return the intact checkpoints in a trial's lineage, shortest first."""
    line = lineage(trial)
    found: list[Donation] = []
    for name in checkpoints(trial):
        folders = (place / name for place in trial.checkpoint_places)
        folder = next((each for each in folders if (each / MANIFEST).is_file()), None)
        if folder is None or name not in line:
            continue
        try:
            stat = (folder / MANIFEST).stat()
            manifest = _manifest(folder, stat.st_ino, stat.st_mtime_ns)
        except (IntegrityError, OSError):
            continue
        step = int(name.partition(".")[0])
        at = step if unit == "batches" else int(manifest["meta"].get(unit, 0))
        found.append(Donation(folder, at, manifest, trial))
    return found


@functools.lru_cache(maxsize=256)
def _manifest(folder: Path, inode: int, written_ns: int) -> dict[str, Any]:  # noqa: ARG001 - parts of the cache's key
    """Return a checkpoint's manifest, cached, as a child may wait for many turns."""
    return hard_links.manifest(folder)


def forget() -> None:
    """Forget all cached manifests, as an intact checkpoint could not be linked."""
    _manifest.cache_clear()


def choose(
    found: list[Donation], length: Length | None, goal: Length | None = None
) -> Donation | None:
    """Return the longest checkpoint up to a length, and below the child's own target.

    In epochs several may have the requested length: then the first of them, made when the last
    epoch ended. Of shorter ones the newest, which is nearest.

    Args:
        length: None: as far as its trial has come.
        goal: of the child; None: its code decides.
    """
    fit = [
        each
        for each in found
        if (length is None or each.at <= length.value) and (goal is None or each.at < goal.value)
    ]
    if not fit:
        return None
    if length is None or fit[-1].at < length.value:
        return fit[-1]
    steps = [each.step for each in fit if each.at == fit[-1].at]
    return [each for each in fit if each.step == steps[0]][-1]


def give(donation: Donation, child: TrialPaths) -> dict[str, Any]:
    """Link a checkpoint into a trial that has not begun; returns its manifest there.

    Raises:
        IntegrityError: it has been damaged, or is gone by now.
        OSError: the disk is full or fails; nothing is left behind.
    """
    step = int(donation.manifest["name"].partition(".")[0])
    return hard_links.link(
        donation.folder,
        child.checkpoint(step, INHERITED),
        meta={"kind": "resume", "kept": [], "trial": child.number},
        without=_ITS_OWN,
        previous=donation.manifest[sealed_json.ROOT],
    )


def give_ledgers(donation: Donation, child: TrialPaths) -> None:
    """Copy the ledgers of a trial of another experiment, which may be gone when a child begins.

    Of a checkpoint that this one began from itself they are its parent's.

    Raises:
        IntegrityError: one is no plain file.
        OSError: the disk is full or fails.
    """
    donor = donation.donor
    theirs = [] if donor is None else ledgers(donor)
    if donor is not None and donation.inherited:
        record = Trial.read(donor.record)
        experiment = ExperimentPaths(donor.root.parent.parent)
        theirs = of_parent(experiment, donor, record.parent if record else "")
    for ledger in theirs:
        try:
            with packed.open_file(ledger.ledger) as file:
                copy = kept_ledgers(child).attempt(ledger.number).ledger
                files.make_folder(copy.parent)
                files.replace(copy, iter(functools.partial(file.read, _CHUNK), b""))
        except (FileNotFoundError, NotADirectoryError):
            continue  # an attempt without a policy, or without a first step


def ledgers(trial: TrialPaths) -> list[AttemptPaths]:
    """Return the attempts whose ledgers say what a trial was trained on.

    Of one that stands for a trial of another experiment they are copies.
    """
    return trial.attempts() or kept_ledgers(trial).attempts()


def kept_ledgers(child: TrialPaths) -> TrialPaths:
    """Return where a trial keeps copies of its parent's ledgers."""
    return TrialPaths(child.root / "parent", child.number)


def of_parent(
    experiment: ExperimentPaths | None, child: TrialPaths, parent: str
) -> list[AttemptPaths]:
    """Return the attempts whose ledgers say what the parent of a trial was trained on.

    Args:
        parent: as the trial's record has it.
    """
    kept, named = kept_ledgers(child).attempts(), Parent.parse(parent)
    if kept or experiment is None or named is None:
        return kept
    return ledgers(named.paths(experiment))


def given(child: TrialPaths) -> dict[str, Any] | None:
    """Return the manifest of the checkpoint linked into a trial to begin from, if there is one."""
    for name in checkpoints(child):
        match = CHECKPOINT_NAME.fullmatch(name)
        if match and int(match[2]) == INHERITED:
            for place in child.checkpoint_places:
                if (place / name / MANIFEST).is_file():
                    return hard_links.manifest(place / name)
    return None


def origin_of(made: dict[str, Any]) -> dict[str, Any]:
    """Return the record of the checkpoint that a trial began from, given its manifest there.

    ``checkpoint`` and ``root`` are those of its parent's, ``name`` is the child's.
    """
    meta = made["meta"]
    return {
        "checkpoint": meta["linked"]["name"],
        "root": meta["linked"]["root"],
        "digest": made["digest"],
        "name": made["name"],
        "units": {unit: meta.get(unit, 0) for unit in UNITS},
    }
