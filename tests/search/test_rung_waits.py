"""Trials that wait at a rung for the search's decision (``searcher.wait_at_rungs_s``)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.turn.controller import advance
from hpcdet.process import signals
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.search import searcher_factory
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Control, Trial
from hpcdet.store.trials.controls import in_force
from hpcdet.train.attempt import rung_wait
from hpcdet.train.attempt.session import Session
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.units import Length, Units
from tests import ranks
from tests.commands import Cli, cli  # noqa: F401
from tests.experiments import TINY, write_model
from tests.paper import World

SEARCH = {
    "name": "async_halving",
    "metric": "validation_loss",
    "max_length": {"batches": 18},
    "num_rungs": 3,
    "divisor": 3,
}
LOOP = """
import torch
from hpcdet import core

with core.init() as context:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = context.checkpoint.latest()
    step = 0
    if state is not None:
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    rungs = [rung.value for rung in context.searcher.rungs]
    while step < rungs[-1]:
        loss = model(torch.randn(4, 2)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step in rungs:
            context.train.report_validation_metrics(step, {"validation_loss": loss.item()})
        if context.preempt.should_preempt():
            break
    context.checkpoint.save(
        {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, step
    )
"""
MODEL = (
    TINY
    + """

class Model(Tiny):
    def __init__(self, context):
        super().__init__(context)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.net.parameters(), lr=0.01))
