"""``logs``: the output of the ranks."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import click

from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.ids import called, id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import moment
from hpcdet.cli.observe import follow
from hpcdet.errors import UsageError
from hpcdet.read.lookup import find
from hpcdet.read.views import logs, views
from hpcdet.read.views.logs import LogLine
from hpcdet.store.folder import scratch
from hpcdet.store.fs import packed

_AT_ONCE = 1000
"""Lines that are printed together."""

Keep = Callable[[LogLine], bool]

COLUMNS = (Column("TRIAL", "trial"), Column("ATTEMPT", "attempt"), Column("RANK", "rank"))


@click.command("logs", short_help="What the ranks printed, across attempts.")
@id_argument()
@click.option("-f", "--follow", "follow_", is_flag=True, help="Follow new lines until the end.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--head", type=click.IntRange(min=0), metavar="N", help="Only the first N lines.")
@click.option("--rank", type=int, multiple=True, help="Only this rank (repeat for more).")
@click.option("--attempt", type=int, default=0, help="Only this attempt of each trial.")
@click.option("--previous", is_flag=True, help="Only the attempt before the last of each trial.")
@click.option("--since", default="", metavar="AGE|TIME", help="Only later lines.")
@click.option("--until", default="", metavar="AGE|TIME", help="Only earlier lines.")
@click.option(
    "--level",
    default="",
    type=click.Choice(["", *logs.LEVELS], case_sensitive=False),
    metavar="LEVEL",
    help="Only lines of this level or more severe.",
)
@click.option("-g", "--grep", default="", metavar="RE", help="Only lines that match.")
@click.option("--errors", is_flag=True, help="The first traceback of each rank.")
@click.option("--launcher", is_flag=True, help="Include the launcher's own output.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time, where it has one.")
@click.option("--path", is_flag=True, help="Names of the log files (packed: ARCHIVE:NAME).")
@click.option("--exit-status", is_flag=True, help="With -f: exit 6 if it ended badly.")
@output("logs", LogLine)
def logs_command(
    out: Output,
    id: str,
    follow_: bool,
    tail: int | None,
    head: int | None,
    rank: Sequence[int],
    attempt: int,
    previous: bool,
    since: str,
    until: str,
    level: str,
    grep: str,
    errors: bool,
    launcher: bool,
    timestamps: bool,
    path: bool,
    exit_status: bool,
) -> None:
    """Print the output of an experiment's, trial's (ID/3) or attempt's (ID/3.2) ranks.

    \b
    Examples: hpcdet logs digits-7f3a/3 --tail 50
              hpcdet logs digits-7f3a --errors
              hpcdet logs @last -f
    """
    found = find.reference(id, settings().root)
    attempt = found.attempt or attempt
    if previous and (attempt or follow_):
        hint = "--previous names an attempt that is over"
        raise UsageError("neither an attempt nor -f goes with --previous", hint=hint)
    chosen = logs.sources(
        found.paths,
        trial=found.trial,
        attempt=attempt,
        ranks=rank,
        launcher=launcher,
        previous=previous,
    )
    if path:
        for source in chosen:
            click.echo(packed.where(source.path))
        return
    if errors:
        traces = logs.errors(found.paths, found.trial, attempt, previous)
        lines = [line for trace in traces for line in trace if not rank or line.rank in rank]
        _print(out, lines, timestamps)
        if not lines:
            settings().note("no traceback in the logs")
        return
    keep = _grep(grep)
    times = {"since": moment(since) if since else "", "until": moment(until) if until else ""}

    def read(source: logs.LogSource, whole: bool) -> Iterator[LogLine]:
        return filter(keep, logs.read(source, level=level, whole=whole, **times))

    streams = [read(source, not follow_) for source in chosen]
    if tail is not None and head is None and not (level or grep or since or until):
        carried = timestamps or not out.for_people
        count = _print(out, _tail(chosen, tail, not follow_, carried), timestamps)
    elif head is None and tail is None:
        count = _print_all(out, streams, timestamps)
    else:
        first = itertools.islice(itertools.chain.from_iterable(streams), head)
        count = _print(out, list(first if tail is None else deque(first, tail)), timestamps)
        if follow_:
            _tail(chosen, 0, False, False)
    if not count and not follow_:
        settings().note("no lines")
    if scratch.is_gone(found.paths):
        settings().warn("logs are on scratch, and its folder there is gone")
    if follow_:
        with follow.following([called(found.paths)]):
            _follow(out, found, attempt, rank, launcher, timestamps, read, chosen)
        if exit_status:
            follow.judge([views.status(found.paths)])


def _grep(pattern: str) -> Keep:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"not a regular expression: {error}", where="-g") from error
    return lambda line: compiled.search(line.text) is not None


def _follow(
    out: Output,
    found: find.Reference,
    attempt: int,
    ranks: Sequence[int],
    launcher: bool,
    timestamps: bool,
    read: Callable[[logs.LogSource, bool], Iterator[LogLine]],
    known: list[logs.LogSource],
) -> None:
    """Print new lines until the experiment or the trial has ended and all is printed."""
    sources = {source.path: source for source in known}
    while True:
        over = _over(found)
        for source in logs.sources(
            found.paths, trial=found.trial, attempt=attempt, ranks=ranks, launcher=launcher
        ):
            sources.setdefault(source.path, source)
        for source in sources.values():
            if fresh := list(read(source, over)):
                _print(out, fresh, timestamps)
        if over:
            return
        follow.pause(0.5)


def _over(found: find.Reference) -> bool:
    item = views.status(found.paths)
    if follow.ended(item):
        return True
    trials = [trial for trial in item.trials if trial.trial == found.trial]
    return bool(trials) and all(trial.state in follow.ENDED for trial in trials)


def _tail(chosen: list[logs.LogSource], count: int, whole: bool, carried: bool) -> list[LogLine]:
    """Return the last lines of all sources together, each read from its end."""
    lines: list[LogLine] = []
    for source in reversed(chosen):
        if whole and len(lines) == count:
            break
        lines = source.tail(count - len(lines), whole=whole, carried=carried) + lines
    return lines


def _print_all(out: Output, streams: list[Iterator[LogLine]], timestamps: bool) -> int:
    """Print lines as they are read and return their number."""
    if out.format in ("json", "csv"):  # which are one thing, from begin to end
        return _print(out, list(itertools.chain.from_iterable(streams)), timestamps)
    speaking: list[LogLine] = []
    rest: list[Iterator[LogLine]] = []
    for stream in streams:
        # whether several ranks have lines decides how the first of them is shown
        if len(speaking) < 2:
            begin = list(itertools.islice(stream, 1))
            speaking += begin
            stream = itertools.chain(begin, stream)
        rest.append(stream)
    lines, count = itertools.chain.from_iterable(rest), 0
    while some := list(itertools.islice(lines, _AT_ONCE)):
        count += _print(out, some, timestamps, len(speaking) > 1)
    return count


def _print(
    out: Output, lines: Sequence[LogLine], timestamps: bool, several: bool | None = None
) -> int:
    """Print lines; ``several``: they are of several ranks, None to decide by the lines."""
    if not out.for_people:
        if lines or out.format == "json":
            out.emit(lines, COLUMNS, key="text")
        return len(lines)
    if several is None:
        several = len({(line.trial, line.attempt, line.rank) for line in lines}) > 1
    for line in lines:
        rank = "launcher" if line.rank == logs.LAUNCHER else f"r{line.rank}"
        prefix = f"[{line.trial}.{line.attempt} {rank}] " if several or out.format == "wide" else ""
        stamp = f"{text_format.when(line.time) or '-':19} " if timestamps else ""
        click.echo(stamp + prefix + line.text)
    return len(lines)
