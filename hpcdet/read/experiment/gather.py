"""The contents of an experiment's folder, read once, as the input of all views.

Files may be in any state: absent, incomplete, of another version. Whatever does not exist yet
is empty here; only an unreadable config raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from hpcdet.read.experiment.journals import Journals
from hpcdet.read.experiment.kept import Kept, Recalled, recall
from hpcdet.read.experiment.lines import ATTEMPT, sound
from hpcdet.read.experiment.summary import PASSING, AttemptJournal, JournalPosition
from hpcdet.store.config import overrides
from hpcdet.store.config import resolved_config as config
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.names import IMPORTED
from hpcdet.store.folder.records import (
    Closed,
    Command,
    Control,
    Intent,
    Reopened,
    Stuck,
    Submitted,
    Trial,
    WorkerClaim,
    WorkerEnd,
)
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files, journal, packed
from hpcdet.store.trials.observer import Observer
from hpcdet.store.trials.standing import AttemptFiles, Standing, TrialFiles

Line = journal.Line
Value = TypeVar("Value")


@dataclass(frozen=True)
class GatheredAttempt(AttemptFiles):
    """One attempt: its records and its journal."""

    journals: Journals

    @cached_property
    def journal(self) -> AttemptJournal:
        return self.journals.attempt(self.paths)

    @property
    def lines(self) -> list[Line]:
        """The lines of the journal that are not of the kinds ``summary.PASSING``."""
        return self.journal.lines

    def of_kind(self, kind: str) -> Iterator[Line]:
        """Yield the journal's lines of a kind; those of ``PASSING`` are read again each time."""
        if kind in PASSING:
            path = self.paths.journal
            return sound(journal.Reader(path).each(kind), ATTEMPT, path)
        return (line for line in self.lines if line["kind"] == kind)

    @cached_property
    def profiles(self) -> list[Line]:
        """The ``profile`` lines of all ranks that wrote any: where their time went."""
        world = max((line["world"] for line in self.of_kind("start")), default=1)
        places = (self.paths.profile(rank) for rank in range(1, world))
        others = (sound(journal.read(path), ATTEMPT, path) for path in places)
        own = self.of_kind("profile") if self.journal.profiled else ()
        return [*own, *(line for lines in others for line in lines)]

    @property
    def heard(self) -> str:
        """The time of the journal's last line; "" if it has none."""
        return self.journal.heard

    @property
    def position(self) -> int | None:
        """Batches the trial had trained by journal and verdict; None if it never began."""
        said = [self.journal.reached, self.verdict.batches if self.verdict is not None else None]
        return max((at for at in said if at is not None), default=None)


