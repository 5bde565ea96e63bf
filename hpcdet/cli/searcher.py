"""``searcher``: the process that decides for an experiment."""

from __future__ import annotations

from typing import Any

import click

from hpcdet.cli.ids import id_argument
from hpcdet.cli.output import Column, Output, output
from hpcdet.cli.settings import settings
from hpcdet.control import daemon
from hpcdet.errors import NotFound
from hpcdet.read import find, gather, states
from hpcdet.store.layout import ExperimentPaths

COLUMNS = (
    Column("ID", "id"),
    Column("HELD", "held"),
    Column("BY", "kind"),
    Column("HOST", "host"),
    Column("PID", "pid", right=True),
    Column("TERM", "term", right=True),
    Column("HEALTH", "health"),
)


@click.group("searcher", short_help="Run the process that decides for an experiment.")
def searcher_command() -> None:
    """The process that decides: tells the search method what happened, submits what is missing.

    Workers do the same while they live, so that it is rarely needed.

    \b
    Example: hpcdet searcher start digits-7f3a
    """


def _paths(id: str) -> ExperimentPaths:
    return find.experiment(id, settings().root)


@searcher_command.command("run")
@id_argument()
def run(id: str) -> None:
    """Decide in the foreground, until the experiment is over. Ctrl-C frees the lease.

    \b
    Example: hpcdet searcher run digits-7f3a
    """
    raise click.exceptions.Exit(daemon.main(_paths(id)))


@searcher_command.command("start")
@id_argument()
def start(id: str) -> None:
    """Decide in the background; the log is searcher.log in the experiment's folder.

    \b
    Example: hpcdet searcher start digits-7f3a
    """
    paths = _paths(id)
    click.echo(daemon.start(paths))
    settings().note(f"the searcher of {paths.id} runs; its log is {paths.searcher_log}")


@searcher_command.command("stop")
@id_argument()
def stop(id: str) -> None:
    """End the searcher in the background. Jobs go on, and workers decide.

    \b
    Example: hpcdet searcher stop digits-7f3a
    """
    paths = _paths(id)
    if not daemon.stop(paths):
        raise NotFound("no searcher runs", where=paths.id)
    settings().note(f"the searcher of {paths.id} has ended")


@searcher_command.command("status")
@id_argument()
@output("searcher.status")
def status(out: Output, id: str) -> None:
    """Who decides now.

    \b
    Example: hpcdet searcher status digits-7f3a
    """
    paths = _paths(id)
    health: dict[str, Any] = states.health(gather.gather(paths))
    out.emit([{"id": paths.id, **daemon.status(paths), **health}], COLUMNS)
