"""One ``-o`` for every verb that prints data: tables for people, the rest for programs.

``json`` is an envelope, ``{"schema": "hpcdet.VERB/1", "generated_at", "items", "warnings"}``; keys
are added over time and never change their meaning. Standard output carries nothing else.
"""

from __future__ import annotations

import csv
import functools
import itertools
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import click

from hpcdet.cli.frame.settings import settings
from hpcdet.errors import UsageError
from hpcdet.read.lookup.escapes import escaped, inert
from hpcdet.read.views.items import encode, keys, text
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import strict

FORMATS = ("table", "wide", "json", "jsonl", "csv", "id")

Item = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        value: a field of the item, or a function of it.
        wide: shown by ``-o wide`` only.
        right: numbers line up at their right end.
        cut: may lose its end where the terminal is too narrow.
        fold: goes on in the next line instead.
        sparse: left out of a table in which no row has a value.
    """

    title: str
    value: str | Callable[[Any], Any]
    wide: bool = False
    right: bool = False
    cut: bool = True
    fold: bool = False
    sparse: bool = False

    def of(self, item: Any) -> Any:
        if callable(self.value):
            return self.value(item)
        return item.get(self.value) if isinstance(item, dict) else getattr(item, self.value, None)


@dataclass(frozen=True)
class Output:
    """The requested form of a verb's output: format, fields and order of its items."""

    verb: str
    format: str
    fields: tuple[str, ...]
    header: bool

    @property
    def for_people(self) -> bool:
        return self.format in ("table", "wide")

    def emit(
        self,
        items: Iterable[Any],
        columns: Sequence[Column],
        *,
        warnings: Sequence[str] = (),
        key: str = "id",
        empty: str = "",
    ) -> None:
        """Print items.

        Args:
            items: of the verb's views.
            columns: what a table shows.
            warnings: into the envelope; on standard error otherwise.
            key: what ``-o id`` prints of each item.
            empty: said on standard error when a table would have no row.
        """
        rows = list(items)
        if self.format != "json":
            for warning in warnings:
                settings().warn(warning)
        match self.format:
            case "json":
                click.echo(_json(self._envelope(rows, warnings), indent=2))
            case "jsonl":
                for row in rows:
                    click.echo(_json(self._chosen(row)))
            case "csv":
                self._csv(rows)
            case "id":
                for row in rows:
                    click.echo(escaped(str(encode(row)[key])))
            case _:
                if not rows and empty:
                    settings().note(empty)
                else:
                    click.echo(self._table(rows, columns), nl=bool(rows) or self.header)

    def expect(self, item: Item | None = None) -> None:
        """Check ``--fields`` before a verb changes anything: exit code 2 means nothing was done.

        Args:
            item: to be printed; None: one of the verb's first view.

        Raises:
            UsageError: one of ``--fields`` is not among its keys.
        """
        there = [key for _, key, _ in keys(VIEWS[self.verb][0])] if item is None else list(item)
        unknown = [name for name in self.fields if name not in there]
        if unknown:
            hint = "there are: " + ", ".join(there)
            raise UsageError(f"no such field: {unknown[0]}", where="--fields", hint=hint)

    def _envelope(self, rows: list[Any], warnings: Sequence[str]) -> Item:
        return {
            "schema": f"hpcdet.{self.verb}/1",
            "generated_at": files.now(),
            "items": [self._chosen(row) for row in rows],
            "warnings": list(warnings),
        }

    def _chosen(self, row: Any) -> Item:
        item: Item = encode(row)
        if not self.fields:
            return item
        self.expect(item)
        return {name: item[name] for name in self.fields}

    def _csv(self, rows: list[Any]) -> None:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if not rows:
            return
        chosen = [self._chosen(row) for row in rows]
        if self.header:
            writer.writerow(chosen[0])
        for row in chosen:
            writer.writerow([_cell(value) for value in row.values()])

    def _table(self, rows: list[Any], columns: Sequence[Column]) -> str:
        if self.fields:
            columns = [Column(name.upper(), itemgetter(name)) for name in self.fields]
            rows = [self._chosen(row) for row in rows]
        shown = [c for c in columns if self.format == "wide" or not c.wide]
        shown = [c for c in shown if not c.sparse or any(c.of(row) for row in rows)]
        texts = [[text(column.of(row)) for column in shown] for row in rows]
        return table(shown, texts, header=self.header, cut=self.format == "table")


