"""The paths inside a worker's folder, one of the levels of ``layout``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WorkerPaths:
    """``workers/0001-0003.0``: array index 3 of submission 1, in its first incarnation."""

    root: Path
    submission: int
    index: int
    incarnation: int

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def claim(self) -> Path:
        """The claim of this worker's place, by exclusive creation (``records.WorkerClaim``)."""
        return self.root / "claim.json"

    @property
    def beat(self) -> Path:
        """Replaced every few seconds while the worker lives."""
        return self.root / "beat.json"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def end(self) -> Path:
        """The worker's end, written by itself or by the process that finds it gone."""
        return self.root / "end.json"

    @property
    def final(self) -> Path:
        """The batch script's record that this task is not requeued, whatever the worker wanted."""
        return self.root / "final.json"

    @property
    def log(self) -> Path:
        return self.root / "worker.log"
