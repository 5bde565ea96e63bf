"""``make governed-demo``, as a newcomer runs it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from typing import Any

import pytest

from tests import TOP

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
    assert max(map(len, done.stdout.splitlines())) <= 80
    page = (TOP / "report.html").read_text()
    assert 'id="governance"' in page
    assert "permitted and exposed to learn from" in page


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
        "rollbacks": [],
        "checks": [{"code": "G116", "outcome": "passed"}, {"code": "G117", "outcome": "unknown"}],
    }  # fmt: skip
    assert problems(trial) == []
    leak = [{**trial["measured"][0], "routed": [[1.0], [1e-30]]}]
    off = [{**trial["measured"][0], "unrouted": [[1.0], [0.0]]}]
    changes: list[dict[str, Any]] = [
        {"violations": 1},
        {"measured": []},
        {"measured": leak},
        {"measured": off},
        {"checks": []},
        {"checks": [{"code": "G116", "outcome": "unknown"}]},
    ]
    for change in changes:
        assert problems({**trial, **change}), change
