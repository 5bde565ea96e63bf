"""The meeting of ranks: who proves the attempt's secret is in, whatever others do."""

from __future__ import annotations

import contextlib
import inspect
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from hpcdet.errors import Unavailable
from hpcdet.process.ranks import PEER_LOST
from hpcdet.train.meeting import gloo, liveness, port_filter, proof
from hpcdet.train.meeting import rank0_listener as doors
from hpcdet.train.meeting.frames import MOST_BYTES, Frame, FrameKind, Incoming
from hpcdet.train.meeting.liveness import Lifeline
from hpcdet.train.meeting.process_group_store import AttemptStore, _Table
from hpcdet.train.meeting.rank0_listener import Door, knock
from tests import intruders, ranks

SECRET = bytes(range(32))
HERE = ["127.0.0.1"]
BOTH = pytest.mark.parametrize("addresses", [[], HERE], ids=["unix", "tcp"])


def where(door: Door) -> Path | tuple[str, int]:
    return Path(door.folder) if door.folder else (HERE[0], door.ports[0])


@contextlib.contextmanager
def at(door: Door, world: int = 2) -> Iterator[Future[dict[int, socket.socket]]]:
    """Rank 0 waits at its door until all are in; their connections are closed at the end."""
    with ThreadPoolExecutor(1) as pool:
        came = pool.submit(door.admit, SECRET, world, 60)
        yield came
        for connection in came.result().values():
            connection.close()


def stranger(door: Door) -> socket.socket:
    """A connection that has said nothing yet."""
    connection = socket.create_connection((HERE[0], door.ports[0]))
    connection.settimeout(60)
    return connection


def is_sent_away(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


@BOTH
def test_who_knows_the_secret_is_in(addresses: Sequence[str]) -> None:
    with Door(addresses, 3) as door, at(door, 3) as came:
        folder = Path(door.folder or os.devnull)
        assert not door.folder or folder.stat().st_mode & 0o777 == 0o700
        assert knock(where(door), proof.draw(), 1, 60) is None
        assert knock(where(door), SECRET, 3, 60) is None, "there is no such rank"
        with_two = {rank: knock(where(door), SECRET, rank, 60) for rank in (2, 1)}
        found = came.result()
        for rank, mine in with_two.items():
            assert mine is not None
            mine.sendall(b"%d" % rank)
            assert found[rank].recv(1) == b"%d" % rank
            mine.close()
    assert not Path(door.folder or "/nowhere").exists()


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    with Door([], 2) as door, at(door):
        Path(door.folder).chmod(0o711)
        assert knock(Path(door.folder), SECRET, 1, 60) is None
        Path(door.folder).chmod(0o700)
        (link := tmp_path / "link").symlink_to(door.folder)
        assert knock(link, SECRET, 1, 60) is None
        mine = knock(Path(door.folder), SECRET, 1, 60)
        assert mine is not None
        mine.close()


def test_a_long_way_to_temporary_files_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = tmp_path / ("x" * 120)
    far.mkdir()
    monkeypatch.setattr(doors.tempfile, "tempdir", str(far))
    with Door([], 2) as door, at(door):
        assert door.folder.startswith(str(far))
        mine = knock(Path(door.folder), SECRET, 1, 60)
        assert mine is not None
        mine.close()


def test_silent_and_slow_strangers_keep_no_rank_out() -> None:
    """Three times as many as are borne at a time."""
    with Door(HERE, 2) as door, at(door), contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(stranger(door)) for _ in range(3 * doors.STRANGERS)]
        for one in strangers:
            with contextlib.suppress(ConnectionError):
                one.sendall(b"x")
        assert is_sent_away(strangers[0]), "the oldest"
        mine = knock(where(door), SECRET, 1, 60)
        assert mine is not None
        mine.close()


