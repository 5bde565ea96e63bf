"""Offline runs of Weights & Biases, one for each trial, to be synchronized later (needs wandb)."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from hpcdet import __version__
from hpcdet.errors import Unavailable
from hpcdet.interop.formats import exported
from hpcdet.interop.formats.exported import ExperimentExport, epoch
from hpcdet.interop.formats.exported_tables import as_json
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import GatheredTrial
from hpcdet.store.fs import files

_RUNS = "wandb"
"""The folder that ``wandb sync --sync-all`` looks into."""
_BLOCK, _IDENT = 32768, 7
_WHOLE, _LAST = 1, 4
"""Kinds of pieces behind which a record ends."""


def export(what: ExperimentExport, to: str) -> Path:
    """Write ``TO/wandb/offline-run-TIME-ID``, one for each trial; returns the folder of all.

    Run ids are made of the trial's id, so that runs that are synchronized again are the same. A
    row of a run's history is a step, at the time of its last metric; structured metrics are JSON.
    The start of the run itself is the time of the export, which wandb does not let one say; the
    trial's is in its config. Nothing is sent anywhere.

    Args:
        to: the folder in which to type ``wandb sync --sync-all``.

    Raises:
        ImportError: there is no wandb.
        Unavailable: wandb does not write it, or not all of it.
    """
    import wandb  # before anything is written

    folder = Path(to) / _RUNS
    files.make_folder(folder)
    steps: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix=".hpcdet-", dir=to) as temporary, _logging_quietly():
        for trial, points in what.each_trial():
            run = re.sub(r"[^A-Za-z0-9_-]", "_", f"{what.id}-{trial.number}")
            steps[run] = _write(what, trial, points, run, Path(temporary))
        wandb.teardown()  # what it has in memory still is written before this returns
        made = {run: [*(Path(temporary) / _RUNS).glob(f"offline-run-*-{run}")] for run in steps}
        for run, found in made.items():
            if len(found) != 1 or not _is_whole(found[0] / f"run-{run}.wandb", steps[run]):
                hint = "df -h says if a disk is full"
                raise Unavailable(f"wandb did not write all of {run}", where=str(folder), hint=hint)
        for run, found in made.items():
            _replace(found[0], folder, run)
    return folder


@contextlib.contextmanager
def _logging_quietly() -> Iterator[None]:
    """Let nothing be printed of what wandb cannot write into its own logs."""
    before, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield
    finally:
        logging.raiseExceptions = before


def _is_whole(file: Path, steps: int) -> bool:
    """True if a run's file has so many steps, and its end: wandb logs what it cannot write."""
    from google.protobuf.message import DecodeError

    try:
        kinds = Counter(record.WhichOneof("record_type") for record in records(file))
    except (OSError, DecodeError):
        return False
    return kinds["history"] == steps and kinds["exit"] == 1


def records(file: Path) -> Iterator[Any]:
    """Yield the records of a run's file: LevelDB's log, behind a header."""
    from wandb.proto import wandb_internal_pb2

    whole = b""
    with file.open("rb") as source:
        at = _IDENT
        while block := source.read(_BLOCK):
            while at + 7 <= len(block):
                length, kind = struct.unpack_from("<HB", block, at + 4)
                whole += block[at + 7 : at + 7 + length]
                at += 7 + length
                if kind in (_WHOLE, _LAST):
                    yield wandb_internal_pb2.Record.FromString(whole)  # type: ignore[attr-defined]
                    whole = b""
            at = 0


def _write(
    what: ExperimentExport,
    trial: GatheredTrial,
    points: Iterable[series.Row],
    run: str,
    folder: Path,
) -> int:
    """Write a trial's run; returns how many steps it has."""
    import wandb

    row = what.row(trial.number)
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        save_code=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
    )
    made = wandb.init(
        id=run,
        mode="offline",
        dir=str(folder),
        project=what.gathered.config.project or "hpcdet",
        group=what.id,
        name=f"{what.id}/{trial.number}",
        notes=what.gathered.config.description or None,
        tags=[label[:64] for label in what.status.labels if label],
        config={
            **row.hyperparameters,
            "hpcdet": {
                "id": f"{what.id}/{trial.number}",
                "seed": row.seed,
                "start": row.start,
                "end": row.end,
                "metric": what.status.metric,
                "version": __version__,
            },
        },
        settings=settings,
    )
    steps = 0
    for step, values in _history(points):
        made.log(values, step=step)
        steps += 1
    made.summary["hpcdet.state"] = row.state
    made.finish(exit_code=int(row.state in ("ERROR", "CANCELED")))
    return steps


def _history(points: Iterable[series.Row]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the steps, ascending, each with its metrics as ``GROUP/NAME`` and its time."""
    ordered = sorted(points, key=itemgetter("step", "time"))
    for step, rows in groupby(ordered, key=itemgetter("step")):
        values: dict[str, Any] = {}
        for row in rows:
            number = exported.number(row["value"])
            name = f"{row['group']}/{row['name']}"
            values[name] = as_json(row["value"]) if number is None else number
            values["_timestamp"] = epoch(row["time"])
        yield step, values


def _replace(made: Path, folder: Path, run: str) -> None:
    """Move a run among the others, in place of what an earlier export wrote of it."""
    name = re.compile(rf"offline-run-\d+_\d+-{re.escape(run)}")
    for old in [path for path in folder.iterdir() if name.fullmatch(path.name)]:
        shutil.rmtree(old)
    made.rename(folder / made.name)
