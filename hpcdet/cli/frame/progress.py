"""Progress shown while a verb waits: a line per trial, redrawn on a terminal, else appended."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import click

from hpcdet import units
from hpcdet.cli.frame.settings import settings
from hpcdet.read.experiment.states import ENDED
from hpcdet.read.lookup.escapes import escaped
from hpcdet.read.views import describe
from hpcdet.read.views.items import text
from hpcdet.read.views.list_rows import TrialStatusView
from hpcdet.read.views.views import StatusView

_MANY = 16
_BAR = 20
_CLEAR = "\r\x1b[K"
"""Back to the beginning of the terminal's line, and empty it."""


class ProgressDisplay(Protocol):
    """A display of progress, updated repeatedly with the views of ``views.status``."""

    def update(self, items: list[StatusView]) -> None: ...


@contextlib.contextmanager
def progress() -> Iterator[ProgressDisplay]:
    """Return live lines if standard error is a terminal, else plain lines; none if quiet."""
    yield _Redrawn() if settings().live else _Lines()


class _Lines:
    """Progress as a line for each change of a trial's state or best value."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def update(self, items: list[StatusView]) -> None:
        for item in items:
            said = (item.id, (item.state, item.why), _experiment(item))
            if item.state not in ENDED:
                self._say(*said)
            for trial in item.trials:
                news = (trial.state, trial.best, trial.attempts)
                self._say(trial.id, news, f"{trial.id}  {_trial(trial)}")
            if item.state in ENDED:  # its end is the last that is said of it
                self._say(*said)

    def _say(self, key: str, news: Any, line: str) -> None:
        if self.said.get(key) != news:
            self.said[key] = news
            settings().note(line)


class _Redrawn:
    """Progress as a table that is redrawn in place."""

    def __init__(self) -> None:
        self.shown = 0

    def update(self, items: list[StatusView]) -> None:
        lines: list[str] = []
        for item in items:
            lines.append(_experiment(item))
            for trial in _of_interest(item.trials):
                bar = _bar(trial.steps / (_target(trial, item) or math.inf))
                lines.append(f"  trial {trial.trial:<4}  {bar}  {_trial(trial)}")
        size = shutil.get_terminal_size((80, 24))
        # a line that wraps, or scrolls away, would not be found again
        fitting = [escaped(line)[: size.columns - 1] for line in lines[: size.lines - 1]]
        again = f"\x1b[{self.shown}F\x1b[J" if self.shown else ""
        click.echo(again + "\n".join(fitting), err=True, color=True)
        self.shown = len(fitting)


def _bar(done: float) -> str:
    """Return a bar of which the fraction ``done`` is filled."""
    return f"[{'=' * round(_BAR * min(1.0, done)):{_BAR}}]"


def _of_interest(trials: list[TrialStatusView]) -> list[TrialStatusView]:
    """Return the trials to show: all if few, else unfinished ones, pending ones last."""
    if len(trials) <= _MANY:
        return trials
    going = [trial for trial in trials if trial.state not in ENDED]
    return sorted(going, key=lambda trial: trial.state == "PENDING")[:_MANY]


def _target(trial: TrialStatusView, item: StatusView) -> float | None:
    """Return the target in batches; None (a bar without end) if it is not in batches."""
    until = trial.until or item.max_length
    if trial.state in ("COMPLETED", "STOPPED"):
        return float(trial.steps or 1)
    return float(until.value) if until is not None and until.unit == "batches" else None


def _experiment(item: StatusView) -> str:
    why = f": {text(item.why)}" if item.why else ""
    count = f"  {describe.ended(item)}" if len(item.trials) > _MANY else ""
    return f"{item.id}  {item.state}{count}{why}"


def _trial(trial: TrialStatusView) -> str:
    parts = [f"{trial.state}  step {trial.steps}"]
    if trial.best is not None:
        parts.append(f"best {text(trial.best)}")
    if trial.attempts > 1:
        parts.append(f"attempt {trial.attempts}")
    return "  ".join(parts)


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Print a line while the context lasts; on a terminal it goes away afterwards."""
    with working(what):
        yield


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on a terminal, fed with the fraction done; elsewhere print a line."""
    if not settings().live:
        settings().note(f"{what} …")
        yield lambda _: None
        return
    begin, percent = time.monotonic(), -1

    def show(done: float) -> None:
        nonlocal percent
        if done > 0 and int(100 * done) != percent:  # a redraw costs more than the work between two
            percent = int(100 * done)
            left = units.duration((time.monotonic() - begin) * (1 - done) / done)
            line = f"{_CLEAR}{escaped(what)}  {_bar(done)} {percent} %  {left}"
            click.echo(line, nl=False, err=True, color=True)

    click.echo(f"{escaped(what)} …", nl=False, err=True, color=True)
    try:
        yield show
    finally:
        click.echo(_CLEAR, nl=False, err=True, color=True)


@contextlib.contextmanager
def reading(path: Path, names: Sequence[str], least: int = 0) -> Iterator[Callable[[int], None]]:
    """Show how much of a file, or of files below a folder, is read, fed with bytes.

    Nothing is shown of those that have no more bytes than ``least``.
    """
    folder, seen = path if path.is_dir() else path.parent, 0
    total = max(1, sum((folder / name).stat().st_size for name in names))
    if total <= least:
        yield lambda _: None
        return
    with working(f"reading {path}") as at:

        def watch(count: int) -> None:
            nonlocal seen
            seen += count
            at(min(1.0, seen / total))

        yield watch


@contextlib.contextmanager
def telling(what: str) -> Iterator[Callable[[str], None]]:
    """Show what is waited for, fed with how it stands.

    On a terminal one line is drawn anew with the seconds that have passed; elsewhere a change is a
    line.
    """
    begin, last = time.monotonic(), ""

    def show(how: str) -> None:
        nonlocal last
        passed = units.duration(time.monotonic() - begin)
        if settings().live:
            columns = shutil.get_terminal_size((80, 24)).columns
            line = escaped(f"{what}: {how}  {passed}")[: columns - 1]
            if line != last:
                click.echo(_CLEAR + line, nl=False, err=True, color=True)
            last = line
        elif how != last:
            settings().note(f"{what}: {how}")
            last = how

    show("…")
    try:
        yield show
    finally:
        if settings().live:
            click.echo(_CLEAR, nl=False, err=True, color=True)
