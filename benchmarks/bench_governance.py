"""``make bench-governance``: what governing a training costs.

A step is forward, loss and backward of one batch on one thread. Beside the plain model: routed by
operators; with every module run twice, as those without an operator are; one backward pass per
source; and gradients per sample (``torch.func.vmap``), masked and added up. Each source is denied
half of the layers, and each layer denies one source at least; or, weighted, half of each gradient,
so that no row is left out. All kinds take turns.

Beside steps: counting rows and writing the ledger of a trial that takes plain steps, together with
what a checkpoint measures of weights and optimizers, by its share of the time between two
checkpoints; that alone; all checks of a resume, with and without the digests of optimizers; the
proof of a node, and `hpcdet policy check`; and a trial without a policy beside the same one under
the last version that had no governance. All in time of the processor.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import numpy as np  # noqa: E402
import results  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.func import functional_call, grad, vmap  # noqa: E402

from benchmarks.governance import accounting, ungoverned, whole_processes  # noqa: E402
from benchmarks.governance.models import MODELS, groups, losses, matrix, timed  # noqa: E402
from hpcdet.guard.routing import modules, oracle  # noqa: E402
from hpcdet.guard.routing.layer_map import LayerMap  # noqa: E402
from hpcdet.guard.routing.router import Router  # noqa: E402

GOALS = {
    "routed": {"mlp": 1.05, "cnn": 1.05, "transformer": 1.10},
    "run twice": dict.fromkeys(("mlp", "cnn", "transformer"), 1.8),
}
SOURCES = (3, 8)
ROUNDS = 15
LEAST_OF = 3
"""Steps of a kind in a round, of which the quickest counts: others share the caches."""
SLOW = "per sample"
"""Steps that take seconds: one in each of three rounds."""
PARTS = ("steps", "processes", "ungoverned")


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


def model_rows(name: str, sources: int, rounds: int) -> Iterator[results.Row]:
    """Rows of one model: its steps, then its accounts, checkpoints and resumes."""
    steps = Case(name, sources).steps()
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(rounds):
        for kind, step in steps.items():
            if kind == SLOW and len(times[kind]) >= 3:
                continue
            times[kind].append(min(timed(step) for _ in range(1 if kind == SLOW else LEAST_OF)))
    yield from (row(name, sources, kind, times) for kind in steps if kind != "plain")
    yield from accounting.rows(name, sources, steps["plain"], rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    parser.add_argument("--part", choices=PARTS, action="append", help="of all, one")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rounds = 1 if given.quick else given.rounds
    asked = given.part or PARTS
    rows: list[results.Row] = []

    def take(found: Iterator[results.Row]) -> None:
        for one in found:
            rows.append(one)
            print(_line(one), flush=True)

    if "processes" in asked:
        take(whole_processes.rows(rounds))
    if "ungoverned" in asked:
        take(ungoverned.rows(1 if given.quick else ungoverned.ROUNDS))
    for name in MODELS if "steps" in asked else ():
        for sources in SOURCES[:1] if given.quick else SOURCES:
            take(model_rows(name, sources, rounds))
    if not given.quick and not given.part:
        results.write("governance", rows)
    missed = [one["what"] for one in rows if one["met"] is False]
    print(f"goals missed: {', '.join(missed) or 'none'}")
    return int(not given.quick and bool(missed))


def _line(one: results.Row) -> str:
    values = "".join(
        f"{value:>14.3f}" if isinstance(value, float) else f"{value!s:>14.12}"
        for value in (one["ours"], one["peer"])
    )
    ratio = "" if one["ratio"] is None else f"{one['ratio']:.4g}"
    mark = {True: "yes", False: "NO", None: ""}[one["met"]]
    return f"{one['what']:<50}{values} {one['unit']:<6} {ratio:>8} {one['goal']!s:>6.6}  {mark}"


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
