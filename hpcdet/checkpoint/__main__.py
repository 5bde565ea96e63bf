"""``python -m hpcdet.checkpoint digest|verify|sweep``: for callers that must not import torch.

Prints one JSON object per line on stdout. Exit codes are those of ``hpcdet.errors``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdet.checkpoint import loading, retention, safekeeping
from hpcdet.checkpoint.manifest import NewerFormat
from hpcdet.errors import HpcdetError, IntegrityError, Unavailable, UsageError
from hpcdet.store import config
from hpcdet.store.layout import ExperimentPaths
from hpcdet.store.trials import standing


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hpcdet.checkpoint", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("digest", "digest of the content of checkpoints, from their bytes"),
        ("verify", "check every byte of checkpoints"),
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
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "sweep":
            return _sweep(ExperimentPaths(arguments.experiment), arguments.dry_run)
    except HpcdetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
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
    try:
        manifest = loading.verify(folder) if command == "verify" else None
        digest = manifest.digest if manifest else loading.content_digest(folder)
    except (IntegrityError, OSError) as error:
        state = "newer" if isinstance(error, NewerFormat) else "damaged"
        _print({"path": str(folder), "state": state, "error": str(error)})
        return IntegrityError.exit_code
    found: dict[str, Any] = {"path": str(folder), "state": "valid", "digest": digest}
    if manifest is not None:
        found |= {"step": manifest.step, "world": manifest.world, "bytes": manifest.bytes}
    _print(found)
    return 0


def _sweep(experiment: ExperimentPaths, dry_run: bool) -> int:
    if not dry_run and not experiment.closed.exists():
        raise UsageError(
            "the experiment is not over",
            where=str(experiment.root),
            hint="each trial applies the rules itself while it runs; this is for afterwards",
        )
    policy = retention.Policy.of(config.load(experiment.config))
    needed = {"done": 0, "stopped": 1}  # any other trial may still be asked to go on
    resume = {
        trial.number: needed.get(standing(trial).state, retention.RESUME)
        for trial in experiment.trials()
    }
    doomed = retention.superseded(experiment, policy, resume.keys(), resume)
    for trial, name in doomed:
        for place in experiment.trial(trial).checkpoint_places:
            if (place / name).is_dir():
                _print({"trial": trial, "name": name, "path": str(place / name)})
    code = 0
    if not dry_run:
        for trial, number in resume.items():
            attempt = standing(experiment.trial(trial)).attempts
            retention.sweep(experiment, policy, trial, attempt, number)
            for name, why in safekeeping.secure(experiment, policy, trial, attempt).failed:
                print(f"error: no copy of {trial}/{name}: {why}", file=sys.stderr)
                code = Unavailable.exit_code
    return code


def _print(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    sys.exit(main())
