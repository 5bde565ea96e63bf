"""``report``: one HTML file per experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from hpcdet.cli.frame.ids import called, ids_argument, references
from hpcdet.cli.frame.output import FORMATS
from hpcdet.cli.frame.progress import busy
from hpcdet.errors import UsageError


@click.command("report", short_help="Write an experiment into one HTML file.")
@ids_argument()
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write it [EXP/report.html].",
)
def report_command(ids: Sequence[str], out: Path | None) -> None:
    """Write experiments into HTML files that need no network. Prints the files' names.

    \b
    Example: hpcdet report digits-7f3a -o report.html
    """
    from hpcdet.read.report import write

    found = references(ids)
    for each in found:
        if each.trial:
            hint = f"hpcdet report {called(each.paths)}, or hpcdet show {called(each)}"
            raise UsageError("a report is of a whole experiment", where=str(each), hint=hint)
    if out is not None and str(out) in FORMATS:
        hint = f"-o names the file to write; as data: hpcdet show ID -o {out}"
        raise UsageError(f"{out} is a format of other verbs", where="-o", hint=hint)
    if out is not None and len(found) > 1:
        hint = "without -o each is written into its own folder"
        raise UsageError("one file cannot hold several experiments", where="-o", hint=hint)
    for reference in found:
        with busy(f"writing the report of {reference.paths.id}"):
            file = write(reference.paths, out)
        click.echo(str(file))
