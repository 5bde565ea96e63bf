"""``events``: the timeline, as a list or as a chart of text."""

from __future__ import annotations

import click

from hpcdet import units
from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.ids import called, id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.observe import follow
from hpcdet.errors import UsageError
from hpcdet.read.experiment import gather
from hpcdet.read.lookup import find
from hpcdet.read.usage.spans import epoch, spans
from hpcdet.read.views import views
from hpcdet.read.views.timeline import EventView
from hpcdet.store.fs import files

COLUMNS = (
    Column("TIME", text_format.time_of("time"), cut=False),
    Column("TRIAL", lambda e: f"{e.trial or ''}" + (f".{e.attempt}" if e.attempt else "")),
    Column("KIND", "kind"),
    Column("WHAT", "text", fold=True),
)


@click.command("events", short_help="What happened, in order.")
@id_argument()
@click.option("-f", "--follow", "follow_", is_flag=True, help="Follow new events.")
@click.option("--kind", multiple=True, help="Only events of this kind (repeat for more).")
@click.option("--gantt", is_flag=True, help="A chart of the attempts as text.")
@output("events", EventView)
def events_command(out: Output, id: str, follow_: bool, kind: tuple[str, ...], gantt: bool) -> None:
    """Show events: submissions, workers, attempts, checkpoints, decisions, commands.

    \b
    Examples: hpcdet events digits-7f3a/3
              hpcdet events digits-7f3a --gantt
    """
    found = find.reference(id, settings().root)
    if gantt:
        if follow_ or kind:
            raise UsageError("--gantt shows all there is now", hint="leave out -f and --kind")
        chart = _gantt(gather.gather(found.paths), found.trial, found.attempt)
        if not chart:
            settings().note("nothing was started yet")
        for line in chart:
            click.echo(line)
        return

    def look(kinds: tuple[str, ...] = kind) -> list[EventView]:
        return [
            event
            for event in views.events(found.paths, found.trial)
            if (not kinds or event.kind in kinds)
            and (not found.attempt or event.attempt == found.attempt)
        ]

    first = look()
    empty = "nothing has happened yet"
    if kind and not first:
        there = dict.fromkeys(event.kind for event in look(kinds=()))
        empty = f"no events of kind {', '.join(kind)}; there are: {', '.join(there) or 'none'}"
    out.emit(first, COLUMNS, key="kind", empty=empty)
    if not follow_:
        return
    shown = set(first)
    with follow.following([called(found.paths)]):
        over = False
        while not over:
            over = follow.ended(views.status(found.paths))
            # an event may become visible late: what was shown is told apart by what it says
            fresh = [event for event in look() if event not in shown]
            if fresh:
                out.emit(fresh, COLUMNS, key="kind")
            shown.update(event for event in fresh)
            if not over:
                follow.pause(1.0)


def _gantt(gathered: gather.Gathered, trial: int, attempt: int, width: int = 80) -> list[str]:
    """Draw a line per attempt: ``s`` starting, ``=`` training, ``c`` a checkpoint, ``.`` waiting.

    What still runs goes on to the right edge, which is now or the experiment's end.
    """
    rows = [row for row in views.attempts(gathered, trial) if row.start]
    if not rows:
        return []
    now = gathered.closed.at if gathered.closed else files.now()
    first = min(row.start for row in rows)
    last = max([row.end or now for row in rows] + [row.start for row in rows])
    labels = [f"{row.trial}.{row.attempt}" for row in rows]
    reasons = [row.reason or "running" for row in rows]
    columns = width - max(map(len, labels)) - max(map(len, reasons)) - 4
    whole = epoch(last) - epoch(first)

    def column(at: float) -> int:
        share = (min(max(at, epoch(first)), epoch(last)) - epoch(first)) / (whole or 1)
        return min(columns - 1, int(share * columns))

    starting = {
        (span.trial, span.attempt): span
        for span in spans(gathered, epoch(now))
        if span.kind == "starting"
    }
    saved = [event for event in views.events(gathered, trial) if event.kind == "checkpoint"]
    lines = [f"{text_format.when(first)} to {text_format.when(last)}, {units.duration(whole)}"]
    before: dict[int, str] = {}
    for row, label, reason in zip(rows, labels, reasons, strict=True):
        cells = [" "] * columns
        end = row.end or now
        waits_since = before.get(row.trial) or row.start
        for at in range(column(epoch(waits_since)), column(epoch(row.start))):
            cells[at] = "."
        for at in range(column(epoch(row.start)), column(epoch(end)) + 1):
            cells[at] = "="
        if (span := starting.get((row.trial, row.attempt))) is not None:
            over = span.end >= epoch(end)  # it never got further
            for at in range(column(span.start), column(span.end) + over):
                cells[at] = "s"
        for event in saved:
            if (event.trial, event.attempt) == (row.trial, row.attempt):
                cells[column(epoch(event.time))] = "c"
        before[row.trial] = end
        if not attempt or row.attempt == attempt:
            lines.append(f"{label:>{max(map(len, labels))}} |{''.join(cells)}| {reason}")
    return [*lines, "s starts   = trains   c saves a checkpoint   . its trial waits to go on"]
