"""Where the files of this process's attempt are, and who says so: its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from hpcdet.store.layout import AttemptPaths, ExperimentPaths, TrialPaths

EXPERIMENT, TRIAL, ATTEMPT = "HPCDET_EXPERIMENT", "HPCDET_TRIAL", "HPCDET_ATTEMPT"


@dataclass(frozen=True)
class Place:
    """An attempt of a trial; ``experiment`` is None where a script runs alone."""

    trial: TrialPaths
    attempt: AttemptPaths
    experiment: ExperimentPaths | None = None

    @staticmethod
    def of(experiment: Path, trial: int, attempt: int) -> Place:
        """The place of an attempt in an experiment's folder."""
        paths = ExperimentPaths(experiment.resolve())
        return Place(paths.trial(trial), paths.trial(trial).attempt(attempt), paths)

    @staticmethod
    def from_environment(env: Mapping[str, str] = os.environ) -> Place | None:
        """The place that ``announce`` wrote; None outside hpcdet."""
        if EXPERIMENT not in env:
            return None
        return Place.of(Path(env[EXPERIMENT]), int(env[TRIAL]), int(env[ATTEMPT]))

    @staticmethod
    def alone(root: Path) -> Place:
        """A folder for a script that runs without hpcdet; each run is one more attempt."""
        trial = TrialPaths(root.resolve(), 1)
        names = [path.name for path in trial.checkpoints.glob("*.g*")]
        attempts = [int(name.rpartition(".g")[2]) for name in names if name[0] != "."]
        return Place(trial, trial.attempt(max(attempts, default=0) + 1))

    def announce(self, env: MutableMapping[str, str] = os.environ) -> None:
        """Let ``from_environment`` find this place, in this process and those it starts."""
        if self.experiment is not None:
            env[EXPERIMENT] = str(self.experiment.root)
            env[TRIAL] = str(self.trial.number)
            env[ATTEMPT] = str(self.attempt.number)
