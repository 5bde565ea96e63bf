"""Heads of ledgers reach real files, sockets and programs, and an anchor that fails is told."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdet.config.policy.anchor_places import refuse_unusable
from hpcdet.errors import IntegrityError
from hpcdet.guard.accounts import anchoring
from hpcdet.guard.accounts.anchoring import Anchoring
from hpcdet.policy.ledger import anchored
from hpcdet.policy.ledger.records import LedgerHead, LedgerOwner
from tests.other_users import by

OF = LedgerOwner("digits-7f3a", 3, 2)
UID = os.geteuid()
OTHER = 54_321
ROOT = pytest.mark.skipif(UID != 0, reason="becomes other users")


def head(seq: int) -> LedgerHead:
    return LedgerHead(2, seq, f"{seq:064x}")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    path.write_text("{}\n")
    return path


def wait(until: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


def give(anchors: Anchoring, *seqs: int) -> None:
    """One after the other, each taken before the next."""
    for seq in seqs:
        anchors.put(head(seq))
        for one in anchors._work.values():
            wait(lambda one=one: one.wait(0.01))


def seqs(folder: Path, uid: int = UID) -> list[int]:
    return sorted(one.seq for one in anchored.heads_in_folder(folder, "digits-7f3a", 3, uid))


def test_a_file_holds_every_head_and_everybody_may_read_it(tmp_path: Path, ledger: Path) -> None:
    folder = tmp_path / "worm"
    folder.mkdir()
    anchors = Anchoring([f"file:{folder}"], OF, ledger)
    give(anchors, 4, 7)
    assert anchors.close() == []
    again = Anchoring([f"file:{folder}"], LedgerOwner("digits-7f3a", 3, 4), ledger)
    give(again, 1)
    [path] = folder.iterdir()
    assert path.name == f"digits-7f3a.3.{UID}.jsonl" and path.stat().st_mode & 0o777 == 0o644
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["attempt"], one["seq"], one["hash"]) for one in found] == [
        (2, 4, f"{4:064x}"),
        (2, 7, f"{7:064x}"),
        (4, 1, f"{1:064x}"),
    ]


@ROOT
def test_what_another_user_has_put_in_its_place_gets_nothing(tmp_path: Path, ledger: Path) -> None:
    folder = tmp_path / "worm"
    folder.mkdir()
    folder.chmod(0o1777)
    path = anchored.path_in(folder, "digits-7f3a", 3, UID)
    path.touch()
    os.chown(path, OTHER, OTHER)
    anchors = Anchoring([f"file:{folder}"], OF, ledger)
    give(anchors, 1)
    assert anchors.news() == [(f"file:{folder}", f"{path} is user {OTHER}'s: remove it")]
    assert path.read_bytes() == b""
    path.unlink()
    give(anchors, 2)
    assert anchors.news() == [(f"file:{folder}", "")], "it holds heads again"
    assert seqs(folder) == [2]


def test_a_folder_that_others_may_empty_holds_nothing(tmp_path: Path, ledger: Path) -> None:
    folder = tmp_path / "worm"
    folder.mkdir()
    folder.chmod(0o777)
    anchors = Anchoring([f"file:{folder}"], OF, ledger)
    give(anchors, 1)
    assert "everybody may remove what" in dict(anchors.close())[f"file:{folder}"]
    assert not list(folder.iterdir())


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_syslog_gets_a_line(
    kind: socket.SocketKind, tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name may have 108 characters
    monkeypatch.setattr(anchoring, "SYSLOG", "log")
    anchors = Anchoring(["syslog"], OF, ledger)
    give(anchors, 1)
    assert anchors.news() == [("syslog", "No such file or directory: log")]
    with socket.socket(socket.AF_UNIX, kind) as log:
        log.bind("log")
        if kind is socket.SOCK_STREAM:
            log.listen()
        log.settimeout(60)
        anchors.put(head(5))
        got = (log if kind is socket.SOCK_DGRAM else log.accept()[0]).recv(4096)
    assert got.startswith(b"<13>hpcdet[%d]: {" % os.getpid())
    said = anchored.AnchoredHead.parse(got)
    assert said is not None and (said.trial, said.seq) == (3, 5)
    assert anchors.close() == [("syslog", "")], "it holds heads again"


PROGRAM = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"


def command(*argv: str) -> str:
    return f"command:{shlex.join(argv)}"


def test_a_command_gets_a_head_on_its_standard_input_without_a_shell(
    tmp_path: Path, ledger: Path
) -> None:
    there = tmp_path / "a b; $(touch evil)"
    anchors = Anchoring([command(sys.executable, "-c", PROGRAM, str(there))], OF, ledger)
    give(anchors, 4, 6)
    assert anchors.close() == []
    found = [json.loads(line) for line in there.read_text().splitlines()]
    assert [one["seq"] for one in found] == [4, 6]
    assert {path.name for path in tmp_path.iterdir()} == {ledger.name, there.name}


def test_what_fails_is_told_once_and_when_it_is_over(tmp_path: Path, ledger: Path) -> None:
    folder, flag = tmp_path / "worm", tmp_path / "flag"
    fails = command("test", "-e", str(flag))
    anchors = Anchoring([f"file:{folder}", fails, command("hpcdet-none", "x")], OF, ledger)
    give(anchors, 1)
    told = dict(anchors.news())
    assert told[fails] == "test ended with 1; the rank's log has its words"
    assert told[f"file:{folder}"].startswith("No such file or directory: ")
    assert "hpcdet-none" in told[command("hpcdet-none", "x")]
    give(anchors, 2)
    assert anchors.news() == [], "nothing new"
    folder.mkdir()
    flag.touch()
    give(anchors, 3)
    assert set(anchors.news()) == {(f"file:{folder}", ""), (fails, "")}
    assert seqs(folder) == [3]


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchoring, "PATIENCE_S", 0.5)
    monkeypatch.setattr(anchoring, "LAST_S", 0.1)
    pids = tmp_path / "pids"
    script = f"sleep 1000 & echo $! $$ >> {shlex.quote(str(pids))}; wait"
    folder = tmp_path / "worm"
    folder.mkdir()
    anchors = Anchoring([command("sh", "-c", script), f"file:{folder}"], OF, ledger)
    anchors.put(head(1))
    wait(lambda: seqs(folder) == [1])  # its neighbour does not wait
    wait(lambda: [error for _, error in anchors.news() if "longer than" in error])
    anchors.put(head(2))
    wait(lambda: pids.read_text().count("\n") == 2)
    anchors.close()  # in the middle of it
    assert seqs(folder) == [1, 2]
    for pid in map(int, pids.read_text().split()):
        wait(lambda pid=pid: _ended(pid))


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_slow_anchor_gets_the_newest_head_next(tmp_path: Path, ledger: Path) -> None:
    there, go = tmp_path / "seen", tmp_path / "go"
    os.mkfifo(go)
    slow = f"read x < {shlex.quote(str(go))}; cat >> {shlex.quote(str(there))}"
    anchors = Anchoring([command("sh", "-c", slow)], OF, ledger)
    for seq in range(1, 6):
        anchors.put(head(seq))
        if seq == 1:
            writes = os.open(go, os.O_WRONLY)  # it is under way
    os.write(writes, b"\n\n\n")
    wait(lambda: there.exists() and there.read_text().count("\n") == 2)
    os.close(writes)
    assert anchors.close() == []
    assert [json.loads(line)["seq"] for line in there.read_text().splitlines()] == [1, 5]


ENDLESS = """
import itertools, sys
from pathlib import Path
from hpcdet.guard.accounts.anchoring import Anchoring
from hpcdet.policy.ledger.records import LedgerHead, LedgerOwner
folder, ledger = map(Path, sys.argv[1:3])
of = LedgerOwner("digits-7f3a", 3, 2)
anchors = Anchoring([f"file:{folder}"], of, ledger)
for seq in itertools.count():
    anchors.put(LedgerHead(2, seq, f"{seq:064x}"))
    while not anchors._work[f"file:{folder}"].wait(0.01):
        pass
    news = anchors.news()
    if news:
        print(seq, *news[0], flush=True)
        break
