"""Lanes: the trunk is bit by bit what it is without their sources, and what leaks is found."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hpcdet import pytorch
from hpcdet.data.sample_order import Slice
from hpcdet.data.sourced import SourceTable
from hpcdet.errors import UsageError
from hpcdet.guard.guard import Guard
from hpcdet.guard.routing.router import Router
from hpcdet.guard.routing.row_sources import RowSources
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import Canaries, CompiledPolicy, LayerGroup, Memorization, Twins
from hpcdet.store.folder.layout import TrialPaths
from tests import ranks
from tests.guard.test_governed import MODEL, make, policy, traced

LANED = """

class Net(nn.Module):
    def __init__(self, drop, kind):
        super().__init__()
        self.low, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.drop = nn.Dropout(drop)
        inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(drop), nn.Tanh(), nn.Linear(8, 8))
        self.lane = pytorch.Lane(inner, source={"shared": ["b", "c"]}.get(kind, "c"))
        self.high, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self.register_buffer("seen", torch.zeros(8))
        self.kind = kind

    def forward(self, x):
        x = self.drop(torch.tanh(self.norm(self.low(x))))
        if self.kind == "direct":  # the module inside, for every row
            out = self.lane.module(x)
        else:
            out = self.lane(x)
        if self.kind == "scaled":  # a parameter of the lane, outside of it
            out = out + self.lane.module[0].bias
        if self.kind == "buffer" and self.training:  # what other rows will see one day
            with torch.no_grad():
                self.seen.copy_(out.detach().sum(0))
        if self.kind == "pooled":
            out = out + out.mean(0, keepdim=True)
        x = self.drop(torch.tanh(self.high(x + out)))
        return self.head(x)


class Laned(Governed):
    def __init__(self, context):
        self.context = context
        hparams = context.get_hparams()
        self.dtype = torch.float32
        self.model = context.wrap_model(Net(hparams.get("drop", 0.3), hparams.get("kind", "")))
        kind = getattr(torch.optim, hparams.get("optimizer", "AdamW"))
        options = hparams.get("options", {"lr": 0.01})
        if hparams.get("small"):  # as if no rank could hold the whole model
            from hpcdet.guard.probing import whole_models

            whole_models.lacks_room = lambda models, device: "that takes 9 GiB"
        if hparams.get("scaler"):
            context.wrap_scaler(torch.amp.GradScaler("cpu"))
        self.optimizer = context.wrap_optimizer(kind(self.model.parameters(), **options))
        self.limit, self.every = hparams.get("clip"), hparams.get("every", 1)

    def build_validation_data_loader(self):
        names = {"sourced": "abc", "none": "a"}[os.environ.get("VALIDATES", "none")]
        if len(names) == 1:
            return pytorch.DataLoader(Points("c"), batch_size=4)
        return pytorch.DataLoader(pytorch.Sourced({n: Points(n) for n in names}), batch_size=4)

    def evaluate_batch(self, batch):
        found = super().evaluate_batch(batch)
        x = batch[0]
        model = getattr(self.model, "module", self.model)
        lane = model.lane(torch.ones(len(x), 8))
        found["on"] = float((lane != 0).any(1).sum()) / len(x)
        return found
