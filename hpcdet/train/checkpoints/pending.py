"""A checkpoint as the training sees it: what it is to be of, and what has become of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypedDict

from hpcdet.checkpoint import Attest, CheckpointFailed, Saved, Saving, StateError
from hpcdet.errors import UsageError
from hpcdet.process.location import AttemptLocation
from hpcdet.store.trials import standing
from hpcdet.store.trials.manifests import ManifestMeta
from hpcdet.train.comm.collectives import Peers


class SaveOptions(TypedDict, total=False):
    """The options of ``Keeper.save``."""

    kept: Sequence[str]
    metric: float | None
    must: bool
    wait: bool
    alone: bool
    attest: Attest | None


@dataclass(frozen=True)
class SaveRequest:
    """A checkpoint that is to be made.

    Attributes:
        kept: reasons why the rules of retention see it; none for a resume checkpoint.
        metric: the searcher's at this step, as records have it.
        described: what else the manifest is to say; ``attest`` adds to it when the content's digest
            is known (``checkpoint.save``).
    """

    step: int
    kept: tuple[str, ...]
    metric: float | str | None
    shared: Any
    private: Any
    described: ManifestMeta
    attest: Attest | None = None

    def meta(self) -> ManifestMeta:
        """Return the manifest's metadata beside the state."""
        return {
            **self.described,
            "kind": "kept" if self.kept else "resume",
            "kept": list(self.kept),
            "metric": self.metric,
        }

    def record(self, saved: Saved) -> dict[str, Any]:
        """Return the record of the checkpoint in the journal."""
        return {
            "name": saved.name,
            "step": self.step,
            "digest": saved.digest,
            "bytes": saved.bytes,
            "linked_bytes": saved.linked,
            "metric": self.metric,
            "kept": list(self.kept),
            "save_s": round(saved.seconds, 3),
            "blocked_s": round(saved.blocked_s, 3),
        }

    def without_state(self) -> SaveRequest:
        """The same, not keeping alive what was copied."""
        return replace(self, shared=None, private=None)


def agreed(peers: Peers, step: int, last: int, latest: str) -> tuple[int, str]:
    """Rank 0's last step and checkpoint: it may have stored some alone; all ranks call together.

    Raises:
        UsageError: this rank is to save another step than rank 0.
    """
    wanted, last, latest = peers.broadcast((step, last, latest))
    if step != wanted:
        raise UsageError(
            f"rank {peers.ranks.rank} saves a checkpoint of step {step}, rank 0 of step {wanted}",
            hint="all ranks save together, with the same steps_completed",
        )
    return last, latest


def is_there(step: int, last: int) -> bool:
    """Whether a step is the last one that this attempt has saved: no name is used twice.

    Raises:
        UsageError: it is an earlier one.
    """
    if step < last:
        raise UsageError(
            f"a checkpoint of step {step} would be older than that of step {last}",
            hint="save with steps_completed growing",
        )
    return step == last


class UnderWay(NamedTuple):
    """A checkpoint that is being written; ``staged``: on this node's own disk."""

    step: int
    saving: Saving
    staged: bool

    def busy(self) -> bool:
        """Whether this rank is not through with it.

        Raises:
            Exception: the ranks have lost each other over it (``Saving.check``).
        """
        busy = not self.saving.done()
        self.saving.check()
        return busy

    def wait(self) -> None:
        """Wait until this rank is through with it.

        Raises:
            Exception: as ``busy``.
        """
        self.saving.wait()
        self.saving.check()

    def outcome(self) -> Saved | None:
        """Return what rank 0 has committed; None if it has not."""
        try:
            return self.saving.result()
        except (CheckpointFailed, StateError):
            return None


def fence(place: AttemptLocation) -> None:
    """Rank 0, right before a commit: another attempt may go on by now.

    A node that was believed dead can come back, and so can ranks that were stopped.

    Raises:
        CheckpointFailed: this attempt is over.
    """
    if standing.is_over(place.trial, place.attempt):
        raise CheckpointFailed(
            f"attempt {place.attempt.number} is over: another attempt has replaced it"
        )
