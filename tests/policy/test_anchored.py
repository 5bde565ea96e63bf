"""Heads that anchors hold beside ledgers: what was cut or written anew with its key is found."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import IntegrityError
from hpcdet.policy.ledger import anchored, records
from hpcdet.policy.ledger.anchored import AnchoredHead, Held, beside
from hpcdet.policy.ledger.owners import Owner
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, LedgerOwner
from hpcdet.policy.ledger.verify import verify
from hpcdet.policy.ledger.writer import LedgerWriter
from tests.policy.test_ledger import KEY, begun, path_of, trained, whole

TIME = "2026-11-24T05:00:00.000000Z"


def head(seq: int = 3, digest: str = "ab" * 32, experiment: str = "E-1") -> AnchoredHead:
    return AnchoredHead(experiment, 1, 1, seq, digest, TIME)


def ledger(folder: Path) -> AttemptLedger:
    found = records.read(1, path_of(folder, 1))
    assert found is not None
    return found


def heads_of(found: AttemptLedger, *seqs: int) -> list[AnchoredHead]:
    return [head(seq, found.hashes[seq]) for seq in seqs]


@pytest.mark.parametrize(
    "log",
    [
        b"%s\n",
        b"Nov 24 05:00:00 n01 hpcdet[17]: %s\n",
        b"<13>1 2026-11-24T05:00:00Z n01 hpcdet 17 - - %s -- end\n",
        b'{"attempt":1,"experiment":"E-1","ha%s\n',  # behind what a killed writer has left
        b"\0\0\0\0%s",
    ],
)
def test_a_head_is_found_in_lines_of_any_log(log: bytes) -> None:
    assert AnchoredHead.parse(log % head().to_bytes()) == head()


def test_a_head_is_found_in_the_journals_own_json() -> None:
    line = {"_UID": "1000", "MESSAGE": head().to_bytes().decode(), "A": [1]}
    assert AnchoredHead.parse(json.dumps(line).encode() + b"\n") == head()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nothing",
        b'{"attempt":',
        head().to_bytes()[:-9],
        head(digest="AB" * 32).to_bytes(),
        head(seq=-1).to_bytes(),
        head().to_bytes().replace(b'"trial":1', b'"trial":true'),
        head().to_bytes().replace(b"2026-11-24T05:00:00.000000Z", b"yesterday"),
        b'{"MESSAGE":"{\\"attempt\\":[]}"}',
        b'{"MESSAGE":17,"x":"{\\"attempt\\":1}"}',
        b'{"attempt":' + b"[" * 5000 + b"}",
        b'{"MESSAGE":"\\ud800{\\"attempt\\":1}"}',
    ],
)
def test_what_is_no_head_is_passed_over(line: bytes) -> None:
    assert AnchoredHead.parse(line) is None


def test_only_heads_of_the_experiment_count_and_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = b"\n".join(
        one.to_bytes() for one in (head(1), head(2, experiment="E-2"), head(1), head(3))
    )
    path = Path("log")
    assert anchored.heads_in(io.BytesIO(lines), path, ["E-1"]) == {head(1), head(3)}
    monkeypatch.setattr(anchored, "MOST", 1)
    with pytest.raises(IntegrityError, match="more than 1 heads of E-1"):
        anchored.heads_in(io.BytesIO(lines), path, ["E-1"])


def test_nothing_is_wrong_with_a_ledger_that_has_its_heads(tmp_path: Path) -> None:
    whole(tmp_path)
    found = ledger(tmp_path)
    last = len(found.records) - 1
    held = beside("file:/w", heads_of(found, 1, last), [found])
    assert (held.heads, held.behind, held.overdue, held.bad) == (2, 0, (), None)
    held = beside("file:/w", heads_of(found, 1), [found])
    assert (held.behind, held.overdue) == (last - 1, ((1, 1, last),))
    assert beside("file:/w", (), [found]).overdue == ((1, -1, last),)


def test_a_ledger_that_was_cut_behind_an_anchored_head_is_found(tmp_path: Path) -> None:
    whole(tmp_path)
    heads = heads_of(ledger(tmp_path), 2, 5)
    path = path_of(tmp_path, 1)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    bad = beside("file:/w", heads, [ledger(tmp_path)]).bad
    assert bad is not None and (bad.attempt, bad.seq, bad.code) == (1, 5, "G105")
    assert "the ledger ends with 4" in bad.what and f"file:/w holds it since {TIME}" in bad.what
    gone = beside("file:/w", heads, []).bad
    assert gone is not None and "attempt 1 has no ledger" in gone.what


def test_a_ledger_that_was_written_anew_with_its_own_key_is_found(tmp_path: Path) -> None:
    whole(tmp_path)
    heads = heads_of(ledger(tmp_path), 4)
    path_of(tmp_path, 1).unlink()
    with begun(tmp_path, key=KEY) as writer:
        trained(writer, 0, 2)
        trained(writer, 2, 3)
        trained(writer, 3, 4)
        writer.close(4)
    bad = beside("a log", heads, [ledger(tmp_path)]).bad
    assert bad is not None and bad.code == "G105" and "written anew" in bad.what
    # and one that goes on to be anchored shows all the same
    assert beside("a log", [*heads, *heads_of(ledger(tmp_path), 5)], [ledger(tmp_path)]).bad == bad


def test_names_of_experiments_lead_nowhere_else(tmp_path: Path) -> None:
    path = anchored.path_in(tmp_path, "../x y", 3, 1000)
    assert path.parent == tmp_path and path.name == "..%2Fx%20y.3.1000.jsonl"
    for name in ("E-1.2.7.jsonl", "E-1.12.7.jsonl", "E-1.2.8.jsonl", "E-11.3.7.jsonl", "E-1.2.7.x"):
        (tmp_path / name).touch()
    assert anchored.trials_in(tmp_path, "E-1", 7) == [2, 12]
    assert anchored.heads_in_folder(tmp_path, "E-1", 2, 7) == set()
    with pytest.raises(FileNotFoundError):
        anchored.heads_in_folder(tmp_path / "none", "E-1", 2, 7)


# -- whose ledgers they are -----------------------------------------------------------------------

OWN, FORK = ("exp", 1), ("fork", 1)


def forked(folder: Path) -> list[AttemptLedger]:
    """Ledgers of a trial that had ended, and that has gone on in a fork."""
    whole(folder)
    old = ledger(folder)
    more: dict[str, Any] = {"earlier": [old], "accepts": old.head, "key": KEY}
    with LedgerWriter(path_of(folder, 2), LedgerOwner("fork", 1, 2), **more) as writer:
        trained(writer, 9, 12)
    new = records.read(2, path_of(folder, 2))
    assert new is not None
    return [old, new]


def held_of(heads: dict[Owner, list[AnchoredHead]]) -> Held:
    return lambda experiment, trial: heads.get((experiment, trial), [])


def test_a_trial_of_a_fork_has_the_heads_of_the_attempts_that_it_was_taken_over_with(
    tmp_path: Path,
) -> None:
    old, new = forked(tmp_path)
    assert verify([old, new], trial=1).bad is None
    last = len(old.records) - 1
    on_there = dataclasses.replace(head(2), attempt=2)  # which the former experiment has, alone
    heads = {
        OWN: [*heads_of(old, 1, last), on_there],
        FORK: [dataclasses.replace(head(), attempt=3)],
    }
    found = anchored.expected(held_of(heads), [old, new], FORK)
    assert found == {OWN: set(heads_of(old, 1, last)), FORK: set(heads[FORK])}
    cut = dataclasses.replace(old, records=old.records[:last], hashes=old.hashes[:last])
    [bad] = anchored.expected(held_of(heads), [cut, new], FORK)[OWN] - set(heads_of(old, 1))
    assert beside("file:/w", [bad], [cut, new]).bad is not None, "it was taken over whole"
    assert anchored.expected(held_of(heads), [old], OWN) == {OWN: set(heads[OWN])}
    nothing = dataclasses.replace(old, records=(), hashes=())
    assert anchored.expected(held_of({}), [nothing, new], OWN) == {OWN: set(), FORK: set()}


def test_a_copy_of_a_parents_ledger_has_the_heads_up_to_its_end(tmp_path: Path) -> None:
    whole(tmp_path)
    old = ledger(tmp_path)
    heads = {OWN: heads_of(old, 1, 5, 9)}
    copy = dataclasses.replace(old, records=old.records[:7], hashes=old.hashes[:7])
    found = anchored.expected(held_of(heads), [copy], copies=True)
    assert found == {OWN: set(heads_of(old, 1, 5))}
    newer_attempt = [
        *heads[OWN],
        dataclasses.replace(head(), attempt=2),
    ]  # which may not be seen yet
    assert anchored.expected(held_of({OWN: newer_attempt}), [old]) == {OWN: set(heads[OWN])}

    def newer(seq: int) -> AnchoredHead | None:
        return anchored.not_copied(held_of(heads), [copy], LedgerHead(1, seq, old.hashes[seq]))

    assert newer(5) is None, "the anchor has it"
    assert newer(6) == heads[OWN][2], "it may be of another history"
    assert anchored.not_copied(held_of({}), [copy], LedgerHead(1, 6, old.hashes[6])) is None


def test_ledgers_of_several_experiments_are_of_one_trial_that_has_gone_on(tmp_path: Path) -> None:
    old, new = forked(tmp_path)

    def other(**changes: Any) -> AttemptLedger:
        first = new.records[0]
        begins = dataclasses.replace(first, body={**first.body, **changes})
        return dataclasses.replace(new, records=(begins, *new.records[1:]))

    for wrong in (other(trial=2), other(accepts=None)):
        bad = verify([old, wrong]).bad
        assert bad is not None and (bad.code, bad.seq) == ("G105", 0)
