"""``hp``: what a search has shown of its hyperparameters."""

from __future__ import annotations

import click

from hpcdet import units
from hpcdet.cli.frame.ids import called, id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import UsageError
from hpcdet.read.comparison.searched import HyperparameterView, hyperparameters
from hpcdet.read.lookup import find
from hpcdet.read.views.items import set_to

COLUMNS = (
    Column("NAME", "name"),
    Column("IMPORTANCE", lambda row: _percent(row), right=True, cut=False),
    Column("N", "n", right=True),
    Column("BEST", lambda row: set_to(row.best), right=True),
    Column("LOW", "low", right=True),
    Column("HIGH", "high", right=True),
    Column("METHOD", "method"),
)


@click.command("hp", short_help="Which hyperparameters mattered, and their best values.")
@id_argument()
@output("hp", HyperparameterView)
def hp_command(out: Output, id: str) -> None:
    """Show the importance of hyperparameters in a search, and where the best trials have them.

    LOW and HIGH are the least and the greatest value in the best tenth of the trials. Importance
    needs 20 trials that are trained equally long, is reliable with 50, and is computed by Optuna
    (pip install 'hpcdet[search]').

    \b
    Example: hpcdet hp digits-7f3a
    """
    found = find.reference(id, settings().root)
    if found.trial:
        hint = f"hpcdet hp {called(found.paths)}, or hpcdet show {called(found)}"
        raise UsageError("a search is a whole experiment", where=str(found), hint=hint)
    rows, warnings = hyperparameters(found.paths)
    empty = "no hyperparameter was searched, or no trial has reported"
    out.emit(rows, COLUMNS, warnings=warnings, key="name", empty=empty)


def _percent(row: HyperparameterView) -> str:
    if row.importance is None:
        return ""
    return units.percent(row.importance) + ("" if row.reliable else " ?")
