"""``policy reveal``: the twin key of an experiment, when it has ended."""

from __future__ import annotations

import click

from hpcdet.cli.frame.ids import id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.read.lookup.revealed_twins import RevealView

_REVEALED = (
    Column("EXPERIMENT", "experiment"),
    Column("KEY", "key", cut=False),
    Column("COMMITMENT", "commitment", wide=True),
)


@click.command("reveal")
@id_argument()
@output("policy.reveal", RevealView)
def reveal(out: Output, id: str) -> None:
    """Show the key of twins and canaries of an experiment that has ended.

    It was committed to at submission, so that anybody can toss the coins and draw the codes again,
    and see that they were chosen before any loss was known. Forks have the same key, and have to
    have ended, too. It is recorded: from then on nothing is trained under that key any more.

    \b
    Example: hpcdet policy reveal digits-7f3a -o json
    """
    from hpcdet.read.lookup import find
    from hpcdet.read.lookup.revealed_twins import reveal as revealed

    found = find.reference(id, settings().root)
    out.emit([revealed(found.paths)], _REVEALED)
