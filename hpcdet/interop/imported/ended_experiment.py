"""A foreign experiment as the folder of one of hpcdet's that has ended.

It has the records and journals that all reading verbs read, with the original times and steps, and
says in ``provenance.json``, in the reason of its state and by a label where it is from. What the
other platform does not tell (seeds, hosts, exit codes) is absent.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet import __version__, units
from hpcdet.errors import Unavailable, UsageError
from hpcdet.interop.imported.foreign import ForeignCheckpoint, ForeignExperiment, ForeignTrial
from hpcdet.read import catalog
from hpcdet.store.config import resolved_config
from hpcdet.store.folder import home, names
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, Closed, Control, End, Reason, Trial, Verdict
from hpcdet.store.fs import files, journal
from hpcdet.store.trials import hard_links, standing

_NO_SEED = -1
_ABANDONED_S = 24 * 3600.0
_SITE = b"schema: 1\nname: imported\nscheduler: local\n"
_ATTEMPT = 1
"""Another platform tells of a trial as a whole, not of its stretches."""

_REASONS: dict[str, Reason] = {
    "COMPLETED": "completed",
    "CANCELED": "canceled",
    "ERROR": "user_error",
}

Saved = Mapping[str, Mapping[str, Any]]
"""By the path of a checkpoint's folder: its ``bytes`` and ``digest``."""


