"""One holder at a time, whatever the file system shows and whoever sleeps."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.store.decisions import lease
from hpcdet.store.decisions.lease import Lease
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files, packed

TTL = 100.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_term_is_held_until_released_and_then_taken_at_once(tmp_path: Path) -> None:
    paths, clock = ExperimentPaths(tmp_path), Clock()
    one, two = (Lease(paths, "test", TTL, clock) for _ in range(2))
    assert one.try_acquire()
    assert one.try_acquire()
    assert (one.term, two.try_acquire(), two.term) == (1, False, 0)
    one.release()
    assert not one.verify()
    assert two.try_acquire()
    assert two.term == 2
    newest = lease.last(paths)
    assert newest is not None
    assert (newest[0].number, newest[0].pid) == (2, os.getpid())


def test_silence_is_judged_by_the_watchers_own_clock(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    clock, far = Clock(), Clock()
    far.now = 1e9  # clocks of two machines have nothing in common
    one, two = Lease(paths, "test", TTL, clock), Lease(paths, "test", TTL, far)
    assert one.try_acquire()
    for _ in range(10):
        clock.now += TTL / 2
        far.now += TTL / 2
        assert one.verify()  # beats when it is time
        assert not two.try_acquire()
    for _ in range(3):
        assert not two.try_acquire()
        far.now += TTL * 0.4
    assert two.try_acquire()
    assert not one.verify()
    assert one.term == 0


def test_a_holder_that_slept_too_long_gives_up_though_it_sees_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, clock = ExperimentPaths(tmp_path), Clock()
    one, two = (Lease(paths, "test", TTL, clock) for _ in range(2))
    assert one.try_acquire()
    assert not two.try_acquire()
    clock.now += TTL + 1
    assert two.try_acquire()
    # its node shows it an old folder: no higher term is there to be seen
    monkeypatch.setattr(packed, "numbers", lambda *_: [1])
    monkeypatch.setattr(lease.Term, "read", classmethod(lambda *_: None))
    assert not one.verify()
    monkeypatch.undo()
    assert two.verify()
    assert not one.try_acquire()


def test_a_holder_that_died_before_its_first_beat_is_waited_for_and_followed(
    tmp_path: Path,
) -> None:
    paths, clock = ExperimentPaths(tmp_path), Clock()
    lease.Term(1, "test", "gone", 1).write_once(paths.term(1))
    one = Lease(paths, "test", TTL, clock)
    assert not one.try_acquire()
    clock.now += TTL - 1
    assert not one.try_acquire()
    clock.now += 1
    assert one.try_acquire()
    assert one.term == 2


def test_who_leaves_after_a_turn_attends_only_to_what_was_there_before_its_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, clock = ExperimentPaths(tmp_path), Clock()

    def elsewhere(kind: str) -> Lease:
        """A term of another process."""
        monkeypatch.setattr(os, "getpid", lambda: 1)
        made = Lease(paths, kind, TTL, clock)
        assert made.try_acquire()
        monkeypatch.undo()
        lease._held.clear()
        return made

    assert not lease.attended(paths, None)
    passing = elsewhere("submit")
    assert lease.attended(paths, None), "its term is newer"
    seen = lease.last(paths)
    passing.beat()
    assert not lease.attended(paths, seen), "it may have looked before"
    passing.release()
    assert not lease.attended(paths, None)
    lasting = elsewhere("daemon")
    seen = lease.last(paths)
    assert not lease.attended(paths, seen), "it may be dead"
    lasting.beat()
    assert lease.attended(paths, seen)
    lasting.release()
    ours = Lease(paths, "wait", TTL, clock)
    assert ours.try_acquire()
    assert lease.attended(paths, lease.last(paths))
    ours.release()
    assert not lease.attended(paths, None)


def test_terms_long_gone_are_removed_but_what_fences_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEHIND", 2)
    paths, clock = ExperimentPaths(tmp_path), Clock()
    for number in range(1, 8):
        holder = Lease(paths, "test", TTL, clock)
        assert holder.try_acquire() or number == 3
        if number == 3:  # its predecessor died, or sleeps
            clock.now += TTL
            assert holder.try_acquire()
        assert holder.term == number
        if number not in (2, 7):
            holder.release()
            os.utime(lease.beat_path(paths, number), (0, 0))
    os.utime(lease.beat_path(paths, 5))
    assert lease.prune(paths, 7) == 2
    assert packed.numbers(paths.terms, ".json") == [2, 3, 5, 6, 7]
    assert packed.numbers(paths.terms, ".beat") == [2, 3, 5, 6, 7]
    # who is shown an old folder reaches for a number that is free again
    listings = [[3], packed.numbers(paths.terms, ".json")]
    monkeypatch.setattr(packed, "numbers", lambda *_: listings.pop(0))
    late = Lease(paths, "test", TTL, clock)
    assert not late.try_acquire() and not late.term and not listings


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), nodes=st.integers(2, 4))
def test_never_two_holders_on_a_file_system_with_stale_folders(
    tmp_path_factory: pytest.TempPathFactory, seed: int, nodes: int
) -> None:
    """Entries appear late, twice or not at all in listings; processes stop, go on and die.

    What exclusive creation and opening a file say is true, as on NFS; listings may lie.
    """
    rng = random.Random(seed)
    paths = ExperimentPaths(tmp_path_factory.mktemp("stale"))
    clock = Clock()
    holders = [Lease(paths, f"node{n}", TTL, clock) for n in range(nodes)]

    listed = packed.numbers

    def stale(folder: Path, suffix: str = "") -> list[int]:
        found = listed(folder, suffix)
        shown = [n for n in found if rng.random() < 0.7]
        return shown + rng.sample(shown, rng.randint(0, len(shown)))

    taken: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "numbers", stale)
        patch.setattr(files.os, "fsync", lambda _: None)
        for _ in range(80):
            clock.now += rng.choice([0.0, 1.0, TTL / 10, TTL / 3])
            n = rng.randrange(nodes)
            before = holders[n].term
            match rng.randrange(6):
                case 0 | 1 | 2:
                    if holders[n].try_acquire() and holders[n].term != before:
                        taken.append(holders[n].term)
                case 3:
                    holders[n].verify()
                case 4 if rng.random() < 0.3:
                    holders[n].release()
                case 5 if rng.random() < 0.2:
                    holders[n] = Lease(paths, f"reborn{n}", TTL, clock)  # died in silence
            acting = [holder.term for holder in holders if holder.term and holder.verify()]
            assert len(acting) <= 1
    assert taken == sorted(set(taken))
    assert taken == packed.numbers(paths.terms, ".json")


HOLDER = """
import sys, time
from pathlib import Path
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.decisions.lease import Lease
lease = Lease(ExperimentPaths(Path(sys.argv[1])), "test", float(sys.argv[2]))
while True:
    term, at = lease.term, time.monotonic()
    if lease.try_acquire() and lease.term == term and lease.verify():
        print(term, at, flush=True)  # it could act under this term, at this time at the latest
    time.sleep(0.01)
