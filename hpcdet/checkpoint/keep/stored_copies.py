"""Copies in an object store of what the rules keep, where a config names one.

Scratch and project storage stay what trials go on from. A copy has the files of the checkpoint
under the same names, and its manifest is sent last: an object appears whole or not at all, so a
kill at any point leaves nothing that has a manifest and is not whole. Each object is read again,
and its digest compared, before a copy counts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.format.manifest import Manifest
from hpcdet.checkpoint.keep.retention import Candidate, RetentionRules, existing, keep, pinned
from hpcdet.checkpoint.read import load
from hpcdet.errors import HpcdetError, IntegrityError, NotFound, Unavailable
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import value
from hpcdet.store.objects import capsule_archive, copy_records
from hpcdet.store.objects.copy_records import Copied, CopyRecords, Key, Whole
from hpcdet.store.objects.object_store import ObjectStore
from hpcdet.store.trials.manifests import LARGEST
from hpcdet.store.trials.standing import MANIFEST, lineage

CAPSULE, REPORT = "capsule", "report"


class Superseded(Exception):
    """Another process holds the lease by now: what this one would do is that one's to decide."""


@dataclass
class CopyRound:
    """The result of one round.

    Attributes:
        copied, dropped: names of what the store now has, and has no longer.
        waiting: names of what is to be copied and could not be.
        why: the first reason for that.
    """

    copied: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    why: str = ""


def bring_up_to_date(
    experiment: ExperimentPaths,
    rules: RetentionRules,
    store: ObjectStore,
    decides: Callable[[], bool] = lambda: True,
    report: Path | None = None,
    drops: bool = True,
) -> CopyRound:
    """Copy what the rules keep and the store lacks, and remove from it what they do not keep.

    Nothing is removed while something that is to be kept has no copy yet.

    Args:
        decides: whether the caller still is the one to do so; asked before each removal, and
            before a copy counts.
        report: of the experiment, to be copied as well.
        drops: remove what the rules do not keep.

    Raises:
        Superseded: it is not.
        OSError: the records cannot be written.
    """
    records, done = CopyRecords.of(experiment), CopyRound()
    trials = [trial.number for trial in experiment.trials()]
    there = records.copied()
    wanted = _wanted(experiment, rules, trials, there)

    tasks: dict[str, Callable[[], bool]] = {
        CAPSULE: lambda: _put_capsule(experiment, records, store)
    }
    for key in sorted(wanted - there.keys(), key=lambda key: manifests.position(key[1])):
        tasks[_called(key)] = partial(_put, experiment, key, records, store, decides)
    if report is not None:
        tasks[REPORT] = lambda: _put_whole(experiment, "report.html", report, records, store)
    answers = True
    for name, task in tasks.items():
        try:
            if answers and task():
                done.copied.append(name)
        except (HpcdetError, OSError) as error:
            done.waiting.append(name)
            done.why = done.why or _said(error)
            answers = not isinstance(error, Unavailable)  # the others would wait for it, too
        else:
            done.waiting += [] if answers else [name]
    if done.waiting or not drops:
        return done
    for key in sorted({*there, *records.begun()} - wanted):
        try:
            _drop(experiment, key, records, store, decides)
        except HpcdetError as error:
            done.why = _said(error)
            break
        done.dropped.append(_called(key))
    return done


def _wanted(
    experiment: ExperimentPaths,
    rules: RetentionRules,
    trials: Collection[int],
    there: dict[Key, Copied],
) -> set[Key]:
    """The checkpoints that the rules keep, of those that lie here and those in the store."""
    paths = [experiment.trial(number) for number in trials]
    own = {candidate.key: candidate for candidate in existing(experiment, rules, paths)}
    lines = {trial: lineage(experiment.trial(trial)) for trial in {key[0] for key in there}}
    for key, copied in there.items():
        if key[1] in lines[key[0]]:
            metric = None if copied.metric is None else value(copied.metric)
            own.setdefault(key, Candidate(*key, metric, copied.resume))
    return set(keep(own.values(), rules, 0, pinned(paths)))


