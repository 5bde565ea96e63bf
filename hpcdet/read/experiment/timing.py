"""Time of steps by phase and use of resources, from the ranks' ``profile`` records.

Records are sums over some seconds. Here they are added up by attempt and rank, or converted to
metrics of two groups: ``timing`` (seconds of a step by phase) and ``system`` (resource use).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from hpcdet import units
from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, GatheredTrial, Line

PHASES = {
    "data": "Data",
    "forward": "Forward",
    "backward": "Backward",
    "communication": "Waiting for other ranks",
    "optimizer": "Optimizer",
    "validation": "Validation",
    "checkpoint": "Checkpoints",
    "waiting": "Waiting at rungs",
    "other": "Other",
    "profiling": "Torch's profiler",
}
"""The trainer's phases in the order of a step, as people read them."""

GROUPS = ("timing", "system")
SLOWER = 1.2
"""A straggler works so many times as long on a step as half of the others do."""
_APART = frozenset({"validation", "checkpoint", "waiting", "profiling"})
"""What is no part of a step."""
_NO_WORK = _APART | {"communication"}
_FEWEST_STEPS = 20
_LEAST_S = 0.0005

Row = dict[str, Any]


@dataclass
class Times:
    """The sum of some records.

    Attributes:
        seconds: wall time of training and of all work between steps, after the first step.
        phases: seconds of each phase; together they are ``seconds``.
        samples: trained on, over all ranks; 0 if not counted.
        means: of resource use, weighted by time; ``peaks``: of memory.
    """

    seconds: float = 0.0
    steps: int = 0
    samples: int = 0
    slowest_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)

    @property
    def training_s(self) -> float:
        """Seconds without validation, checkpoints and the profiler's files."""
        return max(0.0, self.seconds - sum(self.phases.get(name, 0.0) for name in _APART))

    @property
    def step_s(self) -> float | None:
        """Seconds of a step, without validation and checkpoints."""
        return self.training_s / self.steps if self.steps else None

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second, all ranks, without validation and checkpoints; None if uncounted."""
        return self.samples / self.training_s if self.samples and self.training_s else None

    @property
    def work_s(self) -> float:
        """Seconds of a step's work that other ranks may have to wait for."""
        waits = sum(self.phases.get(name, 0.0) for name in _NO_WORK)
        return max(0.0, self.seconds - waits) / self.steps if self.steps else 0.0

    def share(self, phase: str) -> float:
        """Return a phase's share of all seconds, 0 to 1."""
        return self.phases.get(phase, 0.0) / self.seconds if self.seconds else 0.0


def total(parts: Iterable[Times]) -> Times:
    """Return the sum of records. Steps and samples add up: for ranks, divide by their number."""
    whole = Times()
    weights: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        for name, value in part.means.items():
            before = weights[name]
            weights[name] += part.seconds
            mean = whole.means.get(name, 0.0) * before + value * part.seconds
            whole.means[name] = mean / weights[name] if weights[name] else value
        for name, value in part.peaks.items():
            whole.peaks[name] = max(value, whole.peaks.get(name, 0.0))
        for name, value in part.phases.items():
            whole.phases[name] = whole.phases.get(name, 0.0) + value
        whole.seconds += part.seconds
        whole.steps += part.steps
        whole.samples += part.samples
        whole.slowest_s = max(whole.slowest_s, part.slowest_s)
    return whole


@dataclass(frozen=True)
class RankTimes:
    """The times of one rank of one attempt."""

    trial: int
    attempt: int
    rank: int
    host: str
    times: Times


@dataclass(frozen=True)
class Straggler:
    """A rank, or all ranks of a node (``rank`` None), for which the others waited.

    Attributes:
        over: how much longer than half of the others, 0.3 for 30 %.
        phase: where most of that is.
        cost_s: what it added to a step, in seconds.
        lonely: others on its node kept up, so that it is not the node's doing.
    """

    trial: int
    attempt: int
    rank: int | None
    host: str
    over: float
    phase: str
    cost_s: float
    lonely: bool = False

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}" if self.rank is not None else f"node {self.host}"


def ranks(trial: GatheredTrial) -> list[RankTimes]:
    """Return the times of each attempt and rank with records, in this order."""
    found = []
    for attempt in trial.attempts:
        by_rank: dict[int, list[Line]] = defaultdict(list)
        for line in attempt.profiles:
            by_rank[line["rank"]].append(line)
        for rank, lines in sorted(by_rank.items()):
            times = total(map(_times, lines))
            found.append(RankTimes(trial.number, attempt.number, rank, lines[-1]["host"], times))
    return found


def of_trial(trial: GatheredTrial) -> Times:
    """Sum all attempts and ranks of a trial, repeated steps included.

    ``seconds`` of slots, ``steps`` and ``samples`` of the trial.
    """
    rows = ranks(trial)
    whole = total(row.times for row in rows)
    chiefs = [row.times for row in rows if row.rank == 0]
    whole.steps = sum(one.steps for one in chiefs)
    whole.samples = sum(one.samples for one in chiefs)
    return whole


def wall(trial: GatheredTrial) -> Times:
    """Return the times of rank 0: wall time, with the time of a step and its samples."""
    return total(row.times for row in ranks(trial) if row.rank == 0)


def _times(line: Line) -> Times:
    use = {name: float(value) for name, value in line.get("use", {}).items()}
    return Times(
        seconds=line["seconds"],
        steps=line["steps"],
        samples=line.get("samples", 0),
        slowest_s=line.get("slowest_s", 0.0),
        phases=dict(line["phases"]),
        means={name: value for name, value in use.items() if not name.endswith("_max")},
        peaks={name[:-4]: value for name, value in use.items() if name.endswith("_max")},
    )


