"""``report``: one file per experiment, as a page, as JSON or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdet.cli.frame.ids import called, ids_argument, references
from hpcdet.cli.frame.output import FORMATS
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.times import Seconds
from hpcdet.cli.observe.follow import following, pause
from hpcdet.errors import UsageError
from hpcdet.read.lookup.find import Reference

if TYPE_CHECKING:
    from hpcdet.read.report import ReportOptions

_KINDS = ("user", "host", "path", "env")


def _redacted(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    asked = tuple(word.strip() for word in value.split(",") if word.strip())
    for word in asked:
        if word not in _KINDS:
            hint = f"use some of {', '.join(_KINDS)}, with commas between"
            raise UsageError(f"{word!r} cannot be redacted", where="--redact", hint=hint)
    return asked


@click.command("report", short_help="Write an experiment into one HTML file.")
@ids_argument()
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write it [EXP/report.html].",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "json", "md"]),
    default="html",
    show_default=True,
    help="A page, its data as JSON, or these as Markdown.",
)
@click.option(
    "--follow",
    type=Seconds(least=1),
    is_flag=False,
    flag_value="60s",
    metavar="TIME",
    help="Write it again each TIME [60s] until the experiment is over; the page reloads itself.",
)
@click.option(
    "--max-mb",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Size at most: curves, tables and lanes are cut for it; the best stay.",
)
@click.option(
    "--redact",
    default="",
    callback=_redacted,
    metavar="KINDS",
    help="Leave out user, host, path, env (with commas between).",
)
@click.option("--anon", is_flag=True, help="Redact all of these, and what names the experiment.")
@click.option("--plain", is_flag=True, help="Leave out scripts: drawings and tables alone.")
def report_command(
    ids: Sequence[str],
    out: Path | None,
    form: str,
    follow: float | None,
    max_mb: float,
    redact: tuple[str, ...],
    anon: bool,
    plain: bool,
) -> None:
    """Write experiments into files that need no network. Prints the files' names.

    \b
    Examples: hpcdet report digits-7f3a -o report.html
              hpcdet report digits-7f3a --follow=60s
              hpcdet report digits-7f3a --format json --anon
    """
    from hpcdet.read.report import ReportOptions

    found = references(ids)
    for each in found:
        if each.trial:
            hint = f"hpcdet report {called(each.paths)}, or hpcdet show {called(each)}"
            raise UsageError("a report is of a whole experiment", where=str(each), hint=hint)
    if out is not None and str(out) in FORMATS:
        hint = f"-o names the file to write; --format json, or hpcdet show ID -o {out}"
        raise UsageError(f"{out} is a format of other verbs", where="-o", hint=hint)
    if out is not None and len(found) > 1:
        hint = "without -o each is written into its own folder"
        raise UsageError("one file cannot hold several experiments", where="-o", hint=hint)
    options = ReportOptions(
        format=form,  # type: ignore[arg-type]  # click's choice
        max_mb=max_mb,
        redact=redact,
        anonymous=anon,
        plain=plain,
        refresh_s=round(follow or 0),
    )
    if follow:
        _follow(ids, found, out, options)
        return
    for reference in found:
        click.echo(str(_write(reference, out, options)))


def _write(reference: Reference, out: Path | None, options: ReportOptions) -> Path:
    from hpcdet.read.report import write

    with busy(f"writing the report of {reference.paths.id}"):
        return write(reference.paths, out, options)


def _follow(
    ids: Sequence[str], found: Sequence[Reference], out: Path | None, options: ReportOptions
) -> None:
    """Write reports again and again until their experiments are over."""
    from hpcdet.read.experiment import states
    from hpcdet.read.experiment.gather import gather

    named: set[Path] = set()
    with following(ids):
        going = list(found)
        while going:
            for reference in [*going]:
                state, _ = states.experiment_state(gather(reference.paths))
                over = state in states.ENDED
                now = replace(options, refresh_s=0) if over else options
                file = _write(reference, out, now)
                if file not in named:
                    click.echo(str(file))
                    named.add(file)
                if over:
                    going.remove(reference)
            if going:
                pause(options.refresh_s)
