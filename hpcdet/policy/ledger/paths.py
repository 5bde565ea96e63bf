"""Paths through the ledgers of a trial's attempts: what counts, and what a crash has undone.

The path of an attempt is what it accepts of earlier ones, and all of its own. What the path of the
attempt before it has and its own has not was trained and lost: the attempt has to say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, LedgerRecord, is_head

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
        GovernanceBroken: G105: the record is in none of them; G104: what is there is damaged.
    """
    if accepts is None:
        return ()
    for ledger, path in before:
        if ledger.attempt == accepts.attempt:
            if ledger.wrong and accepts.seq >= len(ledger.records):
                raise GovernanceBroken("G104", ledger.wrong, where=str(ledger.path))
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
    """Return the head that an attempt accepts of the one before it; None: it has none.

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


def seen_first(ledger: AttemptLedger) -> dict[int, int]:
    """Return how many records of each earlier attempt were there when an attempt began.

    Raises:
        GovernanceBroken: G104: it does not say.
    """
    try:
        return {int(attempt): int(count) for attempt, count in ledger.records[0].body["seen"]}
    except (KeyError, TypeError, ValueError):
        raise GovernanceBroken(
            "G104", "its first record does not say what was there before it"
        ) from None


def seen_by(ledger: AttemptLedger, before: Sequence[AttemptLedger]) -> dict[int, int]:
    """Return the same, if all of it is still there.

    An attempt that was believed lost may have gone on for a while: what it has written behind
    counts as little as what was lost, and nobody could record it.

    Raises:
        GovernanceBroken: G104: it does not say; G105: a ledger is shorter by now.
    """
    seen = seen_first(ledger)
    there = {one.attempt: len(one.records) for one in before}
    for attempt, count in seen.items():
        if there.get(attempt, 0) < count:
            raise GovernanceBroken(
                "G105",
                f"attempt {attempt} had {count} records when it began, and has "
                f"{there.get(attempt, 0)}",
                where=str(ledger.path),
                hint="the ledger of the earlier attempt was truncated: put it back from a backup",
            )
    return seen


def lost_by(earlier: Sequence[AttemptLedger], accepts: LedgerHead | None) -> Lost:
    """Return what is lost when a new attempt goes on from a record of earlier ones.

    Raises:
        GovernanceBroken: an earlier ledger is broken (G104), or the record is in none (G105).
    """
    before = paths_of(earlier)
    last = before[-1][1] if before else ()
    return lost_between(last, path_of(before, accepts))


def paths_of(ledgers: Sequence[AttemptLedger]) -> list[tuple[AttemptLedger, LedgerPath]]:
    """Return the ledgers that have a record, in order, each with its path.

    Raises:
        GovernanceBroken: as ``path_of``, for one of them.
    """
    found: list[tuple[AttemptLedger, LedgerPath]] = []
    for ledger in ledgers:
        if ledger.records:
            own = (ledger.attempt, len(ledger.records))
            found.append((ledger, (*path_of(found, opened(ledger)), own)))
    return found


def records_behind(
    ledgers: Sequence[tuple[AttemptLedger, LedgerPath]], head: LedgerHead
) -> Iterator[LedgerRecord]:
    """Yield the records that count up to one, in order.

    Args:
        ledgers: as ``paths_of`` gives them.

    Raises:
        GovernanceBroken: G105: the record is in none of them.
    """
    by_attempt = {one.attempt: one for one, _ in ledgers}
    for attempt, count in path_of(ledgers, head):
        yield from by_attempt[attempt].records[:count]
