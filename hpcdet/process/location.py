"""The location of this process's attempt, from its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.held_folder import Held
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths

EXPERIMENT, TRIAL, ATTEMPT = "HPCDET_EXPERIMENT", "HPCDET_TRIAL", "HPCDET_ATTEMPT"
HELD = "HPCDET_HELD"
"""The experiment's folder by the descriptor of the rank that has opened it."""
HELD_IS = "HPCDET_HELD_IS"
"""Its device and inode: in another container or on another host the path means something else."""
SAYS = "HPCDET_SAYS"
"""The file in which a script that ends without leaving its ``core.init`` says how it would."""
LOCK = "rank.lock"
"""The file beside it that the rank locks while it lives."""


@dataclass(frozen=True)
class AttemptLocation:
    """An attempt of a trial; ``experiment`` is None where a script runs alone.

    Attributes:
        held: the experiment's folder, where this process has opened it; the paths lead through it.
    """

    trial: TrialPaths
    attempt: AttemptPaths
    experiment: ExperimentPaths | None = None
    held: Held | None = None

    @staticmethod
    def of(experiment: Path, trial: int, attempt: int) -> AttemptLocation:
        """The place of an attempt in an experiment's folder."""
        return _in(ExperimentPaths(experiment.resolve()), trial, attempt)

    @staticmethod
    def within(held: Held, trial: int, attempt: int) -> AttemptLocation:
        """The place of an attempt in a folder that is open, whatever its name means by now."""
        return _in(held.paths, trial, attempt, held)

    @staticmethod
    def from_environment(env: Mapping[str, str] = os.environ) -> AttemptLocation | None:
        """The place that ``announce`` wrote; None outside hpcdet."""
        if EXPERIMENT not in env:
            return None
        named, trial, attempt = Path(env[EXPERIMENT]), int(env[TRIAL]), int(env[ATTEMPT])
        if HELD in env and _identity(env[HELD]) == env.get(HELD_IS):
            return _in(ExperimentPaths(Path(env[HELD]), named.name), trial, attempt)
        return AttemptLocation.of(named, trial, attempt)

    @staticmethod
    def alone(root: Path) -> AttemptLocation:
        """A folder for a script that runs without hpcdet; each run is one more attempt."""
        trial = TrialPaths(root.resolve(), 1)
        names = [path.name for path in trial.checkpoints.glob("*.g*")]
        attempts = [int(name.rpartition(".g")[2]) for name in names if name[0] != "."]
        return AttemptLocation(trial, trial.attempt(max(attempts, default=0) + 1))

    def announce(self, env: MutableMapping[str, str] = os.environ) -> None:
        """Let ``from_environment`` find this place, in this process and those it starts."""
        env.pop(HELD, None)
        env.pop(HELD_IS, None)
        if self.held is not None:
            env[HELD] = str(self.held.root)
            env[HELD_IS] = _identity(env[HELD])
        if self.experiment is not None:
            env[EXPERIMENT] = str(self.held.named if self.held else self.experiment.root)
            env[TRIAL] = str(self.trial.number)
            env[ATTEMPT] = str(self.attempt.number)


def named(text: str, env: Mapping[str, str] = os.environ) -> str:
    """A text for people in which the experiment's folder has its name."""
    return text.replace(env[HELD], env[EXPERIMENT]) if HELD in env else text


def _in(
    paths: ExperimentPaths, trial: int, attempt: int, held: Held | None = None
) -> AttemptLocation:
    place = paths.trial(trial)
    return AttemptLocation(place, place.attempt(attempt), paths, held)


def _identity(folder: str) -> str:
    """Device and inode; "" where nothing is there."""
    try:
        found = os.stat(folder)
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"
