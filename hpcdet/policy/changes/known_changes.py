"""Changes of a policy that ledgers know of: none of them may be gone.

The first record of each attempt's ledger says how many changes there were when it began. Without
that the newest records could be removed, and nothing would lack them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdet.errors import IntegrityError
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.ledger import records
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import packed


@dataclass(frozen=True)
class KnownChanges:
    """The changes that an attempt began with.

    Attributes:
        last: SHA-256 of the newest one's file, hex.
    """

    trial: int
    attempt: int
    count: int
    last: str


def by_ledgers(paths: ExperimentPaths) -> list[KnownChanges]:
    """Return what the newest attempt of each trial began with; one that knows of none is left out.

    What cannot be read or is damaged is passed over: the verification of ledgers tells.
    """
    found = []
    for trial in paths.trials():
        for attempt in reversed(trial.attempts()):
            with contextlib.suppress(OSError, IntegrityError, LookupError, TypeError, ValueError):
                known = _begun_with(trial.number, attempt)
                found += [known] if known.count else []
                break
    return found


def refuse_lost(known: Sequence[KnownChanges], digests: Sequence[str], folder: Path) -> None:
    """Refuse changes of which some are gone, or are others than those that were obeyed.

    Args:
        known: read before the changes were, which may be added to meanwhile.
        digests: SHA-256 of the files, in order; ``folder``: where they lie.

    Raises:
        GovernanceBroken: G108.
    """
    for one in known:
        who = f"attempt {one.attempt} of trial {one.trial} has trained with"
        wrong = ""
        if one.count > len(digests):
            wrong = (
                f"change {len(digests) + 1:04d} of the policy is gone: {who} {one.count} changes"
            )
        elif one.last != digests[one.count - 1]:
            wrong = f"change {one.count:04d} of the policy is another one than {who}"
        if wrong:
            hint = "put the folder back from a backup: what was changed can be changed again, "
            hint += "not taken back"
            raise GovernanceBroken("G108", wrong, where=str(folder), hint=hint)


def _begun_with(trial: int, attempt: AttemptPaths) -> KnownChanges:
    """What an attempt began with. Raises OSError or ValueError: its ledger does not say."""
    with packed.open_file(attempt.ledger) as file:
        line = file.readline(records.LONGEST + 1)
    opened, _ = records.parse(line.removesuffix(b"\n"))
    said = opened.body.get("changes") or {}
    return KnownChanges(trial, attempt.number, int(said.get("count", 0)), str(said.get("last", "")))
