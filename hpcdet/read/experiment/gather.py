"""The contents of an experiment's folder, read once, as the input of all views.

Files may be in any state: absent, incomplete, of another version. Whatever does not exist yet
is empty here; only an unreadable config raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpcdet.read.experiment.lines import ATTEMPT, DECISION, sound
from hpcdet.store.config import resolved_config as config
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import AttemptPaths, ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import (
    Claim,
    Closed,
    Command,
    Control,
    End,
    Intent,
    Reopened,
    Stuck,
    Submitted,
    Trial,
    Verdict,
    WorkerClaim,
    WorkerEnd,
)
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files, journal, packed
from hpcdet.store.trials import standing as trials
from hpcdet.store.trials.controls import accepted

Line = journal.Line


@dataclass(frozen=True)
class GatheredAttempt:
    """One attempt: its records and its journal's lines."""

    paths: AttemptPaths

    @property
    def number(self) -> int:
        return self.paths.number

    @cached_property
    def claim(self) -> Claim | None:
        return Claim.read(self.paths.claim)

    @cached_property
    def end(self) -> End | None:
        return End.read(self.paths.end)

    @cached_property
    def verdict(self) -> Verdict | None:
        return Verdict.read(self.paths.verdict)

    @cached_property
    def lines(self) -> list[Line]:
        return sound(journal.read(self.paths.journal), ATTEMPT, self.paths.journal)

    def of_kind(self, *kinds: str) -> Iterator[Line]:
        return (line for line in self.lines if line["kind"] in kinds)

    @cached_property
    def profiles(self) -> list[Line]:
        """The ``profile`` lines of all ranks that wrote any: where their time went."""
        world = max((line["world"] for line in self.of_kind("start")), default=1)
        places = (self.paths.profile(rank) for rank in range(1, world))
        others = (sound(journal.read(path), ATTEMPT, path) for path in places)
        return [*self.of_kind("profile"), *(line for lines in others for line in lines)]

    @cached_property
    def heard(self) -> str:
        """The time of the journal's last line; "" if it has none."""
        return str(self.lines[-1]["t"]) if self.lines else ""

    @cached_property
    def reached(self) -> int | None:
        """Batches the trial had trained according to the journal; None if it has no such line."""
        return max((at for line in self.lines if (at := batches(line)) is not None), default=None)

    @property
    def position(self) -> int | None:
        """Batches the trial had trained by journal and verdict; None if it never began."""
        said = [self.reached, self.verdict.batches if self.verdict is not None else None]
        return max((at for at in said if at is not None), default=None)


def batches(line: Line) -> int | None:
    """Return the batches that a trial had trained at a line of its journal; None if not given."""
    for key in ("batches", "step"):
        value = line.get(key)
        if isinstance(value, int):
            return value
    return None


@dataclass(frozen=True)
class GatheredTrial:
    """One trial, its attempts in ascending order."""

    paths: TrialPaths

    @property
    def number(self) -> int:
        return self.paths.number

    @cached_property
    def record(self) -> Trial | None:
        return Trial.read(self.paths.record)

    @cached_property
    def controls(self) -> list[Control]:
        return accepted(self.paths)

    @property
    def control(self) -> Control | None:
        return self.controls[-1] if self.controls else None

    @cached_property
    def standing(self) -> trials.Standing:
        return trials.standing(self.paths)

    @cached_property
    def attempts(self) -> list[GatheredAttempt]:
        """The attempts that workers have claimed; folders without a claim are left out."""
        return [GatheredAttempt(paths) for paths in trials.claimed(self.paths)]

    @property
    def steps(self) -> int:
        """Batches trained, by the newest attempt that began, else by its parent's checkpoint."""
        positions = (attempt.position for attempt in reversed(self.attempts))
        known = next((at for at in positions if at is not None), None)
        if known is None:
            origin = self.record.origin if self.record else {}
            known = int(origin.get("units", {}).get("batches", 0))
        return known


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
    """An experiment; each part is read at its first use, and then kept."""

    paths: ExperimentPaths

    @property
    def id(self) -> str:
        return self.paths.id

    @cached_property
    def config(self) -> config.Resolved:
        return config.load(self.paths.config)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return _mapping(files.read_json(self.paths.provenance))

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
        return sound(chain.read(self.paths), DECISION, self.paths.decisions(0).parent)

    @cached_property
    def commands(self) -> list[tuple[int, Command]]:
        asked = ((n, Command.read(self.paths.command(n))) for n in self._command_numbers())
        return [(n, command) for n, command in asked if command is not None]

    def _command_numbers(self) -> list[int]:
        return packed.numbers(self.paths.commands, ".json")

    @cached_property
    def trials(self) -> list[GatheredTrial]:
        return [GatheredTrial(paths) for paths in self.paths.trials()]

    def trial(self, number: int) -> GatheredTrial | None:
        """Return the trial of that number; None if there is none."""
        return self._numbered.get(number)

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
