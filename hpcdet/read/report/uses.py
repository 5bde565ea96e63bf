"""Resource use of each rank, in the newest attempt of each trial with records of it."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdet import units
from hpcdet.read.experiment import timing
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.report.scale import number

ROWS = 200


@dataclass(frozen=True)
class UsageColumn:
    """One resource.

    Attributes:
        name: in the records; of what is measured in bytes the peak is shown, else the mean.
    """

    name: str
    word: str


COLUMNS = (
    UsageColumn("cpu_cores", "Cores"),
    UsageColumn("rss_bytes", "Memory"),
    UsageColumn("gpu_percent", "GPU, %"),
    UsageColumn("gpu_memory_bytes", "GPU memory"),
    UsageColumn("job_cpu_cores", "Cores of the job"),
    UsageColumn("job_memory_bytes", "Memory of the job"),
)


@dataclass(frozen=True)
class Uses:
    """The template's data: rows of attempt, rank, node, and a text for each column."""

    words: list[str]
    rows: list[tuple[str, int, str, list[str]]]
    left_out: int


def uses(gathered: Gathered) -> Uses | None:
    """Return the rows of all trials; None if no trial has records of its use."""
    found = []
    for trial in gathered.trials:
        ranks = [row for row in timing.ranks(trial) if row.times.means]
        newest = max((row.attempt for row in ranks), default=0)
        found += [row for row in ranks if row.attempt == newest]
    if not found:
        return None
    told = {name for row in found for name in row.times.means}
    columns = [one for one in COLUMNS if one.name in told]
    return Uses(
        [one.word for one in columns],
        [
            (
                f"{row.trial}.{row.attempt}",
                row.rank,
                row.host,
                [_text(row.times, one.name) for one in columns],
            )
            for row in found[:ROWS]
        ],
        max(0, len(found) - ROWS),
    )


def _text(times: timing.Times, name: str) -> str:
    if name.endswith("_bytes"):
        peak = times.peaks.get(name)
        return "" if peak is None else units.size(peak)
    mean = times.means.get(name)
    return "" if mean is None else number(round(mean, 2))