@dataclass(frozen=True)
class GatheredTrial(TrialFiles):
    """One trial: its records, and its attempts in ascending order.

    Attributes:
        kept: where what was read of it before is looked for.
    """

    journals: Journals
    kept: Kept | None = None

    @cached_property
    def recalled(self) -> Recalled | None:
        """The records as ``recall`` finds them; None of a damaged one, or where none are kept."""
        return recall(self, self.kept) if self.kept is not None else None

    @cached_property
    def record(self) -> Trial | None:
        return self.recalled.record if self.recalled else super().record

    @cached_property
    def controls(self) -> list[Control]:
        return self.recalled.controls if self.recalled else super().controls

    @cached_property
    def attempts(self) -> Sequence[GatheredAttempt]:
        return self.recalled.attempts(self) if self.recalled else self._claimed(self.attempt_of)

    @cached_property
    def standing(self) -> Standing:
        return self.recalled.standing if self.recalled else super().standing

    @property
    def signature(self) -> str:
        """Text that differs once the trial's files say other things; "" if that is not known."""
        marks = [one.journal.mark for one in self.attempts]
        return f"{self.recalled.signature} {marks}" if self.recalled else ""

    def attempt_of(self, paths: AttemptPaths) -> GatheredAttempt:
        return GatheredAttempt(paths, self.journals)

    @cached_property
    def derived(self) -> dict[tuple[Any, ...], Any]:
        """Values derived from the trial, kept for as long as its files stay the same."""
        return {}

    def derive(self, name: str, make: Callable[[], Value]) -> Value:
        """Return what ``make`` makes of the trial; made once where all its attempts have ended."""
        if (name,) not in self.derived:
            value = make()
            if any(attempt.end is None for attempt in self.attempts):
                return value
            self.derived[name,] = value
        found: Value = self.derived[name,]
        return found

    @property
    def steps(self) -> int:
        """Batches trained, by the newest attempt that began, else by its parent's checkpoint."""
        positions = (attempt.position for attempt in reversed(self.attempts))
        known = next((at for at in positions if at is not None), None)
        if known is None:
            origin = self.record.origin if self.record else {}
            known = int(origin.get("units", {}).get("batches", 0))
        return known

    def validations(self, metric: str) -> Iterator[tuple[int, int, Any]]:
        """Yield step, length and value of each validation that counts, in the order written.

        The last report of a step counts, of the highest attempt; none that a user rewound.

        Args:
            metric: one that trials are compared by (``summary.Compared``); others have none.
        """
        line = self.lineage
        found = [
            (attempt.number, known)
            for attempt in self.attempts
            if (known := attempt.journal.compared.get(metric)) is not None
        ]
        last = {
            step: (number, place)
            for number, known in found
            for place, step in enumerate(known.steps)
            if line.has(step, number)
        }
        for number, known in found:
            for place, (step, length) in enumerate(zip(known.steps, known.lengths, strict=True)):
                if last.get(step) == (number, place):
                    yield step, length, known.value(place)


