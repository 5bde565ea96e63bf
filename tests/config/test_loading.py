"""Configs: layers and origins, what is derived, secrets, and errors that say where and what."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdet.config import api as config
from hpcdet.config.check import problems
from hpcdet.config.check.section_models import completed
from hpcdet.config.determined import unsupported_keys
from hpcdet.config.load import changing, load_config
from hpcdet.errors import ConfigError, IntegrityError, UsageError
from hpcdet.search.stopping import rules_from_config
from hpcdet.search.stopping.search_rules import TotalLengthRule
from hpcdet.search.stopping.trial_rules import PercentileRule
from hpcdet.site_files.load_site import walk
from hpcdet.store.config import data_secrets
from hpcdet.store.config import resolved_config as stored
from hpcdet.units import Length
from tests import TOP

MINIMAL = "entrypoint: python3 train.py\n"
SEARCH = """\
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters:
  lr: {type: log, minval: -3, maxval: -1}
searcher:
  name: random
  max_trials: 4
  max_length: {batches: 300}
"""


def load(tmp_path: Path, text: str, *sets: str, **more: Any) -> config.LoadedConfig:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return config.load(file, sets, **more)


def refused(tmp_path: Path, text: str, *sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *sets)
    assert caught.value.exit_code == 4
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("rule", "where", "says"),
    [
        (
            "a >",
            "run.yaml:5: hyperparameters.forbid.1",
            "cannot read the expression 'a >': invalid",
        ),
        ("a == c", "run.yaml:5: hyperparameters.forbid.1", "no hyperparameter 'c', as in 'a == c'"),
        ("a > 0", "run.yaml:5: hyperparameters.forbid.1", "in a row were forbidden by 'a > 0'"),
        (
            "a == 2",
            "run.yaml:6: searcher.initial.0",
            "is drawn, it is forbidden by 'a == 2' (run.yaml:5: hyperparameters.forbid.1)",
        ),
    ],
)
def test_what_forbid_refuses_names_the_expression_and_its_line(
    rule: str, where: str, says: str, tmp_path: Path
) -> None:
    text = f"""\
entrypoint: python3 train.py
hyperparameters:
  a: {{type: int, minval: 1, maxval: 3}}
  forbid: ["a > 5",
    "{rule}"]
