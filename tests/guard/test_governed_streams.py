"""Trials on streams of several sources: routed exactly, counted without a message, resumed."""

from __future__ import annotations

import copy
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hpcdet import checkpoint
from hpcdet.data.sourced import Sourced, StreamOrder, StreamShare
from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.governance_state import GovernanceState
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import CompiledPolicy, Memorization, Twins
from hpcdet.policy.ledger import records
from hpcdet.policy.ledger.verify import verify
from tests import governed_model, ranks
from tests.data.test_sourced_streams import Words
from tests.experiments import same_bits
from tests.guard.test_governed import BATCH, DROPS, LAYERS, MODEL, UNTIL, make, named, policy
from tests.guard.test_state import model
from tests.pytorch.test_bits_local import interrupt, signals

pytestmark = pytest.mark.xdist_group("governed")

SHARES = {"a": 3, "b": 2, "c": 1}
STREAMS = """

class Flow(torch.utils.data.IterableDataset):
    def __init__(self, source):
        self.points, self.at = Points(source), 0

    def __iter__(self):
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        while self.at * world + rank < len(self.points):
            self.at += 1
            yield self.points[(self.at - 1) * world + rank]
        self.at = 0

    def __len__(self):
        return len(self.points)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Flowing(Governed):
    def build_training_data_loader(self):
        data = pytorch.Sourced({name: Flow(name) for name in SIZES}, {"a": 3, "b": 2, "c": 1})
        return pytorch.DataLoader(
            data,
            batch_size=self.context.get_per_slot_batch_size(),
            num_workers=int(os.environ.get("WORKERS", "0")),
        )
"""


def flowing(
    root: Path, world: int, wanted: CompiledPolicy | None = None, hparams: Any = None, **how: Any
) -> Any:
    text = how.pop("text", MODEL + STREAMS)
    settings = {"entrypoint": "model_def:Flowing", **how}
    trial = make(root, world, wanted or policy(), hparams, **settings)
    (root / "code" / "model_def.py").write_text(text)
    return trial


def last(trial: Any) -> Any:
    [*_, path] = sorted(one for one in trial.checkpoints.glob("*.g*") if one.name[0] != ".")
    return checkpoint.load(path)


def by_hand(world: int, begin: dict[str, Any], options: dict[str, Any]) -> nn.Sequential:
    """The same training by one backward per source, of samples that are counted off by hand."""
    net = nn.Sequential(
        *(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Identity()),
        *(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
    ).double()
    net.load_state_dict(begin)
    data = [governed_model.Points(name) for name in "abc"]
    order, weights = StreamOrder(tuple(SHARES.values()), 7), policy().weights()
    layer = {n: next(i for i, g in enumerate(LAYERS) if n[0] in g.match) for n, _ in named(net)}
    optimizer = torch.optim.SGD(net.parameters(), **options)
    at = np.zeros((world, 3), int)
    share = BATCH // world
    for step in range(UNTIL):
        samples: list[list[Any]] = [[], [], []]
        places = [StreamShare(order, rank, world, share).own(step) for rank in range(world)]
        for rank in range(world):
            for place in places[rank].tolist():
                own = range(rank, len(data[place]), world)
                samples[place].append(data[place][own[at[rank, place] % len(own)]])
                at[rank, place] += 1
        admitted = sum(weights[place] * len(samples[place]) / BATCH for place in range(3))
        total = {name: torch.zeros_like(one) for name, one in named(net)}
        for place in range(3):
            net.zero_grad()
            x, y = (torch.stack(one).double() for one in zip(*samples[place], strict=True))
            (functional.mse_loss(net(x)[:, 0], y, reduction="sum") / BATCH).backward()
            for name, one in named(net):
                assert one.grad is not None
                total[name] += weights[place, layer[name]] * one.grad
        for name, one in named(net):
            one.grad = total[name] / admitted[layer[name]]
        optimizer.step()
    return net


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (2, 1), (3, 0)])
def test_steps_are_those_of_one_backward_per_source(
    world: int, workers: int, tmp_path: Path
) -> None:
    options = {"lr": 0.05, "momentum": 0.5}
    hparams = {"optimizer": "SGD", "options": options, "dtype": "float64"}
    trial = flowing(tmp_path / "EXP", world, hparams=hparams)
    attempt = ranks.run(trial, world, BEGIN=str(tmp_path / "begin"), WORKERS=str(workers))
    assert attempt.verdict() is not None, attempt.log()
    shared = last(trial).shared
    got = shared["models"][0]
    for name, one in named(by_hand(world, torch.load(tmp_path / "begin"), options)):
        off = (got[name] - one).norm() / one.norm()
        assert off <= 1e-12, (name, float(off))
    rows = shared["governance"]["exposure"]["rows"]
    assert rows == {"a": 54, "b": 36, "c": 18}  # 9 batches of 12, in cycles of 6
    np.testing.assert_array_equal(shared["governance"]["E"][1], [0, 36, 36])
    probe, *later = [line for line in attempt.lines() if line.get("event") == "probe"]
    assert world == 3 or not later, "three ranks have not all sources each in the first batch"
    assert probe["on"][1][0] == 0 < probe["off"][1][0]


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_within_a_window_and_resumed_it_ends_with_the_same_bits(
    workers: int, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "optimizations": {"aggregation_frequency": 2},
        "checkpoint_every_s": 0.05,
    }
    once, often = (flowing(tmp_path / n, 2, hparams=DROPS, **changes) for n in ("once", "often"))
    slow = {"WORKERS": str(workers), "PACE": "0.03"}
    attempt = ranks.run(once, 2, **slow)
    assert attempt.verdict() is not None, attempt.log()
    interrupt(often, tmp_path / "1", "train:3", signals(signal.SIGUSR2, 0), 2, **slow)
    interrupt(often, tmp_path / "2", "train:7", signals(signal.SIGKILL), 2, **slow)
    attempt = ranks.run(often, 2, **slow)
    assert attempt.verdict() is not None, attempt.log()
    same_bits(last(often).manifest.digest, last(once).manifest.digest)
    [checks] = [line["checks"] for line in attempt.lines() if "checks" in line]
    outcomes = {one["code"]: one["outcome"] for one in checks}
    assert {outcomes[code] for code in ("G114", "G115", "G118", "G119")} == {"passed"}
    found = [records.read(one.number, one.ledger) for one in often.attempts()]
    ledgers = [one for one in found if one is not None]
    seen = verify(ledgers)
    assert seen.bad is None and seen.rollbacks
    [admitted] = [one.body for one in ledgers[-1].records if one.type == "source_admit"]
    assert admitted["order"]["streams"] == SHARES and admitted["data"] is None


