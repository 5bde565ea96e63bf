"""``ls``: the experiments of a root, or their trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import click

from hpcdet import units
from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import moment
from hpcdet.read.listing import Filters, listed
from hpcdet.read.views.list_rows import ExperimentView, TrialStatusView
from hpcdet.store.folder.records import TrialState

STATES = get_args(TrialState)


@click.command("ls", short_help="List experiments.")
@click.option("--state", multiple=True, type=click.Choice(STATES, case_sensitive=False))
@click.option("--tag", multiple=True, help="Only with this label (repeat: with all of them).")
@click.option("--since", default="", metavar="AGE|TIME", help="Made since, as 7d, 12h or a date.")
@click.option("--user", multiple=True, metavar="USER", help="Only those of USER (repeat for more).")
@click.option("--project", multiple=True, metavar="NAME", help="Only those of this project.")
@click.option("--trials", is_flag=True, help="Their trials instead; --state is that of a trial.")
@click.option("--sort", default="", metavar="[-]KEY", help="By a key of -o json; -KEY: downwards.")
@click.option("--limit", type=click.IntRange(min=1), help="The newest N; with --sort, the first.")
@output("ls", ExperimentView, TrialStatusView)
def ls_command(
    out: Output,
    state: Sequence[str],
    tag: Sequence[str],
    since: str,
    user: Sequence[str],
    project: Sequence[str],
    trials: bool,
    sort: str,
    limit: int | None,
) -> None:
    """List experiments, oldest first, or their trials.

    \b
    Examples: hpcdet ls --state RUNNING --since 7d
              hpcdet ls --project vision --sort best
              hpcdet ls --tag paper --trials --sort best --limit 5
    """
    oldest = moment(since) if since else ""
    filters = Filters(state, tag, user, project, oldest)
    rows, warnings = listed(settings().root, filters, trials=trials, sort=sort, limit=limit)
    one = "trial" if trials else "experiment"
    where = f"in {settings().root}"
    empty = f"no {one}s {where}" if filters == Filters() else f"no {one} {where} fits"
    columns: Sequence[Column] = LS
    if trials:
        from hpcdet.cli.observe import trial_table

        columns = trial_table.LS_TRIALS
    out.emit(rows, columns, warnings=warnings, empty=empty)


LS = (
    Column("ID", "id"),
    Column("STATE", "state", cut=False),
    Column("TRIALS", lambda row: f"{row.done}/{row.trials}", right=True),
    Column("DONE", lambda row: units.percent(row.progress), right=True),
    Column("BEST", "best", right=True),
    Column("METRIC", "metric"),
    Column("AGE", lambda row: units.duration(row.age_s, 1), right=True, cut=False),
    Column("LABELS", "labels", sparse=True),
    Column("PROJECT", "project", wide=True),
    Column("NAME", "name", wide=True),
    Column("CREATED", text_format.time_of("created"), cut=False, wide=True),
    Column("USER", "user", wide=True),
    Column("OWNER", "owner", wide=True),
    Column("DESCRIPTION", "description", wide=True),
    Column("PATH", "path", wide=True),
)
