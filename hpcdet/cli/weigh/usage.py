"""``usage``: slot hours of all experiments, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import click

from hpcdet import units
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import moment
from hpcdet.read import listing
from hpcdet.read.usage.usage_table import KEYS, UsageView


def _group(key: str) -> Callable[[UsageView], str]:
    return lambda row: row.by[key] or "-"


def _hours(kind: str) -> Callable[[UsageView], str]:
    return lambda row: f"{getattr(row.slot_hours, kind):.3g}"


def _share(kind: str) -> Callable[[UsageView], str]:
    def text(row: UsageView) -> str:
        whole = row.slot_hours.allocated
        return units.percent(getattr(row.slot_hours, kind) / whole) if whole else ""

    return text


def _columns(by: list[str]) -> tuple[Column, ...]:
    return (
        *(Column(key.upper(), _group(key), cut=False) for key in by),
        Column("EXPS", "experiments", right=True),
        Column("TRIALS", "trials", wide=True, right=True),
        Column("HOURS", _hours("allocated"), right=True),
        Column("TRAIN", _share("training"), right=True),
        Column("START", _share("starting"), right=True),
        Column("VALIDATE", _share("validating"), wide=True, right=True),
        Column("SAVE", _share("saving"), wide=True, right=True),
        Column("LOST", _share("lost"), right=True),
        Column("FAILED", _share("failed"), right=True),
        Column("IDLE", _share("idle"), wide=True, right=True),
        Column("OVERHEAD", _share("overhead"), right=True),
        Column("QUEUED", _hours("queued"), right=True),
    )


@click.command("usage", short_help="Slot hours by user, project, account and month.")
@click.option(
    "--by", default="user,project", metavar="KEY,...", show_default=True, help=", ".join(KEYS) + "."
)
@click.option("--since", default="", metavar="AGE|TIME", help="Only what was held later.")
@output("usage", UsageView)
def usage_command(out: Output, by: str, since: str) -> None:
    """Show where slot hours went, of all experiments below the root.

    HOURS is what the scheduler charged, where its accounting can be asked, else hpcdet's count.
    Percentages are of it; QUEUED is slot hours of waiting, for which nothing is charged.

    \b
    Examples: hpcdet usage --by user,month --since 90d
              hpcdet usage --by account,partition -o csv
    """
    keys = list(dict.fromkeys(filter(None, (key.strip() for key in by.split(",")))))
    start = datetime.fromisoformat(moment(since)).timestamp() if since else float("-inf")
    root = settings().root
    items, warnings = listing.used(root, keys, start)
    out.emit(items, _columns(keys), warnings=warnings, empty=f"nothing has run in {root}")
