"""``policy report``: what trials under a policy have learned from."""

from __future__ import annotations

import click

from hpcdet.cli.frame.ids import id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import NotFound
from hpcdet.read.views.governed_trials import GovernanceView, governance

_REPORT = (
    Column("TRIAL", "trial", right=True),
    Column("STEP", "step", right=True),
    Column("ASSURANCE", "assurance", cut=False),
    Column("VIOLATIONS", "violations", right=True),
    Column("CONFORMS", "conformance", right=True),
    Column("ADMITTED", "admission", right=True),
    Column("PROBES", lambda row: len(row.measured), right=True),
    Column("ROLLBACKS", lambda row: len(row.rollbacks), right=True),
)


@click.command("report")
@id_argument()
@output("policy.report", GovernanceView)
def report(out: Output, id: str) -> None:
    """Report the data that layers were permitted and exposed to learn from, and measurements.

    It is no record of influence: activations, learning rates and early stopping carry more from
    source to source than gradients do.

    \b
    Example: hpcdet policy report digits-7f3a -o json
    """
    from hpcdet.read.lookup import find

    found = find.reference(id, settings().root)
    rows = governance(found.paths, found.trial)
    if not rows:
        raise NotFound(
            "the experiment has no policy",
            where=id,
            hint="name one in its config: `governance: {policy: FILE}`",
        )
    out.emit(rows, _REPORT, empty="no trials")
    if out.for_people:
        for row in rows:
            _print(row)


def _print(row: GovernanceView) -> None:
    """Print the tables of one trial: exposure, and what was measured last."""
    click.echo(f"\ntrial {row.trial} at step {row.step}: ASSURANCE {row.assurance.upper()}")
    click.echo("exposure (rows times weight)")
    exposed = [
        [f"{units:g}" if weight else "denied" for weight, units in zip(*pair, strict=True)]
        for pair in zip(row.matrix, row.exposure, strict=True)
    ]
    _table(row.sources, row.layers, exposed)
    if row.measured:
        probe = row.measured[-1]
        click.echo(f"norm of each source's own gradient at step {probe.step} (without routing)")
        norms = [
            [f"{on:.3g} ({off:.3g})" for on, off in zip(*pair, strict=True)]
            for pair in zip(probe.routed, probe.unrouted, strict=True)
        ]
        _table(probe.sources, probe.layers, norms)


def _table(rows: list[str], columns: list[str], cells: list[list[str]]) -> None:
    width = max(map(len, ["", *rows]))
    widths = [
        max(map(len, [title, *(line[n] for line in cells)])) for n, title in enumerate(columns)
    ]
    for name, line in [("", columns), *zip(rows, cells, strict=True)]:
        texts = "  ".join(one.rjust(wide) for one, wide in zip(line, widths, strict=True))
        click.echo(f"  {name:{width}}  {texts}")
