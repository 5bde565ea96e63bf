"""``python -m hpcdet.checkpoint VERB``: for callers that must not import torch.

Prints one JSON object per line on stdout; of those with ``seen`` and ``of``, bytes, there may be
many before the one of a checkpoint. Exit codes are those of ``hpcdet.errors``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.format.manifest import NewerFormat
from hpcdet.checkpoint.keep import (
    convert,
    drain,
    replicate,
    retention,
    store_round,
    stored_copies,
)
from hpcdet.checkpoint.read import load
from hpcdet.errors import HpcdetError, IntegrityError, Unavailable, UsageError
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.objects import store_place
from hpcdet.store.objects.object_store import ObjectStore
from hpcdet.store.trials import staged
from hpcdet.store.trials.standing import standing

_SAY_EVERY_S = 0.2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hpcdet.checkpoint", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("digest", "digest of the content of checkpoints, from their bytes"),
        ("verify", "check every byte of checkpoints"),
        ("look", "check checkpoints' manifests, sizes and tables, not their data"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folders", nargs="+", type=Path, metavar="CHECKPOINT")
        command.add_argument(
            "--first", action="store_true", help="of each trial, stop at the first sound one"
        )
    command = commands.add_parser(
        "sweep", help="apply the rules of retention to a closed experiment"
    )
    command.add_argument("experiment", type=Path, metavar="EXP")
    command.add_argument("-n", "--dry-run", action="store_true", help="only say what would go")
    command = commands.add_parser("export", help="write a checkpoint's weights into one file")
    command.add_argument("folder", type=Path, metavar="CHECKPOINT")
    command.add_argument("target", type=Path, metavar="FILE")
    command.add_argument("--format", choices=convert.FORMATS, default=convert.FORMATS[0])
    command.add_argument("--all", action="store_true", help="not only the weights")
    command = commands.add_parser("import", help="make a checkpoint of a file of weights")
    command.add_argument("source", type=Path, metavar="FILE")
    command.add_argument("folder", type=Path, metavar="CHECKPOINT")
    command = commands.add_parser("import-folders", help="make checkpoints of folders of files")
    command.add_argument("pairs", nargs="+", type=Path, metavar="FOLDER CHECKPOINT")
    command = commands.add_parser("get", help="copy a checkpoint, every byte checked")
    command.add_argument("source", metavar="CHECKPOINT|URL")
    command.add_argument("target", type=Path, metavar="FOLDER")
    command.add_argument("--store-of", type=Path, metavar="EXP", help="whose store the URL is of")
    command = commands.add_parser("archive", help="copy checkpoints to an object store")
    command.add_argument("url")
    command.add_argument("pairs", nargs="+", metavar="CHECKPOINT KEY")
    command.add_argument("--store-of", type=Path, metavar="EXP", help="whose store the URL is of")
    command = commands.add_parser("store", help="copy what is kept to the config's object store")
    command.add_argument("experiment", type=Path, metavar="EXP")
    command.add_argument("--term", type=int, help="of the lease, after whose end nothing is done")
    command.add_argument("--report", type=Path, metavar="FILE", help="the experiment's report")
    command.add_argument("--only-add", action="store_true", help="remove nothing there")
    command.add_argument("--beside", action="store_true", help="end with the standard input")
    command = commands.add_parser("drain", help="copy to scratch what is on this node only")
    command.add_argument("experiment", type=Path, metavar="EXP")
    command.add_argument("trial", type=int)
    command.add_argument("attempt", type=int, help="that has ended")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "sweep":
            return _sweep(ExperimentPaths(arguments.experiment), arguments.dry_run)
        if arguments.command == "drain":
            return _drain(ExperimentPaths(arguments.experiment), arguments.trial, arguments.attempt)
        if arguments.command == "export":
            return _export(arguments)
        if arguments.command == "import":
            return _import(arguments.source, arguments.folder)
        if arguments.command == "import-folders":
            return _import_folders(arguments.pairs)
        if arguments.command == "get":
            return _get(arguments.source, arguments.target, arguments.store_of)
        if arguments.command == "archive":
            return _archive(arguments.url, arguments.pairs, arguments.store_of)
        if arguments.command == "store":
            return store_round.run(arguments, _print)
    except (HpcdetError, OSError) as error:
        return _fail(error)
    codes: dict[Path, int] = {}
    sound: set[Path] = set()
    for folder in arguments.folders:
        if not arguments.first or folder.parent not in sound:
            codes[folder] = _look(folder, arguments.command)
            if codes[folder] == 0:
                sound.add(folder.parent)
    return max(codes.values())


def _look(folder: Path, command: str) -> int:
    """Print what is known of one checkpoint; 0 if it is sound."""
    manifest: manifests.Manifest | None = None
    try:
        if command == "look":
            manifest = load.look(folder)
        elif command == "verify":
            manifest = load.verify(folder, _Seen(folder))
        digest = manifest.digest if manifest else load.content_digest(folder, _Seen(folder))
    except (IntegrityError, OSError) as error:
        state = "newer" if isinstance(error, NewerFormat) else "damaged"
        _print({"path": str(folder), "state": state, "error": str(error)})
        return IntegrityError.exit_code
    found: dict[str, Any] = {"path": str(folder), "state": "valid", "digest": digest}
    if manifest is not None:
        found |= {"step": manifest.step, "world": manifest.world, "bytes": manifest.bytes}
    _print(found)
    return 0


class _Seen:
    """Reports from time to time how many bytes of a checkpoint have been checked."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder)
        self._of = manifests.read(folder).bytes
        self._seen = 0
        self._last = time.monotonic()

    def __call__(self, more: int) -> None:
        self._seen += more
        if time.monotonic() - self._last > _SAY_EVERY_S:
            self._last = time.monotonic()
            _print({"path": self._path, "seen": min(self._seen, self._of), "of": self._of})


