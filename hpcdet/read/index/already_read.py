"""The memory of an index of what it has read, so that updates read new lines only.

For each trial: its records, its journals (``read.experiment.journals``), and how its files looked.
While they look the same (``store.fs.freshness``), none of them is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hpcdet.read.experiment.gather import GatheredAttempt, GatheredTrial
from hpcdet.read.experiment.journals import AttemptJournal, Compared, Journals, Line, encode
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, Control, End, Trial, Verdict
from hpcdet.store.fs import packed
from hpcdet.store.fs.freshness import Seen
from hpcdet.store.fs.json_record import JsonRecord
from hpcdet.store.trials.standing import Standing

Plain = dict[str, Any]
R = TypeVar("R", bound=JsonRecord)


def remember(trial: GatheredTrial) -> str:
    """Return what is known of a trial, as ``recall`` reads it."""
    attempts = [
        {
            "number": one.number,
            "claim": _plain(one.claim),
            "end": _plain(one.end),
            "verdict": _plain(one.verdict),
            "journal": one.journal,
        }
        for one in trial.attempts
    ]
    standing = {**vars(trial.standing), "last_end": _plain(trial.standing.last_end)}
    record, control = _plain(trial.record), _plain(trial.control)
    return encode(
        {"record": record, "control": control, "standing": standing, "attempts": attempts}
    )


def recall(paths: TrialPaths, journals: Journals, text: str) -> GatheredTrial:
    """Return a trial from memory, which opens none of its files other than checkpoints."""
    value = json.loads(text)
    trial, attempts = GatheredTrial(paths, journals), []
    for one in value["attempts"]:
        attempt = GatheredAttempt(paths.attempt(one["number"]), journals)
        vars(attempt).update(  # the cached properties that would read files
            claim=_decode(Claim, one["claim"]),
            end=_decode(End, one["end"]),
            verdict=_decode(Verdict, one["verdict"]),
            journal=AttemptJournal.decode(one["journal"]),
        )
        attempts.append(attempt)
    control, last = _decode(Control, value["control"]), value["standing"]["last_end"]
    vars(trial).update(
        record=_decode(Trial, value["record"]),
        controls=[] if control is None else [control],
        standing=Standing(**{**value["standing"], "last_end": _decode(End, last)}),
        attempts=attempts,
    )
    return trial


@dataclass(frozen=True)
class News:
    """The new lines of one attempt.

    Attributes:
        same: True if its journal continues the one read before; else all its rows are void.
        before: the number of rows of metrics it had before.
    """

    attempt: int
    lines: list[Line]
    same: bool
    before: int


def read_on(trial: GatheredTrial, before: GatheredTrial | None, by: Compared) -> list[News]:
    """Read what is new in the journals of a trial, of which ``before`` is remembered."""
    known = {one.number: one.journal for one in before.attempts} if before else {}
    news = []
    for attempt in trial.attempts:
        journal = known.get(attempt.number) or AttemptJournal()
        rows = journal.rows
        lines, same = journal.read(attempt.paths.journal, by)
        news.append(News(attempt.number, lines, same, rows))
        vars(attempt)["journal"] = journal
    return news


def decision_paths(paths: ExperimentPaths) -> Iterator[Path]:
    """Return the journals of all existing terms."""
    folder = paths.decisions(0).parent
    return (folder / name for name in sorted(packed.names(folder)) if name.endswith(".jsonl"))


def decode_seen(text: str) -> Seen:
    """Return how the files of a trial looked, as ``encode`` has written it."""
    value = json.loads(text)
    return Seen(**{**value, "looks": [tuple(look) for look in value["looks"]]})


def _plain(record: JsonRecord | None) -> Plain | None:
    value: Plain | None = None if record is None else json.loads(record.encode())
    return value


def _decode(kind: type[R], value: Plain | None) -> R | None:
    return None if value is None else kind.decode(value)
