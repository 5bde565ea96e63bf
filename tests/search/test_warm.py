"""Searches that begin from given points and from what former experiments have shown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from hpcdet.config import api as config
from hpcdet.config.check.section_models import model
from hpcdet.control.requests.replay import Replay
from hpcdet.errors import ConfigError, NotFound
from hpcdet.jobs.create import begin_from, past_results
from hpcdet.read.lookup import find
from hpcdet.search import searcher_factory
from hpcdet.search.api import codec, events
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import dump, resolve
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.store.decisions import chain
from hpcdet.store.decisions.chain import Chain
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.trials import history, parents
from hpcdet.units import Length
from tests import TOP
from tests import experiments as x
from tests.commands import Cli, cli  # noqa: F401

SPACE: dict[str, Any] = {
    "x": {"type": "double", "minval": 0.0, "maxval": 1.0},
    "kind": {"choice": {"a": {}, "b": {"n": {"type": "int", "minval": 1, "maxval": 5}}}},
    "global_batch_size": 32,
}
Loss = Callable[[Mapping[str, Any]], float]


def values(name: str = "async_halving", trials: int = 12, **searcher: Any) -> dict[str, Any]:
    asked = {"name": name, "divisor": 2, "num_rungs": 3, "rule": "stopping", **searcher}
    return x.config(40, trials, hyperparameters=SPACE, searcher=asked)


def searched(root: Path, id: str, wanted: Mapping[str, Any], loss: Loss) -> ExperimentPaths:
    """An experiment with the records of a whole search in which ``loss`` says what trials show."""
    paths = ExperimentPaths(root / id)
    files.make_folder(paths.root)
    resolved = resolve(wanted)
    found = past_results.collect(resolved, root)
    if found is not None:
        found.write(paths.history)
    paths.config.write_bytes(dump(wanted))
    method = searcher_factory.searcher(resolved, history=history.of(paths))
    lengths, state = [Length("batches", n) for n in (10, 20, 40)], method.initial()
    records = Chain.open(paths, 1, "test")
    waiting: list[events.Event] = [events.Start()]
    params: dict[int, Mapping[str, Any]] = {}
    while waiting:
        event = waiting.pop(0)
        records.note("event", event=codec.encode_event(event))
        state, actions = method.on_event(state, event)
        for action in actions:
            records.note("action", action=codec.encode_action(action))
            if isinstance(action, events.Create):
                params[action.trial] = action.params
                shown = {"validation_loss": loss(action.params), "other": 1.0}
                come = lengths[: 1 if action.trial == 3 else 3]
                waiting += [events.Report(action.trial, length, shown) for length in come]
                waiting.append(events.SegmentEnd(action.trial, "target"))
    records.commit()
    records.close()
    return paths


def created(paths: ExperimentPaths) -> dict[int, dict[str, Any]]:
    actions = (line["action"] for line in chain.read(paths) if line["kind"] == "action")
    return {each["trial"]: each["params"] for each in actions if each["kind"] == "create"}


def near(params: Mapping[str, Any]) -> float:
    return abs(params["x"] - 0.7) + (params["kind"]["name"] == "a")


def test_a_point_is_completed_and_checked_by_its_space() -> None:
    space = Space({**SPACE, "twice": {"derived": "x * 2"}, "forbid": ["x > 0.9"]})
    drawn = space.sample(1, 4)
    assert space.completed({}, 1, 4) == drawn
    given = space.completed({"kind": {"name": "b", "n": 3}}, 1, 4)
    assert given == {**drawn, "kind": {"name": "b", "n": 3}}
    space.check(given)
    for wrong, where, what in [
        ({"x": 1.5}, "x", "out of bounds"),
        ({"x": True}, "x", "out of bounds"),
        ({"global_batch_size": 64}, "global_batch_size", "none of its values"),
        ({"kind": {"name": "a", "n": 3}}, "kind.n", "no such hyperparameter"),
        ({"y": 1}, "y", "no such hyperparameter"),
        ({"twice": 7}, "twice", "follows from the others"),
        ({"x": 0.95}, "forbid.0", "is drawn, it is forbidden by 'x > 0.9'"),
    ]:
        with pytest.raises(SpaceError, match=what) as caught:
            space.completed(wrong, 1, 4)  # type: ignore[arg-type]
        assert dotted(caught.value.path) == where
        with pytest.raises(SpaceError):
            space.check({**given, **wrong})  # type: ignore[dict-item]
    with pytest.raises(SpaceError, match="missing"):
        space.check({"global_batch_size": 32, "x": 0.5})


@pytest.mark.parametrize("name", ["random", "async_halving", "adaptive_asha"])
def test_given_points_come_first_and_leave_the_other_draws_alone(name: str, tmp_path: Path) -> None:
    plain = created(searched(tmp_path, "plain", values(name), near))
    points = [{"x": 0.25}, {"kind": {"name": "b", "n": 5}}]
    found = created(searched(tmp_path, "given", values(name, initial=points), near))
    assert found[1] == {**plain[1], "x": 0.25}
    assert found[2] == {**plain[2], "kind": {"name": "b", "n": 5}}
    assert all(found[n] == plain[n] for n in range(3, 13))


def test_history_is_what_fits_and_is_frozen(tmp_path: Path) -> None:
    def loss(params: Mapping[str, Any]) -> float:
        return math.nan if params["kind"]["name"] == "a" else near(params)

    old = searched(tmp_path, "old-1", values("random", 20), loss)
    narrow = {**SPACE, "x": {"type": "double", "minval": 0.0, "maxval": 0.9}}
    asked = {"experiments": ["old-1", str(old.root)], "best": 2, "trials": 9}
    wanted = {**values(warm_start=asked), "hyperparameters": narrow}
    found = past_results.collect(resolve(wanted), tmp_path)
    assert found is not None and len(found.trials) == 9
    [source] = found.sources
    outside = sum(params["x"] >= 0.9 for params in created(old).values())
    others = 20 - outside - 9
    assert source.left_out == {"outside the space (x)": outside, "more than asked for": others}
    lengths = [[length for length, _ in trial.shown] for trial in found.trials]
    assert lengths == sorted(lengths, reverse=True) and [10, 20, 40] in lengths
    losses = [trial.shown[-1][1] for trial in found.trials if len(trial.shown) == 3]
    numbers = [one for one in losses if one is not None]
    assert losses == sorted(numbers) + [None] * (len(losses) - len(numbers))

    new = searched(tmp_path, "new-1", wanted, near)
    assert [created(new)[n] for n in (1, 2)] == [trial.params for trial in found.trials[:2]]
    (tmp_path / "old-1").rename(tmp_path / "gone")
    with pytest.raises(NotFound) as caught:
        past_results.collect(resolve(wanted), tmp_path)
    assert caught.value.where == "searcher.warm_start.experiments"
    again = Replay(searcher_factory.searcher(resolve(wanted), history=history.of(new)), {})
    assert len(list(again.run(chain.read(new)))) == len(chain.read(new))
    assert again.difference is None and not again.failed
    with pytest.raises(ConfigError, match="not there"):
        searcher_factory.searcher(resolve(wanted))


def test_a_model_suggests_at_once_what_was_good_before(tmp_path: Path) -> None:
    searched(tmp_path, "old-1", values("random", 40), near)
    model: dict[str, Any] = {
        "sampler": {"name": "tpe", "random_fraction": 0.0},
        "warm_start": {"experiments": ["old-1"]},
    }
    found = created(searched(tmp_path, "new-1", values(**model), near))
    assert found == created(searched(tmp_path, "new-2", values(**model), near))
    by_chance = created(searched(tmp_path, "new-3", values(), near))
    assert sum(map(near, found.values())) < 0.6 * sum(map(near, by_chance.values()))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"metric": "accuracy"}, "never reported 'accuracy'"),
        ({"max_length": {"epochs": 3}}, "in batches, this search in epochs"),
        ({"max_length": {"batches": 4000}}, "20 too short for the first rung"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    searched(tmp_path, "old-1", values("random", 20), near)
    wanted = values(warm_start={"experiments": ["old-1"], "best": 1}, **changes)
    with pytest.raises(ConfigError, match=what):
        past_results.collect(resolve(wanted), tmp_path)


@pytest.mark.parametrize(
    ("searcher", "key", "what"),
    [
        ({"name": "single", "initial": [{"x": 1}]}, "searcher.initial", "has no initial"),
        ({"warm_start": {"experiments": ["a"]}}, "searcher.warm_start", "not use former results"),
        ({"initial": [{}, {"x": 2.5}]}, "searcher.initial.1.x", "out of bounds"),
        ({"warm_start": {"experiments": []}}, "searcher.warm_start.experiments", "at least 1"),
    ],
)
def test_configs_that_cannot_be_meant(
    tmp_path: Path, searcher: dict[str, Any], key: str, what: str
) -> None:
    wanted = {
        "entrypoint": "train.py",
        "hyperparameters": SPACE,
        "searcher": {"name": "random", "max_trials": 3, "max_length": {"batches": 9}, **searcher},
    }
    if searcher.get("name") == "single":
        del wanted["searcher"]["max_trials"]
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(wanted))
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    assert key in str(caught.value) and what in str(caught.value)


def test_plan_and_submit_say_what_they_begin_from(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    searched(cli.root, "old-1", values("random", 20), near)
    code = tmp_path / "code"
    code.mkdir(mode=0o700)
    file = code / "search.yaml"
    wanted = {
        "entrypoint": "true",
        "hyperparameters": SPACE,
        "searcher": {
            "name": "random",
            "metric": "validation_loss",
            "max_trials": 3,
            "max_concurrent_trials": 1,
            "max_length": {"batches": 9},
            "warm_start": {"experiments": ["old"], "best": 2},
        },
    }
    file.write_text(json.dumps(wanted))
    [plan] = cli("plan", file, "--site", "local", "-o", "json").items
    assert plan["warm_start"] == ["20 trials of old-1"]
    said = cli("submit", file, "--site", "local", "--prepare", "--no-test")
    assert "warm start: 20 trials of old-1" in said.err
    paths = find.experiments(cli.root)[-1]
    best = min(created(ExperimentPaths(cli.root / "old-1")).values(), key=near)
    assert created(paths)[1] == best
    [verified] = cli("searcher", "replay", "--verify", paths.id, "-o", "json").items
    assert verified["verified"]


def test_plan_refuses_a_checkpoint_that_is_not_there(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "search.yaml"
    asked = {"name": "random", "max_trials": 2, "max_length": {"batches": 9}}
    file.write_text(json.dumps({"entrypoint": "true", "searcher": asked}))
    for named in ("nope-1/3", "foo bar", "nope-1/3@4"):
        wanted = ("plan", file, "--site", "local", "--set", f"searcher.begin_from={named}")
        said = cli(*wanted, code=3).err
        assert "searcher.begin_from" in said and f"{named}: no" in said and "hpcdet ls" in said


def test_plan_and_simulate_count_from_where_trials_begin(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = parents.Donation(tmp_path, 6, {"meta": {"batches": 6, "records": 60, "epochs": 1}})
    monkeypatch.setattr(
        begin_from, "look", lambda resolved, *_: resolved.searcher.begin_from and found
    )
    file = tmp_path / "search.yaml"
    asked: dict[str, Any] = {"name": "random", "max_trials": 4, "max_length": {"batches": 9}}
    file.write_text(json.dumps({"entrypoint": "true", "searcher": asked}))
    begins = ("--set", "searcher.begin_from=old-1/3")
    how = (file, "--site", "local", "-o", "json")
    [without], [item] = cli("plan", *how).items, cli("plan", *how, *begins).items
    assert (without["units"], item["units"]) == (4 * 9, 4 * 3)
    [bracket] = resolve({"searcher": asked | {"name": "asha", "divisor": 3}}).searcher.brackets
    assert (bracket.rungs, bracket.units(3), bracket.units(3, 2)) == ((1, 3, 9), 3 + 9, 3 + 7)
    one = ("--workers", 1, "--seeds", 2, "--trial-time", "9s")
    [course] = cli("simulate", *how, *begins, *one).items
    assert course["end_s"]["median"] == 4 * 3 and course["assumed"]["begin_at"] == 6
    bound = "searcher.stopping={total_length: {length: {batches: 3}}}"
    [course] = cli("simulate", *how, *begins, *one, "--set", bound).items
    assert course["end_s"]["median"] == 3, "what they begin from is not trained again"
    counted = {"name": "asha", "max_trials": 4, "max_time": 9, "time_metric": "seen"}
    file.write_text(json.dumps({"entrypoint": "true", "searcher": counted}))
    said = cli("simulate", *how, *begins, *one)
    assert said.items[0]["assumed"]["begin_at"] == 0 and "to begin at seen 0" in said.out


def test_every_searcher_of_the_docs_can_be_planned(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    step = {"until": {"batches": 9}, "hyperparameters": {"x": 0.1, "n": 1}}
    needs: dict[str, dict[str, Any]] = {
        **{name: {"population_size": 4} for name in ("pbt", "pb2")},
        **{name: {} for name in ("single", "grid", "hyperband", "bohb")},
        "schedule": {"schedule": {"steps": [step]}},
        "custom": {"program": "mine:Searcher", "max_trials": 3},
    }
    docs = (TOP / "docs" / "guides" / "search.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \|", docs.partition("\n## ")[0], re.MULTILINE)
    searchers = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert {*searchers} == {*get_args(model(Searcher).model_fields["name"].annotation)}
    for name in searchers:
        asked = {"name": name, "max_length": {"batches": 9}, **needs.get(name, {"max_trials": 3})}
        space = {"x": {**SPACE["x"], "count": 2}, "n": 1}
        file = tmp_path / f"{name}.yaml"
        file.write_text(
            json.dumps({"entrypoint": "true", "hyperparameters": space, "searcher": asked})
        )
        [item] = cli("plan", file, "--site", "local", "-o", "json").items
        assert item["searcher"] == name and item["trials"] > 0 and item["begin_from"] is None