"""
)


def experiment(root: Path, code: str, world: int, wait_s: int) -> TrialPaths:
    loop = (
        {"entrypoint": "python3 model_def.py"}
        if code is LOOP
        else {"entrypoint": "model_def:Model"}
    )
    trial = ranks.experiment(
        root,
        code=code,
        ranks=world,
        hparams={"global_batch_size": 8},
        searcher={**SEARCH, "wait_at_rungs_s": wait_s},
        **loop,  # type: ignore[arg-type]
    )
    say(trial, "run", 0)
    return trial


def say(trial: TrialPaths, action: Any, heard: int) -> None:
    """What the holder of the lease writes."""
    seq = len(list(trial.controls.glob("*.json"))) + 1
    Control(action, Length("batches", 18), heard=heard).write_once(trial.control(seq))


def waited(attempt: ranks.Attempt) -> list[tuple[int, str]]:
    return [(line["rung"], line["until"]) for line in attempt.lines() if line["kind"] == "waited"]


def nudge(trial: TrialPaths) -> Path:
    return ExperimentPaths(trial.root.parent.parent).nudges / "trial-1"


@pytest.mark.parametrize(
    ("code", "world"), [(MODEL, 2), (LOOP, 1), (LOOP, 2)], ids=["trial-2", "loop-1", "loop-2"]
)
def test_a_trial_waits_until_it_is_decided_upon_and_keeps_its_bits(
    code: str, world: int, tmp_path: Path
) -> None:
    """At 2 it is to go on, at 6 it is paused, and it goes on from there: as without waiting."""
    trial = experiment(tmp_path / "waits", code, world, 600)
    with ranks.start(trial, world) as attempt:
        attempt.wait_for(nudge(trial).exists)
        nudge(trial).unlink()
        say(trial, "run", 2)
        attempt.wait_for(nudge(trial).exists)
        say(trial, "pause", 6)
        attempt.wait()
    verdict = attempt.verdict()
    assert verdict is not None and verdict.cause == "paused", attempt.log()
    assert waited(attempt) == [(2, "decided"), (6, "paused")]
    if (code, world) != (LOOP, 2):  # whose ranks hear of it some steps later
        assert verdict.batches == 6
    profiled = [line for line in attempt.lines() if line["kind"] == "profile"]
    assert sum(line["phases"].get("waiting", 0.0) for line in profiled) > 0
    say(trial, "run", 6)
    last = ranks.finish(trial, world)
    assert waited(last) == []
    plain = experiment(tmp_path / "plain", code, world, 0)
    ranks.finish(plain, world)
    assert ranks.result(trial) == ranks.result(plain)


def test_a_notice_to_one_rank_ends_the_wait_of_all(tmp_path: Path) -> None:
    trial = experiment(tmp_path / "waits", MODEL, 2, 600)
    with ranks.start(trial, 2) as attempt:
        attempt.wait_for(nudge(trial).exists)
        attempt.signal(signal.SIGUSR2, 1)
        attempt.wait()
    verdict = attempt.verdict()
    assert verdict is not None, attempt.log()
    assert (verdict.cause, verdict.batches, waited(attempt)) == ("signal", 2, [(2, "signal")])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Time goes on only where somebody sleeps, and by hand."""
    now = [1000.0]
    monkeypatch.setattr(rung_wait.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(rung_wait.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    yield now
    signals.forget()


def session(root: Path, clock: list[float], wait_s: int, end: float | None = None) -> Session:
    paths = ExperimentPaths(root)
    say(paths.trial(1), "run", 0)
    config = resolve({"searcher": {**SEARCH, "wait_at_rungs_s": wait_s}})
    place = AttemptLocation.of(root, 1, 1)
    deadline = Deadline(end, wall=lambda: clock[0])
    made = Session(Ranks(), place, Trial(1, {}, 7), config, deadline)
    made.begin(None, Units())
    return made


def step(made: Session, clock: list[float], batches: int, pace_s: float = 1.0) -> Any:
    for n in range(made.coordinator._steps + 1, batches + 1):
        clock[0] += pace_s
        made.coordinator.poll(Units(n))
    made.report("validation", Units(batches), {"validation_loss": 1.0})
    return made.coordinator.wait_at_rung()


def lines(root: Path) -> list[tuple[int, float, str]]:
    found = ranks.Attempt(ExperimentPaths(root).trial(1).attempt(1)).lines()
    return [(n["rung"], n["seconds"], n["until"]) for n in found if n["kind"] == "waited"]


def test_a_wait_has_a_bound_and_ends_where_the_time_does(
    tmp_path: Path, clock: list[float]
) -> None:
    made = session(tmp_path / "a", clock, 20, end=1040.0)
    assert step(made, clock, 2) is None  # nobody decides
    assert step(made, clock, 3) is None  # and it does not wait there a second time
    assert [(rung, why) for rung, _, why in lines(tmp_path / "a")] == [(2, "bound")]
    assert 20 <= lines(tmp_path / "a")[0][1] < 21
    assert step(made, clock, 6) == "walltime"
    assert lines(tmp_path / "a")[-1][2] == "walltime"


def test_a_trial_waits_only_where_its_next_rung_would_come_within_the_bound(
    tmp_path: Path, clock: list[float]
) -> None:
    made = session(tmp_path / "a", clock, 20)
    assert step(made, clock, 2, pace_s=9.0) is None  # 4 more batches would take 36 s
    assert lines(tmp_path / "a") == []
    quick = session(tmp_path / "b", clock, 40)
    assert step(quick, clock, 2, pace_s=9.0) is None
    assert [why for *_, why in lines(tmp_path / "b")] == ["bound"]
    last = session(tmp_path / "c", clock, 20)
    assert step(last, clock, 18) is None and lines(tmp_path / "c") == []  # nothing lies above


@pytest.mark.parametrize(("wait_s", "heard"), [(0, [0, 0, 0, 0]), (30, [0, 2, 2, 6])])
def test_the_holder_says_up_to_which_rung_it_has_decided(
    wait_s: int, heard: list[int], tmp_path: Path
) -> None:
    asked = {**SEARCH, "metric": "loss", "rule": "stopping", "wait_at_rungs_s": wait_s}
    world = World.make(tmp_path, searcher=asked | {"max_trials": 1})
    world.method = searcher_factory.searcher(world.resolved)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    attempt = play.claim(play.start_all()[0])
    trial, found = world.paths.trial(1), list[int]()
    for length in (0, 2, 4, 6):  # 4 is no rung
        if length:
            play.report(attempt, length, 1 / length)
        world.clock.now += 11
        advance(world.paths, holder)
        control = in_force(trial)
        assert control is not None and control.action == "run"
        found.append(control.heard)
    assert found == heard
    assert len(list(trial.controls.iterdir())) == len(set(heard))
    holder.close()


def test_a_real_search_trains_nothing_beyond_its_rungs(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    """Two trials, one after the other: the first is the best so far, the second is stopped."""
    model = tmp_path / "model"
    write_model(model, pace_s=0.01)
    config = model / "short.yaml"
    config.write_text(
        """\
entrypoint: model_def:Model
hyperparameters: {global_batch_size: 10, x: {type: double, minval: 0, maxval: 1}}
searcher:
  {name: async_halving, rule: stopping, num_rungs: 2, divisor: 3, max_length: {batches: 150},
   max_trials: 2, max_concurrent_trials: 1, initial: [{x: 0.1}, {x: 0.9}], wait_at_rungs_s: 9m}
"""
    )
    [id] = cli("submit", config, "--site", "local", "--no-test", "--wait", "-o", "id").out.split()
    [item] = cli("show", id, "-o", "json").items
    assert [row["steps"] for row in item["trials"]] == [150, 50]
    assert [row["reason"] for row in item["attempts"]] == ["completed", "stopped"]
    [row] = cli("searcher", "replay", "--verify", id, "-o", "json").items
    assert row["verified"]
