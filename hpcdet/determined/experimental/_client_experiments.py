"""Experiments as ``determined.experimental.client`` has them; ids are ours."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hpcdet.determined.experimental._client_checkpoints import Checkpoint, listed, newest_of
from hpcdet.determined.experimental._client_enums import (
    CheckpointSortBy,
    ExperimentState,
    OrderBy,
    TrialSortBy,
    their_word,
)
from hpcdet.determined.experimental._client_trials import Trial
from hpcdet.errors import NotFound

_POLL_S = 0.1


class Experiment:
    """An experiment.

    Attributes:
        id: its id, a text.
    """

    def __init__(self, experiment_id: str, session: object = None) -> None:
        from hpcdet import client

        self._experiment = client.get(str(experiment_id))
        self.id = self._experiment.id

    def __repr__(self) -> str:
        return f"Experiment(id={self.id})"

    @property
    def state(self) -> Any:
        """Its state, an ``ExperimentState``."""
        return ExperimentState[their_word(self._experiment.state)]

    @property
    def config(self) -> dict[str, Any]:
        """Its config, with later changes."""
        return self._experiment.config

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.config["name"])

    @property
    def description(self) -> str:
        """Its description."""
        return str(self.config.get("description") or "")

    @property
    def labels(self) -> set[str]:
        """Its labels."""
        return set(self._experiment.labels)

    @property
    def notes(self) -> str:
        """Its notes, a line each."""
        return "\n".join(note.text for note in self._experiment.notes)

    @property
    def progress(self) -> float:
        """How much of it is done, 0 to 1."""
        return self._experiment.brief().progress

    @property
    def archived(self) -> bool:
        """True with the label ``archived``."""
        return "archived" in self.labels

    def activate(self) -> None:
        """Go on with what was paused."""
        self._experiment.resume()

    def pause(self) -> None:
        """Save checkpoints and stop."""
        self._experiment.pause()

    def cancel(self) -> None:
        """Save checkpoints, then end it for good."""
        self._experiment.cancel()

    def kill(self) -> None:
        """End it for good, without saving."""
        self._experiment.cancel(now=True)

    def archive(self) -> None:
        """Give it the label ``archived``."""
        self.add_label("archived")

    def unarchive(self) -> None:
        """Take the label ``archived`` from it."""
        self.remove_label("archived")

    def add_label(self, label: str) -> None:
        """Add a label."""
        self._experiment.tag(label)

    def remove_label(self, label: str) -> None:
        """Remove a label."""
        self._experiment.tag(remove=[label])

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace all labels."""
        wanted = set(labels)
        if wanted != self.labels:
            self._experiment.tag(*(wanted - self.labels), remove=self.labels - wanted)

    def set_name(self, name: str) -> None:
        """Change its name; the id stays."""
        self._experiment.set(name=name)

    def set_description(self, description: str) -> None:
        """Change its description."""
        self._experiment.set(description=description)

    def set_notes(self, notes: str) -> None:
        """Append a note; earlier ones stay."""
        self._experiment.note(notes)

    def download_code(self, output_dir: str | None = None) -> str:
        """Copy the snapshot of its code to a folder, ``experiment_ID_code`` without one."""
        target = Path(output_dir or f"experiment_{self.id}_code")
        shutil.copytree(self._experiment.path / "code", target)
        return str(target)

    def list_trials(self, sort_by: Any = None, order_by: Any = None) -> list[Trial]:
        """Return its trials, by number."""
        key = (sort_by or TrialSortBy.ID).value
        rows = _ordered(self._experiment.trials(), lambda row: getattr(row, key), order_by)
        return [Trial(row.id) for row in rows]

    get_trials = list_trials

    def iter_trials(self, sort_by: Any = None, order_by: Any = None) -> Iterator[Trial]:
        """Yield its trials, by number."""
        return iter(self.list_trials(sort_by, order_by))

    def await_first_trial(self, interval: float = _POLL_S) -> Trial:
        """Return the first trial once there is one. Raises NotFound: it ended without."""
        while not (trials := self._experiment.trials()):
            if self._experiment.state in ("COMPLETED", "CANCELED", "ERROR"):
                raise NotFound("it ended without a trial", where=self.id)
            time.sleep(interval)
        return Trial(trials[0].id)

    def wait(self, interval: float = 5.0) -> Any:
        """Return its state once it has ended, or is paused by a failure."""
        return ExperimentState[their_word(self._experiment.wait())]

    def list_checkpoints(
        self, sort_by: Any = None, order_by: Any = None, max_results: int | None = None
    ) -> list[Checkpoint]:
        """Return the checkpoints of all trials, by step."""
        return listed(self._experiment, 0, sort_by, order_by)[:max_results]

    def top_checkpoint(
        self, sort_by: Any = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Return the best by the searcher's metric. Raises NotFound: there is none."""
        return newest_of(self.top_n_checkpoints(1, sort_by, smaller_is_better), self.id)

    def top_n_checkpoints(
        self, limit: int, sort_by: Any = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Return the best checkpoints by the searcher's metric, the best first."""
        by = sort_by or CheckpointSortBy.SEARCHER_METRIC
        return listed(self._experiment, 0, by, None, smaller_is_better)[:limit]

    def reload(self) -> None:
        """Nothing: everything is read anew."""


def _ordered(rows: Iterable[Any], key: Callable[[Any], Any], order_by: Any) -> list[Any]:
    """Return rows in order; those without a value come last."""
    every = list(rows)
    known = [row for row in every if key(row) not in (None, "")]
    known.sort(key=key, reverse=order_by is OrderBy.DESCENDING)
    return known + [row for row in every if key(row) in (None, "")]
