"""A trial that begins from another one's checkpoint: from that which its record names, alone."""

from __future__ import annotations

from hpcdet.checkpoint.format import remove
from hpcdet.errors import IntegrityError
from hpcdet.process.location import AttemptLocation
from hpcdet.store.folder.records import Trial


def see_to_it(place: AttemptLocation) -> None:
    """Rank 0: nothing else that was given to it is taken for a checkpoint of its own.

    Nor anything at all where it has no parent, or one that had nothing to give.
    """
    record = _record(place)
    if record is not None:
        remove.strays(place.trial.checkpoints, record.origin.get("name", ""))


def refuse_nothing(place: AttemptLocation) -> None:
    """It does not begin from nothing in silence.

    Raises:
        IntegrityError: it was to begin from a checkpoint, and has none.
    """
    record = _record(place)
    if record is not None and record.origin:
        raise IntegrityError(
            f"the checkpoint to begin from is missing: {record.origin['name']}, "
            f"of trial {record.parent}",
            where=str(place.trial.checkpoints),
            hint="make a new experiment, or bring the checkpoint back from where it was saved",
        )


def _record(place: AttemptLocation) -> Trial | None:
    return None if place.experiment is None else Trial.read(place.trial.record)
