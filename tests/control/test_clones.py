"""A trial that begins from another one's checkpoint: whose state it has, and whose options."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint, pytorch
from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.core import warm_start
from hpcdet.errors import ConfigError
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.lookup import lineage
from hpcdet.search.api import events
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.decisions import chain
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.trials import hard_links, parents
from hpcdet.train.attempt import startup
from hpcdet.units import Length
from tests.alone import as_script, checkpoints, train  # noqa: F401
from tests.control.worlds import control, later
from tests.paper import Heir, World

pytestmark = pytest.mark.usefixtures("as_script")


class Points(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return x + 0.1 * torch.randn(6), x.sum().reshape(1)


class Child(pytorch.PyTorchTrial):
    """Rates by two schedules of hyperparameters, dropout, augmentation, a short last batch."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        get = context.get_hparams().get
        net = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )
        self.net = context.wrap_model(net)
        sgd = torch.optim.SGD(
            [
                {"params": net[0].parameters(), "lr": get("lr", 0.1) / 2},
                {"params": net[2].parameters()},
            ],
            lr=get("lr", 0.1),
            momentum=get("momentum", 0.9),
            weight_decay=0.01,
        )
        self.optimizer = context.wrap_optimizer(sgd)
        drops = torch.optim.lr_scheduler.MultiStepLR(sgd, [3, 8], get("gamma", 0.5))
        warms = torch.optim.lr_scheduler.LinearLR(sgd, 0.1, total_iters=10)
        schedule = torch.optim.lr_scheduler.ChainedScheduler([drops, warms])
        mode = pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH
        self.schedule = context.wrap_lr_scheduler(schedule, mode)

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Points(), batch_size=16)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(Points(), batch_size=40)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return {"validation_loss": (self.net(x) - y).square().mean()}


def heir(donor: Path, storage: Path, at: int) -> Path:
    """A trial in ``storage`` that is to begin from the donor's checkpoint."""
    found = parents.donations(TrialPaths(donor, 1), "batches")
    chosen = parents.choose(found, Length("batches", at))
    assert chosen is not None
    parents.give(chosen, TrialPaths(storage, 2))
    return storage


def groups(trial: Any) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in group.items() if name != "params"}
        for group in trial.optimizer.param_groups
    ]


def test_a_child_has_its_parents_state_and_its_own_options(tmp_path: Path) -> None:
    donor = tmp_path / "donor"
    train(Child, donor, 12, checkpoint_period=pytorch.Batch(6))
    last = checkpoints(donor)[-1]

    same = heir(donor, tmp_path / "same", 7)
    train(Child, same, 12)
    assert [one.name for one in checkpoints(same)] == ["00000006.g0", "00000012.g1"]
    assert checkpoints(same)[-1].digest == last.digest  # with nothing changed it is its parent

    asked = {"global_batch_size": 16, "lr": 0.02, "momentum": 0.5, "gamma": 0.1}
    fresh = train(Child, tmp_path / "fresh", 6, asked)
    began = heir(donor, tmp_path / "other", 6)
    at_once = train(Child, began, 6, asked)
    assert groups(at_once) == groups(fresh)
    assert at_once.schedule.get_last_lr() == fresh.schedule.get_last_lr()
    saved = checkpoint.load(donor / "checkpoints" / "00000006.g1").shared
    for name, value in at_once.net.state_dict().items():
        assert torch.equal(value, saved["models"][0][name])
    momenta = [state["momentum_buffer"] for state in at_once.optimizer.state.values()]
    before = [state["momentum_buffer"] for state in saved["optimizers"][0]["state"].values()]
    assert all(map(torch.equal, momenta, before))

    train(Child, began, 12, asked)
    [*_, ended] = checkpoints(began)
    assert ended.digest != last.digest
    shutil.rmtree(began / "checkpoints" / ended.name)  # killed before it has saved
    shutil.rmtree(donor)  # nobody needs its parent any more
    train(Child, began, 12, asked)
    assert checkpoints(began)[-1].digest == ended.digest


def test_options_are_found_behind_constructors_that_hand_them_on() -> None:
    class Counting(torch.optim.SGD):
        """Has a count among its options, as schedule-free ones do."""

        def __init__(self, params: Any, **options: Any) -> None:
            super().__init__(params, **options)
            self.defaults["k"] = 0
            for group in self.param_groups:
                group["k"] = 0

    class Further(Counting):
        def __init__(self, *given: Any, extra: int = 0, **options: Any) -> None:
            super().__init__(*given, **options)

    class Anything(torch.optim.Optimizer):
        """As torch's ``ZeroRedundancyOptimizer``."""

        def __init__(self, params: Any, **defaults: Any) -> None:
            super().__init__(params, defaults)

    for kind in (Counting, Further, Anything):
        weights = torch.nn.Parameter(torch.ones(2))
        own = kind([weights], lr=0.5, momentum=0.25)
        saved = [{**own.param_groups[0], "lr": 0.1, "momentum": 0.9, "k": 7, "params": [0]}]
        [group] = warm_start.options(own, saved)
        assert (group["lr"], group["momentum"], group["k"]) == (0.5, 0.25, 7), kind


