"""The language of hyperparameters: what a seed means, grids, conditions, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdet.space.domains import Double, Int, Log, LogInt, LogUniform
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.space import Space, bits, trial_seed

SPEC: dict[str, Any] = {
    "global_batch_size": 64,
    "learning_rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "hidden": {"type": "int", "minval": 8, "maxval": 128},
    "dropout": {"type": "double", "minval": 0.0, "maxval": 0.5},
    "units": {"type": "log_int", "low": 1, "high": 1000},
    "decay": {"type": "loguniform", "low": 1e-6, "high": 1e-2},
    "steps": {"type": "int", "minval": 0, "maxval": 100, "step": 25},
    "activation": {"type": "categorical", "vals": ["relu", "gelu", "tanh"]},
    "optimizer": {
        "choice": {
            "sgd": {"momentum": {"type": "double", "minval": 0, "maxval": 1}},
            "adam": {"beta": {"type": "double", "minval": 0.8, "maxval": 1}},
        }
    },
    "layers": [{"units": {"type": "int", "minval": 1, "maxval": 9}} for _ in range(2)],
    "nested": {
        "empty": {},
        "warmup": {"type": "int", "minval": 1, "maxval": 5, "when": {"optimizer": "sgd"}},
    },
    "wide": {"derived": "hidden * 2"},
}

# A released version has drawn these: they never change.
GOLDEN = {
    1: (
        {
            "global_batch_size": 64,
            "learning_rate": 0.00270841283716,
            "hidden": 119,
            "dropout": 0.017187946344201455,
            "units": 209,
            "decay": 0.00213761094157,
            "steps": 75,
            "activation": "gelu",
            "optimizer": {"name": "sgd", "momentum": 0.18016795634041005},
            "layers": [{"units": 9}, {"units": 3}],
            "nested": {"empty": {}, "warmup": 3},
            "wide": 238,
        },
        424941576,
    ),
    2: (
        {
            "global_batch_size": 64,
            "learning_rate": 0.00354328753512,
            "hidden": 91,
            "dropout": 0.17966783698258837,
            "units": 2,
            "decay": 0.000146185300798,
            "steps": 0,
            "activation": "tanh",
            "optimizer": {"name": "adam", "beta": 0.9466066976651157},
            "layers": [{"units": 3}, {"units": 2}],
            "nested": {"empty": {}},
            "wide": 182,
        },
        484614458,
    ),
    7000: (
        {
            "global_batch_size": 64,
            "learning_rate": 0.00201148564974,
            "hidden": 95,
            "dropout": 0.16364726785025585,
            "units": 35,
            "decay": 8.92765867159e-06,
            "steps": 75,
            "activation": "relu",
            "optimizer": {"name": "sgd", "momentum": 0.23542450265203463},
            "layers": [{"units": 2}, {"units": 9}],
            "nested": {"empty": {}, "warmup": 4},
            "wide": 190,
        },
        1374334616,
    ),
}


@pytest.mark.parametrize("trial", GOLDEN)
def test_a_seed_means_the_same_samples_for_ever(trial: int) -> None:
    assert (Space(SPEC).sample(1234, trial), trial_seed(1234, trial)) == GOLDEN[trial]
    assert bits(1234, 1, ("a", 0)) == 0x66FA1527213AEB9B035314371C695158


def test_another_hyperparameter_leaves_the_draws_of_the_others_alone() -> None:
    more = copy.deepcopy(SPEC)
    more["another"] = {"type": "int", "minval": 0, "maxval": 9}
    more["optimizer"]["choice"]["sgd"]["nesterov"] = {"type": "categorical", "vals": [True, False]}
    sample = Space(dict(reversed(more.items()))).sample(1234, 1)
    del sample["another"], sample["optimizer"]["nesterov"]
    assert sample == GOLDEN[1][0]


def test_samples_fill_the_whole_range_and_stay_inside() -> None:
    drawn = [Space(SPEC).sample(5, k) for k in range(1, 400)]
    assert {s["steps"] for s in drawn} == {0, 25, 50, 75, 100}
    assert {s["activation"] for s in drawn} == {"relu", "gelu", "tanh"}
    assert min(s["units"] for s in drawn) == 1
    assert sum(s["units"] <= 31 for s in drawn) > 130  # half of them on a logarithmic scale
    assert all(1e-4 <= s["learning_rate"] < 1e-1 and 1e-6 <= s["decay"] <= 1e-2 for s in drawn)
    assert all(("momentum" in s["optimizer"]) == ("warmup" in s["nested"]) for s in drawn)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**128 - 1))
def test_every_domain_holds_its_bounds_for_all_bits(random: int) -> None:
    assert Int(-3, 3).draw(random) in range(-3, 4)
    assert Int(1, 10, step=4).draw(random) in (1, 5, 9)
    assert 0.1 <= Double(0.1, 0.3).draw(random) < 0.3
    assert 1e-3 <= Log(-3, -1).draw(random) <= 1e-1
    assert 2e-6 <= LogUniform(2e-6, 3e-2).draw(random) <= 3e-2
    assert LogInt(3, 17).draw(random) in range(3, 18)


@pytest.mark.parametrize(
    ("domain", "points"),
    [
        (Int(0, 10, count=3), [0, 5, 10]),
        (Int(0, 5, count=3), [0, 3, 5]),
        (Int(0, 2, count=9), [0, 1, 2]),
        (Int(0, 9, count=1), [5]),
        (Int(0, 9, step=4), [0, 4, 8]),
        (Int(0, 10), None),
        (Double(0, 1, count=5), [0, 0.25, 0.5, 0.75, 1]),
        (Double(0.1, 0.3, count=3), [0.1, 0.2, 0.3]),
        (Double(0, 1, count=1), [0.5]),
        (Log(-3, -1, count=3), [0.001, 0.01, 0.1]),
        (Log(-3, -1, count=1), [0.01]),
        (LogUniform(1e-4, 1e-2, count=3), [1e-4, 1e-3, 1e-2]),
        (LogInt(1, 100, count=3), [1, 10, 100]),
    ],
)
def test_points_of_a_grid(domain: Any, points: list[Any] | None) -> None:
    assert domain.points() == points


def test_a_grid_turns_its_last_axis_fastest_and_only_branches_that_exist() -> None:
    space = Space(
        {
            "b": {"type": "categorical", "vals": [1, 2]},
            "a": {
                "choice": {
                    "x": {"z": {"type": "double", "minval": 0, "maxval": 1, "count": 2}},
                    "y": {},
                }
            },
            "c": {"type": "int", "minval": 1, "maxval": 2, "count": 2, "when": {"a": "y"}},
            "same": {"type": "categorical", "vals": [7, 7]},
            "forbid": ["a.z > 0.5 and b == 2"],
        }
    )
    assert [(p["a"].get("z"), p["b"], p.get("c")) for p in space.grid()] == [
        (0.0, 1, None),
        (0.0, 2, None),
        (1.0, 1, None),
        (None, 1, 1),
        (None, 1, 2),
        (None, 2, 1),
        (None, 2, 2),
    ]


def test_forbidden_samples_are_drawn_again() -> None:
    number = {"type": "int", "minval": 0, "maxval": 9}
    space = Space({"a": number, "b": number, "forbid": ["a >= b"]})
    assert all(s["a"] < s["b"] for s in (space.sample(1, k) for k in range(1, 100)))
    with pytest.raises(SpaceError, match="100 samples"):
        Space({"a": number, "forbid": ["a >= 0"]}).sample(1, 1)


def test_derived_values_follow_each_other_and_their_branch() -> None:
    space = Space(
        {
            "c": {"derived": "b + 1"},
            "b": {"derived": "max(a, 2) ** 2 if a > 1 else -1"},
            "a": 3,
            "o": {"choice": {"x": {"twice": {"derived": "o.own * 2"}, "own": 4}, "y": {}}},
            "gone": {"derived": "o.own"},
        }
    )
    by_name = {point["o"]["name"]: point for point in space.grid()}
    assert by_name["x"] == {
        "a": 3,
        "b": 9,
        "c": 10,
        "o": {"name": "x", "own": 4, "twice": 8},
        "gone": 4,
    }
    assert by_name["y"] == {"a": 3, "b": 9, "c": 10, "o": {"name": "y"}}


LISTS: dict[str, Any] = {
    "depth": {"type": "int", "minval": 1, "maxval": 3},
    "layers": {
        "repeat": "depth",
        "of": {
            "choice": {
                "conv": {"kernel": {"type": "categorical", "vals": [3, 5]}},
                "mlp": {
                    "units": {"type": "int", "minval": 4, "maxval": 9},
                    "twice": {"derived": "depth * 2"},
                },
            }
        },
    },
    "stages": {
        "repeat": 2,
        "of": {
            "n": {"type": "categorical", "vals": [0, 2]},
            "rates": {"repeat": "n", "of": {"type": "log", "minval": 1e-4, "maxval": 1.0}},
            "act": {"type": "categorical", "vals": ["relu", "gelu"], "when": {"n": 2}},
        },
    },
    "forbid": ["layers[1].units < layers[0].units"],
}


def test_lists_are_as_long_as_another_hyperparameter_says() -> None:
    space = Space(LISTS)
    assert space.sample(1, 1) == {
        "depth": 2,
        "layers": [{"name": "conv", "kernel": 3}, {"name": "conv", "kernel": 3}],
        "stages": [
            {"n": 2, "rates": [1.19472029177, 8.46858421653], "act": "relu"},
            {"n": 2, "rates": [1.86557158065, 9.68612423333], "act": "gelu"},
        ],
    }
    samples = [space.sample(5, k) for k in range(1, 200)]
    for sample in samples:
        assert len(sample["layers"]) == sample["depth"]
        for stage in sample["stages"]:
            assert len(stage["rates"]) == stage["n"] and ("act" in stage) == (stage["n"] == 2)
        units = [layer.get("units") for layer in sample["layers"][:2]]
        assert None in units or units == sorted(units)
        assert all(
            layer.get("twice", 2 * sample["depth"]) == 2 * sample["depth"]
            for layer in sample["layers"]
        )
        again = {axis.path: value for axis, _, value in space.drawn(sample)}
        assert space.build(lambda axis, _, values=again: values[axis.path]) == sample
    assert {sample["depth"] for sample in samples} == {1, 2, 3}
    assert len(space.warnings) == 1  # of all the rates together


def test_a_deeper_network_begins_with_the_layers_of_a_shallower_one() -> None:
    def layers(depth: int) -> list[Any]:
        found: list[Any] = Space({**LISTS, "depth": depth, "forbid": []}).sample(3, 1)["layers"]
        return [{**layer, "twice": 0} for layer in found]

    assert layers(5)[:2] == layers(2)


def test_a_grid_has_lists_of_all_lengths() -> None:
    flag = {"type": "categorical", "vals": [0, 1]}
    depth = {"type": "int", "minval": 0, "maxval": 2, "step": 1}
    points = Space({"depth": depth, "bits": {"repeat": "depth", "of": flag}}).grid()
    assert [point["bits"] for point in points] == [[], [0], [1], [0, 0], [0, 1], [1, 0], [1, 1]]


NUMBER = {"type": "int", "minval": 0, "maxval": 9}


@pytest.mark.parametrize(
    ("spec", "where", "what"),
    [
        ({"a": {"type": "intt", "minval": 0}}, "a.type", "no type 'intt'"),
        ({"a": {"type": "int", "minval": 0, "maxvall": 3}}, "a.maxvall", "unknown key"),
        ({"a": {"type": "int", "minval": 0, "maxval": 3, "cnt": 1}}, "a.cnt", "unknown key"),
        ({"a": {"type": "int", "minval": 3, "maxval": 3}}, "a.minval", "must be less"),
        ({"a": {"type": "int", "minval": 0.5, "maxval": 3}}, "a.minval", "whole number"),
        ({"a": {"type": "double", "minval": "x", "maxval": 3}}, "a.minval", "not a number"),
        ({"a": {"type": "double", "minval": True, "maxval": 3}}, "a.minval", "not a number"),
        ({"a": {"type": "log", "base": 0, "minval": 0, "maxval": 3}}, "a.base", "more than 0"),
        ({"a": {"type": "log", "base": 2, "minval": 16, "maxval": 2048}}, "a", "too large"),
        ({"a": {"type": "loguniform", "low": 0, "high": 3}}, "a.low", "above 0"),
        ({"a": {"type": "categorical", "vals": []}}, "a.vals", "list"),
        ({"a": {**NUMBER, "prior": {}}}, "a.prior", "not in this version"),
        ({"a": {**NUMBER, "count": 0}}, "a.count", "at least 1"),
        ({"g": {"a": {"type": "const"}}}, "g.a", "'val' is missing"),
        ({"a": float("inf")}, "a", "not a finite number"),
        ({"a": {"type": "categorical", "vals": [1, {"b": {2}}]}}, "a.vals.1.b", "neither"),
        ({"g": {"when": {"a": 1}}}, "g.when", "no condition"),
        ({"a": {**NUMBER, "when": {"b": 1}}}, "a.when", "'b' to depend on"),
        (
            {"a": {**NUMBER, "when": {"b": 1}}, "b": {**NUMBER, "when": {"a": 1}}},
            "a.when",
            "circle",
        ),
        ({"o": {"choice": {}}}, "o.choice", "names its options"),
        ({"o": {"choice": {"x": {"name": 1}}}}, "o.choice.x.name", "which option"),
        ({"a": 1, "forbid": "a > 1"}, "forbid", "list"),
        ({"a": 1, "forbid": ["b > 1"]}, "forbid.0", "no hyperparameter 'b'"),
        ({"a": 1, "forbid": ["a >"]}, "forbid.0", "cannot read"),
        ({"a": {"derived": "a.b"}}, "a.derived", "no hyperparameter 'a.b'"),
        ({"a": {"derived": "b"}, "b": {"derived": "a"}}, "a.derived", "circle"),
        ({"a": {"derived": "__import__('os')"}}, "a.derived", "not allowed"),
        ({"a": {"derived": "(1).__class__"}}, "a.derived", "not allowed"),
        ({"a": {"derived": "[x for x in b]"}}, "a.derived", "not allowed"),
        ({"l": [{"derived": "1"}]}, "l.0", "list"),
        ({"l": {"repeat": 2, "of": {"derived": "1"}}}, "l.of", "list"),
        ({"l": {"repeat": 0, "of": NUMBER}}, "l.repeat", "counts nothing"),
        ({"l": {"repeat": 2, "of": NUMBER, "when": {}}}, "l.when", "unknown key"),
        ({"l": {"repeat": "d", "of": NUMBER}, "dd": 1}, "l.repeat", "no hyperparameter 'd'"),
        ({"l": {"repeat": "d", "of": NUMBER}, "d": 1.5}, "l.repeat", "not always a whole"),
        ({"l": {"repeat": "d", "of": 1}, "d": {"derived": "2"}}, "l.repeat", "not always a whole"),
        ({"l": {"repeat": 999, "of": NUMBER}}, "l.repeat", "999 items"),
        ({"l": {"repeat": 99, "of": {"repeat": 99, "of": NUMBER}}}, "", "more than 2000"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_stands(
    spec: dict[str, Any], where: str, what: str
) -> None:
    with pytest.raises(SpaceError, match=what) as caught:
        Space(spec)
    assert dotted(caught.value.path) == where


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a / 0", "division"),
        ("9 ** 9 ** 9", "too large"),
        ("'x' * 99", "not a number"),
        ("(-a) ** 0.5", "gives"),
        ("g", "gives"),
        ("[1e308 * 10]", "gives"),
    ],
)
def test_arithmetic_that_fails_is_said(text: str, what: str) -> None:
    with pytest.raises(SpaceError, match=what):
        Space({"a": 1, "b": {"derived": text}, "g": {"h": 1}}).sample(0, 1)


def test_grids_need_counts_and_have_an_end() -> None:
    with pytest.raises(SpaceError, match="needs 'count'") as caught:
        Space({"g": {"a": NUMBER}}).grid()
    assert dotted(caught.value.path) == "g.a"
    wide = {"type": "categorical", "vals": list(range(100))}
    with pytest.raises(SpaceError, match="more than"):
        Space({"a": wide, "b": wide, "c": wide}).grid()
    with pytest.raises(SpaceError, match="every point of the grid is forbidden"):
        Space({"a": wide, "forbid": ["a >= 0"]}).grid()


def test_a_logarithm_of_values_looks_like_a_mistake() -> None:
    [(path, text)] = Space({"lr": {"type": "log", "minval": 1e-4, "maxval": 1.0}}).warnings
    assert dotted(path) == "lr" and "exponents" in text
    assert not Space({"lr": {"type": "log", "minval": -4, "maxval": 0}}).warnings