def test_what_was_heard_opens_nothing_when_it_is_said_again() -> None:
    """Of a rank's own words; and rank 0's, reflected."""
    with Door(HERE, 2) as door, at(door) as came:
        with stranger(door) as rank_1:
            nonce = proof.draw()
            ticket = struct.pack("!I", 1) + nonce + proof.prove(SECRET, "ticket", 1, nonce)
            rank_1.sendall(ticket)
            answer = rank_1.recv(64, socket.MSG_WAITALL)
            assert proof.is_proven(SECRET, answer[32:], "rank 0", 1, nonce, answer[:32])
            with stranger(door) as replays:
                replays.sendall(ticket)
                assert replays.recv(64, socket.MSG_WAITALL)[:32] != answer[:32]
                replays.sendall(proof.prove(SECRET, "rank", 1, nonce, answer[:32]))
                assert is_sent_away(replays)
            with stranger(door) as reflects:
                reflects.sendall(ticket)
                reflects.sendall(reflects.recv(64, socket.MSG_WAITALL)[32:])
                assert is_sent_away(reflects)
        assert not came.done()
        mine = knock(where(door), SECRET, 1, 60)
        assert mine is not None
        mine.close()


def test_a_rank_trusts_nobody_who_only_listens_where_rank_0_should() -> None:
    with socket.create_server((HERE[0], 0)) as false, ThreadPoolExecutor(1) as pool:
        tried = pool.submit(knock, (HERE[0], false.getsockname()[1]), SECRET, 1, 60)
        connection, _ = false.accept()
        with connection:
            said = connection.recv(68, socket.MSG_WAITALL)
            connection.sendall(said[4:])  # its own nonce and proof
            assert connection.recv(1) == b"", "it says no more"
        assert tried.result() is None


def test_ranks_that_do_not_come_are_counted() -> None:
    with Door(HERE, 2) as door, pytest.raises(Unavailable, match="only 1 of 2 ranks connected"):
        door.admit(SECRET, 2, 0.01)


def test_messages_come_whole_or_not_at_all() -> None:
    sent = [
        Frame(FrameKind.SET, 7, (b"key", b"")),
        Frame(FrameKind.GOODBYE),
        Frame(FrameKind.ADD, 8, (b"",)),
    ]
    data = b"".join(frame.encode() for frame in sent)
    incoming = Incoming()
    found = [frame for at in range(len(data)) for frame in incoming.take(data[at : at + 1])]
    assert found == sent
    for bad in (
        struct.pack("!IBI", MOST_BYTES + 6, FrameKind.SET, 1),
        struct.pack("!IBI", 0, FrameKind.SET, 1),
        struct.pack("!IBI", 5, 99, 1),
        struct.pack("!IBI", 7, FrameKind.SET, 1) + b"ab",
        struct.pack("!IBII", 9, FrameKind.SET, 1, 1),
    ):
        with pytest.raises(ValueError):
            list(Incoming().take(bad))
    with pytest.raises(ValueError):
        Frame(FrameKind.SET, 1, (bytes(MOST_BYTES),)).encode()


@contextlib.contextmanager
def stores(world: int = 3) -> Iterator[list[AttemptStore]]:
    pairs = [socket.socketpair() for _ in range(world - 1)]
    lines = [Lifeline({rank: one for rank, (one, _) in enumerate(pairs, 1)})]
    lines += [Lifeline({0: other}) for _, other in pairs]
    yield [AttemptStore(line, rank == 0) for rank, line in enumerate(lines)]
    for line in lines:
        line.leave()
    for line in lines:
        line.close()