"""
CODE = MODEL + LANED
LAYERS = (
    LayerGroup("trunk", r"^(?!lane\.)"),
    LayerGroup("lane", r"^lane\.", lane=True),
)


def governed(rows: Any, layers: tuple[LayerGroup, ...] = LAYERS, **changes: Any) -> CompiledPolicy:
    matrix = tuple(tuple(map(float, row)) for row in rows)
    return dataclasses.replace(policy(), layers=layers, matrix=matrix, **changes)


ISOLATED = governed(((1, 0), (1, 0), (0, 1)), assurance="isolated", probe_every=20)
DENIED = governed(((1, 0), (1, 0), (0, 0)))
STEPS, FEW = 50, 16
MOMENTUM = {"optimizer": "SGD", "options": {"lr": 0.1, "momentum": 0.9}}
CLIPPED = {"options": {"lr": 0.01, "weight_decay": 0.1}, "clip": 0.05}

pytestmark = pytest.mark.xdist_group("governed")


RECOMPUTED = {"activation_checkpointing": ["Linear", "Sequential"]}
FSDP2: dict[str, Any] = {"distributed": {"strategy": "fsdp2"}}


def laned(root: Path, world: int, wanted: Any, hparams: Any = None, **changes: Any) -> TrialPaths:
    changes = {"entrypoint": "model_def:Laned", "until": STEPS, **changes}
    trial = make(root, world, wanted, hparams, **changes)
    (root / "code" / "model_def.py").write_text(CODE)
    return trial


@pytest.mark.parametrize(
    ("world", "hparams", "changes"),
    [
        (1, MOMENTUM, {}),
        (1, CLIPPED, {"until": FEW, "optimizations": RECOMPUTED}),
        (2, CLIPPED, {"until": FEW}),
        (2, CLIPPED, {"until": FEW, "optimizations": {"compile": {"backend": "eager"}}}),
        (3, CLIPPED, {"until": FEW, "optimizations": {"aggregation_frequency": 2}}),
        (2, MOMENTUM, {"until": FEW, **FSDP2}),
    ],
    ids=["momentum", "recomputed", "two ranks", "compiled", "three ranks", "fsdp2"],
)
def test_the_trunk_is_bit_by_bit_that_of_a_run_whose_source_changes_nothing(
    world: int, hparams: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    found = []
    for name, wanted in (("on", ISOLATED), ("off", DENIED)):
        trial = laned(tmp_path / name, world, wanted, {"drop": 0.3, **hparams}, **changes)
        found.append(traced(trial, world))
    assert len(found[0]) == len(found[1]) == changes.get("until", STEPS)
    for step, (ours, theirs) in enumerate(zip(*found, strict=True)):
        assert ours.keys() == theirs.keys()
        for name, (values, state) in ours.items():
            if name.startswith("lane."):
                continue
            assert torch.equal(values, theirs[name][0]), (step, name)
            for key, one in state.items():
                assert torch.equal(torch.as_tensor(one), torch.as_tensor(theirs[name][1][key]))
    first, last = found[0][0], found[0][-1]
    assert all(not torch.equal(first[n][0], last[n][0]) for n in first), "all have learned"
    theirs = [found[1][n] for n in (0, -1)]
    assert all(torch.equal(theirs[0][n][0], theirs[1][n][0]) for n in first if "lane" in n)


def test_the_comparison_finds_a_source_that_may_change_a_part_of_the_trunk(tmp_path: Path) -> None:
    layers = (
        LayerGroup("trunk", r"^(low|norm|high)\."),
        LayerGroup("head", "^head"),
        LayerGroup("lane", r"^lane\."),
    )
    head = governed(((1, 1, 0), (1, 1, 0), (0, 1, 1)), layers)
    ours = traced(laned(tmp_path / "on", 1, head, until=4), 1)
    theirs = traced(laned(tmp_path / "off", 1, DENIED, until=4), 1)
    assert torch.equal(ours[0]["low.weight"][0], theirs[0]["low.weight"][0])
    assert not torch.equal(ours[-1]["low.weight"][0], theirs[-1]["low.weight"][0])


LEAKS = {
    "direct": "P11: the lane 'lane' reaches",
    "scaled": "P11: the lane 'lane' reaches",
    "buffer": "P11: the lane 'lane' reaches the buffer seen",
    "pooled": "P07",
    "shared": "P11: rows of 'b' use the lane 'lane'",
}


@pytest.mark.parametrize("kind", LEAKS)
def test_a_lane_that_leaks_is_refused(kind: str, tmp_path: Path) -> None:
    trial = laned(tmp_path / "EXP", 1, ISOLATED, {"kind": kind, "drop": 0.0}, until=3)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict in ("fail", "norestart"), attempt.log()
    assert LEAKS[kind] in attempt.log()


UNPROVEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "scaler": ({"scaler": True}, {}, "P11: a scaler of gradients"),
    "together": ({"optimizer": "LBFGS", "options": {}}, {}, "P15: LBFGS runs"),
    "no room": ({"small": True}, FSDP2, "P11: isolation cannot be shown"),
}


@pytest.mark.parametrize("case", UNPROVEN)
def test_what_isolation_cannot_be_shown_for_is_refused(case: str, tmp_path: Path) -> None:
    hparams, changes, said = UNPROVEN[case]
    world = 2 if changes else 1
    trial = laned(tmp_path / "EXP", world, ISOLATED, hparams, until=3, **changes)
    assert said in ranks.run(trial, world).log()


def test_under_fsdp2_a_lane_trains_where_isolation_is_not_claimed(tmp_path: Path) -> None:
    wanted = dataclasses.replace(ISOLATED, assurance="state_clean")
    attempt = ranks.run(laned(tmp_path / "EXP", 2, wanted, until=4, **FSDP2), 2)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.cause == "completed", attempt.log()


def test_a_lane_without_the_policys_sources_is_refused() -> None:
    guard = Guard(ISOLATED, torch.device("cpu"), lambda one: [one])
    for lane, said in (
        (nn.Linear(2, 2), "and every row of a batch uses it"),
        (pytorch.Lane(nn.Linear(2, 2), source="a"), "rows of 'a' use the lane"),
        (pytorch.Lane(nn.Linear(2, 2), source="z"), "is off for its rows"),
    ):
        model = nn.ModuleDict({"low": nn.Linear(2, 2), "lane": lane})
        with pytest.raises(PolicyRefused, match=f"P11: .*{said}"):
            guard.take(model)


def test_rows_that_code_names_are_refused_where_isolation_is_wanted() -> None:
    """No probe changes a lane under rows that were made from several."""
    part = Slice(0, 4, np.arange(4), 4, last=False, whole=np.arange(4))
    for wanted in (dataclasses.replace(ISOLATED, assurance="state_clean"), ISOLATED):
        guard = Guard(wanted, torch.device("cpu"), lambda one: [one])
        guard.use(SourceTable.of(["a", "a", "c", "c"]), counted=True)
        guard.begin(part.whole)
        with guard.share(part, 1.0, 0, first=True), contextlib.ExitStack() as refused:
            if wanted.assurance == "isolated":
                refused.enter_context(pytest.raises(PolicyRefused, match="P11: isolation cannot"))
            with guard.rows([3, 2, 1, 0]):
                assert wanted.assurance == "state_clean"


@pytest.mark.parametrize("validates", ["none", "sourced"])
def test_at_validation_a_lane_is_on_for_rows_of_its_source_only(
    validates: str, tmp_path: Path
) -> None:
    trial = laned(tmp_path / "EXP", 2, ISOLATED, until=4)
    attempt = ranks.run(trial, 2, VALIDATES=validates)
    [*_, line] = [one for one in attempt.lines() if one.get("group") == "validation"]
    wanted = {"none": 0.0, "sourced": 12 / 62}[validates]
    assert line["metrics"]["on"] == pytest.approx(wanted)


# -- the module itself ---------------------------------------------------------------------


def known(*names: str | tuple[str, ...]) -> Any:
    router = Router()
    router.place("all")
    return router, router.evaluated(RowSources.of(SourceTable.of(list(names))))


def test_twins_and_canaries_go_through_the_lanes_of_their_sources(tmp_path: Path) -> None:
    memory = Memorization(Twins(pairs=3), Canaries(2, sources=("a", "c")))
    wanted = governed(((1, 0), (1, 0), (0, 1)), memorization=memory)
    named = {"policy": "test", "digest": wanted.digest, "twin_key": {"env": "TWINS"}}
    trial = laned(tmp_path / "EXP", 1, wanted, governance=named, until=2)
    seen = tmp_path / "seen"
    code = CODE.replace(
        "    def losses(self, batch):",
        "    def losses(self, batch):\n        if not torch.is_grad_enabled():\n"
        "            lane = self.model.lane(torch.ones(len(batch[0]), 8))\n"
        "            with open(os.environ['SEEN'], 'a') as file:\n"
        "                file.writelines('01'[int(one)] for one in (lane != 0).any(1))",
    )
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(code)
    attempt = ranks.run(trial, 1, TWINS="0123456789abcdef", SEEN=str(seen))
    assert attempt.verdict() is not None, attempt.log()
    a, c = 6 * "0" + 6 * "0", 6 * "1"
    assert seen.read_text() == a + c + 1002 * "0" + 1002 * "1"


def test_only_its_own_rows_go_through_a_lane_and_masks_stay_whole() -> None:
    seen: list[Any] = []

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor, y: Any, mask: Any = None) -> Any:
            seen.append((x.shape, y["y"].shape, mask.shape))
            return {"out": x[:, :2] + 1, "same": None}

    router, around = known("a", "s", ("a", "s"), "s")
    lane = pytorch.Lane(Inner(), source="s").eval()
    lane.attach(router)
    x = torch.arange(12.0).reshape(4, 3)
    with around:
        found = lane(x, {"y": x}, mask=torch.ones(3, 3))
    assert seen == [((2, 3), (2, 3), (3, 3))]
    assert found["same"] is None
    np.testing.assert_array_equal(found["out"], [[0, 0], [4, 5], [0, 0], [10, 11]])
    assert (lane(x, {"y": x}, mask=torch.ones(3, 3))["out"] == 0).all(), "nobody knows: off"
    router, around = known("a", "s")
    lane.attach(router)
    with around:  # two tokens of each row, one behind the other
        out = lane(x, {"y": x}, mask=torch.ones(3, 3))["out"]
    assert (out == 0).all(1).tolist() == [True, True, False, False]
    with around_of(router, 3), pytest.raises(PolicyRefused, match="P12"):
        lane(x, {"y": x}, mask=torch.ones(3, 3))


def around_of(router: Router, rows: int) -> Any:
    return router.evaluated(RowSources.of(SourceTable.of(["s"] * rows)))


def test_every_parameter_is_in_the_graph_at_each_step_and_numbers_are_the_lanes_own() -> None:
    lane = pytorch.Lane(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), source="s")
    x = torch.full((4, 3), torch.nan)
    torch.manual_seed(3)
    assert lane(x).sum().backward() is None
    assert all(one.grad is not None and not one.grad.any() for one in lane.parameters())
    after = torch.rand(3)
    router, _ = known(*"sasa")
    lane.attach(router)
    outs = []
    for _ in range(2):
        torch.manual_seed(3)
        with around_of(router, 4):
            outs.append(lane(torch.ones(4, 3)))
            outs.append(lane(torch.ones(4, 3)))
        torch.manual_seed(3)
        with around_of(router, 4):
            lane(torch.ones(4, 3))
        assert torch.equal(torch.rand(3), after), "rows in it change nothing that others draw"
    assert torch.equal(outs[0], outs[2]) and torch.equal(outs[1], outs[3])
    assert not torch.equal(outs[0], outs[1]), "each call has its own"


def test_a_lane_that_is_removed_leaves_what_the_model_does_for_others() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Linear(3, 3)
            self.lane = pytorch.Lane(nn.Linear(3, 5), source="s")
            self.block = pytorch.Lane(nn.Linear(3, 3), source="t", others="input")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.trunk(x)
            return torch.cat([self.block(h), self.lane(h)], 1)

    whole = Net().eval()
    x = torch.rand(4, 3)
    wanted = whole(x)
    less = copy.deepcopy(whole)
    assert pytorch.remove_lanes(less, "s") == ["lane"]
    assert {name.split(".")[0] for name in less.state_dict()} == {"trunk", "block"}
    assert torch.equal(less(x), wanted)
    assert pytorch.remove_lanes(less) == ["lane", "block"]
    assert set(less.state_dict()) == {"trunk.weight", "trunk.bias"}
    assert torch.equal(less(x), wanted)
    whole.lane.everyone = True
    assert not torch.equal(whole(x), wanted)


def test_wrong_lanes_say_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="names no source"):
        pytorch.Lane(nn.Linear(2, 2), source=[])
    with pytest.raises(UsageError, match="neither zeros nor input"):
        pytorch.Lane(nn.Linear(2, 2), source="s", others="mean")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no tensor with rows"):
        pytorch.Lane(nn.Linear(2, 2), source="s")(3)
    with pytest.raises(UsageError, match="one value per row"):
        pytorch.Lane(nn.Flatten(0), source="s")(torch.ones(3, 2))
    with pytest.raises(UsageError, match="unlike the input"):
        pytorch.Lane(nn.Linear(2, 3), source="s", others="input")(torch.ones(3, 2))
    router, around = known("s")
    lane = pytorch.Lane(nn.Linear(2, 2), source="s")
    lane.attach(router)
    lane.everyone = True
    with around, pytest.raises(PolicyRefused, match="P11"):
        lane(torch.ones(1, 2))
