"""Heads of ledgers as anchors hold them: what was cut or written anew does not have them any more.

An anchor gets a line for each head, ``{"attempt":…,"experiment":…,"hash":…,"seq":…,"time":…,
"trial":…}``. A log has its own words before it; a writer that was killed leaves a part of a line,
and the next line behind that. So a line is looked for from its end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from hpcdet.policy.ledger.owners import Owner, owner_of
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, is_head
from hpcdet.policy.ledger.verify import FirstBad
from hpcdet.store.fs import bounded_json, files, typed_fields

Held = Callable[[str, int], "Collection[AnchoredHead]"]
"""The heads of a trial that an anchor holds, by the name of its experiment and its number."""
FILE, COMMAND, SYSLOG = "file:", "command:", "syslog"
"""How anchors begin in a compiled policy."""
MOST = 1_000_000
"""Heads that are read of one anchor."""

_BEGIN, _ESCAPED = b'{"attempt":', rb"{\"attempt\":"
_LONGEST = 64 * 1024
_DUE = ("checkpoint", "close")
"""Records behind which the head of a ledger without a key is anchored."""


@dataclass(frozen=True)
class AnchoredHead:
    """The head of an attempt's ledger, as it was given to an anchor.

    Attributes:
        experiment: its name in the ledger.
        seq: the record; ``hash``: its own, 64 hex digits.
        time: ISO 8601, when it was given, by the host's clock.
    """

    experiment: str
    trial: int
    attempt: int
    seq: int
    hash: str
    time: str

    def to_bytes(self) -> bytes:
        """Its line, without the newline."""
        return files.canonical(asdict(self))

    @staticmethod
    def parse(line: bytes) -> AnchoredHead | None:
        """Return the last head in a line of a file or a log; None if there is none."""
        if _ESCAPED in line:
            line = _message(line)
        begin = line.rfind(_BEGIN)
        if begin < 0:
            return None
        try:
            value = bounded_json.json_value(line[begin : line.rfind(b"}") + 1])
            head = typed_fields.build(AnchoredHead, value)
        except (TypeError, ValueError):
            return None
        plain = {"attempt": head.attempt, "seq": head.seq, "hash": head.hash}
        whole = is_head(plain) and head.trial > 0 and files.is_time(head.time)
        return head if whole else None


def _message(line: bytes) -> bytes:
    """The message of a line of ``journalctl -o json``."""
    try:
        value = bounded_json.json_value(line)
    except ValueError:
        return b""
    said = value.get("MESSAGE") if isinstance(value, dict) else None
    return said.encode(errors="replace") if isinstance(said, str) else b""


# -- what anchors hold --------------------------------------------------------------------------


def path_in(folder: Path, experiment: str, trial: int, uid: int) -> Path:
    """Return the file of a trial in the folder of a ``file:`` anchor.

    Names of experiments of several users may be alike: the number of the user is in it.
    """
    return folder / f"{quote(experiment, safe='')}.{trial}.{uid}.jsonl"


def folders(anchors: Sequence[str]) -> list[Path]:
    """Return the folders of ``file:`` anchors, in order."""
    return [Path(one.removeprefix(FILE)) for one in anchors if one.startswith(FILE)]


def trials_in(folder: Path, experiment: str, uid: int) -> list[int]:
    """Return the trials of an experiment that a folder has a file of.

    Raises:
        OSError: it is not there, or may not be listed.
    """
    name = re.compile(rf"{re.escape(quote(experiment, safe=''))}\.([1-9]\d*)\.{uid}\.jsonl")
    return sorted(int(found[1]) for one in os.listdir(folder) if (found := name.fullmatch(one)))


def owners(folder: os.stat_result, uid: int) -> set[int]:
    """Return who may own a user's file in a folder: a service of the site may take it over."""
    return {uid, 0, folder.st_uid}


def heads_in_folder(folder: Path, experiment: str, trial: int, uid: int) -> set[AnchoredHead]:
    """Return the heads of a trial that a ``file:`` anchor holds.

    Raises:
        OSError: the folder is not there, or what it holds may not be read.
        IntegrityError: its file is none, another user has put it there, or as ``heads_in``.
    """
    path = path_in(folder, experiment, trial, uid)
    whose = owners(os.stat(folder), uid)
    try:
        file = files.open_file(path)
    except FileNotFoundError:
        return set()
    with file:
        if os.fstat(file.fileno()).st_uid not in whose:
            raise files.damaged(path, "another user has put it there")
        return {one for one in heads_in(file, path, [experiment]) if one.trial == trial}