def test_the_store_does_what_torch_s_does() -> None:
    """The same calls on both, by torch's own ways in; over all ranks in turn."""

    def said(ranks: Sequence[Store]) -> list[object]:
        a, b, c = (PrefixStore("group", PrefixStore("0", one)) for one in ranks)
        a.set("x", "1")
        b.set("raw", bytes(range(256)))  # type: ignore[arg-type]
        found: list[object] = [b.get("x"), c.get("raw"), c.add("n", 5), a.add("n", -2), b.get("n")]
        found += [a.check(["x", "n"]), b.check(["x", "y"]), b.compare_set("n", "3", "4")]
        found += [c.compare_set("n", "3", "5"), c.compare_set("new", "", "6"), b.get("new")]
        found += [a.compare_set("none", "x", "y"), a.check(["none"])]
        found += [c.delete_key("n"), a.delete_key("n"), b.check(["n"])]
        found += [b.multi_get(["x", "new"])]
        b.wait(["x", "new"])
        with pytest.raises(dist.DistStoreError):
            c.wait(["never"], timedelta(milliseconds=10))
        with pytest.raises(dist.DistStoreError):
            a.wait(["x", "never"], timedelta(milliseconds=10))
        return found

    with stores() as ours:
        told = said(ours)
        assert [PrefixStore("", one).num_keys() for one in ours] == [3] * 3
    torchs = dist.TCPStore(HERE[0], 0, is_master=True, wait_for_workers=False)
    assert told == said([torchs] * 3)


def test_a_rank_waits_for_a_key_in_one_thread_and_sets_another_in_the_next() -> None:
    with stores() as (first, second, third), ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(one.get, "late") for one in (first, second, third)]
        third.set("soon", "1")
        assert not any(one.done() for one in asked)
        assert second.get("soon") == b"1"
        second.set("late", "2")
        assert [one.result(60) for one in asked] == [b"2"] * 3
        third.set("word", "x")
        for one in (first, third):
            with pytest.raises(dist.DistStoreError, match="word is no number"):
                one.add("word", 1)
        assert second.get("word") == b"x"


def test_who_waits_for_several_keys_waits_until_all_are_there_at_once() -> None:
    table, found = _Table(), list[str]()

    def ask(kind: FrameKind, *parts: bytes) -> None:
        table.ask(Frame(kind, 0, parts), lambda _: found.append(f"{kind.name} {b''.join(parts)!r}"))

    ask(FrameKind.WAIT, b"a", b"b")
    ask(FrameKind.GET, b"b", b"a")
    ask(FrameKind.SET, b"a", b"1")
    ask(FrameKind.DELETE, b"a")
    ask(FrameKind.SET, b"b", b"1")
    assert found == ["SET b'a1'", "DELETE b'a'", "SET b'b1'"]
    ask(FrameKind.COMPARE_SET, b"a", b"x", b"1")  # which stores nothing
    ask(FrameKind.ADD, b"a", b"1")
    assert sorted(found[4:]) == ["ADD b'a1'", "GET b'ba'", "WAIT b'ab'"]


def test_a_loss_is_told_to_all_and_a_goodbye_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Barrier(3)
    monkeypatch.setattr(liveness, "GRACE_S", 0.01)
    monkeypatch.setattr(liveness.os, "_exit", lambda _: ended.wait(60))
    pairs = [socket.socketpair() for _ in range(3)]
    first = Lifeline({rank: one for rank, (one, _) in enumerate(pairs, 1)})
    second = Lifeline({0: pairs[0][1]})
    leaves, dies = pairs[1][1], pairs[2][1]
    heard: list[Frame | None] = []
    gone = threading.Event()
    first.start(lambda _, frame: (heard.append(frame), gone.set()))  # type: ignore[arg-type]
    second.start(lambda *_: None)
    leaves.sendall(Frame(FrameKind.GOODBYE).encode())
    leaves.close()
    assert gone.wait(60) and heard == [None]
    assert not first.lost.is_set()
    dies.close()
    ended.wait(60)
    assert first.lost.is_set() and second.lost.is_set()
    for line in (first, second):
        line.leave()
        line.close()


