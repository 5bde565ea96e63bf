"""Paths through the ledgers of a trial's attempts: what counts, and what a crash has undone.

The path of an attempt is what it accepts of earlier ones, and all of its own. What the path of the
attempt before it has and its own has not was trained and lost: the attempt has to say so.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, is_head

LedgerPath = tuple[tuple[int, int], ...]
"""Attempts in order, and the number of the first records of each that count."""
Lost = list[list[int]]
"""``[attempt, first record, last record]`` of what does not count any more."""


def path_of(
    before: Sequence[tuple[AttemptLedger, LedgerPath]], accepts: LedgerHead | None
) -> LedgerPath:
    """Return what an attempt accepts of earlier ones.

    Args:
        before: ledgers of earlier attempts and their own paths, in order.

    Raises:
        GovernanceBroken: G105: the record is in none of them.
    """
    if accepts is None:
        return ()
    for ledger, path in before:
        if ledger.attempt == accepts.attempt:
            there = ledger.hashes[accepts.seq : accepts.seq + 1]
            if there == (accepts.hash,):
                return (*path[:-1], (accepts.attempt, accepts.seq + 1))
            what = "has another record there" if there else f"ends with {len(ledger.records)}"
            raise GovernanceBroken(
                "G105",
                f"record {accepts.seq} of attempt {accepts.attempt} is not there: its ledger "
                f"{what}",
                where=str(ledger.path),
                hint="the ledger was truncated or is another run's: put it back from a backup",
            )
    raise GovernanceBroken("G105", f"attempt {accepts.attempt} has no ledger")


def lost_between(old: LedgerPath, new: LedgerPath) -> Lost:
    """Return the records of one path that another one does not have."""
    kept = dict(new)
    return [
        [attempt, kept.get(attempt, 0), count - 1]
        for attempt, count in old
        if kept.get(attempt, 0) < count
    ]


def opened(ledger: AttemptLedger) -> LedgerHead | None:
    """Return what an attempt says that it accepts.

    Raises:
        GovernanceBroken: G104: its ledger does not begin as one, or is another attempt's.
    """
    first = ledger.records[0]
    accepts = first.body.get("accepts")
    own = first.body.get("attempt")
    of = (type(first.body.get("experiment")), type(first.body.get("trial")))
    if first.type != "open" or own != ledger.attempt or of != (str, int):
        raise GovernanceBroken("G104", f"it does not begin as the ledger of {ledger.attempt}")
    if accepts is not None and not is_head(accepts):
        raise GovernanceBroken("G104", "its first record does not say what it accepts")
    return None if accepts is None else LedgerHead(**accepts)


def lost_by(earlier: Sequence[AttemptLedger], accepts: LedgerHead | None) -> Lost:
    """Return what is lost when a new attempt goes on from a record of earlier ones.

    Raises:
        GovernanceBroken: an earlier ledger is broken (G104), or the record is in none (G105).
    """
    before: list[tuple[AttemptLedger, LedgerPath]] = []
    for ledger in earlier:
        if ledger.wrong:
            raise GovernanceBroken("G104", ledger.wrong, where=str(ledger.path))
        if ledger.records:
            own = (ledger.attempt, len(ledger.records))
            before.append((ledger, (*path_of(before, opened(ledger)), own)))
    last = before[-1][1] if before else ()
    return lost_between(last, path_of(before, accepts))
