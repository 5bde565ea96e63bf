"""``diff``: what differs between two experiments or trials."""

from __future__ import annotations

from typing import get_args

import click

from hpcdet.cli.frame.ids import complete
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.text_format import short
from hpcdet.errors import UsageError
from hpcdet.read.comparison.differences import PARTS, DifferenceView, diff
from hpcdet.read.comparison.facts import What, shown
from hpcdet.read.lookup import find
from hpcdet.read.lookup.escapes import escaped

COLUMNS = (
    Column("WHAT", "what", cut=False),
    Column("KEY", "key"),
    Column("CHANGE", "change", cut=False),
    Column("A", lambda row: shown(row.what, short(row.a))),
    Column("B", lambda row: shown(row.what, short(row.b))),
)


@click.command("diff", short_help="What differs between two experiments or trials.")
@click.argument("a", metavar="A", shell_complete=complete)
@click.argument("b", metavar="B", shell_complete=complete)
@click.option(
    "--what",
    "words",
    default=",".join(PARTS),
    metavar="WORD,...",
    help=f"Only these of: {', '.join(PARTS)}.",
)
@click.option("--exit-code", is_flag=True, help="Exit 1 if anything differs.")
@output("diff", DifferenceView)
def diff_command(out: Output, a: str, b: str, words: str, exit_code: bool) -> int:
    """Show what differs between two experiments or trials, the code as a unified diff.

    Hyperparameters and environment of an experiment are those of its best trial.

    \b
    Examples: hpcdet diff digits-7f3a digits-91c0
              hpcdet diff digits-7f3a digits-91c0 --what code --exit-code
    """
    one, other = (find.reference(id, settings().root) for id in (a, b))
    rows, warnings = diff(one, other, _parts(words))
    if not out.for_people or out.fields:
        out.emit(rows, COLUMNS, warnings=warnings, key="key")
    else:
        plain = [row for row in rows if row.diff is None]
        empty = "" if rows else "nothing differs"
        if plain or not rows:
            out.emit(plain, COLUMNS, warnings=warnings, empty=empty)
        for row in rows:
            if row.diff is not None:
                click.echo(escaped(_patch(row)), nl=False)
    return 1 if rows and exit_code else 0


def _parts(words: str) -> list[What]:
    """Return what is asked for. Raises UsageError: it is nothing that is compared."""
    found = [word.strip() for word in words.split(",") if word.strip()]
    for word in found:
        if word not in PARTS:
            what = f"{word} is nothing that is compared"
            raise UsageError(what, where="--what", hint=f"there are: {', '.join(PARTS)}")
    return [part for part in get_args(What) if part in found]


def _patch(row: DifferenceView) -> str:
    """Return a file's unified diff, or a line on it in the form of one."""
    assert row.diff is not None
    if "\n" in row.diff:
        return row.diff
    return f"{row.key}: {row.change}{f' ({row.diff})' if row.diff else ''}\n"
