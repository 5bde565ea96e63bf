"""Part a: what a decision costs when so many trials have been made, and parity of the rules.

Ours runs a whole search of that many trials in the simulator; the last thousand reports are timed,
each with all that it brings about (a verdict, a promotion, the next trial with its
hyperparameters). Of a peer one report's decision is timed, its records filled in beforehand.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from benchmarks.search import peers
from benchmarks.search.rules import RULES, Ladder, Stopping
from hpcdet.search.api import events
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.surrogate import Curves
from hpcdet.sim.turns import Reports
from hpcdet.units import Length

OURS = tuple(name for name in RULES if name.startswith("hpcdet"))
LAST = 1000


class Timed:
    """A searcher that notes how long it takes over each report."""

    def __init__(self, method: events.Searcher) -> None:
        self.method = method
        self.name, self.version = method.name, method.version
        self.took: list[float] = []

    def initial(self) -> events.State:
        return self.method.initial()

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        begin = time.perf_counter()
        answer = self.method.on_event(state, event)
        if isinstance(event, events.Report):
            self.took.append(time.perf_counter() - begin)
        return answer


def ours(name: str, trials: int) -> list[float]:
    """Seconds of the last decisions of a search."""
    ladder = Ladder(workers=100, trials=trials)
    method = Timed(RULES[name](ladder))
    curves = Curves(0, ladder.full)
    Simulation(method, Cluster(workers=100), curves, Reports(ladder.rungs)).run()
    # the very last are of an ending search, which makes no trials any more
    return method.took[-2 * LAST : -LAST]


def theirs(name: str, trials: int, times: int) -> list[float]:
    """Seconds of decisions on new trials at the lowest rung."""
    ladder, rng = Ladder(), random.Random(0)
    peer = peers.PEERS[name](ladder)
    peer.fill(
        {
            length: [rng.random() for _ in range(trials // ladder.eta**k)]
            for k, length in enumerate(ladder.rungs)
        }
    )
    took = []
    for trial in range(trials, trials + times):
        peer.begin(trial)
        begin = time.perf_counter()
        peer.decide(trial, ladder.rungs[0], rng.random())
        took.append(time.perf_counter() - begin)
    return took


def parity(name: str, trials: int) -> tuple[int, int]:
    """Decisions of a rule as written down here and as the peer's own code takes them.

    Returns:
        How many were compared, and how many differ.
    """
    ladder = Ladder()
    rule = RULES[name](ladder)
    assert isinstance(rule, Stopping)
    state, peer, rng = rule.initial(), peers.PEERS[name](ladder), random.Random(1)
    compared = differ = 0
    live: dict[int, int] = {}
    made = 0
    while made < trials or live:
        if made < trials and len(live) < 25:
            peer.begin(made)
            live[made] = 0
            made += 1
            continue
        trial = rng.choice(list(live))
        length, loss = ladder.rungs[live[trial]], rng.random()
        report = events.Report(trial + 1, Length("batches", length), {"validation_loss": loss})
        state, actions = rule.on_event(state, report)
        live[trial] += 1
        if length == ladder.full:
            del live[trial]
            continue
        compared += 1
        differ += peer.decide(trial, length, loss) != (not actions)
        if actions:
            del live[trial]
    return compared, differ


def measure(quick: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in peers.PEERS:
        compared, differ = parity(name, 200 if quick else 2000)
        rows.append({"kind": "parity", "rule": name, "compared": compared, "differ": differ})
    for trials in (1_000,) if quick else (1_000, 10_000, 100_000):
        rows += [_row(name, trials, ours(name, trials + 2 * LAST)) for name in OURS]
        times = 200 if trials < 50_000 else 20
        rows += [_row(name, trials, theirs(name, trials, times)) for name in peers.PEERS]
    return rows


def _row(name: str, trials: int, took: list[float]) -> dict[str, Any]:
    took = sorted(took)
    return {
        "kind": "decision",
        "rule": name,
        "trials": trials,
        "median_us": statistics.median(took) * 1e6,
        "p99_us": took[int(0.99 * (len(took) - 1))] * 1e6,
        "least_us": took[0] * 1e6,
        "runs": len(took),
    }