def _put(
    experiment: ExperimentPaths,
    key: Key,
    records: CopyRecords,
    store: ObjectStore,
    decides: Callable[[], bool],
) -> bool:
    """Copy one checkpoint; False if it was removed here meanwhile."""
    places = [place / key[1] for place in experiment.trial(key[0]).checkpoint_places]
    source = next((each for each in reversed(places) if manifests.is_committed(each)), None)
    if source is None:
        return False
    folder = copy_records.folder(experiment.id, key)
    records.begin(key)
    try:
        manifest = put(source, folder, store, decides)
    except (IntegrityError, NotFound, FileNotFoundError):
        if not manifests.is_committed(source):
            return False
        raise
    meta = manifest.meta
    resume = meta.get("kind") == "resume"
    metric, url = meta.get("metric"), store.url(folder)
    copied = Copied(url, manifest.root, manifest.bytes, metric, resume, files.now())
    records.finish(key, copied)
    return True


def put(
    source: Path, folder: str, store: ObjectStore, decides: Callable[[], bool] = lambda: True
) -> Manifest:
    """Copy a checkpoint to a folder of a store, its manifest last.

    Raises:
        IntegrityError: it is damaged, or an object is not what was sent.
        OSError: it cannot be read.
        Superseded: ``decides`` returned False.
        Unavailable, NotFound: the store refuses, or does not answer.
    """
    manifest = load.verify(source)
    for shard in manifest.shards:
        store.put(source / shard.file, f"{folder}/{shard.file}")
    _require(decides)
    store.put(source / MANIFEST, f"{folder}/{MANIFEST}")
    _require(decides)
    return manifest


def get(store: ObjectStore, target: Path) -> Manifest:
    """Copy the checkpoint at a store's place to a folder, every byte verified.

    Args:
        target: has its name only once all of it is durable and verified.

    Raises:
        IntegrityError: it is not what was saved.
        NotFound: there is none.
        OSError: the folder cannot be written.
        Unavailable: the store refuses, or does not answer.
    """
    partial = target.with_name(f".partial-{target.name}-{os.getpid()}")
    try:
        files.make_folder(partial)
        try:
            store.get(MANIFEST, partial / MANIFEST, LARGEST)
        except NotFound as error:
            what, hint = "no checkpoint is there, or not all of one", "hpcdet ckpt ls ID has URLs"
            raise NotFound(what, where=store.place.url, hint=hint) from error
        for shard in manifests.read(partial).shards:
            store.get(shard.file, partial / shard.file, shard.bytes)
        files.sync_folder(partial)
        manifest = load.verify(partial)
        partial.rename(target)
        files.sync_folder(target.parent)
        return manifest
    except IntegrityError as error:
        where = store.place.url
        raise IntegrityError(error.what, where=where, hint="nothing was written") from error
    except NotFound as error:
        if error.where.endswith(MANIFEST) or error.where == store.place.url:
            raise
        raise IntegrityError("a file of the checkpoint is gone", where=error.where) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _drop(
    experiment: ExperimentPaths,
    key: Key,
    records: CopyRecords,
    store: ObjectStore,
    decides: Callable[[], bool],
) -> None:
    """Remove a copy, its manifest first."""
    _require(decides)
    records.forget(key)
    store.remove(copy_records.folder(experiment.id, key), MANIFEST)
    records.finish(key, None)


def _put_capsule(experiment: ExperimentPaths, records: CopyRecords, store: ObjectStore) -> bool:
    name, digest = capsule_archive.NAME, capsule_archive.digest(experiment)
    known = Whole.read(records.whole(name))
    if known is not None and known.digest == digest:
        return False
    with tempfile.NamedTemporaryFile("wb") as file:
        capsule_archive.write(experiment, file)
        file.flush()
        return _put_whole(experiment, name, Path(file.name), records, store, digest)


def _put_whole(
    experiment: ExperimentPaths,
    name: str,
    source: Path,
    records: CopyRecords,
    store: ObjectStore,
    digest: str = "",
) -> bool:
    key = f"{experiment.id}/{name}"
    try:
        store.put(source, key)
    except IntegrityError:  # another process may have replaced it with its own meanwhile
        store.put(source, key)
    files.make_folder(records.root)
    record = Whole(store.url(key), digest, files.now())
    files.replace(records.whole(name), record.encode())
    return True


def _require(decides: Callable[[], bool]) -> None:
    if not decides():
        raise Superseded


def _called(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def _said(error: Exception) -> str:
    if isinstance(error, HpcdetError):
        return str(error).partition("\n  hint: ")[0]
    return str(error)