class Memory:
    """The files of an experiment that one process has read, for several views."""

    def __init__(self, paths: ExperimentPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self.paths = paths
        self._kept = Kept(paths)
        self.journals = Journals(paths, self._kept)
        self._trials = Observer(paths, self._read, watched, clock, may_rest=True)

    def look(self) -> Gathered:
        """Return the contents of the folder now; only what has changed is read again."""
        return Gathered(self.paths, self)

    def trials(self) -> list[GatheredTrial]:
        """Return all trials as they stand now."""
        self._trials.begin()
        found = []
        for paths in self.paths.trials():
            self._trials.look(paths.number)
            found.append(self._trials[paths.number])
        return found

    def trial(self, number: int) -> GatheredTrial | None:
        """Return one trial as it stands now, without a look at others; None if there is none."""
        if not self.paths.trial(number).root.is_dir():
            return None
        self._trials.look(number)
        return self._trials[number]

    def _read(self, paths: TrialPaths) -> GatheredTrial:
        return GatheredTrial(paths, self.journals, self._kept)


def watched(trial: TrialFiles) -> list[str]:
    """Return all files and folders that look different once a trial's files say other things."""
    paths = trial.paths
    saved = (place / name for place in paths.checkpoint_places for name in packed.names(place))
    attempts = (file for one in paths.attempts() for file in (one.root, one.journal))
    places = (paths.root, paths.controls, paths.root / "attempts", *paths.checkpoint_places)
    return [str(path) for path in (*places, *attempts, *saved)]


@dataclass(frozen=True)
class GatheredJob:
    """One submission: its intent and the scheduler's answer."""

    number: int
    intent: Intent
    submitted: Submitted | None


@dataclass(frozen=True)
class GatheredWorker:
    """One run of a worker."""

    paths: WorkerPaths
    claim: WorkerClaim | None
    end: WorkerEnd | None
    beat: dict[str, Any]


@dataclass(frozen=True)
class Gathered:
    """An experiment; each part is read at its first use, and then kept.

    Attributes:
        afresh: what earlier processes have read is left aside.
    """

    paths: ExperimentPaths
    memory: Memory | None = None
    afresh: bool = False

    @cached_property
    def _kept(self) -> Kept:
        return Kept(self.paths, afresh=self.afresh)

    @cached_property
    def _journals(self) -> Journals:
        if self.memory is not None:
            return self.memory.journals
        return Journals(self.paths, self._kept, lambda: self.config)

    @property
    def id(self) -> str:
        return self.paths.id

    @cached_property
    def submitted(self) -> config.Resolved:
        """The config as it was submitted."""
        return config.load(self.paths.config)

    @cached_property
    def config(self) -> config.Resolved:
        """The config with the name, description, project and workspace that it has by now."""
        words: dict[str, Any] = {}
        for _, command in self.commands:
            words |= overrides.about(command.verb, command.arguments)
        return overrides.lay(self.submitted, words)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return _mapping(files.read_json(self.paths.provenance))

    @property
    def imported(self) -> dict[str, Any]:
        """Where it is from, if another platform has trained it; else empty."""
        return _mapping(self.provenance.get(IMPORTED))

    @cached_property
    def closed(self) -> Closed | None:
        return Closed.read(self.paths.closed)

    @cached_property
    def reopened(self) -> bool:
        """True if a user has reopened the experiment and no holder has obeyed that command yet."""
        heard = max((d["seq"] for d in self.decisions if d["kind"] == "command"), default=0)
        last = Reopened.read(self.paths.reopened(self.paths.times_reopened))
        return last is not None and last.command > heard

    @cached_property
    def decisions(self) -> list[Line]:
        """All decisions that count, without reports on which no trial had to leave."""
        return self._journals.decisions()

    @property
    def terms(self) -> dict[Path, JournalPosition]:
        """How far the journals of the terms were read of which there are ``decisions``."""
        return self._journals.terms if self.decisions else {}

    @cached_property
    def commands(self) -> list[tuple[int, Command]]:
        asked = ((n, Command.read(self.paths.command(n))) for n in self._command_numbers())
        return [(n, command) for n, command in asked if command is not None]

    def _command_numbers(self) -> list[int]:
        return packed.numbers(self.paths.commands, ".json")

    @cached_property
    def trials(self) -> list[GatheredTrial]:
        if self.memory is not None:
            return self.memory.trials()
        kept = None if self.afresh else self._kept
        return [GatheredTrial(paths, self._journals, kept) for paths in self.paths.trials()]

    def trial(self, number: int) -> GatheredTrial | None:
        """Return the trial of that number; None if there is none."""
        if self.memory is not None and "trials" not in vars(self):
            return self.memory.trial(number)
        return self._numbered.get(number)

    def chosen(self, number: int) -> list[GatheredTrial]:
        """Return the trial of that number, if there is one; for 0 all of them."""
        one = self.trial(number) if number else None
        return self.trials if not number else [one] if one is not None else []

    @cached_property
    def _numbered(self) -> dict[int, GatheredTrial]:
        return {trial.number: trial for trial in self.trials}

    @cached_property
    def jobs(self) -> list[GatheredJob]:
        read = ((n, Intent.read(self.paths.intent(n))) for n in self.paths.submissions())
        return [
            GatheredJob(n, intent, Submitted.read(self.paths.submitted(n)))
            for n, intent in read
            if intent is not None
        ]

    @cached_property
    def sentinel(self) -> Stuck | None:
        """The finding of the newest submission's sentinel, if no process was left to go on."""
        submitted = [job.number for job in self.jobs if job.submitted and job.submitted.job]
        return Stuck.read(self.paths.stuck(submitted[-1])) if submitted else None

    @cached_property
    def unwatched(self) -> str:
        """Why the scheduler refused the newest sentinel; "" if there is one, or none is needed."""
        numbers = (job.number for job in reversed(self.jobs) if job.submitted)
        posted = (Submitted.read(self.paths.sentinel_submitted(number)) for number in numbers)
        newest = next(filter(None, posted), None)
        return newest.error if newest is not None else ""

    @cached_property
    def workers(self) -> list[GatheredWorker]:
        return [
            GatheredWorker(
                paths,
                WorkerClaim.read(paths.claim),
                WorkerEnd.read(paths.end),
                _mapping(packed.read_json(paths.beat)),
            )
            for paths in self.paths.workers()
        ]


def gather(source: ExperimentPaths | Gathered) -> Gathered:
    """Return the contents of a folder; a ``Gathered`` is returned as it is."""
    return source if isinstance(source, Gathered) else Gathered(source)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
