"""Ledgers: every change of what was written is found, and where it begins."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from hpcdet.policy.admission import exposure
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup
from hpcdet.policy.ledger import records, seals
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, LedgerOwner
from hpcdet.policy.ledger.verify import LedgerExposure, VerifiedLedger, verify
from hpcdet.policy.ledger.writer import LedgerWriter
from hpcdet.policy.merkle import Merkle

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
POLICY = CompiledPolicy(
    name="p",
    version=1,
    text_digest="sha256:0",
    layers=(LayerGroup("trunk", "^t"), LayerGroup("head", "^h")),
    sources=(DataSource("a"), DataSource("b")),
    matrix=((1.0, 1.0), (0.0, 0.3)),
)


def public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def path_of(folder: Path, attempt: int) -> Path:
    return folder / "attempts" / str(attempt) / "ledger.jsonl"


def begun(folder: Path, attempt: int = 1, **given: Any) -> LedgerWriter:
    earlier = [one for n in range(1, attempt) if (one := records.read(n, path_of(folder, n)))]
    return LedgerWriter(
        path_of(folder, attempt),
        LedgerOwner("exp", 1, attempt),
        **{"earlier": earlier, "key": KEY, "segment": 4, **given},
    )


def trained(writer: LedgerWriter, begin: int, end: int) -> LedgerHead:
    head = writer.head
    for step in range(begin, end):
        body = {"steps": [step, step + 1], "counts": {"a": 3, "a+b": 1, "b": 2}}
        head = writer.append("step_batch", step, policy_digest=POLICY.digest, **body)
    return head


def whole(folder: Path) -> None:
    with begun(folder) as writer:
        writer.policy(0, POLICY)
        trained(writer, 0, 9)
        writer.close(9)


def found(folder: Path, attempts: int = 1, *trust: str, **given: Any) -> VerifiedLedger:
    read = [records.read(n, path_of(folder, n)) for n in range(1, attempts + 1)]
    return verify([one for one in read if one is not None], trust, **given)


def bad(result: VerifiedLedger) -> tuple[int, int, str] | None:
    return None if result.bad is None else (result.bad.attempt, result.bad.seq, result.bad.code)


# -- one attempt -----------------------------------------------------------------------------


def test_a_ledger_is_what_was_written(tmp_path: Path) -> None:
    whole(tmp_path)
    result = found(tmp_path)
    assert bad(result) is None
    assert result.signed == "self"
    assert found(tmp_path, 1, public(KEY)).signed == "trusted"
    types = [one.type for one in result.counting()]
    assert types[:2] == ["open", "policy"]
    assert types.count("seal") == 3
    assert types[-2:] == ["close", "seal"]
    assert result.unsealed == 0
    assert result.head == LedgerHead(1, len(types) - 1, result.ledgers[0].hashes[-1])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("written")
    whole(folder)
    return path_of(folder, 1).read_bytes()


def of_bytes(folder: Path, data: bytes) -> VerifiedLedger:
    path = path_of(folder, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return found(folder)


@given(place=st.integers(0), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_in_its_record(
    tmp_path_factory: pytest.TempPathFactory, written: bytes, place: int, bit: int
) -> None:
    place %= len(written) - 1  # the last newline makes the last line a torn one
    data = bytearray(written)
    data[place] ^= 1 << bit
    result = of_bytes(tmp_path_factory.mktemp("flip"), bytes(data))
    seq = written[:place].count(b"\n")
    assert bad(result) == (1, seq, "G104")


@given(data=st.data())
def test_lines_left_out_repeated_or_exchanged_are_found(
    tmp_path_factory: pytest.TempPathFactory, written: bytes, data: st.DataObject
) -> None:
    lines = written.splitlines(keepends=True)
    one = data.draw(st.integers(0, len(lines) - 2))
    other = data.draw(st.integers(one + 1, len(lines) - 1))
    changed = data.draw(
        st.sampled_from(
            [
                lines[:one] + lines[one + 1 :],
                lines[: one + 1] + lines[one:],
                [
                    *lines[:one],
                    lines[other],
                    *lines[one + 1 : other],
                    lines[one],
                    *lines[other + 1 :],
                ],
            ]
        )
    )
    result = of_bytes(tmp_path_factory.mktemp("lines"), b"".join(changed))
    first = next(n for n, line in enumerate(changed) if n >= len(lines) or line != lines[n])
    assert bad(result) == (1, first, "G104")


def test_a_torn_tail_is_ignored_and_a_torn_middle_is_not(tmp_path: Path, written: bytes) -> None:
    lines = written.splitlines(keepends=True)
    result = of_bytes(tmp_path, b"".join(lines[:5]) + lines[5][:40])
    assert bad(result) is None
    assert (result.records, result.ledgers[0].torn) == (5, 40)
    assert bad(of_bytes(tmp_path, b"".join([*lines[:5], lines[5][:40], *lines[6:]]))) == (
        1,
        5,
        "G104",
    )


def test_a_ledger_that_was_cut_does_not_hold_what_a_checkpoint_names(
    tmp_path: Path, written: bytes
) -> None:
    lines = written.splitlines(keepends=True)
    head = of_bytes(tmp_path, written).head
    assert head is not None
    assert bad(found(tmp_path, must_hold=head)) is None
    of_bytes(tmp_path, b"".join(lines[:-1]))
    assert bad(found(tmp_path)) is None  # by itself it cannot know
    assert bad(found(tmp_path, must_hold=head)) == (1, head.seq, "G105")
    fork = dataclasses.replace(head, hash="0" * 64)
    of_bytes(tmp_path, written)
    assert bad(found(tmp_path, must_hold=fork)) == (1, head.seq, "G105")


@pytest.mark.parametrize(
    "line",
    [
        b"x" * (records.LONGEST + 2) + b"\n",
        b"x" * (records.LONGEST + 2),
        b'{"body":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b'{"body":{"x":NaN}}\n',
        b"\0" * 100 + b"\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"\n",
    ],
)
def test_hostile_lines_are_broken_ledgers(tmp_path: Path, written: bytes, line: bytes) -> None:
    lines = written.splitlines(keepends=True)
    assert bad(of_bytes(tmp_path, b"".join(lines[:3]) + line)) == (1, 3, "G104")
    assert bad(of_bytes(tmp_path, line)) == (1, 0, "G104")


@pytest.mark.parametrize(
    "data",
    [
        b'{"body":{},"body":{"x":1},"host":"h","prev":"","seq":0,"step":0,'
        b'"time":"2026-01-01T00:00:00Z","type":"open"}',
        b'{"body":{"x":0.5},"host":"h","prev":"","seq":0,"step":0,'
        b'"time":"2026-01-01T00:00:00Z","type":"open"}',
        b'{"body":{"x":NaN},"host":"h","prev":"","seq":0,"step":0,'
        b'"time":"2026-01-01T00:00:00Z","type":"open"}',
        b'{"body": {},"host":"h","prev":"","seq":0,"step":0,'
        b'"time":"2026-01-01T00:00:00Z","type":"open"}',
        b'{"body":{},"host":"h","prev":"","seq":0,"step":0,"time":"soon","type":"open"}',
        b'{"body":{},"host":"h","prev":"","seq":0,"step":0,'
        b'"time":"2026-01-01T00:00:00Z","type":"party"}',
    ],
)
def test_what_has_the_right_hash_is_still_written_in_one_way_only(data: bytes) -> None:
    digest = hashlib.sha256(b"\0" + data).hexdigest()
    with pytest.raises(ValueError, match=r"written|exact|type|record"):
        records.parse(data[:-1] + b',"hash":"%s"}' % digest.encode())


@pytest.mark.parametrize("value", [0.5, float("nan"), 2**53, {1: 2}, [[-(2**60)]]])
def test_what_is_not_exact_is_not_written(tmp_path: Path, value: object) -> None:
    with begun(tmp_path) as writer:
        before = path_of(tmp_path, 1).read_bytes()
        with pytest.raises(ValueError, match=r"exact|no text"):
            writer.append("eval", 1, value=value)
        assert path_of(tmp_path, 1).read_bytes() == before
        writer.append("eval", 1, value="0x1p-1")
    assert bad(found(tmp_path)) is None


# -- signatures ------------------------------------------------------------------------------


def test_a_key_that_is_not_trusted_or_missing(tmp_path: Path) -> None:
    whole(tmp_path)
    assert bad(found(tmp_path, 1, public(OTHER))) == (1, 0, "G102")
    with begun(tmp_path / "unsigned", key=None) as writer:
        trained(writer, 0, 9)
    assert found(tmp_path / "unsigned").signed == "none"
    assert bad(found(tmp_path / "unsigned", 1, public(KEY))) == (1, 0, "G102")


def test_a_record_with_a_hash_of_its_own_is_found_by_the_next(tmp_path: Path) -> None:
    with begun(tmp_path, key=None) as writer:
        trained(writer, 0, 5)
    [original] = found(tmp_path).ledgers
    lines = path_of(tmp_path, 1).read_bytes().splitlines(keepends=True)
    changed = dataclasses.replace(original.records[2], body={"counts": {"a": 9}})
    lines[2] = records.line(changed)[0]
    assert bad(of_bytes(tmp_path, b"".join(lines))) == (1, 3, "G104")


def test_a_chain_written_anew_lacks_the_signature(tmp_path: Path) -> None:
    whole(tmp_path)
    original = found(tmp_path).ledgers[0]
    prev, lines = "", []
    for one in original.records:
        body = dict(one.body)
        if one.type == "step_batch":
            body["counts"] = {"a": 9}
        data, prev = records.line(dataclasses.replace(one, prev=prev, body=body))
        lines.append(data)
    assert bad(of_bytes(tmp_path, b"".join(lines))) == (1, 4, "G104")  # the first seal's root


def test_nothing_is_sealed_twice(tmp_path: Path) -> None:
    with begun(tmp_path) as writer:
        trained(writer, 0, 3)  # with the first record these fill a segment
        sealed = writer.head
        assert writer.sealed == writer.seal(3) == writer.head == sealed
        part = seals.Segment(writer.of, 5, 4, Merkle().root)  # what a seal of nothing would be
        body = {"begin": 5, "end": 4, "root": part.root, "dsse": seals.sign(part, KEY)}
        writer.append("seal", 3, **body)
    assert bad(found(tmp_path)) == (1, 5, "G104")


def test_a_seal_by_another_key_is_found(tmp_path: Path) -> None:
    whole(tmp_path)
    original = found(tmp_path).ledgers[0]
    prev, lines = "", []
    for one in original.records:
        body = dict(one.body)
        if one.seq == 4:
            part = seals.Segment(LedgerOwner("exp", 1, 1), 0, 3, body["root"])
            body["dsse"] = seals.sign(part, OTHER)
        data, prev = records.line(dataclasses.replace(one, prev=prev, body=body))
        lines.append(data)
    assert bad(of_bytes(tmp_path, b"".join(lines))) == (1, 4, "G102")


DAY = "2026-11-23T00:00:00Z", "2026-11-24T00:00:00Z"


@pytest.mark.parametrize(
    ("time", "changes", "trusted"),
    [
        ("2026-11-23T12:00:00Z", {}, True),
        ("2026-11-25T12:00:00Z", {}, False),  # a clock two days ahead
        ("2026-11-21T12:00:00Z", {}, False),  # and two days behind
        ("2026-11-23T12:00:00Z", {"experiment": "other"}, False),
        ("2026-11-23T12:00:00Z", {"key": public(OTHER)}, False),
        ("2026-11-23T12:00:00Z", {"not_before": "2026-11-23"}, False),
        ("2026-11-23T12:00:00Z", {"not_after": "never"}, False),
    ],
)
def test_a_certified_key(time: str, changes: dict[str, str], trusted: bool) -> None:
    site = Ed25519PrivateKey.generate()
    given = seals.Certificate(
        **{"key": public(KEY), "experiment": "exp", "not_before": DAY[0], "not_after": DAY[1]}
        | changes
    )
    opened = {"key": public(KEY), "experiment": "exp", "certificate": seals.sign(given, site)}
    if trusted:
        assert seals.trust_of(opened, time, [public(site)]) == "trusted"
        with pytest.raises(GovernanceBroken, match="G102"):
            seals.trust_of(opened, time, [public(OTHER)])
    else:
        with pytest.raises(GovernanceBroken, match="G102"):
            seals.trust_of(opened, time, [public(site)])


# -- several attempts --------------------------------------------------------------------------


def crashed(folder: Path) -> LedgerHead:
    """An attempt that is lost three steps behind its checkpoint."""
    with begun(folder) as writer:
        writer.policy(0, POLICY)
        kept = trained(writer, 0, 5)
        trained(writer, 5, 8)
        writer.flush()
    return kept


def test_a_crash_is_a_rollback_and_what_was_lost_does_not_count(tmp_path: Path) -> None:
    kept = crashed(tmp_path)
    with begun(tmp_path, 2, step=5, accepts=kept) as writer:
        writer.policy(5, POLICY)
        trained(writer, 5, 9)
        writer.close(9)
    result = found(tmp_path, 2)
    assert bad(result) is None
    assert result.rollbacks == ((1, kept.seq + 1, len(result.ledgers[0].records) - 1),)
    sums = LedgerExposure.of(result.counting())
    counts = {"a": 27, "a+b": 9, "b": 18}
    assert sums.units[POLICY.digest] == counts
    expected = exposure(POLICY, counts)
    rows = [[sums.matrix()[s][layer] for layer in ("trunk", "head")] for s in ("a", "b")]
    assert rows == expected.tolist()
    assert sums.of_layer("trunk") == [("a", 27, 27.0)]  # with b, nothing of either
    assert [one[:2] for one in sums.of_layer("head")] == [("a", 36), ("b", 27)]


def test_a_fallback_over_two_attempts(tmp_path: Path) -> None:
    kept = crashed(tmp_path)
    with begun(tmp_path, 2, accepts=kept) as writer:
        trained(writer, 5, 9)
    with begun(tmp_path, 3, accepts=kept) as writer:  # the second's checkpoint is torn
        trained(writer, 5, 6)
    result = found(tmp_path, 3)
    assert bad(result) is None
    assert [one[0] for one in result.path] == [1, 3]
    assert [one[0] for one in result.rollbacks] == [1, 2]
    with begun(tmp_path, 4) as writer:  # from the beginning
        trained(writer, 0, 1)
    again = found(tmp_path, 4)
    assert bad(again) is None
    assert [one[0] for one in again.path] == [4]


def rewritten(folder: Path, attempt: int, keep: Any) -> None:
    """Write an attempt's ledger again, unsigned, with some of its records."""
    path = path_of(folder, attempt)
    read = records.read(attempt, path)
    assert isinstance(read, AttemptLedger)
    prev, lines = "", []
    for seq, one in enumerate(filter(keep, read.records)):
        data, prev = records.line(dataclasses.replace(one, seq=seq, prev=prev))
        lines.append(data)
    path.write_bytes(b"".join(lines))


