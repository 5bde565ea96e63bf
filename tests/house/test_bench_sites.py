"""``make bench-sites``: each call of a scheduler's command is counted as what it is."""

from __future__ import annotations

import sys

from tests import TOP

sys.path.insert(0, str(TOP / "benchmarks"))

import bench_sites  # type: ignore[import-not-found]


def test_calls_are_counted_by_what_they_are_to_the_scheduler() -> None:
    lines = [
        "1.0 squeue --noheader",
        "1.1 sinfo -h",
        "1.2 scontrol show job --oneliner 12",
        "1.3 sbatch --test-only job.sh",
        "2.0 scontrol show config",
        "2.1 sacctmgr show assoc",
        "3.0 scancel 12_3",
        "3.1 scontrol update JobId=12 Requeue=1",
        "3.2 scontrol requeue Incomplete 12_3",
        "4.0 sbatch --parsable job.sh",
        "5.0 srun --ntasks=1 python",
        "6.0 scontrol show hostnames n[1-4]",
    ]
    kinds = {"query": 4, "fact": 2, "change": 3, "submission": 1, "step": 1, "nothing": 1}
    assert bench_sites.counted(lines) == kinds
