"""``export``: experiments in the formats of other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from hpcdet.cli.frame.ids import ids_argument, references
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import working
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import UsageError
from hpcdet.interop.formats.export_formats import FORMATS

COLUMNS = (
    Column("ID", "id"),
    Column("FORMAT", "format", cut=False),
    Column("TRIALS", "trials", right=True),
    Column("TO", "to", cut=False),
)


@dataclass(frozen=True)
class ExportedView:
    """An experiment that was exported."""

    id: str
    """The experiment's id."""
    format: str
    """The format."""
    trials: int
    """Number of its trials."""
    to: str
    """What was written: a file, a folder, or the address of a store."""


@click.command("export", short_help="Write experiments for other programs.")
@ids_argument(then=FORMATS)
@click.argument("form", metavar="FORMAT", type=click.Choice(list(FORMATS)))
@click.option(
    "--to",
    required=True,
    metavar="DEST",
    type=click.Path(),
    help="Where to: a file, a folder or an address, by FORMAT.",
)
@output("export", ExportedView)
def export_command(out: Output, ids: Sequence[str], form: str, to: str) -> None:
    """Write experiments for another program: trials, hyperparameters, metrics, times.

    FORMAT is one of tensorboard, csv, jsonl, parquet, mlflow, wandb, optuna, prometheus and
    ro-crate. Metrics are those that 'hpcdet metrics' prints, without superseded ones. An
    experiment that is exported again replaces what was written of it; nothing is there twice.

    \b
    Examples: hpcdet export digits-7f3a tensorboard --to ./runs
              hpcdet export digits-7f3a mlflow --to ./mlflow.db
              hpcdet export $(hpcdet ls -o id) prometheus --to hpcdet.prom
    """
    from hpcdet.interop.formats import export_formats
    from hpcdet.interop.formats.exported import ExperimentExport
    from hpcdet.read.experiment.gather import gather

    chosen = {one.paths.id: one for one in references(ids)}
    for one in chosen.values():
        if one.trial:
            raise UsageError("only whole experiments are exported", where=str(one))
    out.expect()
    whole: list[ExperimentExport] = []
    written: list[str] = []
    place = to if "://" in to else str(Path(to).expanduser())
    with working(f"writing {form}") as at:
        for done, one in enumerate(chosen.values()):
            share = 1 / len(chosen)

            def show(fraction: float, done: int = done, share: float = share) -> None:
                at((done + fraction) * share)

            whole.append(ExperimentExport(gather(one.paths), show, settings().warn))
            if not FORMATS[form].together:
                written.append(export_formats.export(form, whole[-1:], place))
        if FORMATS[form].together:
            written = [export_formats.export(form, whole, place)] * len(whole)
    rows = [
        ExportedView(one.id, form, len(one.gathered.trials), path)
        for one, path in zip(whole, written, strict=True)
    ]
    out.emit(rows, COLUMNS, key="to")
