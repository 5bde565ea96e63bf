"""``lineage``: what experiments and trials came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from hpcdet.cli.frame.ids import id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.read.lookup import find
from hpcdet.read.lookup.ancestry import AncestorView, ancestry
from hpcdet.read.lookup.escapes import escaped

COLUMNS = (
    Column("ID", "id"),
    Column("HOW", "how"),
    Column("PARENT", "parent"),
    Column("AT", "at", right=True),
    Column("CHECKPOINT", "checkpoint"),
    Column("ROOT", "root", wide=True),
    Column("THERE", "there", wide=True),
)


@click.command("lineage", short_help="What an experiment or trial came from.")
@id_argument()
@click.option(
    "--format",
    "form",
    type=click.Choice(["tree", "dot", "json"]),
    default="tree",
    show_default=True,
    help="dot: for Graphviz; json: as -o json.",
)
@output("lineage", AncestorView)
def lineage_command(out: Output, id: str, form: str) -> None:
    """Show what an experiment or trial came from: forks, warm starts, and parents of trials.

    \b
    Examples: hpcdet lineage digits-7f3a/9
              hpcdet lineage digits-7f3a --format dot | dot -Tsvg > lineage.svg
    """
    found = find.reference(id, settings().root)
    rows = ancestry(replace(found, attempt=0))
    if form == "json":
        out = replace(out, format="json")
    if not out.for_people or out.fields:
        out.emit(rows, COLUMNS)
    elif form == "dot":
        click.echo(_dot(str(found), rows))
    elif out.format == "wide":
        out.emit(rows, COLUMNS)
    else:
        roots = dict.fromkeys(row.id for row in rows if row.id.partition("/")[0] == found.paths.id)
        for line in _tree([str(found)] if found.trial else [found.paths.id, *roots], rows):
            click.echo(escaped(line))
        if not rows:
            settings().note("it began from nothing")


def _tree(roots: Sequence[str], rows: Sequence[AncestorView]) -> Iterator[str]:
    """Yield a line for each of the roots and, indented, for what it came from."""
    seen: set[str] = set()
    for root in dict.fromkeys(roots):
        if root not in seen:
            yield root
            yield from _above(root, rows, seen, "  ")


def _above(id: str, rows: Sequence[AncestorView], seen: set[str], indent: str) -> Iterator[str]:
    known = id in seen
    seen.add(id)
    for row in rows:
        if row.id != id:
            continue
        if known:  # its parents stand where it was first
            yield f"{indent}..."
            return
        at = f" at {row.at}" if row.at and row.how == "began from" else ""
        more = f" ({row.checkpoint})" if row.checkpoint else ""
        after = f" ({row.at})" if row.at and not at else ""
        gone = "" if row.there else ", which cannot be read now"
        yield f"{indent}{row.how} {row.parent}{at}{more}{after}{gone}"
        yield from _above(row.parent, rows, seen, indent + "  ")


def _dot(name: str, rows: Sequence[AncestorView]) -> str:
    """Return the links as a graph of Graphviz, from what was first to what came of it."""
    lines = ["digraph lineage {", "  rankdir=LR;", f"  {_quoted(name)} [shape=box];"]
    for row in rows:
        label = f"{row.how} {row.at}".strip()
        lines.append(f"  {_quoted(row.parent)} -> {_quoted(row.id)} [label={_quoted(label)}];")
    return escaped("\n".join([*lines, "}"]))


def _quoted(name: str) -> str:
    return json.dumps(" ".join(name.split()), ensure_ascii=False)
