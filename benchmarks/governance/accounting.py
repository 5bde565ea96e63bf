"""What accounts, checkpoints and resumes of a governed trial cost beside its plain steps."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks import results
from benchmarks.governance.models import MODELS, groups, matrix, timed
from hpcdet.data.sample_order import Order, shuffled
from hpcdet.data.sourced import SourceTable
from hpcdet.guard.accounts.trial_ledger import TrialLedger
from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.fingerprints import Fingerprints
from hpcdet.guard.resume.governance_state import GovernanceState
from hpcdet.policy.compiled import CompiledPolicy, DataSource
from hpcdet.process.location import AttemptLocation

STEPS = 20
"""Steps of a round, each accounted for."""
EVERY_S = 600.0
"""Time between two checkpoints, of which what is measured may take ``MEASURED``."""
MEASURED = 0.01
CHECKED_S = 2.0


class Resumed:
    """A governed trial of a model, with the state of Adam, whose checkpoint is put back."""

    def __init__(self, name: str, sources: int) -> None:
        torch.manual_seed(0)
        model, _, _ = MODELS[name]()
        codes = np.random.default_rng(0).integers(0, sources, 100_000)
        names = [f"s{n}" for n in range(sources)]
        policy = CompiledPolicy(
            name,
            1,
            "sha256:00",
            tuple(groups(model)),
            tuple(map(DataSource, names)),
            tuple(map(tuple, matrix(sources).tolist())),
        )
        self.guard = Guard(policy, torch.device("cpu"), lambda value: [value])
        self.guard.take(model)
        self.guard.optimizers.watch(torch.optim.Adam(model.parameters()))
        self.guard.use(SourceTable.of(np.array(names)[codes]), counted=True)
        self.order = Order(len(codes), 256, lambda epoch: shuffled(len(codes), 7, epoch))
        self.parameters = {f"0.{n}": one for n, one in model.named_parameters()}
        slots = [{n: {"m": one, "v": one} for n, one in self.parameters.items()}]
        self.optimizers = [{"state": slots[0], "param_groups": [{"lr": 0.001}]}]
        self.prints = Fingerprints(self.guard, 0, 1, lambda value: [value])
        self.state = GovernanceState(self.guard)
        self.state.planned.plan(self.order)
        self.state.start(self.parameters)
        self.records = 256 * 1000
        counted = self.guard.recount(self.order, 0, self.records)
        assert counted is not None
        self.guard.exposure = counted
        self.saved, self.block = self.state.encode(), self.take()

    def take(self) -> dict[str, object]:
        """What a checkpoint has in its meta."""
        return self.state.summary() | self.prints.take(
            self.parameters, self.optimizers, None, when="always"
        )

    def checks(self, *, digests: bool = True) -> None:
        """All that a resume compares of state and weights."""
        self.state.load(
            self.saved, self.parameters, records=self.records, order=self.order, inherited=False
        )
        states = self.optimizers if digests else [{"state": {}, "param_groups": [{"lr": 0.001}]}]
        block = self.block if digests else {**self.block, "optimizer": None}
        self.prints.compare(block, self.parameters, states, None, inherited=False)

    def accounted(self, folder: Path, step: Callable[[], None], rounds: int) -> tuple[float, float]:
        """Medians of rounds of steps, each accounted for: ms of a step, and accounting's share.

        In time of this thread's processor, of an attempt as old as its checkpoints are apart: in
        its first seconds a ledger has more records.
        """
        ledger = TrialLedger(self.guard, AttemptLocation.of(folder, 1, 1), (), None)
        ledger.begin(0, 0, accepts=None, parent=None, changes=(0, ""))
        ledger._began -= EVERY_S
        parts = self.order.slices(0, 0, 1)
        batches = records = 0
        plain: list[float] = []
        shares: list[float] = []
        for _ in range(rounds):
            of_steps = of_accounts = 0.0
            for _ in range(STEPS):
                part = next(parts)
                whole, begin = part.whole, time.thread_time()
                step()
                of_steps += time.thread_time() - begin
                begin = time.thread_time()
                self.guard.begin(whole)
                self.guard.end()
                batches, records = batches + 1, records + part.records
                ledger.stepped(batches, records)
                of_accounts += time.thread_time() - begin
            plain.append(1000 * of_steps / STEPS)
            shares.append(of_accounts / of_steps)
        ledger.close()
        return statistics.median(plain), statistics.median(shares)


def accounts(one: Resumed, what: str, step: Callable[[], None], rounds: int) -> results.Row:
    """The row of ledger and measures, by their share of plain steps."""
    with tempfile.TemporaryDirectory() as folder:
        plain, share = one.accounted(Path(folder) / "EXP", step, rounds)
    share += statistics.median(timed(one.take) for _ in range(rounds)) / (1000 * EVERY_S)
    return {
        "what": f"{what}, ledger and measures",
        "unit": "ms",
        "ours": round(share * plain, 4),
        "peer": round(plain, 3),
        "peer_name": "the plain model",
        "ratio": round(share, 5),
        "goal": MEASURED,
        "met": share <= MEASURED,
        "runs": rounds,
        "least_ours": None,
        "least_peer": None,
    }


def rows(name: str, sources: int, plain: Callable[[], None], rounds: int) -> list[results.Row]:
    """Rows of what accounts, a checkpoint and a resume of a model cost."""
    one = Resumed(name, sources)
    kinds: dict[str, tuple[Callable[[], object], float, float]] = {
        "measures of a checkpoint": (one.take, 1000 * EVERY_S, MEASURED),
        "checks of a resume": (lambda: one.checks(digests=False), 1000 * CHECKED_S, 1.0),
        "checks, with digests of Adam": (one.checks, 1000 * CHECKED_S, 1.0),
    }
    found = [accounts(one, f"{name}, {sources} sources", plain, rounds)]
    for kind, (call, peer, goal) in kinds.items():
        call()
        times = [timed(call) for _ in range(rounds)]
        ours = statistics.median(times)
        found.append(
            {
                "what": f"{name}, {sources} sources, {kind}",
                "unit": "ms",
                "ours": round(ours, 3),
                "peer": peer,
                "peer_name": "between checkpoints" if goal < 1 else "goal",
                "ratio": round(ours / peer, 5),
                "goal": goal,
                "met": ours / peer <= goal,
                "runs": len(times),
                "least_ours": round(min(times), 3),
                "least_peer": peer,
            }
        )
    return found
