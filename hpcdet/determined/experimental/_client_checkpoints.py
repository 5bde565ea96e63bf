"""Checkpoints as ``determined.experimental.client`` has them; the ``uuid`` is the folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.determined.experimental._client_enums import CheckpointState, OrderBy
from hpcdet.errors import NotFound, UsageError

if TYPE_CHECKING:
    from hpcdet import client


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint.

    Attributes:
        uuid: its folder.
        resources: bytes by file.
        training: ``experiment_id, trial_id, validation_metrics``.
    """

    uuid: str
    task_id: str
    allocation_id: str
    report_time: str
    state: Any
    resources: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def download(self, path: str | None = None, mode: object = None) -> str:
        """Copy it to a folder, ``checkpoints/NAME`` without one; every byte is verified."""
        target = Path(path or Path("checkpoints") / Path(self.uuid).name).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        _, row = by_folder(self.uuid)
        row.get(target)
        self.write_metadata_file(str(target / "metadata.json"))
        return str(target)

    def write_metadata_file(self, path: str) -> None:
        """Write its metadata as JSON."""
        Path(path).write_text(json.dumps(self.metadata))

    def get_metrics(self, group: str | None = None) -> Iterable[Any]:
        """Return what its trial had reported by then."""
        from hpcdet.determined.experimental._client_trials import Trial

        trial = Trial(self.training["trial_id"])
        step = self.metadata["steps_completed"]
        return (one for one in trial.iter_metrics(group) if one.steps_completed <= step)

    def reload(self) -> None:
        """Nothing: a checkpoint never changes."""


def by_folder(uuid: str) -> tuple[client.Experiment, client.Checkpoint]:
    """Return a checkpoint of ours by its folder, with its experiment.

    Raises:
        NotFound: there is none.
    """
    from hpcdet import client

    folder = str(Path(uuid).expanduser().absolute())
    experiment = client.get(folder.rpartition("/trials/")[0] or folder)
    for row in experiment.checkpoints():
        if row.path == folder:
            return experiment, row
    raise NotFound("there is no such checkpoint", where=uuid, hint="hpcdet ckpt ls ID -o wide")


def checkpoint_of(experiment: client.Experiment, row: client.Checkpoint) -> Checkpoint:
    """Return a checkpoint of ours as Determined's."""
    folder = Path(row.path)
    there = sorted(folder.iterdir()) if row.path and folder.is_dir() else []
    states = {"complete": "COMPLETED", "superseded": "COMPLETED", "deleted": "DELETED"}
    metric = experiment.status().metric
    return Checkpoint(
        uuid=row.path,
        task_id=f"{experiment.id}/{row.trial}",
        allocation_id=f"{experiment.id}/{row.trial}.{row.attempt}",
        report_time=row.time,
        state=CheckpointState[states.get(row.state, "ERROR")],
        resources={file.name: file.stat().st_size for file in there},
        metadata={"steps_completed": row.step, "digest": row.digest},
        training={
            "experiment_id": experiment.id,
            "trial_id": f"{experiment.id}/{row.trial}",
            "validation_metrics": {"avg_metrics": {metric: row.metric}},
        },
    )


def listed(
    experiment: client.Experiment,
    trial: int,
    sort_by: Any,
    order_by: Any,
    smaller_is_better: bool | None = None,
) -> list[Checkpoint]:
    """Return the whole checkpoints of an experiment or trial in an order.

    Args:
        sort_by: ``CheckpointSortBy``, or the name of a metric (the searcher's); None: by step.
    """
    rows = [row for row in experiment.checkpoints(trial) if row.state == "complete"]
    status = experiment.status()
    if isinstance(sort_by, str) and sort_by != status.metric:
        what = f"checkpoints are compared by the searcher's metric, {status.metric}"
        raise UsageError(what, where=f"sort_by={sort_by!r}", hint="hpcdet metrics ID --best")
    by = "metric" if isinstance(sort_by, str) else sort_by.value if sort_by else "step"
    rows = [row for row in rows if by != "metric" or isinstance(row.metric, int | float)]
    down = order_by is OrderBy.DESCENDING
    if by == "metric" and order_by is None:
        smaller = status.smaller_is_better if smaller_is_better is None else smaller_is_better
        down = not smaller
    rows.sort(key=lambda row: getattr(row, by), reverse=down)
    return [checkpoint_of(experiment, row) for row in rows]


def newest_of(found: list[Checkpoint], where: str) -> Checkpoint:
    """Return the last one. Raises NotFound: there is none."""
    if not found:
        raise NotFound("there is no such checkpoint", where=where)
    return found[-1]
