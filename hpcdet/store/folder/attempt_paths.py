"""The paths inside an attempt's folder, one of the levels of ``layout``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttemptPaths:
    """``trials/0007/attempts/2``: the stretch of one trial inside one allocation.

    Attributes:
        scratch: its folder on scratch, where the experiment has a part there.
    """

    root: Path
    trial: int
    number: int
    scratch: Path | None = None

    @property
    def claim(self) -> Path:
        """The claim of this attempt by its worker, by exclusive creation (``records.Claim``)."""
        return self.root / "claim.json"

    @property
    def journal(self) -> Path:
        """Metrics and events, written by rank 0."""
        return self.root / "journal.jsonl"

    @property
    def ledger(self) -> Path:
        """Under a policy: what was permitted and trained (``policy.ledger``), by rank 0."""
        return self.root / "ledger.jsonl"

    @property
    def verdict(self) -> Path:
        """The verdict that rank 0 writes when it ends (``records.Verdict``)."""
        return self.root / "verdict.json"

    @property
    def end(self) -> Path:
        """The end of the attempt and its reason (``records.End``); write-once."""
        return self.root / "end.json"

    @property
    def rendezvous(self) -> Path:
        """The address at which rank 0 listens, for the other ranks."""
        return self.root / "rendezvous.json"

    @property
    def logs(self) -> Path:
        return (self.scratch or self.root) / "logs"

    def log(self, rank: int) -> Path:
        """The output of one rank."""
        return self.logs / f"rank-{rank}.log"

    def profile(self, rank: int) -> Path:
        """The time profile of a rank above 0, written by it; that of rank 0 is in ``journal``."""
        return self.root / f"profile-{rank}.jsonl"

    @property
    def traces(self) -> Path:
        """The traces of torch's profiler, a file for each rank, if the config enables it."""
        return (self.scratch or self.root) / "profile"

    def trace(self, rank: int) -> Path:
        return self.traces / f"rank-{rank}.json.gz"

    def launched(self, node: int, number: int) -> Path:
        """A command for all ranks of a node (``train.attempt.node_command``), numbered from 1."""
        return self.root / f"launched-{node}-{number}.json"

    @property
    def launcher_log(self) -> Path:
        """The launcher's own output (srun, mpirun)."""
        return self.logs / "launcher.log"