@contextlib.contextmanager
def guarded(told: list[BaseException]) -> Iterator[list[Store]]:
    """Two ranks of one attempt in this process; their stores."""
    pairs = socket.socketpair()
    lines = [Lifeline({1 - rank: one}) for rank, one in enumerate(pairs)]
    gloo.guard(gloo.Attempt(SECRET, HERE[0], lines[0], told.append))
    try:
        yield [
            PrefixStore("group", AttemptStore(line, not rank)) for rank, line in enumerate(lines)
        ]
    finally:
        gloo.release()
        for line in lines:
            line.leave()
        for line in lines:
            line.close()


def ports() -> set[int]:
    """Where this process listens."""
    connections = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


def in_groups(
    stores: Sequence[Store], use: Callable[[dist.ProcessGroupGloo, int], object]
) -> list[object]:
    """What comes of it on both ranks, or why there was no group."""

    def rank(number: int) -> object:
        try:
            made = dist.distributed_c10d.ProcessGroupGloo(
                stores[number], number, 2, timeout=timedelta(days=1)
            )
            return use(made, number)
        except Exception as error:
            return error

    found: list[object] = [None, None]
    gave_up = threading.Event()

    def run(number: int) -> None:
        found[number] = rank(number)

    def give_up(code: int) -> None:
        assert code == PEER_LOST
        gave_up.set()  # a rank of its own process would be gone; its thread waits in gloo for ever

    pytest.MonkeyPatch().setattr(gloo, "leave", give_up)  # this process is for one test only
    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 60
    while any(thread.is_alive() for thread in threads) and time.monotonic() < until:
        if gave_up.wait(0.1):  # the other one may have a moment longer
            for thread in threads:
                thread.join(5)
            break
    return found


def prove_and_shut() -> None:
    before, made = ports(), threading.Barrier(2)

    def use(group: dist.ProcessGroupGloo, rank: int) -> object:
        made.wait(60)
        own = ports() - before if rank == 0 else set()
        for port in own:
            with pytest.raises(TimeoutError):
                socket.create_connection((HERE[0], port), timeout=0.2)
        value = torch.tensor([rank + 1.0])
        group.allreduce([value]).wait()
        made.wait(60)
        return len(own), value.item(), group.options._timeout.days

    told: list[BaseException] = []
    with guarded(told) as stores_of_both:
        assert in_groups(stores_of_both, use) == [(2, 3.0, 1), (0, 3.0, 1)]
    assert not told
    assert dist.distributed_c10d.ProcessGroupGloo is dist.ProcessGroupGloo


def test_gloo_s_ranks_prove_the_secret_and_shut_their_ports() -> None:
    """All that listens is on loopback, and lets in nobody once the group is made."""
    ranks.elsewhere(prove_and_shut)


def be_late() -> None:
    """One rank comes to each exchange long after the time that a group has for its proofs."""
    pytest.MonkeyPatch().setattr(gloo, "PROOF_S", 0.5)

    def use(group: dist.ProcessGroupGloo, rank: int) -> object:
        value = torch.tensor([rank + 1.0])
        for _ in range(2):
            if rank:
                time.sleep(1.0)
            group.allreduce([value]).wait()
        if rank:
            time.sleep(1.0)
            group.send([value], 0, 7).wait()
        else:
            group.recv([value], 1, 7).wait()
        return value.item()

    told: list[BaseException] = []
    with guarded(told) as stores_of_both:
        assert in_groups(stores_of_both, use) == [6.0, 6.0]
    assert not told


def test_a_group_waits_for_a_rank_as_long_as_it_lives() -> None:
    """The time for the proofs is none of the group's."""
    ranks.elsewhere(be_late)


def test_looking_for_sockets_changes_none() -> None:
    """Who has set a time-out for new sockets has not set one for those that there are."""
    one, other = socket.socketpair()
    before = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(3.0)
        with port_filter.open_until_connected():
            port_filter.behind(lambda: None)
        assert os.get_blocking(one.fileno()) and os.get_blocking(other.fileno())
    finally:
        socket.setdefaulttimeout(before)
        one.close()
        other.close()