def test_what_cannot_be_governed_is_refused_by_its_code(tmp_path: Path) -> None:
    text = MODEL + STREAMS
    strange = text.replace("for name in SIZES}, {", 'for name in [*SIZES, "z"]}, {"z": 1, ')
    strange = strange.replace("Points(source), 0", 'Points("a" if source == "z" else source), 0')
    twins = policy(memorization=Memorization(twins=Twins(pairs=2)))
    cases = {
        "unknown": (strange, policy(), "G113"),
        "no state": (text.replace("load_state_dict", "load"), policy(), "cannot be resumed"),
        "twins": (text, twins, "P14"),
        "a subset": (
            text.replace(
                'pytorch.Sourced({name: Flow(name) for name in SIZES}, {"a": 3, "b": 2, "c": 1})',
                "torch.utils.data.Subset(pytorch.Sourced({n: Flow(n) for n in SIZES}), [0])",
            ),
            policy(),
            "streams have no indices",
        ),
    }  # fmt: skip
    for number, (name, (code, wanted, said)) in enumerate(cases.items()):
        assert code != text or wanted != policy(), name
        trial = flowing(tmp_path / str(number), 1, wanted, text=code)
        attempt = ranks.run(trial, 1)
        verdict = attempt.verdict()
        assert verdict is not None and verdict.verdict in ("fail", "norestart"), attempt.log()
        assert said in attempt.log(), (name, attempt.log())


def test_with_other_ranks_a_stream_goes_on_as_streams_do(tmp_path: Path) -> None:
    trial = flowing(tmp_path / "EXP", 2)
    interrupt(trial, tmp_path / "1", "train:3", signals(signal.SIGUSR2, 0), 2)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict in ("fail", "norestart"), attempt.log()
    assert "streams continue only with the same number of ranks" in attempt.log()


# -- the guard by itself ---------------------------------------------------------------------


class Counting:
    """A guard that counts the samples of streams, and whose ranks cannot talk."""

    def __init__(self, seed: int = 7) -> None:
        def silent(_: Any) -> Any:
            raise AssertionError("ranks send each other a message")

        data = Sourced({name: Words(name, 5) for name in "abc"}, SHARES)
        self.order = data.order(seed)
        self.guard = Guard(policy(), torch.device("cpu"), silent)
        self.model = model()
        self.guard.take(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters())
        self.guard.optimizers.watch(self.optimizer)
        self.guard.use(data.sources, counted=True)
        self.state = GovernanceState(self.guard)
        self.state.planned.plan(self.order)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {f"0.{name}": one for name, one in self.model.named_parameters()}

    def load(self, saved: Any, trained: int) -> Any:
        order = self.order
        return self.state.load(
            saved, self.parameters, records=trained, order=order, inherited=False
        )


def saved_after(steps: int) -> Any:
    trial = Counting()
    trial.state.start(trial.parameters)
    share = StreamShare(trial.order, 0, 1, 5)
    for number in range(steps):
        trial.guard.begin(share.whole(number))
        trial.guard.end()
    return copy.deepcopy(trial.state.encode())


@pytest.mark.parametrize("steps", [0, 1, 7, 100])
def test_the_account_is_counted_again_from_the_order_without_a_message(steps: int) -> None:
    saved = saved_after(steps)
    assert sum(saved["exposure"]["rows"].values()) == 5 * steps
    assert {one.outcome for one in Counting().load(saved, 5 * steps)} == {"passed"}


def test_rows_that_are_not_those_of_the_order_are_found() -> None:
    saved = saved_after(7)
    for code, trained, seed in (("G119", 34, 7), ("G114", 35, 8)):
        with pytest.raises(GovernanceBroken) as found:
            Counting(seed).load(copy.deepcopy(saved), trained)
        assert found.value.check == code
    rows = saved["exposure"]["rows"]
    rows["a"], rows["b"] = rows["a"] - 1, rows["b"] + 1
    saved["E"] = np.array(saved["E"]) + np.array([[-1, -1, -1], [0, 1, 1], [0, 0, 0]])
    with pytest.raises(GovernanceBroken, match="G114"):
        Counting().load(saved, 35)


def test_isolation_can_be_shown_where_the_rows_of_streams_can_be_counted() -> None:
    guard = Guard(policy(assurance="isolated"), torch.device("cpu"), lambda one: [one])
    guard.use(Sourced({name: Words(name, 5) for name in "abc"}).sources, counted=True)
