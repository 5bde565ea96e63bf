"""``policy report``: what trials under a policy have learned from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

import click

from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.ids import id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import NotFound
from hpcdet.policy.memorization import canary_evidence, twin_evidence
from hpcdet.read.governed import recorded_words
from hpcdet.read.governed.governed_trials import DEPTH, CheckView, GovernanceView, governance
from hpcdet.read.lookup.escapes import escaped

_REPORT = (
    Column("TRIAL", "trial", right=True),
    Column("STEP", "step", right=True),
    Column("ASSURANCE", lambda row: "UNVERIFIED" if row.unverified else row.assurance, cut=False),
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
    """Print what is known of one trial: what it assures and what that does not say come first."""
    statement = row.statement.upper() if row.statement != "none" else "NONE REQUIRED"
    at = f" ({escaped(row.checkpoint)})" if row.checkpoint else ""
    click.echo(f"\ntrial {row.trial} at step {row.step}{at}")
    if row.unverified:
        _say(f"UNVERIFIED, and proves nothing: {row.unverified}")
    control = " (ABLATION)" if row.ablates else ""
    click.echo(f"ASSURANCE {row.assurance.upper()}{control}   STATEMENT OF NODES {statement}")
    if row.ablates:
        _say(f"The control of {row.ablates}: every source changed every layer.")
    _say(f"It records {row.records}. Influence remains by {'; '.join(row.residual_channels)}.")
    if not row.complete:
        _say("THE HISTORY OF THE WEIGHTS IS NOT KNOWN from their beginning.")
    _exposure(row)
    _entropies(row)
    _measured(row)
    _cost(row)
    if row.memorization is not None:
        click.echo("twins at the last validation (d: a withheld record's loss less its twin's)")
        for source, found in row.memorization.items():
            _say(f"  {source}: {twin_evidence.told(found)}", "    ")
    if row.canaries is not None:
        click.echo("canaries at the last validation (bits by which they are better known)")
        for source, each in row.canaries.items():
            _say(f"  {source}: {canary_evidence.told(each)}", "    ")
    if row.memorization is not None or row.canaries is not None:
        _say(DEPTH)
    for line in _history(row):
        _say(line, "    ")


def _exposure(row: GovernanceView) -> None:
    click.echo("exposure (rows times weight)")
    cells = [
        [_exposed(weight, units) for weight, units in zip(*pair, strict=True)]
        for pair in zip(row.matrix, row.exposure, strict=True)
    ]
    covered = [_share(one) for one in row.coverage]
    _table([*row.sources, "(covered)"], row.layers, [*cells, covered])


def _entropies(row: GovernanceView) -> None:
    found = recorded_words.entropies(row)
    click.echo("entropy (0: of one alone, 1: of all alike)")
    _table(list(found), row.layers, [[*map(_share, values)] for values in found.values()])
    if outside := recorded_words.outside(row):
        _say(f"  out of their band: {', '.join(outside)}", "    ")


def _exposed(weight: float, units: float) -> str:
    if not weight:
        return f"denied, {units:g} before" if units else "denied"
    return f"{units:g}" if weight == 1 else f"{units:g} at {weight:g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _measured(row: GovernanceView) -> None:
    if not row.measured:
        click.echo("no gradient was measured")
        return
    probe = row.measured[-1]
    click.echo(f"norm of each source's own gradient at step {probe.step} (without routing)")
    norms = [
        [f"{on:.3g} ({off:.3g})" for on, off in zip(*pair, strict=True)]
        for pair in zip(probe.routed, probe.unrouted, strict=True)
    ]
    _table(probe.sources, probe.layers, norms)


def _cost(row: GovernanceView) -> None:
    if not row.ablates:
        return
    if not row.cost:
        _say(f"{row.ablates} has no such trial to compare with.")
        return
    click.echo(f"what routing costs, beside {escaped(row.ablates)}/{row.trial}")
    rows = [f"{one.what} at {one.step}" if one.step else one.what for one in row.cost]
    cells = [[_value(one.routed), _value(one.unrouted)] for one in row.cost]
    _table(rows, ("routed", "not routed"), cells)


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _history(row: GovernanceView) -> Iterator[str]:
    """Yield what happened to the trial, a line for each subject."""
    for change in row.changes:
        yield f"policy {change.number:04d}: {recorded_words.change(change)}"
    for one in row.rollbacks:
        yield f"rollback: attempt {one.attempt} went on from step {one.to}; {one.lost} was reached"
    for attempt in sorted({one.attempt for one in row.checks}):
        found = [_check(one) for one in row.checks if one.attempt == attempt]
        yield f"checks of attempt {attempt}: {', '.join(found)}"
    for chain in row.chains:
        state = "active" if chain.active else "complete" if chain.complete else "NOT COMPLETE"
        why = f": {chain.reason}" if chain.reason else ""
        yield f"chain of {chain.source}: {state}{why}"
    for each in row.nodes:
        yield f"nodes of attempt {each.attempt} ({each.statement}): {', '.join(each.nodes)}"
    for name, words in recorded_words.recorded(row):
        yield f"{name}: {words}"


def _check(one: CheckView) -> str:
    detail = f" ({one.detail})" if one.detail else ""
    return f"{one.code} {one.outcome}{detail}"


def _say(line: str, indent: str = "") -> None:
    click.echo(text_format.folded(escaped(line), indent))


def _table(rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print cells under the names of columns, below each other where the terminal is too narrow."""
    width = max(map(len, ["", *rows]))
    widths = [
        max(map(len, [title, *(line[n] for line in cells)])) for n, title in enumerate(columns)
    ]
    room = shutil.get_terminal_size((80, 24)).columns - width - 2
    first = 0
    while first < len(columns):
        last, used = first, 0
        while last < len(columns) and (last == first or used + widths[last] + 2 <= room):
            used += widths[last] + 2
            last += 1
        for name, line in [("", columns), *zip(rows, cells, strict=True)]:
            some = zip(line[first:last], widths[first:last], strict=True)
            texts = "  ".join(one.rjust(wide) for one, wide in some)
            click.echo(f"  {escaped(name):{width}}  {texts}".rstrip())
        first = last
