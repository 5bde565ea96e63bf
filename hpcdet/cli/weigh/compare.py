"""``compare``: experiments, trials and registered versions side by side."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpcdet import units
from hpcdet.cli.frame.ids import ids_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.text_format import short
from hpcdet.read.comparison.facts import shown
from hpcdet.read.comparison.side_by_side import ComparedView
from hpcdet.read.lookup import find

_ALWAYS = ("metric", "hyperparameters")
"""What a table shows though it is the same for all."""


@click.command("compare", short_help="Experiments, trials or model versions side by side.")
@ids_argument()
@click.option("--only-different", is_flag=True, help="Leave out what all have in common.")
@output("compare", ComparedView)
def compare_command(out: Output, ids: Sequence[str], only_different: bool) -> None:
    """Compare experiments, trials (ID/3) or registered versions (model:NAME:3).

    Metrics, data, hyperparameters, code, libraries, config and resources are compared. Of an
    experiment with several trials, the best one counts. Tables leave out what is the same
    in code, libraries, config and resources; -o wide shows it.

    \b
    Examples: hpcdet compare digits-7f3a digits-91c0
              hpcdet compare digits-7f3a/1 digits-7f3a/3 --only-different
              hpcdet compare model:digits@production model:digits
    """
    from hpcdet.registry import versions_beside_trials

    rows, warnings = versions_beside_trials.compare(
        ids, lambda id: find.reference(id, settings().root), lambda: settings().registry
    )
    shown = [row for row in rows if not (only_different and row.same)]
    if out.format == "table" and not out.fields:
        shown = [row for row in shown if not row.same or row.what in _ALWAYS]
    sides = dict.fromkeys(id for row in rows for id in row.values)
    columns = [Column("WHAT", "what", cut=False), Column("NAME", "name"), *map(_column, sides)]
    out.emit(shown, columns, warnings=warnings, key="name", empty="nothing differs")
    if out.format == "table" and not only_different and len(shown) < len(rows):
        same = units.counted(len(rows) - len(shown), "value is", "values are")
        settings().note(f"{same} the same: -o wide shows all")


def _column(id: str) -> Column:
    return Column(id, lambda row: shown(row.what, short(row.values[id])), right=True)