"""


def endless(folder: Path, ledger: Path, **how: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", ENDLESS, str(folder), str(ledger)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload]


@pytest.mark.parametrize("kills", range(3))
def test_a_writer_that_is_killed_leaves_heads_that_are_all_true(
    kills: int, tmp_path: Path, ledger: Path
) -> None:
    folder = tmp_path / "worm"
    folder.mkdir()
    path = anchored.path_in(folder, "digits-7f3a", 3, UID)
    for n in range(kills + 1):
        before = path.stat().st_size if path.exists() else 0
        with endless(folder, ledger) as process:
            wait(lambda before=before, n=n: path.exists()
                 and path.stat().st_size > before + 2000 * (n + 1))  # fmt: skip
            process.send_signal(signal.SIGKILL)
        with path.open("ab") as torn:  # and the worst place to be killed at
            torn.write(head_line(9)[:50])
    give(Anchoring([f"file:{folder}"], OF, ledger), 123_456)
    found = anchored.heads_in_folder(folder, "digits-7f3a", 3, UID)
    assert all(one.hash == f"{one.seq:064x}" for one in found)
    assert {one.seq for one in found} >= {0, 1, 2, 123_456}


def head_line(seq: int) -> bytes:
    return anchored.AnchoredHead(
        "digits-7f3a", 3, 2, seq, "0" * 64, "2026-11-24T05:00:00Z"
    ).to_bytes()


def test_a_disk_that_is_full_is_told_and_no_head_is_damaged(tmp_path: Path, ledger: Path) -> None:
    folder = tmp_path / "worm"
    folder.mkdir()
    full = 1000  # in the middle of a line: the kernel takes what there is room for

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, full))

    with endless(folder, ledger, preexec_fn=small) as process:
        assert process.stdout is not None
        said = process.stdout.read()
    assert "File too large" in said
    assert anchored.path_in(folder, "digits-7f3a", 3, UID).stat().st_size == full
    failed = int(said.split()[0])
    assert seqs(folder) == list(range(failed))
    give(Anchoring([f"file:{folder}"], OF, ledger), 99)
    assert seqs(folder) == [*range(failed), 99]


def test_no_head_is_given_before_its_ledger_is_durable(tmp_path: Path, ledger: Path) -> None:
    folder = tmp_path / "worm"
    folder.mkdir()
    ledger.unlink()
    anchors = Anchoring([f"file:{folder}"], OF, ledger)
    give(anchors, 1)
    assert seqs(folder) == [] and "ledger.jsonl" in anchors.news()[0][1]


# -- other users --------------------------------------------------------------------------------


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A folder of an administrator, in which everybody may make files."""
    for one in (tmp_path, *tmp_path.parents):
        if one.stat().st_uid == UID and one != Path("/tmp"):
            one.chmod(one.stat().st_mode | 0o011)
    folder = tmp_path / "anchors"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@ROOT