# -- stragglers --------------------------------------------------------------------------------


def stragglers(rows: Sequence[RankTimes]) -> list[Straggler]:
    """Find the ranks that made others wait, in each attempt; a node if all its ranks did.

    Ranks that train together take equally long for a step; the one that works longest waits least.
    """
    found: list[Straggler] = []
    for key in sorted({(row.trial, row.attempt) for row in rows}):
        peers = [r for r in rows if (r.trial, r.attempt) == key]
        slow = [s for row in peers if (s := _slow(row, [p for p in peers if p is not row]))]
        found += _by_node(peers, slow)
    return found


def _slow(row: RankTimes, others: Sequence[RankTimes]) -> Straggler | None:
    if not others or row.times.steps < _FEWEST_STEPS:
        return None
    usual = statistics.median(one.times.work_s for one in others)
    excess = row.times.work_s - usual
    if excess < _LEAST_S or row.times.work_s <= SLOWER * usual:
        return None
    work = {name for one in (row, *others) for name in one.times.phases} - _NO_WORK

    def more(phase: str) -> float:
        return _per_step(row, phase) - statistics.median(_per_step(o, phase) for o in others)

    over = excess / usual if usual else float("inf")
    phase = max(sorted(work), key=more)
    return Straggler(row.trial, row.attempt, row.rank, row.host, over, phase, excess)


def _per_step(row: RankTimes, phase: str) -> float:
    return row.times.phases.get(phase, 0.0) / max(1, row.times.steps)


def _by_node(peers: Sequence[RankTimes], slow: Sequence[Straggler]) -> Iterator[Straggler]:
    size = {host: sum(p.host == host for p in peers) for host in {p.host for p in peers}}
    for host in dict.fromkeys(one.host for one in slow):
        here = [one for one in slow if one.host == host]
        if 1 < len(here) == size[host] < len(peers):
            worst = max(here, key=lambda one: one.over)
            yield Straggler(
                worst.trial, worst.attempt, None, host, worst.over, worst.phase, worst.cost_s
            )
        else:
            for one in here:
                yield replace(one, lonely=len(here) < size[host])


# -- as metrics --------------------------------------------------------------------------------


def wanted(group: str) -> bool:
    """True if a pattern matches ``timing`` or ``system``; ``*`` means the code's own groups."""
    return group != "*" and any(fnmatchcase(name, group) for name in GROUPS)


def rows(trial: int, attempt: GatheredAttempt) -> Iterator[Row]:
    """Yield an attempt's rows of metrics, without ``superseded``; ``rank1.`` marks other ranks."""
    for line in attempt.profiles:
        before = f"rank{line['rank']}." if line["rank"] else ""
        for group, values in (("timing", _timing(line)), ("system", line.get("use", {}))):
            for name, value in values.items():
                yield {
                    "trial": trial,
                    "group": group,
                    "step": line["batches"],
                    "name": f"{before}{name}",
                    "value": value,
                    "time": line["t"],
                    "attempt": attempt.number,
                    "units": {"batches": line["batches"]},
                }


def _timing(line: Line) -> Mapping[str, float]:
    times = _times(line)
    steps = times.steps or 1
    found = {"step_s": times.step_s or 0.0, "slowest_step_s": times.slowest_s}
    if times.samples_per_s:
        found["samples_per_s"] = times.samples_per_s
    found |= {f"{name}_s": seconds / steps for name, seconds in times.phases.items()}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


# -- what to do about it -----------------------------------------------------------------------


_MORE_LOADERS = "more num_workers for its DataLoader, and resources.cpus_per_slot for them"
SLOW_DATA = 0.15
"""Share of the time that waits for data, above which loading is slow."""


@dataclass(frozen=True)
class TimingFinding:
    """One cause of slow steps, and its remedy."""

    finding: str
    next: str


def findings(trial: GatheredTrial) -> list[TimingFinding]:
    """Return the causes of a trial's slow steps, the worst first; none if too little is known."""
    times = of_trial(trial)
    if times.steps < _FEWEST_STEPS:
        return []
    found: list[tuple[float, TimingFinding]] = []
    for phase, most, next in (
        ("data", SLOW_DATA, _MORE_LOADERS),
        ("communication", 0.30, "a larger batch for each slot, aggregation_frequency, fewer slots"),
        ("checkpoint", 0.05, "a longer checkpoint_every_s or min_checkpoint_period"),
        ("validation", 0.30, "a longer min_validation_period"),
    ):
        share = times.share(phase)
        if share > most:
            what = f"{PHASES[phase].lower()}: {units.percent(share)} of the time"
            found.append((share, TimingFinding(what, next)))
    for one in latest(stragglers(ranks(trial))):
        share = one.cost_s / (wall(trial).step_s or 1.0)
        what = (
            f"{one.name} works {units.percent(one.over)} longer on a step than the others, "
            f"most of it {PHASES.get(one.phase, one.phase).lower()}"
        )
        hint = f"look at {one.host}, or retry with --exclude-node {one.host}"
        if one.lonely:
            hint = f"look at what rank {one.rank} alone does: others on {one.host} keep up"
        found.append((share, TimingFinding(what, hint)))
    return [finding for _, finding in sorted(found, key=lambda pair: -pair[0])]


def latest(found: Sequence[Straggler]) -> list[Straggler]:
    """Return the stragglers of the newest attempt that has any: nodes change between attempts."""
    last = max((one.attempt for one in found), default=0)
    return [one for one in found if one.attempt == last]


def trials(gathered: Gathered) -> list[tuple[GatheredTrial, Times]]:
    """Return the trials with records of their times, and these times."""
    pairs = ((trial, of_trial(trial)) for trial in gathered.trials)
    return [(trial, times) for trial, times in pairs if times.seconds]
