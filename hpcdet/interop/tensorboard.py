"""Event files for TensorBoard, written on from the journals of experiments.

A trial is a run, ``EXP/TRIAL``, with one event file: its attempts one after the other. Where an
attempt goes on from an earlier step than the one before it came to, TensorBoard is told to drop
what it knows of the steps behind that (``SessionLog.START``). Hyperparameters are written for its
HParams page. Other folders, what the code itself wrote for TensorBoard, and traces of torch's
profiler are linked as they are.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from hpcdet.errors import NotFound
from hpcdet.read.experiment import series
from hpcdet.read.experiment.journals import JournalPosition, read_on
from hpcdet.read.experiment.lines import ATTEMPT, sound
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import UNREADABLE, left_out
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import files, packed
from hpcdet.store.fs.journal import Line

_VERSION = "brain.Event:2"
"""With it TensorBoard heeds ``SessionLog``."""
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
            self._files[trial.root] = _TrialFile(run / "events.out.tfevents.hpcdet", trial)
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
                    yield _event(
                        line, session_log={"status": 1}, step=int(line.get("batches", 0)) + 1
                    )
                elif line["kind"] == "metrics" and (scalars := _scalars(line)):
                    yield _event(line, summary={"value": scalars}, step=line["step"])

    def _head(self) -> Iterator[bytes]:
        record = Trial.read(self.trial.record)
        at = {"t": record.created_at if record and record.created_at else files.now()}
        yield _event(at, file_version=_VERSION)
        if record is not None:
            time_s = datetime.fromisoformat(at["t"]).timestamp()
            name = str(self.trial.number)
            known = dict(_flat(record.params))
            yield _event(at, summary=hparams_pb(known, trial_id=name, start_time_secs=time_s))


def _event(line: Mapping[str, Any], **fields: Any) -> bytes:
    """Return one event as a record of an event file, at the time of a line."""
    time_s = datetime.fromisoformat(line["t"]).timestamp()
    return _record(Event(wall_time=time_s, **fields).SerializeToString())


def _record(data: bytes) -> bytes:
    """Return bytes framed by TensorBoard's own writer."""
    framed = io.BytesIO()
    RecordWriter(framed).write(data)
    return framed.getvalue()


def _scalars(line: Line) -> list[dict[str, Any]]:
    """Return the numbers of a line of metrics as values of a summary, ``GROUP/NAME``."""
    found = []
    for name, value in line["metrics"].items():
        number = float("nan") if value == "NaN" else series.number(value)
        if number is not None:
            found.append({"tag": f"{line['group']}/{name}", "simple_value": number})
    return found


def _flat(params: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield hyperparameters by dotted names; lists and the like as text."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value if isinstance(value, bool | int | float | str) else str(value)


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
