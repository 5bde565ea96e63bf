"""``index``: the SQLite file derived from an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from hpcdet.cli.ids import id_argument, ids_argument, references
from hpcdet.cli.progress import busy
from hpcdet.cli.settings import settings
from hpcdet.errors import IntegrityError
from hpcdet.read import find


@click.group("index", short_help="Rebuild the SQLite index, or say where it is.")
def index_command() -> None:
    """An experiment as SQLite tables, derived from its files; it may be deleted at any time.

    \b
    Example: sqlite3 $(hpcdet index rebuild @last) 'select * from v_leaderboard'
    """


@index_command.command("rebuild")
@ids_argument(required=False)
def rebuild(ids: Sequence[str]) -> None:
    """Build the index of experiments (all, without ID) anew; prints where they are.

    \b
    Example: hpcdet index rebuild digits-7f3a
    """
    from hpcdet.read import index

    found = [r.paths for r in references(ids)] if ids else find.experiments(settings().root)
    for paths in found:
        with busy(f"indexing {paths.id}"):
            file = index.rebuild(paths)
        click.echo(str(file))


@index_command.command("check")
@id_argument()
def check(id: str) -> None:
    """Compare the index with what the experiment's files say now. Exit 9 if it differs.

    \b
    Example: hpcdet index check digits-7f3a
    """
    from hpcdet.read import index

    paths = find.experiment(id, settings().root)
    with busy(f"indexing {paths.id}"):
        stale = index.differences(paths)
    if stale:
        raise IntegrityError(
            f"not what the files say: {', '.join(stale)}",
            where=str(paths.index),
            hint=f"hpcdet index rebuild {paths.id}",
        )
    settings().note(f"{paths.index} is what the files say")


@index_command.command("snapshot")
@id_argument()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def snapshot(id: str, file: Path) -> None:
    """Write the index, made anew, to FILE; the experiment itself is not touched.

    \b
    Example: hpcdet index snapshot digits-7f3a digits.sqlite
    """
    from hpcdet.read import index

    paths = find.experiment(id, settings().root)
    with busy(f"indexing {paths.id}"):
        index.snapshot(paths, file)
    click.echo(str(file))


@index_command.command("path")
@id_argument()
def path(id: str) -> None:
    """Where the index of an experiment is, or would be.

    \b
    Example: hpcdet index path digits-7f3a
    """
    click.echo(str(find.experiment(id, settings().root).index))
