"""Event files for TensorBoard: of experiments as they run, and exported once.

A trial is a run, ``EXP/TRIAL``, with one event file. Exported, it holds the metrics that count.
While trials run it is written on, their attempts one after the other: where one goes on from an
earlier step than the one before it came to, TensorBoard is told to drop what it knows of the steps
behind that (``SessionLog.START``). Hyperparameters are written for its HParams page. Other folders,
what the code itself wrote for TensorBoard, and traces of torch's profiler are linked as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet.errors import NotFound
from hpcdet.interop import event_records as events
from hpcdet.interop.formats import exported
from hpcdet.interop.formats.exported import ExperimentExport, epoch, flat
from hpcdet.read.experiment import series
from hpcdet.read.experiment.lines import ATTEMPT, sound
from hpcdet.read.experiment.summary import JournalPosition, read_on
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import UNREADABLE, left_out
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import files, packed

_NAME = "events.out.tfevents.hpcdet"
_OWN = "own"
"""The run of what a trial's code itself wrote."""
_TRACE = re.compile(r"rank-(\d+)\.json\.gz")


class EventFiles:
    """A folder for ``tensorboard --logdir``, made from sources and kept up to date by ``update``.

    Args:
        folder: the log folder; made, and only written here.
        sources: absolute paths of experiments, trials or attempts, and of other folders.
    """

    def __init__(self, folder: Path, sources: Sequence[str]) -> None:
        self.folder = folder
        self._sources = sources
        self._names: dict[Path, str] = {}
        self._files: dict[Path, _TrialFile] = {}

    def update(self) -> list[str]:
        """Write what has been recorded since the last call; return lines on unreadable sources."""
        files.make_folder(self.folder)
        warnings = []
        for source in self._sources:
            try:
                found = find.reference(source, Path(source).parent)
            except NotFound:
                if Path(source).is_dir():
                    _link(self.folder / self._name(Path(source)), Path(source))
                else:
                    warnings.append(f"{source} is left out: there is no such folder")
                continue
            for trial in _trials(found):
                try:
                    self._update(found.paths, trial)
                except UNREADABLE as error:
                    warnings.append(left_out(found.paths, error))
        return warnings

    def _name(self, source: Path) -> str:
        """Return the name of a source in the log folder: its own, unless another one has it."""
        if source not in self._names:
            taken, name, number = set(self._names.values()), source.name, 2
            while name in taken:
                name, number = f"{source.name}-{number}", number + 1
            self._names[source] = name
        return self._names[source]

    def _update(self, experiment: ExperimentPaths, trial: TrialPaths) -> None:
        run = self.folder / self._name(experiment.root) / f"{trial.number}"
        if trial.root not in self._files:
            files.make_folder(run)
            self._files[trial.root] = _TrialFile(run / _NAME, trial)
        self._files[trial.root].update()
        own = trial.root / "tensorboard"
        if own.is_dir():
            _link(run / _OWN, own)
        for attempt in trial.attempts():
            _link_traces(run, attempt)


def _trials(found: find.Reference) -> list[TrialPaths]:
    return [found.paths.trial(found.trial)] if found.trial else found.paths.trials()


@dataclass
class _TrialFile:
    """The event file of one trial.

    Attributes:
        attempt: the newest one of which a line was written; those before it have ended.
        marks: up to where each attempt's journal was read.
    """

    path: Path
    trial: TrialPaths
    attempt: int = 0
    marks: dict[int, JournalPosition] = field(default_factory=dict)

    def update(self) -> None:
        """Add an event for each new line of metrics. Raises IntegrityError for bad lines."""
        data = b"".join(self._new())
        if data:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with os.fdopen(os.open(self.path, flags, files.FILE_MODE), "ab") as file:
                file.write(data)

    def _new(self) -> Iterator[bytes]:
        if not self.path.exists():
            yield from self._head()
        for attempt in self.trial.attempts():
            if attempt.number < self.attempt:
                continue  # what a lost attempt still writes does not count
            mark = self.marks.get(attempt.number, JournalPosition())
            lines, self.marks[attempt.number], _ = read_on(attempt.journal, mark)
            for line in sound(lines, ATTEMPT, attempt.journal):
                self.attempt = attempt.number
                if line["kind"] == "start":
                    begin = int(line.get("batches", 0)) + 1
                    yield events.event(epoch(line["t"]), begin, events.session_start())
                elif line["kind"] == "metrics":
                    yield _summary(line["t"], line["step"], line["group"], line["metrics"])

    def _head(self) -> Iterator[bytes]:
        record = Trial.read(self.trial.record)
        yield from _head(self.trial.number, record, files.now())


def export(what: ExperimentExport, to: str) -> Path:
    """Write a folder with an event file for each trial; returns its path.

    Args:
        to: the folder for ``tensorboard --logdir``; runs in it are ``ID/TRIAL``.
    """
    folder = Path(to) / what.id
    for trial, points in what.each_trial():
        file = folder / f"{trial.number}" / _NAME
        files.replace(file, _pieces(trial.number, trial.record, what.created, points))
    return folder


def _pieces(
    number: int, record: Trial | None, created: str, points: Iterable[series.Row]
) -> Iterator[bytes]:
    yield from _head(number, record, created)
    for row in points:
        yield _summary(row["time"], row["step"], row["group"], {row["name"]: row["value"]})


def _head(number: int, record: Trial | None, created: str) -> Iterator[bytes]:
    """Yield the first events of a trial's file: the version, and the hyperparameters."""
    time_s = epoch(record.created_at if record and record.created_at else created)
    yield events.event(time_s, 0, events.file_version())
    if record is not None:
        params = {name: _plain(value) for name, value in flat(record.params)}
        yield events.event(time_s, 0, events.summary([events.hparams(params, str(number), time_s)]))


def _summary(time: str, step: int, group: str, metrics: Mapping[str, Any]) -> bytes:
    """Return an event with metrics under ``GROUP/NAME``; what is no number is JSON, as text."""
    values = []
    for name, value in metrics.items():
        number = exported.number(value)
        tag = f"{group}/{name}"
        if number is not None:
            values.append(events.scalar(tag, number))
        else:
            values.append(events.text(tag, f"    {json.dumps(value)}"))  # indented: code
    return events.event(epoch(time), step, events.summary(values))


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _link_traces(run: Path, attempt: AttemptPaths) -> None:
    """Link an attempt's traces by names that the profiler's plugin looks for."""
    if not attempt.traces.is_dir():
        return
    for name in packed.names(attempt.traces):
        if match := _TRACE.fullmatch(name):
            link = run / f"attempt-{attempt.number}-rank-{match[1]}.pt.trace.json.gz"
            _link(link, attempt.traces / name)


def _link(link: Path, target: Path) -> None:
    """Let a name in the log folder lead to a file or folder; it stays if it is there."""
    with contextlib.suppress(FileExistsError):
        link.symlink_to(target)
