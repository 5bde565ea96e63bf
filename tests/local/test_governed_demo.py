"""``make governed-demo``, as a newcomer runs it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests import TOP
from tests.commands import Cli

pytestmark = pytest.mark.xdist_group("demo")


def test_the_governed_demo_shows_which_source_reached_which_layer() -> None:
    done = subprocess.run(
        [sys.executable, TOP / "scripts" / "governed_demo.py"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ASSURANCE STATE_CLEAN" in done.stdout
    [covered] = [line for line in done.stdout.splitlines() if "(covered)" in line]
    assert covered.split()[1:] == ["1.000"] * 3
    assert done.stdout.count(": active") == 3  # chains
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = json.loads((TOP / "benchmarks/results/governed-demo.json").read_text())["rows"]
    assert [row["what"] for row in rows if row["goal"] == 0 == row["ours"] < row["peer"]] == [
        "licensed in low, denied",
        "restricted in low, denied",
        "restricted in body, denied",
    ]
    assert len(rows) == 9 and all(row["met"] for row in rows)
    page = (TOP / "report.html").read_text()
    assert 'id="governance"' in page
    assert "permitted and exposed to learn from" in page


def test_the_data_of_the_example_are_those_of_its_chains(cli: Cli) -> None:
    """All of each file; and they are the digits that are trained without a policy, too."""
    example = TOP / "examples" / "governed"
    policy, rows = example / "policy.yaml", []
    for name in ("public", "licensed", "restricted"):
        listed = example / f"{name}.manifest.json"
        cli("data", "verify", listed, "--deep", "--policy", policy)
        cli("data", "verify", example / f"{name}.chain", "--manifest", listed, "--policy", policy)
        rows.append(np.loadtxt(example / "data" / name / "digits.csv", delimiter=","))
    pixels, labels = load_digits(return_X_y=True)
    trained = np.column_stack([labels, pixels])[:-360]
    np.testing.assert_array_equal(np.concatenate(rows), trained)


def test_what_it_promises_is_looked_for() -> None:
    """A gradient that is not zero where it is denied, or nothing measured, is no success."""
    problems = runpy.run_path(str(TOP / "scripts" / "governed_demo.py"))["_problems"]
    trial: dict[str, Any] = {
        "violations": 0,
        "sources": ["a", "b"],
        "layers": ["low"],
        "matrix": [[1.0], [0.0]],
        "measured": [
            {"sources": ["a", "b"], "layers": ["low"], "routed": [[1.0], [0.0]],
             "unrouted": [[1.0], [2.0]]}
        ],
        "coverage": [1.0],
        "unverified": "",
        "rollbacks": [],
        "checks": [{"code": "G116", "outcome": "passed"}, {"code": "G117", "outcome": "unknown"}],
    }  # fmt: skip
    assert problems(trial) == []
    leak = [{**trial["measured"][0], "routed": [[1.0], [1e-30]]}]
    off = [{**trial["measured"][0], "unrouted": [[1.0], [0.0]]}]
    changes: list[dict[str, Any]] = [
        {"violations": 1},
        {"measured": []},
        {"coverage": [0.9]},
        {"unverified": "G102: the checkpoint's signature is of another state"},
        {"coverage": [None]},
        {"measured": leak},
        {"measured": off},
        {"measured": [{**trial["measured"][0], "routed": [[0.0], [0.0]]}]},
        {"measured": [{**trial["measured"][0], "sources": ["a", "c"]}]},
        {"checks": []},
        {"checks": [{"code": "G116", "outcome": "unknown"}]},
    ]
    for change in changes:
        assert problems({**trial, **change}), change
