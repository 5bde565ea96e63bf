"""``make bench-governance``: what routing gradients by source costs, in time of a step.

A step is forward, loss and backward of one batch on one thread. Beside the plain model: routed by
operators; with every module run twice, as those without an operator are; one backward pass per
source; and gradients per sample (``torch.func.vmap``), masked and added up. Each source is denied
half of the layers, and each layer denies one source at least; or, weighted, half of each gradient,
so that no row is left out. All kinds take turns.

Beside steps: counting rows and writing the ledger of a trial that takes plain steps, together with
what a checkpoint measures of weights and optimizers, by its share of the time between two
checkpoints; that alone; and all checks of a resume, with and without the digests of optimizers.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import numpy as np  # noqa: E402
import results  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.func import functional_call, grad, vmap  # noqa: E402
from torch.nn import functional  # noqa: E402

from hpcdet.data.sample_order import Order, shuffled  # noqa: E402
from hpcdet.data.sourced import SourceTable  # noqa: E402
from hpcdet.guard.accounts.trial_ledger import TrialLedger  # noqa: E402
from hpcdet.guard.guard import Guard  # noqa: E402
from hpcdet.guard.resume.fingerprints import Fingerprints  # noqa: E402
from hpcdet.guard.resume.governance_state import GovernanceState  # noqa: E402
from hpcdet.guard.routing import modules, oracle  # noqa: E402
from hpcdet.guard.routing.layer_map import LayerMap  # noqa: E402
from hpcdet.guard.routing.router import Router  # noqa: E402
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup  # noqa: E402
from hpcdet.process.location import AttemptLocation  # noqa: E402

GOALS = {
    "routed": {"mlp": 1.05, "cnn": 1.05, "transformer": 1.10},
    "run twice": dict.fromkeys(("mlp", "cnn", "transformer"), 1.8),
}
SOURCES = (3, 8)
LAYERS = 4
ROUNDS = 15
STEPS = 20  # of a round, each accounted for
EVERY_S = 600.0  # between two checkpoints
MEASURED = 0.01  # of it
CHECKED_S = 2.0


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(512, 256), nn.Embedding(64, 256)
        block = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1]).expand(x.shape)
        found: torch.Tensor = self.head(self.norm(self.blocks(self.words(x) + self.places(places))))
        return found


def mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if after > before else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


Made = tuple[nn.Module, torch.Tensor, torch.Tensor]

MODELS: dict[str, Callable[[], Made]] = {
    "mlp": lambda: (mlp(), torch.randn(256, 512), torch.randint(0, 10, (256,))),
    "cnn": lambda: (cnn(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))),
    "transformer": lambda: (
        Transformer(),
        torch.randint(0, 512, (16, 64)),
        torch.randint(0, 512, (16, 64)),
    ),
}


def losses(y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The loss of each row, [rows]."""
    found = functional.cross_entropy(y.flatten(0, -2), wanted.flatten(), reduction="none")
    return found.reshape(len(wanted), -1).mean(1)


def groups(model: nn.Module) -> list[LayerGroup]:
    """Modules with parameters dealt to layers in the order of the model."""
    owners = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_parameters()))
    parts = np.array_split(np.array(owners), LAYERS)
    return [
        LayerGroup(f"l{n}", "|".join(f"^{one}\\.[^.]+$" for one in part))
        for n, part in enumerate(parts)
    ]


def matrix(sources: int) -> np.ndarray:
    return np.array([[float((s + n) % 2 or s == n) for n in range(LAYERS)] for s in range(sources)])


