"""Random blows against trials, and what must hold after each: for the campaigns on both backends.

A campaign deals a deck of blows, several trials at once. ``HPCDET_CHAOS`` is the number of blows
of all campaigns together, ``HPCDET_CHAOS_SEED`` what all of them are drawn from;
``HPCDET_CHAOS_KINDS`` names the kinds of blows, by default all.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from hpcdet import checkpoint
from hpcdet.control import daemon
from hpcdet.errors import IntegrityError
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import journal
from hpcdet.store.trials.standing import MANIFEST
from tests import disks, dose
from tests import experiments as x

BLOWS = dose.BLOWS
SEED = dose.SEED
KINDS = dose.KINDS.split()
BATCHES = 60
PACE_S = 0.06
RANKS = 2

MODEL = (
    x.TINY
    + """
from faults import Faults


class Model(Tiny):
    loaders = 1

    def __init__(self, context):
        super().__init__(context)
        self.faults = Faults()
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        )

    def train_batch(self, batch, epoch_idx, batch_idx):
        self.faults.step(batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
)
"""What ``tests.experiments.TINY`` has, with a worker of the training loader, and faults."""

CONFIG = {
    "entrypoint": "model_def:Model",
    "min_validation_period": {"batches": 20},
    "min_checkpoint_period": {"batches": 1000},
    "checkpoint_every_s": 0.4,
    "scheduling_unit": 4,
    "max_restarts": 1000,
}


def write_model(folder: Path) -> Path:
    """Write the model and the faults that it imports."""
    folder.mkdir(exist_ok=True, mode=0o700)
    (folder / "model_def.py").write_text(MODEL)
    (folder / "faults.py").write_text(Path(__file__).with_name("faults.py").read_text())
    return folder


class NotStruck(Exception):
    """The trial was over before the blow fell, or there was nothing to strike."""


