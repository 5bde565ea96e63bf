"""Random kills at random times, faults inside saves, a full disk, damaged checkpoints: nothing is
lost, nothing is there twice, the bits are the same. On the local backend; see ``tests.chaos``.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpcdet.schedulers.local.local_state import JobFolder, JobRecord, ProcessRecord
from tests import chaos, disks
from tests import experiments as x

LANES = 2
NUMBER = chaos.BLOWS * 3 // 5


@dataclass
class Arena:
    """Where experiments run: each lane on a small disk, if there may be one."""

    folder: Path
    state: Path
    disks: bool
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def submit(self, lane: int, draw: random.Random, pace_s: float = chaos.PACE_S) -> chaos.Victim:
        pace = self.folder / f"pace-{next(self.numbers)}"  # of its own, from any thread
        x.set_pace(pace, pace_s)
        values = x.config(
            chaos.BATCHES,
            ranks=chaos.RANKS,
            environment={"environment_variables": {"PACE": str(pace)}},
            **chaos.CONFIG,  # type: ignore[arg-type]
        )
        disk = self.folder / f"disk-{lane}"
        paths = x.submit(values, disk / "root", x.local_site(), self.folder / "model")
        return chaos.Victim(paths, pace, draw, disk if self.disks else None)

    def supervisors(self, victim: chaos.Victim) -> list[int]:
        """The processes of the local backend that run a victim's jobs."""
        found = []
        for job in [JobFolder(root) for root in (self.state / "jobs").glob("*")]:
            record, process = JobRecord.read(job.record), ProcessRecord.read(job.supervisor)
            if record and record.name.startswith(victim.paths.id) and process and job.supervised():
                found.append(process.pid)
        return found

    def supervisor(self, victim: chaos.Victim) -> str:
        x.strike(self.supervisors(victim))
        return ""

    def all_at_once(self, victim: chaos.Victim) -> str:
        """Searcher, supervisor, worker and ranks."""
        victim.kill_searcher()
        x.strike(self.supervisors(victim))
        return chaos.everything(victim)


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    with contextlib.ExitStack() as stack:
        lanes = [tmp_path / f"disk-{lane}" for lane in range(LANES)]
        why_not = [stack.enter_context(disks.small_disk(lane, megabytes=64)) for lane in lanes]
        state = stack.enter_context(x.local_jobs(tmp_path / "state"))
        chaos.write_model(tmp_path / "model")
        yield Arena(tmp_path, state, not any(why_not))


@pytest.mark.chaos
@pytest.mark.timeout(600 + 120 * NUMBER)
def test_random_blows_change_nothing(arena: Arena) -> None:
    calm = arena.submit(0, random.Random(), pace_s=0)
    calm.see_to_searcher()
    assert x.run_to_end(calm.paths).state == "COMPLETED", calm.story()
    wanted = x.final_digest(calm.paths, 1), x.metric_rows(calm.paths)
    assert wanted[1]
    blows = [one for one in chaos.COMMON if arena.disks or one not in chaos.ON_SMALL_DISKS]
    blows += [arena.supervisor, arena.all_at_once]
    campaign = chaos.Campaign("local", arena.submit, blows, NUMBER, per_trial=6, wanted=wanted)
    campaign.run(LANES)
