"""A trial that begins from another one's checkpoint: from that which its record names, alone."""

from __future__ import annotations

from hpcdet.checkpoint.format import remove
from hpcdet.errors import IntegrityError
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import Trial


def see_to_it(trial: TrialPaths, record: Trial) -> None:
    """Rank 0: nothing else that was given to it is taken for a checkpoint of its own.

    Nor anything at all where it has no parent, or one that had nothing to give.
    """
    remove.strays(trial.checkpoints, record.origin.get("name", ""))


def refuse_nothing(trial: TrialPaths, record: Trial) -> None:
    """It does not begin from nothing in silence.

    Raises:
        IntegrityError: it was to begin from a checkpoint, and has none.
    """
    if record.origin:
        raise IntegrityError(
            f"the checkpoint to begin from is missing: {record.origin['name']}, "
            f"of trial {record.parent}",
            where=str(trial.checkpoints),
            hint="make a new experiment, or bring the checkpoint back from where it was saved",
        )