def _export(arguments: argparse.Namespace) -> int:
    made = convert.export(
        arguments.folder.absolute(), arguments.target, arguments.format, arguments.all
    )
    _print(
        {
            "path": str(made.path),
            "checkpoint": str(arguments.folder),
            "format": arguments.format,
            "bytes": made.bytes,
            "tensors": made.tensors,
            "digest": made.digest,
        }
    )
    return 0


def _import(source: Path, folder: Path) -> int:
    saved = convert.take_in(source, folder.absolute())
    _print({"path": str(folder), "bytes": saved.bytes, "digest": saved.digest})
    return 0


def _import_folders(pairs: Sequence[Path]) -> int:
    for source, folder in zip(pairs[::2], pairs[1::2], strict=True):
        saved = convert.take_in_folder(source, folder)
        _print({"path": str(folder), "bytes": saved.bytes, "digest": saved.digest})
    return 0


def _get(source: str, target: Path, store_of: Path | None) -> int:
    if target.exists():
        raise UsageError("it exists", where=str(target), hint="name a folder that does not")
    target = target.absolute()
    if store_place.is_url(source):
        manifest = stored_copies.get(ObjectStore(store_round.place(source, store_of)), target)
    else:
        manifest = manifests.read(Path(source))
        partial = target.with_name(f".partial-{target.name}-{os.getpid()}")
        replicate.copy(Path(source), target, partial)
    _print({"path": str(target), "bytes": manifest.bytes, "digest": manifest.digest})
    return 0


def _archive(url: str, pairs: Sequence[str], store_of: Path | None) -> int:
    store = ObjectStore(store_round.place(url, store_of))
    for folder, key in zip(pairs[::2], pairs[1::2], strict=True):
        made = stored_copies.put(Path(folder), key, store)
        _print({"path": folder, "url": store.url(key), "bytes": made.bytes, "digest": made.digest})
    return 0


def _fail(error: HpcdetError | OSError) -> int:
    """Say on stderr, and for a program on stdout, what went wrong; returns the exit code."""
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        error = Unavailable(what, where=str(error.filename or ""))
    print(f"error: {error}", file=sys.stderr)
    failed = {"what": error.what, "where": error.where, "hint": error.hint}
    _print({"failed": failed, "exit": error.exit_code})
    return error.exit_code


def _sweep(experiment: ExperimentPaths, dry_run: bool) -> int:
    if not dry_run and not experiment.closed.exists():
        raise UsageError(
            "the experiment is not over",
            where=str(experiment.root),
            hint="each trial applies the rules itself while it runs; this is for afterwards",
        )
    policy = retention.RetentionRules.of(resolved_config.load(experiment.config))
    needed = {"done": 0, "stopped": 1}  # any other trial may still be asked to go on
    resume = {
        trial.number: needed.get(standing(trial).state, retention.RESUME)
        for trial in experiment.trials()
    }
    doomed = retention.superseded(experiment, policy, experiment.trials(), resume)
    for trial, name in doomed:
        for place in experiment.trial(trial).checkpoint_places:
            if (place / name).is_dir():
                _print({"trial": trial, "name": name, "path": str(place / name)})
    code = 0
    if not dry_run:
        for trial, number in resume.items():
            attempt = standing(experiment.trial(trial)).attempts
            retention.sweep(experiment, policy, trial, attempt, number)
            for name, why in replicate.secure(experiment, policy, trial, attempt).failed:
                print(f"error: no copy of {trial}/{name}: {why}", file=sys.stderr)
                code = Unavailable.exit_code
    return code


def _drain(experiment: ExperimentPaths, number: int, attempt: int) -> int:
    """Drain staged checkpoints for a worker whose ranks have ended, into their journal."""
    trial = experiment.trial(number)
    where = resolved_config.load(experiment.config).checkpoint_storage.local_staging
    place = staged.folder(where, experiment, number) if where is not None else None
    if place is None:
        return 0
    done = drain.drain(place, trial, attempt)
    for manifest in done.copied:
        drain.note(trial.attempt(attempt).journal, manifest)
        _print(manifest.record())
    for name, why in done.failed:
        print(f"hpcdet: {name} stays on this node for now: {why}", file=sys.stderr)
    return Unavailable.exit_code if done.failed else 0


def _print(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    sys.exit(main())
