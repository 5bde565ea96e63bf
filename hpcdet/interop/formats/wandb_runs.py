"""Offline runs of Weights & Biases, one for each trial, to be synchronized later (needs wandb)."""

from __future__ import annotations

import re
import shutil
import tempfile
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
        Unavailable: wandb does not write it.
    """
    import wandb  # noqa: F401  # before anything is written

    folder = Path(to) / _RUNS
    files.make_folder(folder)
    with tempfile.TemporaryDirectory(prefix=".hpcdet-", dir=to) as temporary:
        for trial, points in what.each_trial():
            run = re.sub(r"[^A-Za-z0-9_-]", "_", f"{what.id}-{trial.number}")
            _write(what, trial, points, run, Path(temporary))
            made = [*(Path(temporary) / _RUNS).glob(f"offline-run-*-{run}")]
            if len(made) != 1:
                raise Unavailable("wandb has written no run", where=str(folder))
            _replace(made[0], folder, run)
    return folder


def _write(
    what: ExperimentExport,
    trial: GatheredTrial,
    points: Iterable[series.Row],
    run: str,
    folder: Path,
) -> None:
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
    for step, values in _history(points):
        made.log(values, step=step)
    made.summary["hpcdet.state"] = row.state
    made.finish(exit_code=int(row.state in ("ERROR", "CANCELED")))


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
