"""Time of training by phase and rank: bars of trials, ranks that delay others, resource use."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdet import units
from hpcdet.read.experiment import timing
from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.read.report.scale import number

WIDTH, LEFT, RIGHT, TOP = 960, 56, 20, 4
LANE = 22
LANES = 200
COLOURS = 10


RANKS = 200
USES = {
    "cpu_cores": "Cores",
    "rss_bytes": "Memory",
    "gpu_percent": "GPU, %",
    "gpu_memory_bytes": "GPU memory",
    "job_cpu_cores": "Cores of the job",
    "job_memory_bytes": "Memory of the job",
}
"""Resources in the records, and their titles; of what is measured in bytes the peak is shown."""


@dataclass(frozen=True)
class StepPart:
    """A phase of a trial's bar."""

    colour: int
    x: float
    width: float
    title: str


@dataclass(frozen=True)
class Bar:
    """The bar of one trial: its step, divided into phases."""

    trial: int
    y: float
    parts: list[StepPart]
    shares: list[float]
    wall: timing.Times


@dataclass(frozen=True)
class Steps:
    """The template's data on the bars.

    Attributes:
        recorded: trials with such records; ``left_out``: of these, trials without a bar.
        phases: (colour, words) of each, in order.
    """

    bars: list[Bar]
    recorded: int
    left_out: int
    phases: list[tuple[int, str]]
    stragglers: list[timing.Straggler]
    width: int
    height: int
    left: int


def steps(gathered: Gathered) -> Steps | None:
    """Return the bars of all trials with records of their times; None if there are none."""
    trials = timing.trials(gathered)
    if not trials:
        return None
    names = [n for n in timing.PHASES if any(t.phases.get(n) for _, t in trials)]
    names += sorted({n for _, t in trials for n in t.phases} - timing.PHASES.keys())
    order = list(timing.PHASES)
    colours = {n: (order.index(n) if n in order else i) % COLOURS for i, n in enumerate(names)}
    shown = trials[:LANES]
    return Steps(
        bars=[
            _bar(trial, TOP + row * LANE, times, colours)
            for row, (trial, times) in enumerate(shown)
        ],
        recorded=len(trials),
        left_out=len(trials) - len(shown),
        phases=[(colours[name], timing.PHASES.get(name, name)) for name in names],
        stragglers=[one for trial, _ in trials for one in timing.stragglers(timing.ranks(trial))],
        width=WIDTH,
        height=TOP + LANE * len(shown),
        left=LEFT,
    )


def _bar(trial: GatheredTrial, y: float, times: timing.Times, colours: dict[str, int]) -> Bar:
    parts = []
    x = float(LEFT)
    for name, colour in colours.items():
        width = (WIDTH - LEFT - RIGHT) * times.share(name)
        if width:
            about = f"trial {trial.number}, {timing.PHASES.get(name, name)}"
            title = f"{about}: {100 * times.share(name):.3g} %"
            parts.append(StepPart(colour, round(x, 2), round(width, 2), title))
        x += width
    return Bar(trial.number, y, parts, [times.share(name) for name in colours], timing.wall(trial))


@dataclass(frozen=True)
class Uses:
    """The template's data on resource use: the ranks of each trial's newest attempt."""

    columns: dict[str, str]
    rows: list[timing.RankTimes]
    left_out: int


def uses(gathered: Gathered) -> Uses | None:
    """Return the rows of all trials; None if no trial has records of its use."""
    found: list[timing.RankTimes] = []
    for trial in gathered.trials:
        ranks = [row for row in timing.ranks(trial) if row.times.means]
        newest = max((row.attempt for row in ranks), default=0)
        found += [row for row in ranks if row.attempt == newest]
    told = {name for row in found for name in row.times.means}
    columns = {name: title for name, title in USES.items() if name in told}
    return Uses(columns, found[:RANKS], max(0, len(found) - RANKS)) if found else None


def use(times: timing.Times, name: str) -> str:
    """Format the use of a resource; "" if it was not measured."""
    if name.endswith("_bytes"):
        return units.size(times.peaks[name]) if name in times.peaks else ""
    return number(round(times.means[name], 2)) if name in times.means else ""
