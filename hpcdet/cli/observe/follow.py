"""Watching experiments until a condition holds: ``wait``, also used by ``submit --wait``."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from hpcdet.cli.frame.ids import called, ids_argument, references
from hpcdet.cli.frame.progress import progress
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import Seconds
from hpcdet.errors import StillPending, Unsuccessful, UsageError
from hpcdet.read.experiment.gather import Memory
from hpcdet.read.experiment.states import ENDED
from hpcdet.read.views import views
from hpcdet.read.views.views import StatusView
from hpcdet.store.folder.layout import ExperimentPaths

__all__ = ["ENDED", "following", "pause", "until", "wait_command", "watched"]

Done = Callable[[StatusView], bool]


@contextlib.contextmanager
def following(ids: Sequence[str] = ()) -> Iterator[None]:
    """End only the watching on Ctrl-C, with a message (exit 130), and on TERM (exit 143)."""

    def terminate(*_: object) -> None:
        raise click.exceptions.Exit(143)

    former = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        name = ids[0] if len(ids) == 1 else "ID"
        click.echo(
            f"\nno longer watching; the jobs go on (hpcdet cancel {name} would end them)", err=True
        )
        raise click.exceptions.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, former)


def pause(seconds: float) -> None:
    """Sleep between two looks; a signal's handler ends it early only by raising."""
    time.sleep(seconds)


def until(
    experiments: Sequence[ExperimentPaths],
    done: Done,
    *,
    every: bool = True,
    timeout_s: float | None = None,
    turn: Callable[[], None] | None = None,
    longest_s: float = 10.0,
) -> list[StatusView]:
    """Look repeatedly and show progress until ``done`` holds.

    Args:
        done: of a view of ``views.status``.
        every: of all experiments; otherwise of one of them.
        timeout_s: seconds after which to give up.
        turn: called before each look: turns the crank, if this process is to do that.
        longest_s: most seconds between two looks.

    Returns:
        The last views.

    Raises:
        StillPending: the time is over.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    memories = [Memory(paths) for paths in experiments]
    with progress() as shown:
        while True:
            begin = time.monotonic()
            if turn is not None:
                turn()
            items = [views.status(memory.look()) for memory in memories]
            shown.update(items)
            if (all if every else any)(done(item) for item in items):
                return items
            if deadline is not None and time.monotonic() >= deadline:
                raise StillPending("not finished within --timeout", where=_names(items))
            # looking must stay a small part of the time, however large the experiment is
            pause(min(longest_s, max(0.5, 10 * (time.monotonic() - begin))))


def ended(item: StatusView) -> bool:
    """True if the experiment has ended, or is paused by a failure that waiting will not remove."""
    return item.state in ENDED or item.stuck


def judge(items: Sequence[StatusView]) -> None:
    """Raise Unsuccessful if an experiment ended without success."""
    bad = [item for item in items if ended(item) and item.state != "COMPLETED"]
    if not bad:
        return
    worst = bad[0]
    why = worst.why or next((t.why for t in worst.trials if t.state == "ERROR"), "")
    name = called(ExperimentPaths(Path(worst.path)))
    raise Unsuccessful(
        f"{worst.state}" + (f": {why}" if why else ""),
        where=_names(bad),
        hint=f"hpcdet explain {name}\nhpcdet logs {name} --errors",
    )


def _names(items: Sequence[StatusView]) -> str:
    return ", ".join(item.id for item in items)


_GOALS: dict[str, Done] = {
    "done": ended,
    "running": lambda item: ended(item) or any(t.state == "RUNNING" for t in item.trials),
    "paused": lambda item: item.state in ENDED or item.state == "PAUSED",
    "checkpoint": lambda item: ended(item) or any(t.last_checkpoint for t in item.trials),
}


def watched(watch: str, ids: Sequence[str]) -> tuple[float, Sequence[str]]:
    """Return the seconds between two looks and the ids; click reads ID in ``-w ID`` as seconds.

    Raises:
        UsageError: less than a second.
    """
    try:
        every = Seconds().convert(watch, None, None)
    except click.BadParameter:
        return 5.0, (watch, *ids)
    if every < 1:
        raise UsageError(f"{watch} is less than a second", where="-w")
    return every, ids


@click.command("wait", short_help="Block until experiments end.")
@ids_argument()
@click.option("--for", "goal", type=click.Choice(list(_GOALS)), default="done", show_default=True)
@click.option("--any", "any_", is_flag=True, help="Until it holds for one of them.")
@click.option("--timeout", type=Seconds(), metavar="TIME", help="Exit 8 after this time.")
def wait_command(ids: Sequence[str], goal: str, any_: bool, timeout: float | None) -> None:
    """Block until experiments end. Exit 6 if one of them failed, 8 after --timeout.

    \b
    Example: hpcdet wait digits-7f3a --timeout 12h
    """
    found = [reference.paths for reference in references(ids)]
    with following([called(paths) for paths in found]):
        items = until(found, _GOALS[goal], every=not any_, timeout_s=timeout)
    for item in items:
        settings().note(f"{item.id}  {item.state}")
    judge(items)
