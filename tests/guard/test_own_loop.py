"""Loops of one's own under a policy: the gradients are the oracle's, and the bits survive."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet import checkpoint
from hpcdet.policy.compiled import Canaries, CompiledPolicy, Memorization, Twins
from hpcdet.policy.ledger import records
from hpcdet.policy.ledger.verify import verify
from hpcdet.store.folder.layout import TrialPaths
from tests import TESTS, ranks
from tests.experiments import same_bits
from tests.guard.test_governed import BATCH, UNTIL, make, oracle, policy
from tests.pytorch.test_bits_local import interrupt, signals

SCRIPT = (TESTS / "governed_loop.py").read_text()
SGD = {"optimizer": "SGD", "options": {"lr": 0.05, "momentum": 0.5}}
LONG = {"dtype": "float64", **SGD}

pytestmark = pytest.mark.xdist_group("governed")


def loop(
    root: Path, world: int, wanted: CompiledPolicy | None, hparams: Any, **changes: Any
) -> TrialPaths:
    script = changes.pop("script", SCRIPT)
    trial = make(root, world, wanted, hparams, entrypoint=["python", "own.py"], **changes)
    (root / "code" / "own.py").write_text(script)
    return trial


def last(trial: TrialPaths) -> tuple[str, dict[str, Any]]:
    """The content digest of the last checkpoint, and what all ranks share of it."""
    found = [path for path in trial.checkpoints.glob("*.g*") if path.name[0] != "."]
    loaded = checkpoint.load(max(found))
    return loaded.manifest.digest, loaded.shared


def ended(trial: TrialPaths, world: int, **environment: str) -> ranks.Attempt:
    attempt = ranks.run(trial, world, **environment)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    return attempt


@pytest.mark.parametrize("normalize", ["per_layer", "global"])
@pytest.mark.parametrize(
    ("world", "hparams"),
    [
        (1, {}),
        (1, {"every": 3, "counted": True}),
        (1, {"scaler": True}),
        (2, {}),
        (2, {"cut": "sources", "counted": True}),
        (3, {"cut": "first"}),
        (3, {"cut": "sources", "every": 3, "named": True}),
    ],
)
def test_steps_are_those_of_one_backward_per_source(
    world: int, hparams: dict[str, Any], normalize: Any, tmp_path: Path
) -> None:
    hparams = {**LONG, **hparams}
    wanted = policy(normalize=normalize)
    trial = loop(tmp_path / "EXP", world, wanted, hparams)
    ended(trial, world, BEGIN=str(tmp_path / "begin"))
    first = torch.load(tmp_path / "begin")
    _, shared = last(trial)
    got = shared["state"]["model"]
    every = {"begin": first, "aggregation": hparams.get("every", 1)}
    [*_, should] = oracle(wanted, hparams | every, torch.float64, UNTIL)
    for name, one in should.items():
        off = (got[name] - one).norm() / one.norm()
        assert off <= 1e-12, (name, float(off))
    [*_, plain] = oracle(policy(np.ones((3, 3))), hparams | every, torch.float64, UNTIL)
    assert (got["0.weight"] - plain["0.weight"]).norm() / plain["0.weight"].norm() > 1e-4
    # 62 samples: six batches, the sixth smaller, and three more
    rows = shared["governance"]["exposure"]["rows"]
    assert sum(rows.values()) == 62 + (UNTIL - 6) * BATCH
    np.testing.assert_array_equal(shared["governance"]["E"][1], np.array([0, 1, 1]) * rows["b"])


@pytest.mark.parametrize("every", [1, 2, 8])  # 8: killed before the first step of all
def test_killed_and_resumed_it_ends_with_the_same_bits(every: int, tmp_path: Path) -> None:
    hparams = {"drop": 0.3, "clip": 0.1, "every": every, "save_every": 3, "options": {"lr": 0.01}}
    once, often = (loop(tmp_path / n, 2, policy(), hparams) for n in ("once", "often"))
    ended(once, 2)
    interrupt(often, tmp_path / "1", "train:5", signals(signal.SIGKILL), 2)
    interrupt(often, tmp_path / "2", "train:8", signals(signal.SIGKILL), 2)
    attempt = ended(often, 2)
    same_bits(last(often)[0], last(once)[0])
    [checks] = [line["checks"] for line in attempt.lines() if "checks" in line]
    assert {one["code"] for one in checks} >= {"G101", "G108", "G109", "G110", "G115"}
    assert {one["outcome"] for one in checks} == {"passed", "unknown", "recorded"}
    assert [one["outcome"] for one in checks if one["code"] == "G106"] == ["recorded"]
    ledgers = [records.read(one.number, one.ledger) for one in often.attempts()]
    found = verify([one for one in ledgers if one is not None])
    assert found.bad is None and found.rollbacks, found
    [window] = last(once)[1]["governance"]["windows"]
    assert window["passes"] == UNTIL % every
    validations = [line for line in attempt.lines() if line.get("group") == "validation"]
    assert validations and all(one["metrics"]["gov.admission"] == 1.0 for one in validations)
    probes = [line for line in attempt.lines() if line.get("event") == "probe"]
    assert probes and probes[0]["on"][1][0] == 0 < probes[0]["off"][1][0]


def test_a_step_that_a_scaler_leaves_out_is_recorded_as_none(tmp_path: Path) -> None:
    script = SCRIPT.replace("scaler.scale(loss)", "scaler.scale(loss / (step != 2))")
    trial = loop(tmp_path / "EXP", 1, policy(), {**SGD, "scaler": True}, script=script)
    ended(trial, 1)
    [attempt] = trial.attempts()
    ledger = records.read(attempt.number, attempt.ledger)
    assert ledger is not None
    counted = [one.body for one in ledger.records if one.type == "step_batch"]
    assert [step for body in counted for step in body["skipped"]] == [3]
    assert counted[-1]["steps"][1] == UNTIL


STRAY = (
    "governance.backward(loss if scaler is None",
    "torch.Tensor.backward(loss if scaler is None",
)
ALONE = ("governance.step(optimizer, clip_grads=limited, scaler=scaler)", "optimizer.step()")
NAMES = "sources=list(names[rows])"
REFUSED = {
    "stray gradient": (*STRAY, "P15"),
    "stray step": (*ALONE, "P15"),
    "unknown source": (NAMES, "sources=['z'] * len(rows)", "G113"),
    "one source for all rows": (NAMES, "sources=['a']", "P12"),
    "wrong counts": ("counts=counts", "counts={'a': 100}", "the batch is said to have"),
    "no counts": ("counts=counts", "counts={'a': -1}", "-1 rows of 'a'"),
    "a parameter beside": (
        "kind(model.parameters()",
        "kind([*model.parameters(), nn.Parameter(torch.ones(1))]",
        "P02",
    ),
    "nothing governed": ("governance.model(", "(", "P16"),
    "batch norm": ("nn.LayerNorm(8)", "nn.BatchNorm1d(8)", "P07"),
    "coupled loss": (
        'reduction="none")',
        'reduction="none") + plain(part[0]).mean()',
        "P07",
    ),
    "backward outside": (
        "            governance.backward(loss if",
        "        governance.backward(loss if",
        "P12",
    ),
}


@pytest.mark.parametrize("case", [*REFUSED, "open, stray gradient", "open, stray step"])
def test_what_is_not_accounted_for_is_refused(case: str, tmp_path: Path) -> None:
    """Nothing is reported or saved before: also where every source may change every layer."""
    old, new, code = REFUSED[case.removeprefix("open, ")]
    assert old in SCRIPT
    script = SCRIPT.replace(old, new)
    wanted = policy(np.ones((3, 3))) if case.startswith("open") else policy()
    trial = loop(tmp_path / "EXP", 1, wanted, SGD, script=script)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict in ("fail", "norestart"), attempt.log()
    assert code in (verdict.error or ""), attempt.log()
    assert not [line for line in attempt.lines() if line["kind"] in ("metrics", "checkpoint")]


@pytest.mark.parametrize("kind", ["twins", "canaries"])
def test_what_a_loop_cannot_measure_of_memorization_is_refused_by_name(
    kind: str, tmp_path: Path
) -> None:
    rules = Memorization(Twins()) if kind == "twins" else Memorization(canaries=Canaries())
    trial = loop(tmp_path / "EXP", 1, policy(memorization=rules), SGD)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict in ("fail", "norestart"), attempt.log()
    assert f"memorization.{kind}" in attempt.log() and "not enforced in a loop" in attempt.log()