def heads_in(file: IO[bytes], path: Path, experiments: Collection[str]) -> set[AnchoredHead]:
    """Return the heads of experiments in a file or a log.

    Raises:
        IntegrityError: there are more than ``MOST``.
    """
    found: set[AnchoredHead] = set()
    for one in _lines(file):
        head = AnchoredHead.parse(one)
        if head is not None and head.experiment in experiments:
            found.add(head)
            if len(found) > MOST:
                names = ", ".join(sorted(experiments))
                raise files.damaged(path, f"it has more than {MOST} heads of {names}")
    return found


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    while raw := file.readline(_LONGEST):
        yield raw


# -- beside ledgers -----------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadsBesideLedgers:
    """What an anchor holds of a trial, beside its ledgers.

    Attributes:
        heads: how many.
        behind: records that are behind the newest heads, over all attempts: nobody would miss them.
        overdue: attempts that have sealed records behind the newest head: the attempt, the record
            of that head (-1: there is none), and of the last that should be held.
        bad: the first head that the ledgers do not have.
    """

    heads: int
    behind: int
    overdue: tuple[tuple[int, int, int], ...]
    bad: FirstBad | None


def expected(
    held: Held,
    ledgers: Sequence[AttemptLedger],
    own: Owner | None = None,
    *,
    copies: bool = False,
) -> dict[Owner, set[AnchoredHead]]:
    """Return the heads that the ledgers of a trial have to hold, by whose they are.

    Args:
        held: what an anchor holds of a trial.
        own: the trial that lacks no attempt. Of others, such as those that a fork has taken over,
            attempts that are there lack no record.
        copies: each ledger ends where it did when it was copied.
    """
    ends: dict[Owner, dict[int, int]] = {}
    for one in ledgers:
        if one.records:
            ends.setdefault(owner_of(one), {})[one.attempt] = len(one.records)
    found = {} if own is None else {own: set(held(*own))}
    for owner in ends.keys() - found.keys():
        of = ends[owner]
        there = {one for one in held(*owner) if one.attempt in of}
        found[owner] = {one for one in there if not copies or one.seq < of[one.attempt]}
    return found


def not_copied(
    held: Held, copies: Sequence[AttemptLedger], head: LedgerHead
) -> AnchoredHead | None:
    """Return the next head behind a record, where the copy of its ledger ends before that head.

    Nothing shows then that the record is of the history that the anchor holds.

    Args:
        held: what an anchor holds of a trial.
    """
    ledger = next((one for one in copies if one.attempt == head.attempt and one.records), None)
    if ledger is None:
        return None
    own = (one for one in held(*owner_of(ledger)) if one.attempt == head.attempt)
    newer = min((one for one in own if one.seq >= head.seq), key=lambda one: one.seq, default=None)
    return newer if newer is not None and newer.seq >= len(ledger.records) else None


def beside(
    anchor: str, heads: Collection[AnchoredHead], ledgers: Sequence[AttemptLedger]
) -> HeadsBesideLedgers:
    """Compare the heads that an anchor holds of a trial with its ledgers.

    Heads have to be read before ledgers: a trial may be training.
    """
    newest: dict[int, int] = {}
    bad: FirstBad | None = None
    by_attempt = {one.attempt: one for one in ledgers}
    for head in sorted(heads, key=lambda one: (one.attempt, one.seq, one.time)):
        ledger = by_attempt.get(head.attempt)
        there = ledger.hashes[head.seq : head.seq + 1] if ledger else ()
        if there == (head.hash,):
            newest[head.attempt] = head.seq
        elif bad is None:
            what = f"{_instead(ledger, head)}; {anchor} holds it since {head.time}"
            bad = FirstBad(head.attempt, head.seq, "G105", what)
    ends = [(one.attempt, newest.get(one.attempt, -1), _due(one)) for one in ledgers]
    return HeadsBesideLedgers(
        len(heads),
        sum(len(one.records) - newest.get(one.attempt, -1) - 1 for one in ledgers),
        tuple((attempt, held, due) for attempt, held, due in ends if due > held),
        bad,
    )


def _instead(ledger: AttemptLedger | None, head: AnchoredHead) -> str:
    if ledger is None or not ledger.records:
        return f"attempt {head.attempt} has no ledger"
    if head.seq < len(ledger.records):
        return "it was written anew: another record is there"
    return f"it is not there any more: the ledger ends with {len(ledger.records)}"


def _due(ledger: AttemptLedger) -> int:
    """The last record that anchors should hold; -1: none."""
    signed = any(one.type == "seal" for one in ledger.records)
    due = [one.seq for one in ledger.records if one.type in (("seal",) if signed else _DUE)]
    return due[-1] if due else -1