def test_schedules_are_stepped_in_turn_and_one_that_is_too_short_is_named(tmp_path: Path) -> None:
    def made() -> tuple[torch.optim.SGD, list[torch.optim.lr_scheduler.LRScheduler]]:
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.3)
        chained = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.7)
        # sets the rate of each cycle's step whatever it was, so that the order matters
        cosine = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sgd, 4)
        return sgd, [chained, cosine]

    sgd, schedules = made()
    sgd.step()
    for _ in range(6):
        for one in reversed(schedules):
            one.step()
    other, fresh = made()
    saved = [one.state_dict() for one in reversed(schedules)]
    warm_start.catch_up(zip(reversed(fresh), saved, strict=True))
    assert other.param_groups[0]["lr"] == sgd.param_groups[0]["lr"]

    class Hurried(Child):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            cycle = torch.optim.lr_scheduler.OneCycleLR(
                self.optimizer, 0.1, total_steps=context.get_hparams().get("cycle", 12)
            )
            context.wrap_lr_scheduler(cycle, pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)

    donor = tmp_path / "donor"
    train(Hurried, donor, 6)
    with pytest.raises(ConfigError, match=r"OneCycleLR: .* after 6 steps: .* total steps is 4"):
        train(Hurried, heir(donor, tmp_path / "own", 6), 8, {"global_batch_size": 16, "cycle": 4})


def test_members_of_a_population_save_where_they_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"name": "pbt", "max_length": {"batches": 12}, "perturbation_interval": {"batches": 4}}
    monkeypatch.setattr(startup, "Resolved", lambda: resolve({"searcher": asked}))
    train(Child, tmp_path, 12, checkpoint_policy="none")
    found = {one.step: one.meta["kind"] for one in checkpoints(tmp_path) if one.step}
    assert found == {4: "resume", 8: "resume", 12: "kept"}


def trained(
    root: Path, method: Heir, steps: Sequence[int]
) -> tuple[World, Holder, AttemptPaths, list[Path]]:
    """A search whose trial 1 has checkpoints of these steps, and has just reported after 50."""
    world = World.make(root, method)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    attempt = play.claim(play.start_all()[0], 1)
    saved = [play.save(attempt, step) for step in steps]
    play.report(attempt, 50)
    return world, holder, attempt, saved


def test_a_child_that_is_canceled_waits_no_longer_for_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, holder, _, [saved] = trained(tmp_path, Heir(), [40])
    read: list[Path] = []
    manifest = hard_links.manifest
    monkeypatch.setattr(hard_links, "manifest", lambda at: read.append(at) or manifest(at))
    for _ in range(3):
        later(world, holder)
    child = world.paths.trial(2)
    assert read == [saved] and not child.record.exists()
    commands.ask(world.paths, "cancel", 2)
    later(world, holder, 2)
    record = Trial.read(child.record)
    assert record is not None and not record.origin
    assert holder.decided.trials.plans[2].ended == "canceled"


