"""``index``: the SQLite file derived from an experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from hpcdet.cli.frame.ids import called, id_argument, ids_argument, references
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import IntegrityError
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import UNREADABLE, left_out
from hpcdet.store.folder.layout import ExperimentPaths


@click.group("index", short_help="Update or rebuild the SQLite index, or say where it is.")
def index_command() -> None:
    """An experiment as SQLite tables, derived from its files; it may be deleted at any time.

    \b
    Example: sqlite3 $(hpcdet index update @last) 'select * from v_leaderboard'
    """


def _each(ids: Sequence[str], make: Callable[[ExperimentPaths], Path]) -> None:
    """Update the index of these experiments, or of all readable ones, and print its path."""
    chosen = [one.paths for one in references(ids)] or find.experiments(settings().root)
    failed: list[Exception] = []
    for paths in chosen:
        try:
            with busy(f"indexing {paths.id}"):
                file = make(paths)
        except UNREADABLE as error:
            if ids:
                raise
            failed.append(error)
            settings().warn(left_out(paths, error))
        else:
            click.echo(str(file))
    if failed and len(failed) == len(chosen):
        raise failed[0]


@index_command.command("update")
@ids_argument(required=False)
def update(ids: Sequence[str]) -> None:
    """Bring the index of experiments (all, without ID) up to date; prints where they are.

    Only what is new is read. Where an experiment cannot be written, its index is on this host.

    \b
    Example: sqlite3 $(hpcdet index update @last) 'select * from v_waste'
    """
    from hpcdet.read.index import database

    _each(ids, database.update)


@index_command.command("rebuild")
@ids_argument(required=False)
def rebuild(ids: Sequence[str]) -> None:
    """Build the index of experiments (all, without ID) anew; prints where they are.

    \b
    Example: hpcdet index rebuild digits-7f3a
    """
    from hpcdet.read.index import database

    _each(ids, database.rebuild)


@index_command.command("check")
@id_argument()
def check(id: str) -> None:
    """Compare the index with what the experiment's files say now. Exit 9 if it differs.

    \b
    Example: hpcdet index check digits-7f3a
    """
    from hpcdet.read.index import database

    paths = find.experiment(id, settings().root)
    with busy(f"indexing {paths.id}"):
        stale = database.differences(paths)
    if stale:
        raise IntegrityError(
            f"the index does not match the files: {', '.join(stale)}",
            where=str(database.place(paths)),
            hint=f"hpcdet index update {called(paths)}",
        )
    settings().note(f"{database.place(paths)} matches the files")


@index_command.command("snapshot")
@id_argument()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def snapshot(id: str, file: Path) -> None:
    """Write the index, made anew, to FILE; the experiment itself is not touched.

    Tables have keys to each other, and events can be searched. FILE.metadata.json beside it says
    what they are to Datasette.

    \b
    Examples: hpcdet index snapshot digits-7f3a digits.sqlite
              datasette digits.sqlite --metadata digits.sqlite.metadata.json
    """
    from hpcdet.interop import datasette

    paths = find.experiment(id, settings().root)
    with busy(f"indexing {paths.id}"):
        datasette.snapshot(paths, file)
    click.echo(str(file))


@index_command.command("path")
@id_argument()
def path(id: str) -> None:
    """Where the index of an experiment is, or would be after an update.

    \b
    Example: hpcdet index path digits-7f3a
    """
    from hpcdet.read.index import database

    click.echo(str(database.place(find.experiment(id, settings().root))))