def test_ports_are_shut_when_the_last_of_several_groups_has_connected() -> None:
    """Two threads make groups; a server that the code opens meanwhile is none of gloo's."""

    def takes(server: socket.socket) -> bool:
        try:
            socket.create_connection(server.getsockname()[:2], timeout=0.2).close()
        except TimeoutError:
            return False
        return True

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:

        def serve(address: str = HERE[0], family: int = socket.AF_INET) -> socket.socket:
            return stack.enter_context(socket.create_server((address, 0), family=family))

        entered, leave = threading.Event(), threading.Event()

        def elsewhere() -> None:
            with port_filter.open_until_connected():
                entered.set()
                leave.wait(60)

        closed = port_filter.behind(serve)
        assert not takes(closed)
        with port_filter.open_until_connected():
            gloos = port_filter.behind(serve)
            other = pool.submit(elsewhere)
            entered.wait(60)
            users = serve()
            assert all(map(takes, (closed, gloos, users)))
        assert all(map(takes, (closed, gloos, users))), "another thread's group connects"
        leave.set()
        other.result(60)
        assert [takes(one) for one in (closed, gloos, users)] == [False, False, True]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
        with contextlib.suppress(OSError):  # no IPv6 here
            assert not takes(port_filter.behind(lambda: serve("::1", socket.AF_INET6)))


def be_intruded(answer: bytes | None, proves: bool) -> None:
    """In a process of its own: gloo does not always survive what it was sent."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(gloo, "PROOF_S", 1.0)
    if not proves:
        monkeypatch.setattr(gloo.ProvenGloo, "_prove", lambda *_: [])
    make, got = gloo._Gloo.create_device, bytearray()
    intruding: list[threading.Thread] = []

    def intrude(port: int, number: int) -> None:
        with (
            contextlib.suppress(OSError),
            intruders.be_a_rank_for_gloo(port, number) as connection,
        ):
            for message in intruders.talk_gloo(connection, answer):
                got.extend(message)

    def slowly(hostname: str) -> object:
        before = ports()
        device = make(hostname=hostname)
        for port in ports() - before:
            for number in intruders.NUMBERS:
                one = threading.Thread(target=intrude, args=(port, number), daemon=True)
                intruding.append(one)
                one.start()
        for one in intruding:
            one.join(0.1)  # they have connected, and wait for what they get
        return device

    def use(group: dist.ProcessGroupGloo, rank: int) -> object:
        group.allreduce([torch.full((4,), 1.25)]).wait()
        return rank

    told: list[BaseException] = []
    with guarded(told) as stores_of_both:
        monkeypatch.setattr(gloo._Gloo, "create_device", slowly)
        found = in_groups(stores_of_both, use)
    for one in intruding:
        one.join(10)
    assert (struct.pack("f", 1.25) in got) is not proves, (bytes(got), found)
    if proves:
        assert all(one is None or isinstance(one, gloo.Unproven) for one in found), found
        assert told and "of its own attempt" in str(told[0])


@pytest.mark.parametrize(
    ("answer", "proves"),
    [(None, True), (b"zz", True), (b"zz", False)],
    ids=["silence", "junk", "unproven"],
)
def test_who_is_first_at_gloo_s_port_gets_a_proof_and_nothing_else(
    answer: bytes | None, proves: bool
) -> None:
    """Without the proofs he gets what was meant for the other rank."""
    ranks.elsewhere(be_intruded, answer, proves)


def test_a_group_that_others_join_later_is_refused() -> None:
    """As torch 2.14 asks for it; it says of every group whether it is one."""
    call = inspect.signature(gloo.ProvenGloo).bind
    call(object(), 0, 2, timeout=gloo.NEVER, enable_reconfigure=False)
    with pytest.raises(ValueError, match="keeps its ranks"):
        gloo.ProvenGloo(object(), 0, 2, timeout=gloo.NEVER, enable_reconfigure=True)