def test_a_checkpoint_that_vanishes_while_it_is_linked_leaves_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed by retention, here or by another client of NFS; and once there is none left."""
    world, holder, attempt, saved = trained(tmp_path, Heir(), [20, 40, 50])
    same, seen = hard_links._same, list[Path]()

    def vanishing(source: Path, target: Path) -> None:
        seen.append(source.parent)
        if len(seen) == 1:
            raise OSError(errno.ESTALE, "Stale file handle", str(source))
        shutil.rmtree(source.parent)
        if len(seen) == 3:
            shutil.rmtree(saved[0])
        same(source, target)

    monkeypatch.setattr(hard_links, "_same", vanishing)
    later(world, holder, 1)
    world.play().end(attempt, "stopped")
    child = world.paths.trial(2)
    while not child.record.exists():
        assert not [*child.checkpoints.glob("*")] and len(seen) < 9
        later(world, holder, 1)
    assert seen == [saved[2], saved[2], saved[1]]
    assert holder.decided.trials.plans[2].origin == {}
    [line] = [line for line in chain.read(world.paths) if line["kind"] == "clone"]
    assert line["why"] == "begins from nothing: 1@50 batches has no checkpoint"
    assert not [*child.checkpoints.glob("*")]
    holder.close()


class Family(Heir):
    """As ``Heir``, with trial 3, and a trial 2 that is to stop with trial 1."""

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        until = Length("batches", 100)
        match event:
            case events.Start():
                return state, [events.Create(number, {}, 7, until) for number in (1, 2)]
            case events.Report(1):
                heir = events.Create(3, {}, 7, until, parent="1@50 batches")
                return state, [heir, events.Stop(1), events.Stop(2)]
        return state, []


def test_an_heir_that_cannot_be_linked_keeps_nothing_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, holder, _, _ = trained(tmp_path, Family(), [50])
    said: list[list[str]] = []

    def stops() -> list[str]:
        return [control(world, number).action for number in (1, 2)]

    def failing(source: Path, _: Path) -> None:
        said.append(stops())
        raise OSError(errno.EIO, "Input/output error", str(source))

    with monkeypatch.context() as patch:
        patch.setattr(hard_links, "_same", failing)
        for _ in range(2):
            turn = later(world, holder, 1)
            assert turn.state == "PAUSED" and stops() == ["run", "stop"]
    # copies may take long: who has nothing to do with them hears first, their source last, and
    # not before they are there: on leaving it removes what is older than its newest checkpoint
    assert said == [["run", "stop"], ["run", "stop"]]
    states = [line for line in chain.read(world.paths) if line["kind"] == "state"]
    [told] = [line["why"] for line in states if line["state"] == "PAUSED"]
    assert "trial 3 cannot begin from this checkpoint: Input/output error" in told
    assert later(world, holder, 1).state == "RUNNING" and stops() == ["stop", "stop"]
    record = Trial.read(world.paths.trial(3).record)
    assert record is not None and record.origin["checkpoint"] == "00000050.g1"
    holder.close()


def test_a_user_may_cancel_a_trial_whose_heir_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, holder, _, _ = trained(tmp_path, Family(), [50])

    def failing(source: Path, _: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(source))

    monkeypatch.setattr(hard_links, "_same", failing)
    assert later(world, holder, 1).state == "PAUSED" and control(world, 1).action == "run"
    commands.ask(world.paths, "cancel", 1)
    later(world, holder, 1)
    assert control(world, 1).action == "kill"
    holder.close()


@pytest.mark.parametrize(
    ("saved", "begins", "why"),
    [
        ([60, 70], "", "begins from nothing: 1@50 batches has no checkpoint so short, its first"),
        ([30, 40, 60], "00000040.g1", "00000040.g1 of trial 1, 40 batches: it has none of 50 bat"),
        ([40, 50, 100], "00000050.g1", "begins from 00000050.g1 of trial 1"),
    ],
)
def test_a_child_never_begins_beyond_what_was_compared(
    tmp_path: Path, saved: list[int], begins: str, why: str
) -> None:
    world, holder, _, _ = trained(tmp_path, Heir(), saved)
    later(world, holder)
    record = Trial.read(world.paths.trial(2).record)
    assert record is not None and record.origin.get("checkpoint", "") == begins
    heir = Gathered(world.paths).trial(2)
    assert heir is not None and heir.steps == int(begins[:8] or 0)
    [clone] = [line for line in chain.read(world.paths) if line["kind"] == "clone"]
    assert why in clone["why"]


def test_a_child_is_to_come_farther_than_it_begins_and_from_the_end_of_an_epoch() -> None:
    def held(*found: tuple[str, int]) -> list[parents.Donation]:
        return [parents.Donation(Path(name), at, {}) for name, at in found]

    found = held(("00000004.g1", 1), ("00000008.g1", 2), ("00000008.g2", 2), ("00000011.g2", 2))
    asked_for = ((2, 3, "00000008.g2"), (2, 2, "00000004.g1"), (None, 3, "00000011.g2"))
    asked_for += ((3, 4, "00000011.g2"),)  # type: ignore[assignment] # no end of epoch 3: the nearest, though within epoch 2
    for length, goal, name in asked_for:
        asked = None if length is None else Length("epochs", length)
        chosen = parents.choose(found, asked, Length("epochs", goal))
        assert chosen is not None and chosen.folder.name == name
    assert parents.choose(found, None, Length("epochs", 1)) is None


def test_a_schedule_is_without_who_has_trained_nothing(tmp_path: Path) -> None:
    rows = [
        lineage.StretchView(n, start, end, "batches", {"n": n}, 1, "", "", "")
        for n, (start, end) in enumerate(((0, 9), (9, 9), (9, 30)))
    ]
    asked = resolve({"searcher": {"name": "pbt", "max_length": {"batches": 30}}})
    gathered = Gathered(ExperimentPaths(tmp_path))
    vars(gathered)["config"] = asked
    found = lineage.config(rows, gathered)
    steps = found["searcher"]["schedule"]["steps"]
    assert [(step["until"]["batches"], step["hyperparameters"]["n"]) for step in steps] == [
        (9, 0),
        (30, 2),
    ]


def test_a_parent_is_read_as_it_is_written() -> None:
    for text in ("3", "3@400 batches", "../digits-7f3a/3@2 epochs"):
        assert str(parents.Parent.parse(text)) == text
    assert parents.Parent.parse("../elsewhere/7") == parents.Parent(7, None, "../elsewhere")
    assert not any(map(parents.Parent.parse, ("", "0", "a", "3@4", "3@x batches")))
