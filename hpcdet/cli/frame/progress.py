"""Progress shown while a verb waits: a line per trial, redrawn on a terminal, else appended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from hpcdet.cli.frame.output import text
from hpcdet.cli.frame.settings import settings
from hpcdet.read.experiment.states import ENDED

if TYPE_CHECKING:
    from rich.live import Live

Item = dict[str, Any]

_MANY = 16


class ProgressDisplay(Protocol):
    """A display of progress, updated repeatedly with the views of ``views.status``."""

    def update(self, items: list[Item]) -> None: ...


@contextlib.contextmanager
def progress() -> Iterator[ProgressDisplay]:
    """Return live lines if standard error is a terminal, else plain lines; none if quiet."""
    if not settings().live:
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    colored = settings().color != "never"
    console = Console(stderr=True, no_color=not colored)
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        yield _Redrawn(live)


class _Lines:
    """Progress as a line for each change of a trial's state or best value."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def update(self, items: list[Item]) -> None:
        for item in items:
            said = (item["id"], (item["state"], item["why"]), _experiment(item))
            if item["state"] not in ENDED:
                self._say(*said)
            for trial in item["trials"]:
                news = (trial["state"], trial["best"], trial["attempts"])
                self._say(trial["id"], news, f"{trial['id']}  {_trial(trial)}")
            if item["state"] in ENDED:  # its end is the last that is said of it
                self._say(*said)

    def _say(self, key: str, news: Any, line: str) -> None:
        if self.said.get(key) != news:
            self.said[key] = news
            settings().note(line)


class _Redrawn:
    """Progress as a table that is redrawn in place."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def update(self, items: list[Item]) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        parts: list[Any] = []
        for item in items:
            grid = Table.grid(padding=(0, 2))
            for trial in _of_interest(item["trials"]):
                bar = ProgressBar(total=_target(trial, item), completed=trial["steps"], width=20)
                grid.add_row(Text(f"  trial {trial['trial']}"), bar, Text(_trial(trial)))
            parts.extend((Text(_experiment(item)), grid))
        self.live.update(Group(*parts))


def _of_interest(trials: list[Item]) -> list[Item]:
    """Return the trials to show: all if few, else unfinished ones, pending ones last."""
    if len(trials) <= _MANY:
        return trials
    going = [trial for trial in trials if trial["state"] not in ENDED]
    return sorted(going, key=lambda trial: trial["state"] == "PENDING")[:_MANY]


def _target(trial: Item, item: Item) -> float | None:
    """Return the target in batches; None (a bar without end) if it is not in batches."""
    until: dict[str, int] = trial["until"] or item["max_length"] or {}
    if trial["state"] == "COMPLETED":
        return float(trial["steps"] or 1)
    return float(until["batches"]) if until.get("batches") else None


def _experiment(item: Item) -> str:
    why = f": {text(item['why'])}" if item["why"] else ""
    done = sum(trial["state"] in ENDED for trial in item["trials"])
    count = f"  {done}/{len(item['trials'])} trials ended" if len(item["trials"]) > _MANY else ""
    return f"{item['id']}  {item['state']}{count}{why}"


def _trial(trial: Item) -> str:
    parts = [f"{trial['state']}  step {trial['steps']}"]
    if trial["best"] is not None:
        parts.append(f"best {text(trial['best'])}")
    if trial["attempts"] > 1:
        parts.append(f"attempt {trial['attempts']}")
    return "  ".join(parts)


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Show a spinner on a terminal while the context lasts; elsewhere print a line."""
    if not settings().live:
        settings().note(f"{what} …")
        yield
        return
    from rich.console import Console

    console = Console(stderr=True, no_color=settings().color == "never")
    with console.status(what):
        yield


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on a terminal, fed with the fraction done; elsewhere print a line."""
    if not settings().live:
        settings().note(f"{what} …")
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, no_color=settings().color == "never")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda done: bar.update(task, completed=done)
