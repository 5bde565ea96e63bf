"""The arguments ID and ID…, with completion from the folder names alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from hpcdet.cli.frame.settings import settings
from hpcdet.errors import UsageError
from hpcdet.read.lookup import find
from hpcdet.store.folder import home
from hpcdet.store.folder.layout import ExperimentPaths


def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids with a prefix, for completion; reads neither configs nor the scheduler."""
    return [paths.id for paths in find.experiments(home.root(), incomplete)]


def id_argument() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the argument ``ID``: one experiment, trial or attempt."""
    return click.argument("id", metavar="ID", shell_complete=complete)


def ids_argument(
    required: bool = True, then: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the argument ``ID...``; ``-`` reads ids from standard input.

    Args:
        then: words of the argument after it, which completion offers as well.
    """

    def found(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        words = [word for word in then if word.startswith(incomplete)]
        return [*complete(ctx, parameter, incomplete), *words]

    metavar = "ID..." if required else "[ID]..."
    more: dict[str, Any] = {"nargs": -1, "required": required, "metavar": metavar}
    more["callback"] = _from_stdin
    return click.argument("ids", shell_complete=found, **more)


def _from_stdin(ctx: click.Context, _: click.Parameter, ids: Sequence[str]) -> Sequence[str]:
    """Return the ids with the words on standard input in place of ``-``."""
    if ctx.resilient_parsing:  # somebody has pressed the tabulator
        return ids
    words: list[str] = []
    for each in ids:
        words.extend(sys.stdin.read().split() if each == "-" else [each])
    if ids and not words:
        raise UsageError("no id given", hint="hpcdet ls shows them")
    return tuple(words)


def called(found: find.Reference | ExperimentPaths) -> str:
    """Return the words for it in a command that works without ``-C`` (``home.called``)."""
    one = found if isinstance(found, find.Reference) else find.Reference(found)
    among = home.root() if settings().given_root else settings().root
    return home.called(one.paths, one.trial, one.attempt, among)


def references(ids: Sequence[str]) -> list[find.Reference]:
    """Return the experiments, trials or attempts named by the ids.

    Raises:
        NotFound: one of them names nothing.
    """
    return [find.reference(each, settings().root) for each in ids]