_LEAST = 8
"""Columns are cut down to so many characters, not further; folded ones to their longest word, but
at most to ``_WORD``."""
_WORD = 30


def table(
    columns: Sequence[Column], rows: list[list[str]], *, header: bool = True, cut: bool = True
) -> str:
    """Rows in columns that line up, at most as wide as the terminal.

    The widest are cut or folded; the first, which says what a row is about, after all others.
    """
    titles = [[column.title for column in columns]] if header else []
    lines = titles + rows
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(columns))]
    limit = shutil.get_terminal_size((80, 24)).columns
    least = [_least(column, (line[i] for line in lines)) for i, column in enumerate(columns)]
    soft = [i for i, column in enumerate(columns) if column.cut and widths[i] > least[i]]
    while cut and soft and sum(widths) + 2 * (len(widths) - 1) > limit:
        widest = max(soft, key=lambda i: (i > 0, widths[i]))
        widths[widest] -= 1
        soft = [i for i in soft if widths[i] > least[i]]
    if any(column.fold for column in columns):
        return "\n".join(_folded(columns, line, widths) for line in lines)
    right = [column.right for column in columns]
    return "\n".join("  ".join(map(_fit, line, widths, right)).rstrip() for line in lines)


def _least(column: Column, cells: Iterable[str]) -> int:
    """Return the minimum width of a column."""
    if not column.fold:
        return _LEAST
    return min(_WORD, max((len(word) for cell in cells for word in cell.split()), default=_LEAST))


def _fit(cell: str, width: int, right: bool) -> str:
    """Pad a cell, or cut it."""
    if len(cell) > width:
        cell = f"{cell[: width - 1]}…"
    return cell.rjust(width) if right else cell.ljust(width)


def _folded(columns: Sequence[Column], line: list[str], widths: list[int]) -> str:
    """Format a row of which cells go on in the next line."""
    cells = []
    for column, cell, width in zip(columns, line, widths, strict=True):
        parts = textwrap.wrap(cell, width, break_on_hyphens=False) if column.fold else [cell]
        cells.append([_fit(part, width, column.right) for part in parts])
    empty = [" " * width for width in widths]
    rows = itertools.zip_longest(*cells)
    filled = ([cell or gap for cell, gap in zip(row, empty, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in filled)


def _json(value: Any, indent: int | None = None) -> str:
    """Encode strict JSON: NaN and infinities are strings, as in the journals."""
    return escaped(strict(value, indent=indent))


def _cell(value: Any) -> Any:
    """Format a value for CSV; text that a spreadsheet would take for a formula is made inert."""
    if isinstance(value, dict | list):
        return _json(value)
    return inert(value) if isinstance(value, str) else value


VIEWS: dict[str, tuple[type, ...]] = {}
"""Classes of the items of each verb; a verb is here once its module is imported."""


def output(verb: str, *views: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``-o`` and related options to a command, which gets an ``Output`` as first argument.

    Args:
        verb: its name, as in ``ckpt.ls``.
        views: the classes of its items, from which ``make schemas`` makes its JSON Schema.
    """
    if views:
        VIEWS[verb] = views

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(
            *args: Any, format: str, as_json: bool, fields: str, no_header: bool, **more: Any
        ) -> Any:
            chosen = tuple(name.strip() for name in fields.split(",") if name.strip())
            quiet = settings().quiet and format == "table"
            kind = "json" if as_json else "id" if quiet else format
            if kind in ("json", "jsonl"):
                # who reads JSON reads standard error as JSON, too: an error is its only line
                settings().quiet = True
            return function(Output(verb, kind, chosen, not no_header), *args, **more)

        for option in (
            click.option("--no-header", is_flag=True, help="Tables and CSV without titles."),
            click.option("--fields", default="", metavar="A,B", help="Only these fields."),
            click.option("--json", "as_json", is_flag=True, help="The same as -o json."),
            click.option(
                "-o",
                "--output",
                "format",
                type=click.Choice(FORMATS),
                default="table",
                show_default=True,
                help="How to print.",
            ),
        ):
            command = option(command)
        return command

    return decorate