class Case:
    """One model and a batch, and a step of each kind."""

    def __init__(self, name: str, sources: int) -> None:
        torch.manual_seed(0)
        self.model, self.x, self.y = MODELS[name]()
        self.codes = np.random.default_rng(0).integers(0, sources, len(self.x))
        self.found = LayerMap.of(self.model, groups(self.model))
        self.weights = self.found.weights(matrix(sources))
        self.routed, self.router = self._attached(self.model)
        with mock.patch.object(modules, "_native", return_value=None):
            self.twice, self.twice_router = self._attached(self.model)

    def _attached(self, model: nn.Module) -> tuple[nn.Module, Router]:
        model, router = copy.deepcopy(model), Router()
        for name in self.found.layers:
            router.place(name)
        modules.attach(model, self.found, router, self.found.layers)
        return model, router

    def steps(self) -> dict[str, Callable[[], None]]:
        return {
            "plain": lambda: self._step(self.model, contextlib.nullcontext()),
            "routed": lambda: self._step(self.routed, self._rows(self.router)),
            "weighted": lambda: self._step(self.routed, self._rows(self.router, least=0.5)),
            "run twice": lambda: self._step(self.twice, self._rows(self.twice_router)),
            "per source": self._per_source,
            "per sample": self._per_sample,
        }

    @contextlib.contextmanager
    def _rows(self, router: Router, least: float = 0.0) -> Iterator[None]:
        rows = np.maximum(self.weights[self.codes], least)
        with router.rows(rows, torch.device("cpu")), router.accounted():
            yield

    def _step(self, model: nn.Module, around: contextlib.AbstractContextManager[None]) -> None:
        model.zero_grad()
        with around:
            losses(model(self.x), self.y).mean().backward()

    def _per_source(self) -> None:
        each = oracle.per_source(
            self.model,
            lambda part: losses(self.model(part[0]), part[1]),
            (self.x, self.y),
            self.codes,
        )
        oracle.combined(each, self.codes, self.weights, self.found)

    def _per_sample(self) -> None:
        def one(
            parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
        ) -> torch.Tensor:
            return losses(functional_call(self.model, parameters, (x[None],)), y[None]).sum()

        live = {name: p.detach() for name, p in self.model.named_parameters()}
        found = vmap(grad(one), in_dims=(None, 0, 0))(live, self.x, self.y)
        rows = torch.from_numpy(self.weights[self.codes]).float()
        for parameter in self.found.parameters:
            torch.tensordot(rows[:, parameter.layer], found[parameter.name], 1) / len(self.x)


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
        self.guard.use(SourceTable.of(np.array(names)[codes]), indexed=True)
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
        ledger.begin(0, 0, accepts=None, parent=None)
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


def resumed(name: str, sources: int, plain: Callable[[], None], rounds: int) -> list[results.Row]:
    """Rows of what accounts, a checkpoint and a resume of a model cost."""
    one = Resumed(name, sources)
    kinds: dict[str, tuple[Callable[[], object], float, float]] = {
        "measures of a checkpoint": (one.take, 1000 * EVERY_S, MEASURED),
        "checks of a resume": (lambda: one.checks(digests=False), 1000 * CHECKED_S, 1.0),
        "checks, with digests of Adam": (one.checks, 1000 * CHECKED_S, 1.0),
    }
    rows = [accounts(one, f"{name}, {sources} sources", plain, rounds)]
    for kind, (call, peer, goal) in kinds.items():
        call()
        times = [timed(call) for _ in range(rounds)]
        ours = statistics.median(times)
        rows.append(
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
    return rows


def timed(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in MODELS:
        for sources in SOURCES:
            steps = Case(name, sources).steps()
            for step in steps.values():
                step()
            times: dict[str, list[float]] = {kind: [] for kind in steps}
            for _ in range(1 if given.quick else given.rounds):
                for kind, step in steps.items():
                    if kind == "per sample" and len(times[kind]) >= 3:  # of seconds each
                        continue
                    times[kind].append(timed(step))
            rows += [row(name, sources, kind, times) for kind in steps if kind != "plain"]
            rows += resumed(name, sources, steps["plain"], 1 if given.quick else given.rounds)
    for one in rows:
        peer = one["peer_name"][:9]
        print(
            f"{one['what']:<48}{one['ours']:>10.2f} ms{one['peer']:>10.2f} ms {peer}"
            f"{one['ratio']:>8.4g}   {one['goal'] or ''}"
        )
    results.write("governance", rows)
    return int(not given.quick and any(one["met"] is False for one in rows))


def row(name: str, sources: int, kind: str, times: dict[str, list[float]]) -> results.Row:
    """Ratios of the same round, so that what slows one slows the other."""
    ratio = statistics.median(
        mine / plain for mine, plain in zip(times[kind], times["plain"], strict=False)
    )
    goal = GOALS.get(kind, {}).get(name)
    return {
        "what": f"{name}, {sources} sources, {kind}",
        "unit": "ms",
        "ours": round(statistics.median(times[kind]), 3),
        "peer": round(statistics.median(times["plain"]), 3),
        "peer_name": "the plain model",
        "ratio": round(ratio, 3),
        "goal": goal,
        "met": None if goal is None else ratio <= goal,
        "runs": len(times[kind]),
        "least_ours": round(min(times[kind]), 3),
        "least_peer": round(min(times["plain"]), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