@dataclass(frozen=True)
class EndedExperiment:
    """A foreign experiment on its way into a folder.

    Attributes:
        root: of all experiments.
        sources: names of the files it was read from, for the record.
        nonce: tells the draft from those of other processes that import the same.
    """

    foreign: ForeignExperiment
    root: Path
    sources: tuple[str, ...]
    nonce: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def target(self) -> ExperimentPaths:
        """Its folder, the same at each import of it."""
        key = hashlib.sha256(f"{self.foreign.platform} {self.foreign.key}".encode()).hexdigest()
        return ExperimentPaths(self.root / f"{names.slug(self.foreign.name)}-{key[:8]}")

    @property
    def draft(self) -> ExperimentPaths:
        """The folder in which it is made, which no verb finds."""
        name = f".importing-{self.target.id}-{self.nonce}"
        return ExperimentPaths(self.root / name, self.target.id)

    def there(self, wanted: Iterable[Path] = ()) -> bool:
        """True if exactly this was imported before.

        Args:
            wanted: places of checkpoints in the draft that have to be there, too.

        Raises:
            UsageError: the folder has another experiment, or trials that the files lack.
        """
        if not self.target.root.exists():
            return False
        record = files.read_json(self.target.provenance)
        mark = record.get(names.IMPORTED) if isinstance(record, dict) else None
        if not isinstance(mark, dict) or mark.get("key") != self.foreign.key:
            what = "the folder holds another experiment"
            raise UsageError(what, where=str(self.target.root), hint="move it away")
        known = {trial.number for trial in self.foreign.trials}
        if lost := [paths for paths in self.target.trials() if paths.number not in known]:
            what = f"the files lack {units.counted(len(lost), 'trial')} of a former import"
            raise UsageError(what, where=self.target.id, hint="give all files at once")
        whole = (self._now(place) / standing.MANIFEST for place in wanted)
        return bool(mark.get("digest") == self._digest()) and all(map(Path.is_file, whole))

    def begin(self) -> None:
        """Make the draft; those that a kill left a day ago or longer are removed."""
        files.make_folder(self.root)
        for old in self.root.glob(f".importing-{self.target.id}-*"):
            with contextlib.suppress(OSError):
                if time.time() - old.lstat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(old)
        files.make_folder(self.draft.root)

    def _now(self, place: Path) -> Path:
        """Return where what has this place in the draft was put by an earlier import."""
        return self.target.root / place.relative_to(self.draft.root)

    def abandon(self) -> None:
        """Remove what ``begin`` made and ``finish`` did not put into its place."""
        shutil.rmtree(self.draft.root, ignore_errors=True)

    def places(self, storage: Path) -> Iterator[tuple[Path, Path]]:
        """Yield the folders of checkpoints in the other platform's storage, each with its place."""
        for trial, paths in self._numbered(self.draft):
            for one in trial.checkpoints:
                if (storage / one.name).is_dir():
                    yield storage / one.name, paths.checkpoint(one.step, _ATTEMPT)

    def finish(self, saved: Saved) -> ExperimentPaths:
        """Write all records, and put the folder in its place; returns that.

        What users asked of an earlier import of it (tags), and its checkpoints, stay.

        Args:
            saved: the checkpoints that were written at ``places``.

        Raises:
            Unavailable: another process has imported it meanwhile.
        """
        draft, target = self.draft, self.target
        known = {**saved, **self._kept(saved)}
        for trial, paths in self._numbered(draft):
            self._write(trial, paths, known)
        draft.code.mkdir(exist_ok=True)
        files.write_once(draft.site, _SITE)
        files.write_once(draft.provenance, files.canonical(self._provenance()) + b"\n")
        foreign = self.foreign
        why = f"imported from {foreign.platform}, experiment {foreign.id}"
        if foreign.said != foreign.state:
            why += f", where it was {foreign.said}"
        Closed(foreign.state, why, at=foreign.end or files.now()).write_once(draft.closed)
        files.write_once(draft.config, resolved_config.dump(self._config()))
        if target.commands.is_dir():
            shutil.copytree(target.commands, draft.commands)
        if target.root.exists():
            aside = target.root.with_name(f".replaced-{target.id}-{self.nonce}")
            target.root.rename(aside)
            draft.root.rename(target.root)
            shutil.rmtree(aside)
        else:
            try:
                draft.root.rename(target.root)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                what = "another process has just imported it"
                raise Unavailable(what, where=target.id, hint="import it again") from error
        files.sync_folder(self.root)
        home.settle(target)
        catalog.leave_row(target)
        return target

    def _kept(self, saved: Saved) -> dict[str, dict[str, Any]]:
        """Link the checkpoints of an earlier import into the draft; return those, as ``Saved``."""
        found = {}
        for trial, paths in self._numbered(self.draft):
            for one in trial.checkpoints:
                place = paths.checkpoint(one.step, _ATTEMPT)
                old = self._now(place)
                manifest = files.read_json(old / standing.MANIFEST, large=True)
                if str(place) not in saved and isinstance(manifest, dict):
                    files.make_folder(place.parent)
                    hard_links.tree(old, place)
                    named = (path for path in old.iterdir() if path.name != standing.MANIFEST)
                    size = sum(path.stat().st_size for path in named)
                    found[str(place)] = {"digest": manifest.get("digest", ""), "bytes": size}
        return found

    def _numbered(self, within: ExperimentPaths) -> Iterator[tuple[ForeignTrial, TrialPaths]]:
        for trial in self.foreign.trials:
            yield trial, within.trial(trial.number)

    def _config(self) -> dict[str, Any]:
        config = dict(self.foreign.config)
        labels = [str(label) for label in config.get("labels") or []]
        mark = self.foreign.platform.lower()
        return {**config, "labels": [*labels, *([] if mark in labels else [mark])]}

    def _provenance(self) -> dict[str, Any]:
        foreign = self.foreign
        return {
            "schema": 1,
            "created_at": foreign.start or foreign.end or files.now(),
            "hpcdet": __version__,
            "user": foreign.user,
            names.IMPORTED: {
                "from": foreign.platform,
                "id": foreign.id,
                "key": foreign.key,
                "digest": self._digest(),
                "files": list(self.sources),
                "at": files.now(),
                "state": foreign.said,
                "notes": foreign.notes,
                "trials": {
                    str(one.number): {"id": one.id, "state": one.said, "restarts": one.restarts}
                    for one in foreign.trials
                },
                "missing_trials": list(foreign.missing),
                "config": dict(foreign.written),
                **foreign.more,
            },
        }

    def _digest(self) -> str:
        return hashlib.sha256(repr(self.foreign).encode(errors="replace")).hexdigest()

    def _write(self, trial: ForeignTrial, paths: TrialPaths, saved: Saved) -> None:
        created = trial.start or self.foreign.start
        Trial(paths.number, dict(trial.params), _NO_SEED, created_at=created).write_once(
            paths.record
        )
        action: Any = {"CANCELED": "kill", "ERROR": "fail"}.get(trial.state, "run")
        said = f"{self.foreign.platform}: {trial.said}"
        why = "" if trial.state == "COMPLETED" else said
        Control(action, why=why, at=created).write_once(paths.control(1))
        if not trial.start:
            return
        attempt = paths.attempt(_ATTEMPT)
        job = f"{self.foreign.platform.lower()}:{trial.id}"
        Claim(job, "", job, at=trial.start).write_once(attempt.claim)
        lines = [*self._lines(trial, paths, saved)]
        text = b"".join(
            journal.encode(n, kind, fields, time) for n, (time, kind, fields) in enumerate(lines, 1)
        )
        files.write_once(attempt.journal, text)
        reason = _REASONS[trial.state]
        end = trial.end or trial.start
        error = said if reason == "user_error" else ""
        if trial.state == "COMPLETED":
            Verdict("done", "completed", trial.batches, at=end).write_once(attempt.verdict)
        elif trial.state == "ERROR":
            Verdict("fail", "error", trial.batches, error=error, at=end).write_once(attempt.verdict)
        End(reason, None, True, error, at=end, first_step=trial.batches > 0).write_once(attempt.end)

    def _lines(
        self, trial: ForeignTrial, paths: TrialPaths, saved: Saved
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield time, kind and fields of the lines of a trial's journal, by their times."""
        need = self.foreign.config.get("resources") or {}
        place = {"checkpoint": "", "batches": 0, "host": "", "pid": 0, "fingerprint": ""}
        yield trial.start, "start", {"world": int(need.get("slots_per_trial", 1)), **place}
        if trial.batches:  # how long it took until then is not told, and counts as training
            yield trial.start, "first_step", {}
        told: list[tuple[str, int, str, dict[str, Any]]] = [
            (
                one.time,
                one.step,
                "metrics",
                {
                    "group": one.group,
                    "step": one.step,
                    "metrics": dict(one.values),
                    "units": dict(one.units),
                },
            )
            for one in trial.metrics
        ]
        for checkpoint in trial.checkpoints:
            folder = paths.checkpoint(checkpoint.step, _ATTEMPT)
            known = saved.get(str(folder), {})
            fields = self._checkpoint(trial, checkpoint, folder, known)
            told.append((checkpoint.time, checkpoint.step, "checkpoint", fields))
        for at, _, kind, fields in sorted(told, key=lambda one: one[:2]):
            yield at or trial.start, kind, fields
        yield trial.end or trial.start, "progress", {"batches": trial.batches}

    def _checkpoint(
        self, trial: ForeignTrial, one: ForeignCheckpoint, folder: Path, known: Mapping[str, Any]
    ) -> dict[str, Any]:
        metric = str((self.foreign.config.get("searcher") or {}).get("metric"))
        values = [
            each.values[metric]
            for each in trial.metrics
            if (each.group, each.step) == ("validation", one.step) and metric in each.values
        ]
        return {
            "name": folder.name,
            "step": one.step,
            "digest": known.get("digest", ""),
            "bytes": known.get("bytes", one.bytes),
            "metric": values[-1] if values else None,
            "kept": ["imported"] if known else [],
            "foreign": one.name,
            "metadata": dict(one.metadata),
        }
