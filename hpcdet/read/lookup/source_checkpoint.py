"""Lookup of the checkpoint from which a user wants a trial to go on."""

from __future__ import annotations

from pathlib import Path

from hpcdet.errors import NotFound, UsageError
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.lookup import find
from hpcdet.read.views import views
from hpcdet.read.views.checkpoints import CheckpointView
from hpcdet.store.folder import home
from hpcdet.store.folder.layout import CHECKPOINT_NAME

THERE = ("complete", "superseded")


def checkpoint(gathered: Gathered, trial: int, text: str) -> str:
    """Return the name of the trial's checkpoint that the user's text denotes.

    Args:
        text: its name (``00000300.g2``) or path, a step (``300``), or ``@best``.

    Raises:
        NotFound: the trial has no such checkpoint.
        UsageError: it is a checkpoint of another trial or experiment.
    """
    where = f"{gathered.id}/{trial}"
    rows = [row for row in views.checkpoints(gathered, trial) if row.state in THERE]
    if text == find.BEST:
        return best(rows, gathered, where).name
    name = text
    path = Path(text).expanduser().absolute()
    if path.is_dir() and CHECKPOINT_NAME.fullmatch(path.name):
        places = gathered.paths.trial(trial).checkpoint_places
        if path.resolve().parent not in [place.resolve() for place in places]:
            raise UsageError(
                f"{path} is a checkpoint of another trial",
                where=where,
                hint="a trial continues from its own only; to begin another one there, fork",
            )
        name = path.name
    fits = [row for row in rows if name in (row.name, str(row.step))]
    if fits:
        return max(fits, key=lambda row: row.attempt or 0).name
    hint = f"hpcdet ckpt ls {home.called(gathered.paths, trial)} shows those it has"
    raise NotFound(f"no checkpoint {text}", where=where, hint=hint)


def best(rows: list[CheckpointView], gathered: Gathered, where: str) -> CheckpointView:
    """Return the row of ``views.checkpoints`` with the best value of the searcher's metric.

    Raises:
        NotFound: none was validated.
    """
    searcher = gathered.config.searcher
    values = [(series.number(row.metric), row) for row in rows]
    ordered = [(value, row) for value, row in values if value is not None]
    if not ordered:
        what = f"no checkpoint of a step that had reported {searcher.metric} when it was saved"
        hint = "report validation metrics before saving; hpcdet ckpt ls shows what there is"
        raise NotFound(what, where=where, hint=hint)
    pick = min if searcher.smaller_is_better else max
    return pick(ordered, key=lambda pair: pair[0])[1]
