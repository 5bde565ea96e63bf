"""The writer of an attempt's ledger: it appends records, and seals a segment from time to time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.ledger import seals
from hpcdet.policy.ledger.paths import lost_by
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, LedgerOwner, LedgerRecord, line
from hpcdet.policy.merkle import Merkle
from hpcdet.store.fs import files

if TYPE_CHECKING:  # imported by who has a key only
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class LedgerWriter:
    """The only writer of an attempt's ledger. It makes the file, which must not be there.

    Args:
        of: the attempt; ``step``: batches trained before it.
        earlier: ledgers of the trial's earlier attempts.
        accepts: up to where the attempt goes on from them; None: it begins anew.
        parent: of an heir, what it begins from: ``{"experiment", "trial", "attempt", "seq",
            "hash"}``; None: of none.
        changes: of the policy, up to now: their number, and SHA-256 of the newest one's file.
        key: what seals it; None: nothing does.
        certificate: envelope of a ``seals.Certificate`` of the key.
        segment: records between two seals.

    Attributes:
        sealed: the last seal; None: nothing is sealed.

    Raises:
        GovernanceBroken: G105: the attempt has a ledger already, or ``accepts`` is in none.
        OSError: the file cannot be made.
    """

    def __init__(  # noqa: PLR0913 - what its first record says
        self,
        path: Path,
        of: LedgerOwner,
        *,
        step: int = 0,
        earlier: Sequence[AttemptLedger] = (),
        accepts: LedgerHead | None = None,
        parent: Mapping[str, Any] | None = None,
        changes: tuple[int, str] = (0, ""),
        key: Ed25519PrivateKey | None = None,
        certificate: Mapping[str, Any] | None = None,
        segment: int = 1000,
    ) -> None:
        lost = lost_by(earlier, accepts)
        files.make_folder(path.parent)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(path, flags, files.FILE_MODE)
        except FileExistsError:
            what, hint = "the attempt has a ledger already", "two ranks write: end one of them"
            raise GovernanceBroken("G105", what, where=str(path), hint=hint) from None
        files.sync_folder(path.parent)
        self.path, self.of = path, of
        self._key, self._segment = key, segment
        self._host = socket.gethostname()
        self._seq, self._prev, self._size = 0, "", 0
        self._tree, self._begin = Merkle(), 0
        self.sealed: LedgerHead | None = None
        self.append(
            "open",
            step,
            **dataclasses.asdict(of),
            accepts=None if accepts is None else dataclasses.asdict(accepts),
            parent=None if parent is None else dict(parent),
            key="" if key is None else key.public_key().public_bytes_raw().hex(),
            certificate=None if certificate is None else dict(certificate),
            changes={"count": changes[0], "last": changes[1]},
            seen=[[one.attempt, len(one.records)] for one in earlier],
        )
        if lost:
            self.append("rollback", step, lost=lost)

    @property
    def head(self) -> LedgerHead:
        """The last record; what a checkpoint's manifest names."""
        return LedgerHead(self.of.attempt, self._seq - 1, self._prev)

    def append(self, type: str, step: int, **body: Any) -> LedgerHead:
        """Add a record; it is in the file on return, and durable after ``flush``.

        Raises:
            ValueError: the body has a float, a number beyond 2**53, or no JSON.
            GovernanceBroken: G105: another process has written into the file.
            OSError: the disk is full, or fails; nothing is added then.
        """
        head = self._append(type, step, body)
        if self._seq - self._begin >= self._segment:
            with contextlib.suppress(OSError):  # the record is there; the next one seals it
                head = self.seal(step)
        return head

    def policy(self, step: int, policy: CompiledPolicy) -> LedgerHead:
        """Add the policy that is in effect from here on, with the weight of each pair."""
        return self.append(
            "policy",
            step,
            digest=policy.digest,
            sources=[one.id for one in policy.sources],
            layers=[one.id for one in policy.layers],
            weights=[[weight.hex() for weight in map(float, row)] for row in policy.matrix],
        )

    def seal(self, step: int) -> LedgerHead:
        """Sign all records since the last seal, if there are any; without a key nothing is done."""
        if self._key is None or self._begin == self._seq:
            return self.head
        end = self._seq - 1
        part = seals.Segment(self.of, self._begin, end, self._tree.root)
        envelope = seals.sign(part, self._key)
        head = self._append(
            "seal", step, {"begin": part.begin, "end": end, "root": part.root, "dsse": envelope}
        )
        self._tree, self._begin, self.sealed = Merkle(), self._seq, head
        return head

    def flush(self) -> LedgerHead:
        """Make everything added so far durable, as before a manifest that names the head."""
        os.fsync(self._fd)
        return self.head

    def close(self, step: int) -> LedgerHead:
        """Add the last record, seal, and close the file."""
        self._append("close", step, {})
        self.seal(step)
        head = self.flush()
        self.abandon()
        return head

    def abandon(self) -> None:
        """Close the file as it is; doing so twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    def _append(self, type: str, step: int, body: Mapping[str, Any]) -> LedgerHead:
        record = LedgerRecord(self._seq, self._prev, type, step, files.now(), self._host, body)
        data, digest = line(record)
        if os.fstat(self._fd).st_size != self._size:
            what, hint = "another process has written into it", "two ranks write: end one of them"
            raise GovernanceBroken("G105", what, where=str(self.path), hint=hint)
        try:
            files.write_all(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, self._size)  # a full disk may have taken a part
            raise
        self._size += len(data)
        self._tree.add(record.to_bytes())
        self._seq, self._prev = self._seq + 1, digest
        return self.head
