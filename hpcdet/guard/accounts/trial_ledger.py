"""The ledger of an attempt under way: what was trained becomes records."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdet.checkpoint import CheckpointFailed
from hpcdet.guard.accounts.anchoring import Anchoring
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.guard import Guard
from hpcdet.policy.keys.run_keys import RunKey
from hpcdet.policy.ledger import owners, seals
from hpcdet.policy.ledger.attested import digest_of
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, LedgerOwner
from hpcdet.policy.ledger.writer import LedgerWriter
from hpcdet.process.location import AttemptLocation
from hpcdet.store.trials.manifests import ManifestMeta

Attest = Callable[[str, ManifestMeta], ManifestMeta]
"""Given the digest of a checkpoint's content and its meta, returns what its manifest is to say."""
STEPS = 10
"""The fewest steps of a ``step_batch`` record beside those before and behind checkpoints."""
_SOON_S, _LATE_S, _PART = 0.05, 60.0, 50
"""Between two of them lies a fiftieth of the attempt's time so far, within these bounds."""
_MOST_SKIPPED = 1000


class TrialLedger:
    """The ledger that rank 0 writes of an attempt.

    What the disk does not take is kept and written later; a checkpoint is only made when all of it
    is there.

    Args:
        guard: of this rank, which counts.
        earlier: ledgers of the trial's earlier attempts.
        key: what signs it; None: nothing does.
    """

    def __init__(
        self,
        guard: Guard,
        place: AttemptLocation,
        earlier: Sequence[AttemptLedger],
        key: RunKey | None,
    ) -> None:
        self._guard, self._place, self._earlier, self._key = guard, place, earlier, key
        name = (
            ""
            if place.experiment is None
            else owners.name_of(place.experiment, owners.said_by(earlier))
        )
        self._of = LedgerOwner(name, place.trial.number, place.attempt.number)
        self._writer: LedgerWriter | None = None
        self._anchors = Anchoring((), self._of, place.attempt.ledger)
        self._held: LedgerHead | None = None
        self._waiting: list[tuple[str, int, dict[str, Any]]] = []
        self._counted = Exposure()
        self._from = self._now = (0, 0)
        self._skipped: list[int] = []
        self._saved = False
        self._began = self._due = 0.0

    @property
    def experiment(self) -> str:
        """The experiment's name in its ledgers."""
        return self._of.experiment

    # -- the attempt -------------------------------------------------------------------------

    def begin(
        self,
        batches: int,
        records: int,
        *,
        accepts: LedgerHead | None,
        parent: Mapping[str, Any] | None,
        changes: tuple[int, str],
        **resumed: Any,
    ) -> None:
        """Open it: from here on the guard counts for this attempt.

        Args:
            batches, records: trained before it.
            accepts: up to where it goes on from earlier attempts; ``parent``: of an heir.
            changes: of the policy, as ``LedgerWriter`` takes them.
            resumed: what its ``resume`` record says.

        Raises:
            GovernanceBroken: an earlier ledger does not hold what it accepts (G104, G105).
            OSError: it cannot be made.
        """
        policy = self._guard.policy
        if accepts is None:  # of a fork's only what goes on shows that it is the same trial
            for name, _ in owners.said_by(self._earlier):
                self._of = dataclasses.replace(self._of, experiment=name)
        self._writer = LedgerWriter(
            self._place.attempt.ledger,
            self._of,
            step=batches,
            earlier=self._earlier,
            accepts=accepts,
            parent=parent,
            changes=changes,
            key=None if self._key is None else self._key.private,
            certificate=None if self._key is None else self._key.certificate,
            segment=policy.ledger.segment_records,
        )
        self._from = self._now = (batches, records)
        self._counted.join(self._guard.exposure)
        self._writer.policy(batches, policy)
        self.append("resume", **resumed)
        if self._place.experiment is not None and not self._place.experiment.rehearsal:
            self._anchors = Anchoring(policy.ledger.anchor, self._of, self._writer.path)
        self._anchor(self._writer.head)
        self._began = time.monotonic()
        self._due = self._began + _SOON_S

    def close(self) -> None:
        """End it well: nothing was trained that is not in it.

        What the disk does not take is lost, as in a crash.
        """
        writer = self._writer
        if writer is None:
            return
        self._count()
        if not self._waiting:
            with contextlib.suppress(OSError):
                self._anchor(writer.close(self._now[0]))
        writer.abandon()
        self._writer = None

    def anchored(self, *, last: bool = False) -> list[tuple[str, str]]:
        """Return the anchors that begin or cease to fail, and why, as ``Anchoring.news``.

        Args:
            last: the ledger is closed: wait a while for what is under way.
        """
        return self._anchors.close() if last else self._anchors.news()

    # -- training ----------------------------------------------------------------------------

    def stepped(self, batches: int, records: int) -> None:
        """So much is trained by now."""
        self._now = (batches, records)
        enough = batches - self._from[0] >= STEPS and time.monotonic() >= self._due
        if enough or self._saved:
            self._saved = False  # a crash behind a checkpoint shows by what is recorded behind it
            self._count()

    def skipped(self, batches: int) -> None:
        """A scaler has left out the step of an optimizer after so many batches."""
        if len(self._skipped) < _MOST_SKIPPED:
            self._skipped.append(batches)

    def append(self, type: str, **body: Any) -> None:
        """Add a record of this step; floats have to be text (``float.hex``)."""
        self._waiting.append((type, self._now[0], body))
        self._write()

    def checkpointed(self, name: str, root: str, summary: dict[str, Any]) -> Attest:
        """Account for all of it up to here, for a checkpoint.

        Args:
            name: of its folder; ``root``: of its governance state (``state_root``).
            summary: what its manifest says of that; the ledger's head is added.

        Returns:
            What signs it, and sees that the ledger is durable before there is a manifest.
        """
        self._count()
        self.append("checkpoint", name=name, root=root)
        self._saved = True
        writer = self._writer
        head: LedgerHead | None = None
        with contextlib.suppress(OSError):
            head = None if writer is None or self._waiting else writer.seal(self._now[0])
            self._anchor(head)
        summary["root"] = root
        summary["ledger"] = None if head is None else _plain(head)
        return lambda digest, meta: self._attested(name, root, head, digest, meta)

    def _attested(
        self, name: str, root: str, head: LedgerHead | None, digest: str, meta: ManifestMeta
    ) -> ManifestMeta:
        writer = self._writer
        if writer is None or head is None:
            raise CheckpointFailed("the ledger of the attempt cannot be written")
        writer.flush()
        said = dict(meta["governance"])
        if self._key is not None:
            made = seals.SealedCheckpoint(self._of, name, digest, root, digest_of(said), head)
            said["seal"] = seals.sign(made, self._key.private)
        return {**meta, "governance": said}

    # -- records -----------------------------------------------------------------------------

    def _count(self) -> None:
        """Add a record of the steps since the last one."""
        (begin, before), (end, records) = self._from, self._now
        if end == begin or self._writer is None:
            self._write()
            return
        exposure = self._guard.exposure
        counts = {
            kind: units - self._counted.rows[kind]
            for kind, units in sorted(exposure.rows.items())
            if units != self._counted.rows[kind]
        }
        nulls = self._guard.optimizers.nulls
        body: dict[str, Any] = {
            "steps": [begin, end],
            "records": [before, records],
            "policy_digest": self._guard.policy.digest,
            "counts": counts,
            "dropped": exposure.dropped - self._counted.dropped,
            "nulls": dict(sorted(nulls.items())),
            "skipped": self._skipped,
        }
        self.append("step_batch", **body)
        self._from, self._counted = self._now, Exposure()
        self._counted.join(exposure)
        nulls.clear()
        self._skipped = []
        now = time.monotonic()
        self._due = now + min(_LATE_S, max(_SOON_S, (now - self._began) / _PART))

    def _write(self) -> None:
        """Write what waits; a full disk leaves it waiting."""
        writer = self._writer
        while self._waiting and writer is not None:
            type, step, body = self._waiting[0]
            try:
                writer.append(type, step, **body)
            except OSError:
                return
            del self._waiting[0]
            self._anchor(writer.sealed)

    def _anchor(self, head: LedgerHead | None) -> None:
        """Have a head given to the anchors of the policy, once."""
        if head is not None and (self._held is None or head.seq > self._held.seq):
            self._held = head
            self._anchors.put(head)


def _plain(head: LedgerHead) -> dict[str, Any]:
    return {"attempt": head.attempt, "seq": head.seq, "hash": head.hash}
