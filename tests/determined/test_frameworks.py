"""Determined's faces of other frameworks: code as it is, killed in the middle, with equal ends.

Each takes half a minute; on request: ``HPCDET_FRAMEWORKS=1``, or ``make test-frameworks``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import dose, ranks
from tests.determined.test_unmodified import LAUNCH, experiment, killed_once

pytestmark = [
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.skipif(not dose.FRAMEWORKS, reason="make test-frameworks"),
]


@pytest.mark.parametrize(
    ("framework", "script", "world", "metric"),
    [
        ("keras", "fit.py", 1, "val_loss"),
        ("transformers", "hf.py", 2, "eval_loss"),
        ("deepspeed", "engine.py", 2, "validation_loss"),
    ],
)
def test_it_goes_on_from_the_middle(
    tmp_path: Path,
    framework: str,
    script: str,
    world: int,
    metric: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip(framework)
    results = []
    for name in ("whole", "killed"):
        trial = experiment(tmp_path / name, f"{LAUNCH} {script}", metric, world=world)
        if name == "whole":
            ranks.finish(trial, world)
        results.append(killed_once(trial, world) if name == "killed" else ranks.result(trial))
    whole, killed = results
    assert whole == killed
    assert metric in whole.validations[whole.batches]
