"""``events``: the timeline."""

from __future__ import annotations

from typing import Any

import click

from hpcdet.cli import follow, words
from hpcdet.cli.ids import id_argument
from hpcdet.cli.output import Column, Output, output
from hpcdet.cli.settings import settings
from hpcdet.read import find, views

COLUMNS = (
    Column("TIME", words.time_of("time"), cut=False),
    Column("TRIAL", lambda e: f"{e['trial'] or ''}" + (f".{e['attempt']}" if e["attempt"] else "")),
    Column("KIND", "kind"),
    Column("WHAT", "text"),
)


@click.command("events", short_help="What happened, in order.")
@id_argument()
@click.option("-f", "--follow", "follow_", is_flag=True, help="Go on as things happen.")
@click.option("--kind", multiple=True, help="Only events of this kind (repeat for more).")
@output("events")
def events_command(out: Output, id: str, follow_: bool, kind: tuple[str, ...]) -> None:
    """What happened: submissions, workers, attempts, checkpoints, decisions, commands.

    \b
    Example: hpcdet events digits-7f3a/3
    """
    found = find.reference(id, settings().root)

    def look() -> list[dict[str, Any]]:
        return [
            event
            for event in views.events(found.paths, found.trial)
            if (not kind or event["kind"] in kind)
            and (not found.attempt or event["attempt"] == found.attempt)
        ]

    first = look()
    out.emit(first, COLUMNS, key="kind", empty="nothing has happened yet")
    if not follow_:
        return
    shown = {tuple(event.values()) for event in first}
    with follow.following([found.paths.id]):
        over = False
        while not over:
            over = follow.ended(views.status(found.paths))
            # an event may become visible late: what was shown is told apart by what it says
            fresh = [event for event in look() if tuple(event.values()) not in shown]
            if fresh:
                out.emit(fresh, COLUMNS, key="kind")
            shown.update(tuple(event.values()) for event in fresh)
            if not over:
                follow.pause(1.0)
