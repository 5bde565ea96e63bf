"""Shares of a limit on jobs that run at once, by a file that the user's experiments write in turn.

Each experiment with work has a line in it: how many tasks it wants to run, how many may, and its
jobs. What the limit leaves beside other jobs is dealt out one by one, the oldest experiment first;
nobody gets a share before those who hold more than theirs have given it back. Jobs of an experiment
that wants nothing any more are about to end: others may be submitted to begin after them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcdet.errors import IntegrityError, Unavailable
from hpcdet.schedulers.calls.polling import LOCK_S, lock
from hpcdet.schedulers.common.base import Occupancy
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import JsonRecord

_OLD_S = 86400.0
"""An experiment without jobs that nobody has looked after for so long takes part no more."""
_CLOCKS_S = 60.0
"""A job that was submitted less than this before an answer may be missing in it."""


@dataclass(frozen=True)
class RunningShare(JsonRecord):
    """One experiment's part.

    Attributes:
        root: its folder.
        project: that its jobs are charged to; "" if none is named.
        partition: that they run in; "" if that is not bounded.
        wants, may: tasks that should run, and that may.
        jobs: ids of those that wait or run.
        held: all of those were held for the limit when this was written.
        seen: when this was written, epoch seconds.
        had: tasks that may run by a wider share before, until an answer of the scheduler says how
            many do.
        had_at: when the newest answer that does not was given, epoch seconds.
    """

    root: str
    project: str = ""
    partition: str = ""
    wants: int = 0
    may: int = 0
    jobs: list[str] = field(default_factory=list)
    held: bool = False
    seen: float = 0.0
    had: int = 0
    had_at: float = 0.0

    def lives(self, queue: Occupancy | None) -> bool:
        """True if jobs of it may be in the queue; where it cannot be asked, they are taken to be.

        Those that it is about to submit are not in ``jobs`` yet.
        """
        if queue is None or self.seen > queue.at - _CLOCKS_S:
            return bool(self.jobs or self.may)
        return any(job in queue.running or job in queue.waiting for job in self.jobs)

    def waits(self, queue: Occupancy | None) -> bool:
        """True if nothing of it runs or begins by itself: jobs that it has are held."""
        if self.may and not self.held:
            return not self.lives(queue)
        return queue is None or not any(job in queue.running for job in self.jobs)

    def holds(self, queue: Occupancy | None, running: Mapping[str, int]) -> int:
        """Return how many of its tasks run, or may begin at any time."""
        may = self.may if self.lives(queue) else 0
        if queue is not None and queue.at <= self.had_at:
            may = max(may, self.had)
        return max(may, sum(running.get(job, 0) for job in self.jobs))


@dataclass(frozen=True)
class Bound:
    """A limit on tasks that run at once.

    Attributes:
        running: those that do, by job, whoever has submitted them.
        project: only jobs that are charged to it count; None: all do.
        partition: only jobs that run there count; None: all do.
    """

    most: int
    running: Mapping[str, int]
    project: str | None = None
    partition: str | None = None

    def counts(self, share: RunningShare) -> bool:
        """Return True if the tasks of a share are bounded by this limit."""
        return self.project in (None, share.project) and self.partition in (None, share.partition)

    def room(
        self,
        mine: RunningShare,
        shares: Sequence[RunningShare],
        queue: Occupancy | None,
        ending: Collection[RunningShare] = (),
    ) -> int:
        """Return how many tasks of ``mine`` may run, one of ``shares``.

        Args:
            ending: those whose jobs will have ended by then.
        """
        if not self.counts(mine):
            return mine.wants
        those = [share for share in shares if self.counts(share)]
        known = {job for share in those for job in share.jobs}
        left = self.most - sum(count for job, count in self.running.items() if job not in known)
        stay = (share for share in those if share is not mine and share not in ending)
        others = (share.holds(queue, self.running) for share in stay)
        fair = _dealt(left, {share.root: share.wants for share in those})[mine.root]
        return max(0, min(fair, left - sum(others)))


@dataclass(frozen=True)
class Agreed:
    """Agreement of a user's experiments.

    Attributes:
        may: tasks of this one that may run.
        behind: jobs that have to end before any of them begins.
        stranded: folders of experiments that could go on and have no job that would see to it;
            jobs that are held see to nothing.
    """

    may: int
    behind: Sequence[str]
    stranded: Sequence[Path]


def agree(
    path: Path,
    mine: RunningShare,
    bounds: Sequence[Bound],
    queue: Occupancy | None,
    leaving: Sequence[str] = (),
) -> Agreed:
    """Write this experiment's share.

    Args:
        mine: with what it wants; its ``may`` is not looked at.
        queue: jobs of this user; None: they cannot be asked for.
        leaving: other jobs of this experiment, which are about to end.

    Raises:
        Unavailable: the file cannot be read or written, or another process keeps it locked.
    """
    with _locked(path):
        shares = list(_others(path, mine, queue))
        before = next((at for at, one in enumerate(shares) if one.root == mine.root), len(shares))
        former = shares[before] if before < len(shares) else mine
        shares[before : before + 1] = [mine]
        small = dataclasses.replace(mine, root="", wants=0, jobs=list(leaving))
        may, behind = _room(mine, [*shares, small], bounds, queue)
        had, had_at = former.had, former.had_at
        if queue is not None and may < former.may:
            had, had_at = former.holds(queue, {}), queue.at
        mine = dataclasses.replace(mine, may=may, had=had, had_at=had_at)
        shares[before] = mine
        _write(path, shares)
    idle = [share for share in shares if share is not mine and share.waits(queue)]
    able = (one for one in idle if one.wants and _room(one, shares, bounds, queue)[0])
    return Agreed(may, behind, [Path(share.root) for share in able])


def _room(
    mine: RunningShare,
    shares: Sequence[RunningShare],
    bounds: Sequence[Bound],
    queue: Occupancy | None,
) -> tuple[int, list[str]]:
    """Return how many tasks may run, and the jobs that have to end before any of them begins."""
    now = min(bound.room(mine, shares, queue) for bound in bounds)
    if now or queue is None or any(job in queue.running for job in mine.jobs):
        return now, []  # who has a job that runs gets the rest later
    ending = [share for share in shares if share is not mine and not share.wants]
    behind = [job for share in ending for job in share.jobs if job in queue.running]
    return min(bound.room(mine, shares, queue, ending) for bound in bounds), behind


def leave(path: Path, mine: RunningShare) -> list[Path]:
    """Give this experiment's share back; returns the others that want to run some and cannot.

    Args:
        mine: wants nothing; its jobs, if there are any, are about to end.

    Raises:
        Unavailable: as ``agree``.
    """
    if not path.exists():
        return []
    with _locked(path):
        shares = _read(path)
        others = [share for share in shares if share.root != mine.root]
        if mine.jobs or len(others) < len(shares):
            _write(path, [*others, mine] if mine.jobs else others)
    return [
        Path(share.root)
        for share in others
        if share.wants and (share.held or not (share.jobs and share.may))
    ]


def _others(path: Path, mine: RunningShare, queue: Occupancy | None) -> Iterator[RunningShare]:
    """Yield the shares of open experiments, this one's former one among them.

    Those that are closed take part while jobs of theirs are left.
    """
    for share in _read(path):
        paths = ExperimentPaths(Path(share.root))
        fresh = share.seen > mine.seen - _OLD_S or (queue is not None and share.lives(queue))
        # one that cannot be reached is none of this user's; its jobs count all the same
        there = os.path.exists(paths.config)
        if share.root == mine.root or (fresh and there and not os.path.exists(paths.closed)):
            yield share
        elif fresh and there and share.lives(queue):
            yield dataclasses.replace(share, wants=0, may=0)


def _dealt(left: int, wants: Mapping[str, int]) -> dict[str, int]:
    """Deal out what is left, one for each in turn, to no one more than it wants."""
    shares = dict.fromkeys(wants, 0)
    while left > 0 and (hungry := [root for root in wants if shares[root] < wants[root]]):
        for root in hungry[:left]:
            shares[root] += 1
        left -= len(hungry)
    return shares


def split(most: int, running: Mapping[str, int], waiting: Mapping[str, int]) -> dict[str, int]:
    """Return how many tasks of each job may run, those that do before those that wait."""
    found, left = dict.fromkeys([*running, *waiting], 0), most
    for tasks in (running, waiting):
        for job, count in tasks.items():
            found[job] += (more := min(count, left))
            left -= more
    return found


def _read(path: Path) -> list[RunningShare]:
    try:
        said = files.read_json(path)
    except IntegrityError:  # damaged: experiments write it anew
        said = None
    found: list[RunningShare] = []
    for one in said if isinstance(said, list) else []:
        with contextlib.suppress(ValueError, AttributeError):  # damaged, or of another version
            found.append(RunningShare.decode(one))
    return found


def _write(path: Path, shares: Collection[RunningShare]) -> None:
    files.replace(path, files.canonical([dataclasses.asdict(share) for share in shares]))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        with lock(path.with_suffix(".lock"), LOCK_S) as mine:
            if not mine:
                what = f"another process has kept it locked for {LOCK_S:.0f} s"
                hint = f"fuser {path.with_suffix('.lock')} names it, on its host; it may be stopped"
                raise Unavailable(what, where=str(path), hint=hint)
            yield
    except OSError as error:
        what = f"the shares of running jobs cannot be written: {error.strerror}"
        hint = f"make room, or remove {path}: experiments write it anew"
        raise Unavailable(what, where=str(path), hint=hint) from error