def test_a_second_user_reads_what_he_can_neither_change_nor_remove(
    public: Path, ledger: Path
) -> None:
    ledger.chmod(0o644)
    path = anchored.path_in(public, "digits-7f3a", 3, OTHER)
    assert by(OTHER, lambda: give(Anchoring([f"file:{public}"], OF, ledger), 1, 2)) == 0
    assert path.stat().st_uid == OTHER
    second = OTHER + 1
    assert by(second, lambda: seqs(public, OTHER) == [1, 2] or os._exit(2)) == 0
    for harm in (lambda: path.open("ab"), path.unlink, lambda: path.rename(public / "x")):
        assert by(second, harm) == 1
    assert seqs(public, OTHER) == [1, 2]


@ROOT
def test_a_folder_that_may_not_be_listed_holds_heads(public: Path, ledger: Path) -> None:
    """As a service has one that takes files over: it is accepted at submission, too."""
    ledger.chmod(0o644)
    public.chmod(0o1733)

    def held() -> None:
        refuse_unusable([f"file:{public}"])
        anchors = Anchoring([f"file:{public}"], OF, ledger)
        give(anchors, 1, 2)
        assert anchors.close() == []

    assert by(OTHER, held) == 0
    assert seqs(public, OTHER) == [1, 2]


@ROOT
def test_a_file_that_another_user_has_put_there_is_told(public: Path, ledger: Path) -> None:
    ledger.chmod(0o644)
    path = anchored.path_in(public, "digits-7f3a", 3, OTHER)
    target = public.parent / "target"

    def refused() -> None:
        anchors = Anchoring([f"file:{public}"], OF, ledger)
        give(anchors, 1)
        [(_, error)] = anchors.news()
        assert str(path) in error

    path.write_text("")  # of root
    assert by(OTHER, refused) == 0
    path.unlink()
    path.symlink_to(target)
    assert by(OTHER, refused) == 0
    path.unlink()
    os.mkfifo(path, 0o666)
    assert by(OTHER, refused) == 0
    assert not target.exists()


@ROOT
def test_heads_that_another_user_has_forged_are_none(public: Path) -> None:
    """They would stop a trial of whoever shares the folder with him."""
    path = anchored.path_in(public, "digits-7f3a", 3, OTHER)
    forged = anchored.AnchoredHead("digits-7f3a", 3, 1, 9, "f" * 64, "2026-11-24T05:13:31.000000Z")

    def forge() -> None:
        path.write_bytes(forged.to_bytes() + b"\n")

    assert by(OTHER + 1, forge) == 0
    with pytest.raises(IntegrityError, match="another user has put it there"):
        anchored.heads_in_folder(public, "digits-7f3a", 3, OTHER)
    for taken_over_by in (0, OTHER, public.stat().st_uid):
        os.chown(path, taken_over_by, -1)
        assert anchored.heads_in_folder(public, "digits-7f3a", 3, OTHER) == {forged}
