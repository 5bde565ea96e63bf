"""Random kills at random times, and damaged checkpoints: nothing is lost, the bits are the same.

Trials of two ranks on the local backend, with the searcher daemon beside them. Each blow is drawn
from a seed that is printed: HPCDET_CHAOS sets how many there are, HPCDET_CHAOS_SEED the seed.
`make chaos KILLS=100` is a campaign.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdet.control import daemon
from hpcdet.store.layout import ExperimentPaths
from tests import experiments as x

DOSE = int(os.environ.get("HPCDET_CHAOS", "4"))
SEED = int(os.environ.get("HPCDET_CHAOS_SEED", "0")) or random.randrange(1, 1 << 31)
BLOWS = (
    *("rank", "all ranks", "worker", "daemon", "supervisor", "everything", "USR2", "TERM"),
    *("bit flips", "truncation"),
)
RANKS = 2
PER_RUN = 4  # blows per experiment


@dataclass(frozen=True)
class Arena:
    """Where experiments run, and where their processes are found."""

    folder: Path
    state: Path

    def submit(self, batches: int, pace_s: float) -> ExperimentPaths:
        model = x.write_model(self.folder / f"model-{pace_s}", pace_s=pace_s, loaders=1)
        values = x.config(
            batches,
            ranks=RANKS,
            checkpoint_every_s=0.5,
            min_validation_period={"batches": 25},
        )
        return x.submit(values, self.folder / "root", x.local_site(), model)


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    with x.local_jobs(tmp_path / "state") as state:
        yield Arena(tmp_path, state)
        for root in (tmp_path / "root").iterdir():
            kill_daemons(ExperimentPaths(root))


def strike(blow: str, paths: ExperimentPaths, arena: Arena, draw: random.Random) -> None:
    """Deal one blow."""
    ranks = x.rank_pids(paths)
    match blow:
        case "rank":
            x.strike(draw.sample(ranks, min(1, len(ranks))))
        case "all ranks":
            x.strike(ranks)
        case "bit flips" | "truncation":
            x.strike(ranks)
            print(f"{blow}: {x.damage(paths, blow, draw)}", flush=True)
        case "worker":
            x.strike(x.worker_pids(paths))
        case "daemon":
            kill_daemons(paths)
        case "supervisor":
            x.strike(x.supervisor_pids(arena.state))
        case "everything":
            kill_daemons(paths)
            x.strike(x.supervisor_pids(arena.state))
            x.strike([*x.worker_pids(paths), *x.rank_pids(paths)])
        case _:
            x.strike(x.worker_pids(paths), signal.Signals[f"SIG{blow}"])


def kill_daemons(paths: ExperimentPaths) -> None:
    """SIGKILL, and reap: a daemon that this process started would else count as there."""
    for pid in x.daemon_pids(paths):
        x.strike([pid])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def await_moment(paths: ExperimentPaths, draw: random.Random, batches: int) -> bool:
    """Wait for a random moment in the life of the trial; False if it is over before.

    One time in three that is while ranks start; else it is when more batches are saved.
    """
    more = draw.choice([0, draw.randint(1, batches // 3), draw.randint(1, batches // 3)])
    reached = x.progress(paths)

    def is_now() -> bool:
        return bool(x.rank_pids(paths)) and x.progress(paths) >= min(reached + more, batches)

    x.until(lambda: x.closed(paths) or is_now(), lambda: x.story(paths))
    time.sleep(draw.uniform(0, 0.2))
    return not x.closed(paths)


def deal(blow: str, paths: ExperimentPaths, arena: Arena, draw: random.Random) -> None:
    """Strike, bring the daemon back, and wait until what was struck has ended."""
    at, attempts = x.progress(paths), len(x.ends(paths, 1))
    strike(blow, paths, arena, draw)
    print(f"{paths.id}: {blow} after {at} batches, attempt {attempts}", flush=True)
    if not x.daemon_pids(paths) and not x.closed(paths):
        daemon.start(paths)
    if blow not in ("daemon", "supervisor"):
        x.until(lambda: x.closed(paths) or all(x.ends(paths, 1)[:attempts]), lambda: x.story(paths))


@pytest.mark.chaos
@pytest.mark.timeout(600 + 120 * DOSE)
def test_random_kills_change_nothing(arena: Arena) -> None:
    print(f"\nHPCDET_CHAOS={DOSE} HPCDET_CHAOS_SEED={SEED}")
    draw = random.Random(SEED)
    batches = 90
    calm = arena.submit(batches, pace_s=0.0)
    assert x.crank_to_end(calm).state == "COMPLETED", x.story(calm)
    expected, rows = x.final_digest(calm, 1), x.metric_rows(calm)
    assert rows

    left = DOSE
    while left:
        blows = [draw.choice(BLOWS) for _ in range(min(left, PER_RUN))]
        left -= len(blows)
        paths = arena.submit(batches, pace_s=0.1)
        daemon.start(paths)
        for blow in blows:
            if not await_moment(paths, draw, batches):
                break
            deal(blow, paths, arena, draw)
        assert x.crank_to_end(paths).state == "COMPLETED", x.story(paths)
        x.same_bits(x.final_digest(paths, 1), expected, x.story(paths))
        assert x.metric_rows(paths) == rows, "none is lost, none is there twice, none differs"
        print(f"{paths.id}: {x.ends(paths, 1)}", flush=True)