def test_a_rollback_that_is_not_recorded(tmp_path: Path) -> None:
    kept = crashed(tmp_path)
    with begun(tmp_path, 2, accepts=kept, key=None) as writer:
        trained(writer, 5, 9)
    rewritten(tmp_path, 2, lambda one: one.type != "rollback")
    assert bad(found(tmp_path, 2)) == (2, 1, "G106")


def test_an_earlier_attempt_that_is_cut_or_goes_on_is_found(tmp_path: Path) -> None:
    kept = crashed(tmp_path)
    with begun(tmp_path, 2, accepts=kept) as writer:
        trained(writer, 5, 9)
    path = path_of(tmp_path, 1)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: kept.seq]))
    assert bad(found(tmp_path, 2)) == (2, 0, "G105")
    path.write_bytes(b"".join(lines[: kept.seq + 2]))  # behind what is accepted
    assert bad(found(tmp_path, 2)) == (2, 1, "G105")
    path.unlink()
    assert bad(found(tmp_path, 2)) == (2, 0, "G105")
    path.write_bytes(data)
    assert bad(found(tmp_path, 2)) is None


def test_what_a_lost_attempt_still_writes_is_no_fault_of_the_next(tmp_path: Path) -> None:
    with begun(tmp_path) as lost:
        lost.policy(0, POLICY)
        kept = trained(lost, 0, 5)
        trained(lost, 5, 8)
        with begun(tmp_path, 2, accepts=kept) as writer:
            trained(writer, 5, 9)
            trained(lost, 8, 11)
    result = found(tmp_path, 2)
    assert bad(result) is None
    assert sum(LedgerExposure.of(result.counting()).units[POLICY.digest].values()) == 9 * 6