"""


class Process:
    """A real process that writes down whenever it could act."""

    def __init__(self, folder: Path, number: int) -> None:
        self.out = folder / f"acts{number}"
        with self.out.open("wb") as file:
            argv = [sys.executable, "-c", HOLDER, str(folder / "exp"), "2.0"]
            self.child = subprocess.Popen(argv, stdout=file)

    def acts(self) -> list[tuple[float, int]]:
        """Times and terms, ascending; the last line may still be in the writing."""
        lines = self.out.read_text().split("\n")[:-1]
        return [(float(at), int(term)) for term, at in (line.split() for line in lines)]

    @property
    def term(self) -> int:
        return max((term for _, term in self.acts()), default=0)

    def stop(self) -> float:
        """Put it to sleep; returns a time at which it slept."""
        self.child.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.child.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        return time.monotonic()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Process]]:
    started = [Process(tmp_path, number) for number in range(3)]
    yield started
    for process in started:
        process.kill()


def test_real_processes_act_one_after_the_other_and_a_stopped_one_wakes_fenced(
    processes: list[Process],
) -> None:
    wait_for(lambda: any(process.term for process in processes))
    sleeper = max(processes, key=lambda process: process.term)
    asleep = sleeper.stop()
    former = sleeper.term
    others = [process for process in processes if process is not sleeper]
    wait_for(lambda: max(process.term for process in others) > former)
    sleeper.child.send_signal(signal.SIGCONT)
    for other in others:
        other.kill()
    wait_for(lambda: sleeper.term > former)  # once the term that it slept through has expired
    sleeper.kill()
    acts = sorted(act for process in processes for act in process.acts())
    terms = [term for _, term in acts]
    assert terms == sorted(terms)  # none acts under a term once a higher one has acted
    assert all(term > former for at, term in sleeper.acts() if at > asleep)