searcher: {{name: random, max_trials: 3, max_length: {{batches: 9}}, initial: [{{a: 2}}]}}
"""
    said = refused(tmp_path, text)
    assert said.startswith(f"{where}: ") and says in said


def test_one_line_is_a_config(tmp_path: Path) -> None:
    loaded = load(tmp_path, MINIMAL)
    resolved = loaded.config
    assert (resolved.name, resolved.entrypoint) == ("run", "python3 train.py")
    assert (resolved.searcher.name, resolved.searcher.max_trials) == ("single", 1)
    assert resolved.searcher.max_length is None
    assert 0 <= resolved.reproducibility.experiment_seed < 2**31
    assert loaded.origins["reproducibility.experiment_seed"] == "generated"
    assert loaded.origins["max_restarts"] == "default"
    assert loaded.warnings == []


def test_the_resolved_config_comes_back_as_it_was_and_is_a_config(tmp_path: Path) -> None:
    loaded = load(tmp_path, SEARCH)
    file = tmp_path / "experiment.yaml"
    file.write_bytes(stored.dump(loaded.resolved()))
    assert stored.load(file) == loaded.config
    assert stored.load(file).searcher.max_length == Length("batches", 300)
    assert config.load(file).resolved() == loaded.resolved()
    assert len(stored.digest(file)) == 64


def test_a_file_without_a_key_means_the_default_of_new_configs_but_for_a_few() -> None:
    read, new = stored.Resolved(entrypoint="x"), completed({"entrypoint": "x"})
    meant = dict(walk(asdict(read)))
    found = {key for key, value in walk(asdict(new)) if meant.get(key) != value}
    later = {"searcher.promotion_share", "searcher.stopping_version", "searcher.rule_version"}
    derived = {"searcher.max_trials", "resources.slots_per_node"}  # not known yet
    assert {key for key in found if not key.startswith("raw")} == later | derived


def test_an_experiment_made_before_some_keys_is_read_as_it_was_meant(tmp_path: Path) -> None:
    file = TOP / "tests" / "recorded" / "configs" / "before-rule-version.yaml"
    read = stored.load(file)
    searcher = read.searcher
    kept = (searcher.rule_version, searcher.stopping_version, searcher.promotion_share)
    assert kept == (4, 2, 0.5)
    assert [rung.value for rung in searcher.rungs] == [1, 4, 18, 75, 300]
    assert read.compat.determined == "auto"
    rules = dict(rules_from_config.chosen(searcher.stopping, smaller_is_better=True, version=2))
    assert rules["percentile"] == PercentileRule(20.0, interval=10)
    assert rules["total_length"] == TotalLengthRule(900)
    assert len(rules) == 13
    changing.fits(read)
    assert stored.dump(read.raw) == file.read_bytes()
    assert config.load(file).config.searcher.rule_version == 6  # submitted anew


def test_later_layers_win_and_every_value_knows_its_origin(tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text(
        "labels: [t]\nresources: {cpus_per_slot: 2, nodes: 2}\nnotify: {on: [end]}\n"
        "min_validation_period: {epochs: 1}\n"
        "hyperparameters: {lr: {type: double, minval: 0, maxval: 1, count: 3}}\n"
        "environment: {environment_variables: {A: template, B: template}}\n"
    )
    cluster = SimpleNamespace(
        name="big",
        config={
            "labels": ["c"],
            "notify": {"on": ["failure", "stuck"]},
            "resources": {"cpus_per_slot": 4, "resource_pool": "gpu", "slots_per_trial": 4},
        },
    )
    loaded = load(
        tmp_path,
        "labels: [f]\nmin_validation_period: {batches: 7}\nresources:\n  cpus_per_slot: 8\n"
        "environment: {environment_variables: ['B=file', C=1=2]}\n" + SEARCH,
        "searcher.max_trials=6",
        "labels=[s]",
        "hyperparameters.lr.maxval=-2",
        "environment.environment_variables.D=yes",
        site=cluster,
        template=template,
    )
    made = loaded.config
    assert made.labels == ["c", "t", "f", "s"]
    assert made.environment.environment_variables == {
        "A": "template",
        "B": "file",
        "C": "1=2",
        "D": "yes",
    }
    assert made.notify.on == ["end"]
    assert made.min_validation_period == Length("batches", 7)
    assert made.hyperparameters == {"lr": {"type": "log", "minval": -3, "maxval": -2}}
    assert (made.resources.slots_per_node, made.searcher.max_trials) == (2, 6)
    assert made.site == "big"
    origins = {key: origin.replace(f"{tmp_path}/", "") for key, origin in loaded.origins.items()}
    expected = {
        "resources.resource_pool": "site big",
        "resources.nodes": "template.yaml:2",
        "resources.cpus_per_slot": "run.yaml:4",
        "resources.slots_per_node": "derived",
        "searcher.max_trials": "--set searcher.max_trials",
        "hyperparameters.lr.minval": "run.yaml:9",
        "hyperparameters.lr.maxval": "--set hyperparameters.lr.maxval",
        "min_validation_period.batches": "run.yaml:2",
        "debug": "default",
    }
    assert {key: origins[key] for key in expected} == expected
    assert "hyperparameters.lr.count" not in origins


def test_scalars_are_those_that_people_mean(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        MINIMAL + "data: {lr: 1e-4, when: 12:30, code: 010, day: 2024-01-01, no: off}\n"
        "resources: {walltime_s: 1-02, memory_per_slot: 4G}\nmax_restarts: null\n",
    )
    assert loaded.config.data == {
        "lr": 1e-4,
        "when": "12:30",
        "code": 10,
        "day": "2024-01-01",
        "no": "off",
    }
    assert loaded.config.resources.walltime_s == 26 * 3600
    assert loaded.config.resources.memory_per_slot == 4 * 1024**3
    assert loaded.config.max_restarts == 5


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("searcher: {max_trails: 3}", "run.yaml:2: searcher.max_trails: unknown key 'max_trails'"),
        ("searcher: {max_trails: 3}", "did you mean 'max_trials'?"),
        ("max_trials: 3", "it belongs at 'searcher.max_trials'"),
        ("max_restarts: lots", "max_restarts: expected a whole number, got 'lots'"),
        ("max_restarts: true", "max_restarts: expected a whole number, got True"),
        ("max_restarts: -1", "max_restarts: input should be greater than or equal to 0"),
        ("debug: 1", "debug: expected true or false, got 1"),
        ("labels: a", "labels: expected a list"),
        ("searcher: random", "searcher: expected a map, got 'random'"),
        ("notify: {command: 3}", "notify.command: expected a list or text, got 3"),
        ("checkpoint_policy: bets", "did you mean 'best'?"),
        ("notify:\n  on:\n  - end\n  - ends", "run.yaml:5: notify.on.1: expected 'end'"),
        ("min_validation_period: {batch: 3}", "unit is 'batch'; use batches, records or epochs"),
        ("resources: {walltime_s: soon}", "'soon' is no time"),
        ("resources: {slots_per_trial: 3, nodes: 2}", "3 ranks cannot be spread evenly over 2"),
        ("resources: {slots_per_trial: 4, slots_per_node: 3}", "not 4 slots"),
        ("resources: {nodes: 2, slots_per_trial: 2, is_single_node: true}", "is_single_node"),
        (
            "resources: {slots_per_trial: 4, nodes: 2, min_slots_per_trial: 2}",
            "the result would depend on which slots are free",
        ),
        (
            "resources: {slots_per_trial: 4, nodes: 2, min_slots_per_trial: 1}",
            "1 slots are not whole nodes of 2",
        ),
        ("resources: {slots_per_trial: 4, max_slots: 3}", "not enough for one trial"),
        (
            "resources: {slots_per_trial: 4}\nhyperparameters: {global_batch_size: 3}",
            "a batch of 3 cannot be shared by 4 ranks",
        ),
        (
            "hyperparameters:\n  global_batch_size: {type: categorical, vals: 64}",
            "run.yaml:3: hyperparameters.global_batch_size.vals: ",
        ),
        ("searcher: {name: random}", "'max_trials' is missing"),
        ("searcher: {max_trials: 2}", "a single search has one trial"),
        ("searcher: {metric: ''}", "searcher.metric"),
        ("searcher: {stopping_version: 1}", "searcher.stopping_version: rules of version 1"),
        ("workspace: a", "a workspace groups projects"),
        (
            "searcher: {name: grid}\nhyperparameters: {a: {type: int, minval: 1, maxval: 2}}",
            "count",
        ),
        (
            "hyperparameters:\n  a:\n    type: itn",
            "run.yaml:4: hyperparameters.a.type: there is no",
        ),
        ("name: a\nname: b", "run.yaml:3: the key 'name' stands here twice"),
        ("name: [", "run.yaml:3: not YAML"),
        ("data:\n  a: &a\n    b: *a", "run.yaml:4: this value contains itself"),
        ("entrypoint2: x", "did you mean 'entrypoint'?"),
        ("slurm: {slots_per_node: 0}", "slurm.slots_per_node: input should be greater"),
        (
            "resources: {slots_per_trial: x}\nslurm: {slots_per_node: 2}",
            "slots_per_trial: expected",
        ),
        ("environment: {environment_variables: {'A B': 1}}", "'A B' is no name of a variable"),
        ("data:\n  a: " + "[" * 200 + "]" * 200, "run.yaml:3: nested more than 100 deep"),
        ("data:\n  a: {b: !!timestamp 2020-01-01}", "run.yaml:3: data.a.b: a date cannot be kept"),
    ],
)
def test_mistakes_are_said_with_key_and_line(tmp_path: Path, more: str, said: str) -> None:
    assert said in refused(tmp_path, f"{MINIMAL}{more}\n")


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    text = refused(tmp_path, "debug: 3\nnam: x\nresources: {node: 2}\n")
    assert text.startswith("run.yaml: 4 problems")
    for said in (
        "run.yaml:1: debug",
        "run.yaml:2: nam",
        "run.yaml:3: resources.node",
        "entrypoint",
    ):
        assert said in text


def test_what_is_no_config_at_all(tmp_path: Path) -> None:
    assert "not a mapping" in refused(tmp_path, "- a\n- b\n")
    assert "'entrypoint' is missing" in refused(tmp_path, "")
    with (tmp_path / "run.yaml").open("wb") as file:
        file.truncate(2 * 1024**2)
    with pytest.raises(ConfigError, match="no config is that large"):
        config.load(tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "absent.yaml")


@pytest.mark.parametrize("bad", ["max_trials", "=3", "a..b=3", "name.first=x", "labels.3=x", "a=["])
def test_assignments_that_set_nothing(tmp_path: Path, bad: str) -> None:
    with pytest.raises(UsageError):
        load(tmp_path, MINIMAL + "labels: [a]\nname: n\n", bad)


def test_assignments_reach_into_lists(tmp_path: Path) -> None:
    text = MINIMAL + "hyperparameters:\n  layers: [{units: 3}, {units: 4}]\n"
    loaded = load(tmp_path, text, "hyperparameters.layers.1.units=9")
    assert loaded.config.hyperparameters == {"layers": [{"units": 3}, {"units": 9}]}


def test_assignments_change_nothing_but_what_they_name(tmp_path: Path) -> None:
    number = {"type": "int", "minval": 1, "maxval": 9}
    cluster = SimpleNamespace(name="big", config={"hyperparameters": {"c": dict(number)}})
    text = MINIMAL + f"hyperparameters: {{a: &x {json.dumps(number)}, b: *x}}\n"
    sets = ("hyperparameters.a.maxval=5", "hyperparameters.c.maxval=5")
    loaded = load(tmp_path, text, *sets, site=cluster)
    assert loaded.config.hyperparameters["b"] == number
    assert loaded.config.hyperparameters["a"]["maxval"] == 5
    assert cluster.config == {"hyperparameters": {"c": number}}


def test_a_class_needs_a_length_and_a_command_does_not(tmp_path: Path) -> None:
    assert "how long to train" in refused(tmp_path, "entrypoint: model_def:Trial\n")
    assert load(tmp_path, "entrypoint: python -m pkg:x y\n").config.searcher.max_length is None


def test_null_is_the_default_but_where_it_says_something_else(tmp_path: Path) -> None:
    asked = "searcher: {name: asha, max_trials: 4, max_length: 9, %s}\n"
    for text, share in (("divisor: null", 0.5), ("promotion_share: null", None)):
        searcher = load(tmp_path, MINIMAL + asked % text).config.searcher
        assert (searcher.divisor, searcher.promotion_share) == (4, share)
    for text, seconds in (
        ("{}", 1800),
        ("{regrow_min_s: 10m}", 600),
        ("{regrow_min_s: null}", None),
    ):
        resources = load(tmp_path, f"{MINIMAL}resources: {text}\n").config.resources
        assert resources.regrow_min_s == seconds
    said = refused(tmp_path, f"{MINIMAL}resources: {{regrow_min_s: 0}}\n")
    assert "resources.regrow_min_s" in said
    own = "searcher: {name: custom, max_trials: 4, max_length: 9, program: x, options: {a: null}}\n"
    assert load(tmp_path, MINIMAL + own).config.searcher.options == {"a": None}
    others = {
        key
        for key in problems.all_keys()
        if problems.default(key) is not None
        and (model := problems.model_at(key.rpartition(".")[0]))
        and type(None) in get_args(model.model_fields[key.rpartition(".")[2]].annotation)
    }
    assert others == {*load_config.NULL_SAYS}


def test_a_grid_knows_its_number_of_trials(tmp_path: Path) -> None:
    grid = "hyperparameters: {a: {type: int, minval: 1, maxval: 9, count: 3}}\n"
    text = MINIMAL + grid + "searcher: {name: grid}\n"
    loaded = load(tmp_path, text)
    assert loaded.config.searcher.max_trials == 3
    assert "the grid has 3 points" in refused(tmp_path, text, "searcher.max_trials=4")


def test_doubts_are_warnings_with_their_line(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        SEARCH + "min_validation_period: 400\n"
        "environment: {environment_variables: {WANDB_API_KEY: x, TOKENIZERS_PARALLELISM: 1}}\n",
        "hyperparameters.lr={type: log, minval: 1e-4, maxval: 1.0}",
    )
    first, key, second = loaded.warnings
    assert "environment_variables.WANDB_API_KEY: stands in the batch script" in key
    assert "hyperparameters.lr: the bounds of 'log' are exponents" in first
    assert "run.yaml:9: min_validation_period: 400 batches is longer" in second


def test_a_literal_secret_stands_in_no_config(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("from-file\n")
    password.chmod(0o600)
    loaded = load(
        tmp_path,
        MINIMAL + "data:\n  path: x\n  secrets:\n    a: literal-text\n"
        f"    b: {{env: SOME_TOKEN}}\n    c: {{file: {password}}}\n",
    )
    everything = json.dumps([loaded.resolved(), dict(loaded.origins), loaded.warnings])
    assert "literal-text" not in everything + repr(loaded)
    assert loaded.secrets == {"a": "literal-text"}
    assert loaded.config.data["secrets"]["b"] == {"env": "SOME_TOKEN"}
    assert "another experiment" in refused(tmp_path, MINIMAL + "data: {secrets: {a: {stored: a}}}")


def test_references_become_secrets_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    literals, password = tmp_path / "secrets.json", tmp_path / "password"
    literals.write_text('{"a": "one"}')
    password.write_text("three\n")
    password.chmod(0o600)
    data = {
        "x": 1,
        "secrets": {"a": {"stored": "a"}, "b": {"env": "T"}, "c": {"file": str(password)}},
    }
    with pytest.raises(ConfigError, match="variable T is not set"):
        data_secrets.resolve(data, literals)
    monkeypatch.setenv("T", "two")
    assert data_secrets.resolve(data, literals) == {
        "x": 1,
        "secrets": {"a": "one", "b": "two", "c": "three"},
    }
    password.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read"):
        data_secrets.resolve(data, literals)
    assert data_secrets.resolve({"x": 1}, literals) == {"x": 1}


KEYS = [
    *problems.all_keys(),
    *unsupported_keys.KEYS,
    *("hyperparameters.a", "hyperparameters.a.choice", "hyperparameters.forbid", "labels.0"),
    *("data.secrets", "data.secrets.x", "searcher.max_time", "searcher.time_metric", "foo"),
]
VALUES = [
    *(
        "3",
        "-1",
        "0",
        "x",
        "1.5",
        "true",
        "null",
        ".nan",
        "''",
        "grid",
        "random",
        "[]",
        "[a]",
        "[1]",
    ),
    *("[1]", "[{}]", "['-t 5']", "{}", "{a: 1}", "{1: 2}", "{batches: 3}", "{type: int}"),
    *("{type: log, minval: 1, maxval: 9}", "{choice: {a: }}", "!!set {a, b}"),
]
ASSIGNMENTS = st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES))


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ASSIGNMENTS, min_size=1, max_size=4))
def test_whatever_is_set_gives_a_config_or_an_error_that_says_why(
    tmp_path_factory: pytest.TempPathFactory, assignments: list[tuple[str, str]]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(MINIMAL)
    try:
        loaded = config.load(file, [f"{key}={value}" for key, value in assignments])
    except (ConfigError, UsageError):
        return
    file.write_bytes(stored.dump(loaded.resolved()))
    assert stored.load(file) == loaded.config
    assert config.plan(loaded.config)["trials"] >= 1


def test_a_resolved_config_of_another_version_is_readable(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text("name: x\nfuture: 1\nsearcher: {name: random, rungs: 3}\n")
    resolved = stored.load(file)
    assert (resolved.searcher.name, resolved.max_restarts) == ("random", 5)
    assert resolved.raw["future"] == 1
    file.write_text("searcher: {max_length: soon}\n")
    with pytest.raises(IntegrityError, match="not a length"):
        stored.load(file)
