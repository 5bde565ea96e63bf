"""Ledgers beside what ``file:`` anchors hold of them, before an attempt goes on."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcdet.errors import IntegrityError
from hpcdet.guard.resume.resume_verdicts import Check
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.ledger import anchored
from hpcdet.policy.ledger.anchored import Held
from hpcdet.policy.ledger.owners import Owner
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead

Read = Callable[[], Sequence[AttemptLedger]]
_HINT = "put the ledger back from a backup; nothing goes on behind a cut one"


class AnchoredLedgers:
    """Heads of the ledgers of a trial and of its parent, as ``file:`` anchors hold them.

    An anchor that cannot be read stops nothing.

    Args:
        anchors: of the policy.
        tell: is given an anchor that cannot be read, and why.
    """

    def __init__(self, anchors: Sequence[str], tell: Callable[[str, str], None]) -> None:
        self._folders, self._tell = anchored.folders(anchors), tell

    def refuse_lost(self, ledgers: Read, own: Owner | None = None, *, copies: bool = False) -> None:
        """Refuse ledgers that do not have what an anchor holds of them.

        Args:
            ledgers: read again behind the heads: an attempt that is believed lost may still write.
            own, copies: as ``anchored.expected`` has them.

        Raises:
            GovernanceBroken: G105.
        """
        for folder in self._folders:
            try:
                heads = anchored.expected(_held(folder), ledgers(), own, copies=copies)
            except (OSError, IntegrityError) as error:
                self._cannot(folder, error)
                continue
            there = ledgers()
            for owner, some in heads.items():
                where = str(anchored.path_in(folder, *owner, os.geteuid()))
                if (bad := anchored.beside(where, some, there).bad) is not None:
                    what = f"attempt {bad.attempt}, record {bad.seq}: {bad.what}"
                    paths = (str(one.path) for one in there if one.attempt == bad.attempt)
                    raise GovernanceBroken(bad.code, what, where=next(paths, where), hint=_HINT)

    def doubts(self, copies: Sequence[AttemptLedger], head: LedgerHead) -> list[Check]:
        """Doubt the record of a checkpoint whose ledger was copied before an anchor had it.

        Args:
            copies: of the ledgers of a parent; ``head``: the record.
        """
        for folder in self._folders:
            try:
                newer = anchored.not_copied(_held(folder), copies, head)
            except (OSError, IntegrityError) as error:
                self._cannot(folder, error)
                continue
            if newer is not None:
                what = f"{anchored.FILE}{folder} holds record {newer.seq} of attempt "
                what += f"{newer.attempt}, and the copy of its ledger ends before it"
                return [Check(5, "G105", "unknown", what)]
        return []

    def _cannot(self, folder: Path, error: Exception) -> None:
        self._tell(f"{anchored.FILE}{folder}", f"it cannot be read: {error}")


def _held(folder: Path) -> Held:
    return functools.partial(_in_folder, folder)


def _in_folder(folder: Path, experiment: str, trial: int) -> set[anchored.AnchoredHead]:
    return anchored.heads_in_folder(folder, experiment, trial, os.geteuid())
