"""Experiments and checkpoints as Python objects. Each property reads the files as they are now."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcdet.client.metric_series import Metrics
from hpcdet.client.run_verb import run
from hpcdet.errors import StillPending, UsageError
from hpcdet.read.capsule.factors import FactorView
from hpcdet.read.capsule.training_outcome import RepeatedCheckpointView, RepeatedView
from hpcdet.read.experiment import changes, states
from hpcdet.read.experiment.changes import NoteView
from hpcdet.read.experiment.gather import Gathered, Memory, gather
from hpcdet.read.experiment.series import Axis
from hpcdet.read.exports import checkpoint_process
from hpcdet.read.views import brief, logs, measured, views
from hpcdet.read.views.checkpoints import CheckpointView
from hpcdet.read.views.list_rows import ExperimentView, TrialStatusView
from hpcdet.read.views.logs import LogLine
from hpcdet.read.views.trials import BestView
from hpcdet.read.views.views import StatusView
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import ExperimentState

_ENDINGS = {".safetensors": "safetensors", ".h5": "hdf5", ".hdf5": "hdf5"} | dict.fromkeys(
    (".pt", ".pth", ".bin"), "pt"
)
_SHORTEST_S, _LONGEST_S = 0.5, 10.0
"""Between two looks of ``wait``."""


@dataclass(frozen=True)
class Checkpoint(CheckpointView):
    """A checkpoint: the item of ``hpcdet ckpt ls``, and what can be done with it."""

    def export(self, path: str | Path, format: str = "", *, whole: bool = False) -> Path:
        """Write its weights into one file that other programs read.

        Args:
            format: ``safetensors``, ``pt`` or ``hdf5``; "": by the file's name.
            whole: all of the shared state, not only weights.

        Raises:
            UsageError: the format is not known.
            IntegrityError: the checkpoint is damaged.
        """
        target = Path(path).expanduser().absolute()
        form = format or _ENDINGS.get(target.suffix.lower(), "")
        if form not in _ENDINGS.values():
            hint = f"there are: {', '.join(dict.fromkeys(_ENDINGS.values()))}"
            raise UsageError(f"which format is {target.name}", where=str(target), hint=hint)
        flags = ["--all"] if whole else []
        checkpoint_process.task("export", "--format", form, *flags, self.path, target)
        return target

    def get(self, folder: str | Path) -> Path:
        """Copy it to a folder, which must not exist yet; every byte is verified."""
        target = Path(folder).expanduser().absolute()
        return Path(checkpoint_process.task("get", self.path, target)["path"])


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        id: its id, the name of its folder.
        path: its folder.
    """

    id: str
    path: Path

    def __repr__(self) -> str:
        return f"Experiment({self.id!r})"

    @property
    def _paths(self) -> ExperimentPaths:
        return ExperimentPaths(self.path)

    def _gather(self) -> Gathered:
        return gather(self._paths)

    def brief(self) -> ExperimentView:
        """Return it as an item of ``hpcdet ls``."""
        return views.brief(self._paths)

    def status(self) -> StatusView:
        """Return it as an item of ``hpcdet status``, of one reading."""
        return views.status(self._paths)

    @property
    def state(self) -> ExperimentState:
        """``PENDING RUNNING PAUSED STOPPING COMPLETED CANCELED ERROR``."""
        return states.experiment_state(self._gather())[0]

    @property
    def best(self) -> BestView | None:
        """Trial, value and step of the best trial; None before any has a value."""
        return self.status().best

    @property
    def config(self) -> dict[str, Any]:
        """The config in force: the submitted one with later changes."""
        return dict(changes.effective(self._gather()).raw)

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it came from: command, code, commit, versions, data, host, user."""
        return self._gather().provenance

    @property
    def labels(self) -> list[str]:
        """Its labels."""
        return changes.labels(self._gather())

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self._gather().config.name

    @property
    def description(self) -> str:
        """Its description; "" without one."""
        return self._gather().config.description

    @property
    def project(self) -> str:
        """``workspace/project``; "" without one."""
        return brief.project(self._gather())

    @property
    def user(self) -> str:
        """The user that made it."""
        return brief.user(self._gather())

    @property
    def owner(self) -> str:
        """The user that its folder belongs to."""
        return brief.owner(self._gather())

    @property
    def notes(self) -> list[NoteView]:
        """Notes that people have written on it, oldest first."""
        return changes.notes(self._gather())

    def trials(self) -> tuple[TrialStatusView, ...]:
        """Return its trials, by number."""
        return tuple(views.trials(self._gather()))

    def metrics(
        self,
        name: str | None = None,
        x: Axis = "step",
        *,
        trial: int = 0,
        group: str = "*",
        pick: measured.Pick | None = None,
    ) -> Metrics:
        """Return what its trials have reported.

        Args:
            name: glob over the metrics' names; None: all.
            x: the axis of each row's ``x``: ``step`` (batches), ``epoch`` (completed ones), or
                ``wall`` (seconds since the trial's start).
            trial: only this one; 0: all.
            group: glob: ``training``, ``validation``, ..., ``timing``, ``system``.
            pick: only the ``last`` or the ``best`` value of each metric of each trial.
        """
        asked = {"trial": trial, "name": name or "*", "group": group}
        return Metrics(tuple(measured.metrics(self._gather(), **asked, pick=pick, x=x)))  # type: ignore[arg-type]

    def checkpoints(self, trial: int = 0) -> tuple[Checkpoint, ...]:
        """Return its checkpoints, or those of a trial, by trial and step."""
        return tuple(Checkpoint(**vars(row)) for row in views.checkpoints(self._gather(), trial))

    def logs(self, trial: int = 0, ranks: Collection[int] = ()) -> Iterator[LogLine]:
        """Yield the lines that its ranks have printed, by trial, attempt and rank.

        Args:
            trial: only of this one; 0: of all.
            ranks: only of these; (): of all.
        """
        for source in logs.sources(self._paths, trial=trial, ranks=ranks):
            yield from logs.read(source)

    def report(self, path: str | Path) -> Path:
        """Write it as one HTML file that needs no network; return the file."""
        from hpcdet.read.report import write

        return write(self._paths, Path(path).expanduser().absolute())

    def wait(self, timeout_s: float | None = None) -> ExperimentState:
        """Return its state once it has ended, or is paused by a failure.

        Raises:
            StillPending: it has not after ``timeout_s`` seconds.
        """
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        memory = Memory(self._paths)
        while True:
            begin = time.monotonic()
            gathered = memory.look()
            state, _ = states.experiment_state(gathered)
            if state in states.ENDED or states.stuck(gathered):
                return state
            left = _LONGEST_S if limit is None else limit - time.monotonic()
            if left <= 0:
                raise StillPending(f"not finished within {timeout_s:g} s", where=self.id)
            pause = max(_SHORTEST_S, 10 * (time.monotonic() - begin))
            time.sleep(min(left, pause, _LONGEST_S))

    def pause(self, trial: int = 0) -> None:
        """Save checkpoints and stop, all of it or one trial. Raises UsageError: it has ended."""
        run("pause", self._named(trial))

    def resume(self, trial: int = 0) -> None:
        """Go on from the latest checkpoints. Raises UsageError: it is not paused."""
        run("resume", self._named(trial))

    def cancel(self, trial: int = 0, *, now: bool = False, reason: str = "") -> None:
        """End it, or one trial, for good.

        Args:
            now: save nothing before.

        Raises:
            UsageError: it has ended already.
        """
        flags = [*(["--now"] if now else []), *(["--reason", reason] if reason else [])]
        run("cancel", self._named(trial), *flags)

    def tag(self, *add: str, remove: Collection[str] = ()) -> None:
        """Add labels and remove others."""
        flags = [word for label in add for word in ("--add", label)]
        flags += [word for label in remove for word in ("--rm", label)]
        run("tag", self.path, *flags)

    def set(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        project: str | None = None,
        workspace: str | None = None,
    ) -> None:
        """Change what people call it, also after its end; "" is no project or workspace.

        Former values stay on record, with their authors and times.

        Raises:
            ConfigError: a name that no config could have.
        """
        given = {
            "name": name,
            "description": description,
            "project": project,
            "workspace": workspace,
        }
        words = [f"{key}={value}" for key, value in given.items() if value is not None]
        if not words:
            raise UsageError("nothing to set", where=self.id, hint="set(project='vision')")
        run("set", self.path, *words)

    def note(self, text: str) -> None:
        """Append a note, with its author and time."""
        run("note", self.path, text)

    def reproduce(
        self,
        trial: int = 0,
        *,
        model_dir: str | Path | None = None,
        set: Mapping[str, Any] = {},
    ) -> list[FactorView]:
        """Return each factor of its bits then and now; nothing is trained.

        Args:
            trial: the one to compare; 0: the whole experiment.
            model_dir: the code of now, and the config in it; None: where they were.
            set: values of the config of now, by key.

        Raises:
            ConfigError: the config of now is wrong.
        """
        words = ["--model-dir", str(model_dir)] if model_dir is not None else []
        for key, value in set.items():
            words += ["--set", f"{key}={json.dumps(value)}"]
        return [FactorView(**item) for item in run("reproduce", self._named(trial), *words)]

    def train_again(
        self, trial: int = 0, *, env: Literal["lock", "current"] = "lock"
    ) -> RepeatedView:
        """Train it again from its capsule, beside it; return whether the bits are the same.

        Args:
            trial: the one to repeat; 0: the only one.
            env: the recorded packages, or those of this interpreter.

        Raises:
            IntegrityError: something recorded is gone or has changed.
            Unsuccessful: the repetition has failed.
        """
        words = ("reproduce", self._named(trial), "--run", "--env", env)
        [item] = run(*words, root=self.path.parent, fine=(0, 1))
        kept = [RepeatedCheckpointView(**one) for one in item["checkpoints"]]
        return RepeatedView(**{**item, "checkpoints": kept})

    def _named(self, trial: int) -> Path:
        return self._paths.trial(trial).root if trial else self.path