@dataclass
class Victim:
    """A trial that blows fall upon.

    Attributes:
        pace: its pace file; see ``tests.faults``.
        disk: the file system of its own that it lies on, if it does.
        harmed: checkpoints that a blow has damaged.
    """

    paths: ExperimentPaths
    pace: Path
    draw: random.Random
    disk: Path | None = None
    harmed: set[Path] = field(default_factory=set)
    _sound: set[tuple[str, int]] = field(default_factory=set)
    _saved: int = -1
    _in_vain: int = 0

    # -- watching it

    def attempts(self) -> int:
        return len(self.paths.trial(1).attempts())

    def story(self) -> str:
        return x.story(self.paths)

    def over(self) -> bool:
        """Whether it is done, or as good as that; asked at each look around."""
        self.look()
        return x.closed(self.paths) is not None or "completed" in x.ends(self.paths, 1)

    def until(self, condition: Callable[[], object], timeout: float = 300) -> None:
        """Wait for a condition, without taking the machine from those that are waited for."""
        x.until(condition, self.story, timeout, every=0.2)

    def look(self) -> None:
        """Whatever looks like a checkpoint is one, whole to the last bit, at any time."""
        for place in self.paths.trial(1).checkpoint_places:
            for manifest in _committed(place):
                folder = place / manifest.name
                key = (manifest.name, manifest.attempt)
                if key in self._sound or folder in self.harmed:
                    continue
                try:
                    checkpoint.verify(folder)
                except (IntegrityError, OSError) as error:
                    if (folder / MANIFEST).exists():  # retention takes it away first
                        raise x.BitsDiffer(f"half visible: {error}\n{self.story()}") from error
                self._sound.add(key)

    def batch(self) -> int:
        """The batch that rank 0 is at, or was at last."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._of_rank("at", 0).read_text())
        return 0

    def trains(self) -> bool:
        """Whether the newest attempt is past its first step and runs."""
        attempts = self.paths.trial(1).attempts()
        lines = journal.read(attempts[-1].journal) if attempts else []
        return any(line["kind"] == "first_step" for line in lines) and not any(
            x.ends(self.paths, 1)[-1:]
        )

    def await_moment(self) -> None:
        """Wait for a random moment of an attempt; one in four is while its ranks start.

        Where the trial got no further since the blow before, wait until it has saved: a trial
        that gets nowhere is given up, and rightly.
        """
        starting = self.draw.random() < 0.25
        more = self.draw.randint(0, 10)
        self.until(lambda: self.over() or x.rank_pids(self.paths))
        if not starting or self._in_vain >= 2:
            self.until(lambda: self.over() or self.trains())
            least = min(self.batch() + more, BATCHES)
            further = self._saved + 1 if self._in_vain else 0
            self.until(
                lambda: (
                    self.over()
                    or (self.batch() >= least and x.progress(self.paths) >= further)
                    or not self.trains()
                )
            )
        if self.over():
            raise NotStruck

    def is_struck(self) -> None:
        """Wait until the attempts that were struck down have ended."""
        attempts = self.attempts()
        self.until(lambda: self.over() or all(x.ends(self.paths, 1)[:attempts]))
        saved = x.progress(self.paths)
        self._in_vain = 0 if saved > self._saved else self._in_vain + 1
        self._saved = saved

    # -- faults inside its ranks

    def plan(self, where: str, nth: int, how: str, after: bool = False) -> str:
        """Plan a fault in a random rank and wait until it has happened; what it hit."""
        rank = self.draw.randrange(RANKS)
        fired = self._of_rank("fired", rank)
        fired.unlink(missing_ok=True)
        draft = self._of_rank("draft", rank)
        draft.write_text(json.dumps({"where": where, "nth": nth, "how": how, "after": after}))
        draft.rename(self._of_rank("plan", rank))
        self.until(lambda: self.over() or fired.exists())
        if not fired.exists():
            raise NotStruck
        when = "after" if after else "at"
        return f"{how} of rank {rank} {when} {fired.read_text()}"

    def each_rank_stepped(self) -> bool:
        return all(self._of_rank("at", rank).exists() for rank in range(RANKS))

    def _of_rank(self, what: str, rank: int) -> Path:
        return self.pace.with_name(f"{self.pace.name}.{what}-{rank}")

    # -- the searcher

    def kill_searcher(self) -> None:
        """SIGKILL, and reap: one that this process started would else count as there."""
        for pid in x.daemon_pids(self.paths):
            x.strike([pid])
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def see_to_searcher(self) -> None:
        """Somebody comes back and starts one, if there is none."""
        if not x.daemon_pids(self.paths) and not x.closed(self.paths):
            daemon.start(self.paths)


def _committed(place: Path) -> Sequence[checkpoint.Manifest]:
    with contextlib.suppress(OSError):
        return checkpoint.committed(place)
    return ()


Blow = Callable[[Victim], str]
"""Deals a blow and says what it hit; its name is the kind."""


def rank(victim: Victim) -> str:
    return _kill(_ranks(victim), victim.draw)


def all_ranks(victim: Victim) -> str:
    return _kill(_ranks(victim))


def loader_worker(victim: Victim) -> str:
    """A process of a data loader: as the machine does it when memory is short."""
    return _kill(_ranks(victim, loaders=True), victim.draw)


def worker(victim: Victim) -> str:
    return _kill(x.worker_pids(victim.paths))


def searcher(victim: Victim) -> str:
    victim.kill_searcher()
    return ""


def notice(victim: Victim) -> str:
    """TERM or USR2 for the worker."""
    number = victim.draw.choice([signal.SIGTERM, signal.SIGUSR2])
    return _kill(x.worker_pids(victim.paths), number=number)


def notice_at_step(victim: Victim) -> str:
    how = victim.draw.choice(["TERM", "USR2"])
    return victim.plan("step", victim.draw.randint(1, 8), how)


def kill_at_step(victim: Victim) -> str:
    return victim.plan("step", victim.draw.randint(1, 8), "KILL")


def kill_in_save(victim: Victim) -> str:
    return victim.plan("call", victim.draw.randint(1, 30), "KILL", victim.draw.random() < 0.5)


def kill_at_rename(victim: Victim) -> str:
    return victim.plan("rename", victim.draw.randint(1, 2), "KILL", victim.draw.random() < 0.5)


def failing_call(victim: Victim) -> str:
    """One call of a save meets a disk that is full or broken."""
    how = victim.draw.choice(["ENOSPC", "EIO"])
    return victim.plan("call", victim.draw.randint(1, 30), how, victim.draw.random() < 0.2)


def full_disk(victim: Victim) -> str:
    """Nothing of the experiment can be written for some batches: no checkpoint, no journal."""
    return _in_full_disk(victim, lambda _: "")


def kill_in_full_disk(victim: Victim) -> str:
    return _in_full_disk(victim, victim.draw.choice([rank, all_ranks, worker, everything]))


def bit_flips(victim: Victim) -> str:
    return _damage(victim, "bit flips")


def truncation(victim: Victim) -> str:
    return _damage(victim, "truncation")


def everything(victim: Victim) -> str:
    """Searcher, workers, ranks and what else hpcdet runs for the experiment, at once."""
    victim.kill_searcher()
    return _kill([*x.worker_pids(victim.paths), *x.rank_pids(victim.paths)])


COMMON: tuple[Blow, ...] = (
    *(rank, all_ranks, loader_worker, worker, searcher, everything),
    *(notice, notice_at_step, kill_at_step, kill_in_save, kill_at_rename),
    *(failing_call, full_disk, kill_in_full_disk, bit_flips, truncation),
)
ON_SMALL_DISKS = (full_disk, kill_in_full_disk)
HARMLESS = (searcher, failing_call, full_disk)
"""After these the attempt goes on, as a rule."""


def _kill(
    pids: list[int], draw: random.Random | None = None, number: signal.Signals = signal.SIGKILL
) -> str:
    """Strike all, or one that is drawn."""
    if not pids:
        raise NotStruck
    x.strike([draw.choice(pids)] if draw else pids, number)
    return f"{number.name} for {1 if draw else len(pids)} of {len(pids)}"


def _in_full_disk(victim: Victim, blow: Blow) -> str:
    if victim.disk is None:
        raise NotStruck
    with disks.full(victim.disk):
        since, limit = victim.batch(), time.monotonic() + 2
        x.until(lambda: victim.batch() >= since + 8 or time.monotonic() > limit)
        hit = blow(victim)
        time.sleep(victim.draw.uniform(0, 0.2))
    return f"until batch {victim.batch()} {hit}"


def _ranks(victim: Victim, loaders: bool = False) -> list[int]:
    """Ranks, or the workers of their loaders, which are forks and look the same."""
    found = x.rank_pids(victim.paths)
    return [pid for pid in found if (x.parent(pid) in found) == loaders]


def _damage(victim: Victim, how: str) -> str:
    x.strike(_ranks(victim))
    harmed = x.damage(victim.paths, how, victim.draw)
    if not harmed:
        raise NotStruck
    victim.harmed.add(Path(harmed).parent)
    return "/".join(Path(harmed).parts[-2:])


# -- a campaign ----------------------------------------------------------------------------


@dataclass
class Campaign:
    """Deals blows to one trial after the other, in several lanes at once.

    Args:
        submit: makes a trial for a lane; its ranks find the faults.
        blows: the kinds; each is dealt as often as the others, in random order.
        number: how many blows.
        per_trial: how many blows one trial takes at most.
        wanted: digest and metric rows of the undisturbed trial.
    """

    name: str
    submit: Callable[[int, random.Random], Victim]
    blows: Sequence[Blow]
    number: int
    per_trial: int
    wanted: tuple[str, list[tuple[str, int, str, str]]]
    struck: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, lanes: int) -> None:
        draw = random.Random(f"{self.name} {SEED}")
        print(f"\n{self.name}: {self.number} blows, HPCDET_CHAOS_SEED={SEED}", flush=True)
        start = time.monotonic()
        blows = [one for one in self.blows if not KINDS or one.__name__ in KINDS]
        self._deck = deque(itertools.islice(_shuffled(blows, draw), self.number if blows else 0))
        numbers = itertools.count(1)
        with ThreadPoolExecutor(lanes) as pool:
            for done in [pool.submit(self._lane, lane, numbers) for lane in range(lanes)]:
                done.result()
        took = time.monotonic() - start
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.struck.items()))
        print(f"{self.name}: {self.struck.total()} blows in {took:.0f} s: {counts}", flush=True)

    def _lane(self, lane: int, numbers: Iterator[int]) -> None:
        while self._deck:
            draw = random.Random(f"{self.name} {SEED} {next(numbers)}")
            victim = self.submit(lane, draw)
            try:
                self._torment(victim)
            except BaseException:
                self._deck.clear()  # the other lanes end, too
                raise
            finally:
                victim.kill_searcher()

    def _torment(self, victim: Victim) -> None:
        victim.see_to_searcher()
        try:
            for _ in range(self.per_trial):
                victim.await_moment()
                self._deal(victim)
        except NotStruck:
            pass
        x.set_pace(victim.pace, 0)
        victim.until(lambda: x.closed(victim.paths))
        end = x.closed(victim.paths)
        if end is None or end.state != "COMPLETED":  # no rerun may hide it
            raise x.BitsDiffer(f"{end}\n{victim.story()}")
        if not victim.each_rank_stepped():  # else a plan may strike another rank, or none
            raise x.BitsDiffer(f"not each rank reads its own plans\n{victim.story()}")
        digest, rows = self.wanted
        x.same_bits(x.final_digest(victim.paths, 1), digest, victim.story())
        x.same_bits(x.metric_rows(victim.paths), rows, victim.story())
        victim.look()

    def _deal(self, victim: Victim) -> None:
        with self._lock:
            if not self._deck:
                raise NotStruck
            blow = self._deck.popleft()
        at, attempt = victim.batch(), victim.attempts()
        try:
            hit = blow(victim)
        except NotStruck:
            with self._lock:
                self._deck.append(blow)
            return
        with self._lock:
            self.struck[blow.__name__] += 1
            count = self.struck.total()
        said = f"{count}/{self.number} {victim.paths.id} attempt {attempt} batch {at}"
        print(f"{said}: {blow.__name__} {hit}", flush=True)
        victim.see_to_searcher()
        if blow not in HARMLESS:
            victim.is_struck()


def _shuffled(blows: Sequence[Blow], draw: random.Random) -> Iterator[Blow]:
    while True:
        yield from draw.sample(blows, len(blows))