def test_a_tail_that_a_power_failure_damaged_does_not_stop_what_goes_on_before_it(
    tmp_path: Path,
) -> None:
    kept = crashed(tmp_path)
    path = path_of(tmp_path, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[-1] = b"\0" * (len(lines[-1]) - 1) + b"\n"
    path.write_bytes(b"".join(lines))
    assert bad(found(tmp_path)) == (1, len(lines) - 1, "G104")
    with begun(tmp_path, 2, accepts=kept) as writer:
        trained(writer, 5, 9)
    assert bad(found(tmp_path, 2)) is None
    lines[kept.seq + 1] = b"\0\n"  # later, and not by the failure
    path.write_bytes(b"".join(lines))
    assert bad(found(tmp_path, 2)) == (1, kept.seq + 1, "G104")


def test_a_ledger_of_another_attempt(tmp_path: Path) -> None:
    whole(tmp_path)
    path_of(tmp_path, 1).parent.rename(tmp_path / "attempts" / "2")
    assert bad(found(tmp_path, 2)) == (2, 0, "G104")


def test_a_ledger_of_another_trial(tmp_path: Path) -> None:
    whole(tmp_path)
    assert bad(found(tmp_path, trial=1)) is None
    assert bad(found(tmp_path, trial=2)) == (1, 0, "G105")
    path = path_of(tmp_path, 2)
    with LedgerWriter(path, LedgerOwner("other", 1, 2), earlier=found(tmp_path).ledgers):
        pass
    assert bad(found(tmp_path, 2)) == (2, 0, "G105")


def test_nothing_goes_on_from_a_broken_ledger(tmp_path: Path) -> None:
    kept = crashed(tmp_path)
    path = path_of(tmp_path, 1)
    path.write_bytes(path.read_bytes().replace(b'"b":2', b'"b":0', 1))
    with pytest.raises(GovernanceBroken, match="G104"):
        begun(tmp_path, 2, accepts=kept)
    assert not path_of(tmp_path, 2).exists()


# -- writers ---------------------------------------------------------------------------------


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with begun(tmp_path) as writer:
        with pytest.raises(GovernanceBroken, match=r"G105.*already"):
            begun(tmp_path)
        with path_of(tmp_path, 1).open("ab") as other:
            other.write(b"x\n")
        with pytest.raises(GovernanceBroken, match="another process"):
            writer.append("eval", 1)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = path_of(tmp_path, 1)
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GovernanceBroken, match="G105"):
        begun(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_a_whole_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(tmp_path) as writer:

        def half(fd: int, data: bytes) -> None:
            os.write(fd, data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("hpcdet.store.fs.files.write_all", half)
            with pytest.raises(OSError, match="space"):
                writer.append("eval", 1)
        trained(writer, 0, 6)
        writer.close(6)
    result = found(tmp_path)
    assert bad(result) is None
    assert [one.type for one in result.counting()].count("eval") == 0


_KILLED = """
import sys
from pathlib import Path
from hpcdet.policy.ledger.records import LedgerOwner
from hpcdet.policy.ledger.writer import LedgerWriter
writer = LedgerWriter(Path(sys.argv[1]), LedgerOwner("exp", 1, 1))
print("begun", flush=True)
step = 0
while True:
    step += 1
    writer.append("step_batch", step, counts={"a": step}, fill="x" * 5000)
"""


def test_a_writer_that_is_killed_leaves_what_the_next_accepts(tmp_path: Path) -> None:
    path = path_of(tmp_path, 1)
    command = [sys.executable, "-c", textwrap.dedent(_KILLED), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    result = found(tmp_path)
    assert bad(result) is None
    assert result.records > 10
    hashes = result.ledgers[0].hashes
    with begun(tmp_path, 2, accepts=LedgerHead(1, 7, hashes[7])) as writer:
        trained(writer, 7, 8)
    both = found(tmp_path, 2)
    assert bad(both) is None
    assert both.rollbacks == ((1, 8, result.records - 1),)


def test_a_record_that_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    for number, counts in enumerate(({"c": 1}, {"a": -1}, {"a": True}, [1])):
        folder = tmp_path / str(number)
        with begun(folder) as writer:
            writer.policy(0, POLICY)
            writer.append("step_batch", 1, policy_digest=POLICY.digest, counts=counts)
        with pytest.raises(GovernanceBroken, match="G114"):
            LedgerExposure.of(found(folder).counting())


def test_lines_are_json(written: bytes) -> None:
    for line in written.splitlines():
        assert json.loads(line)["seq"] >= 0
