"""``hpcdet policy report`` says what layers learned from, as it was counted and measured."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from hpcdet.read.experiment.gather import gather
from hpcdet.read.report import render
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import sealed_json
from tests import ranks
from tests.commands import Cli
from tests.guard.test_governed import UNTIL, make, policy
from tests.pytorch.test_bits_local import interrupt, signals

pytestmark = pytest.mark.xdist_group("governed")


def test_a_killed_trial_is_reported_with_its_rollback(cli: Cli, tmp_path: Path) -> None:
    folder = cli.root / "governed-7f3a"
    trial = make(folder, 2, policy(), checkpoint_every_s=1000, scheduling_unit=1)
    interrupt(trial, tmp_path / "1", "train:7", signals(signal.SIGKILL), 2)
    attempt = ranks.run(trial, 2)
    assert attempt.verdict() is not None, attempt.log()

    ran = cli("policy", "report", "governed-7f3a", "-o", "json")
    assert cli.checked == {"policy.report"}
    [item] = json.loads(ran.out)["items"]
    counted: dict[str, int] = item["rows"]
    assert sum(counted.values()) == 62 + (UNTIL - 6) * 12
    weights = dict(zip(item["sources"], item["matrix"], strict=True))
    for source, row in zip(item["sources"], item["exposure"], strict=True):
        assert row == [weight * counted[source] for weight in weights[source]]
    assert item["violations"] == 0 and item["conformance"] > 1 - 1e-9 and item["admission"] == 1
    assert len(item["measured"]) == 2  # the first step of each attempt
    for probe in item["measured"]:
        for source, on, off in zip(
            probe["sources"], probe["routed"], probe["unrouted"], strict=True
        ):
            for weight, routed, plain in zip(weights[source], on, off, strict=True):
                assert plain > 0
                assert routed == pytest.approx(weight * plain, rel=1e-5)
    [lost] = item["rollbacks"]
    assert (lost["attempt"], lost["lost"]) == (2, 7) and lost["to"] < 7
    outcomes = {one["code"]: one["outcome"] for one in item["checks"]}
    assert {outcomes[code] for code in ("G108", "G110", "G114", "G115")} == {"passed"}
    assert set(outcomes.values()) <= {"passed", "recorded", "unknown"}

    text = cli("policy", "report", "governed-7f3a").out
    assert "ASSURANCE STATE_CLEAN   STATEMENT OF NODES NONE REQUIRED" in text and "denied" in text
    assert "It records permission and exposure, not influence." in text
    assert "checks of attempt 2: G101 passed" in text and "rollback: attempt 2" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "{" not in text and "[" not in text  # JSON is for -o json
    observed = item["recorded"]["entropy"]["observed"]
    [line] = [one for one in text.splitlines() if one.strip().startswith("of sources ")]
    assert line.split()[2:] == [f"{one:.3f}" for one in observed]
    assert f"hash {item['recorded']['ledger']['hash'][:12]}…" in text.replace("\n    ", " ")
    assert "random numbers: digests of 2 ranks" in text and "lr, " in text
    page = render(gather(ExperimentPaths(folder)), 1e9)
    assert "Statement of nodes: none required" in page and "early stopping" in page
    assert 'id="governance"' in page and f"{7 - lost['to']} steps were lost" in page


def test_steps_that_the_ledger_alone_knows_are_reported_as_lost(cli: Cli, tmp_path: Path) -> None:
    """The journal of an attempt that is killed soon has no step behind the checkpoint."""
    trial = make(cli.root / "soon-1111", 1, policy(), checkpoint_every_s=1000)
    interrupt(trial, tmp_path / "1", "train:3", signals(signal.SIGKILL), 1)
    attempt = ranks.run(trial, 1)
    assert attempt.verdict() is not None, attempt.log()
    [item] = cli("policy", "report", "soon-1111", "-o", "json").items
    [lost] = cli("ledger", "show", "soon-1111", "--type", "rollback", "-o", "json").items
    assert item["rollbacks"] == [{"attempt": lost["attempt"], "lost": 1, "to": lost["step"]}]


def test_what_is_recorded_in_another_form_is_printed_as_it_is(cli: Cli) -> None:
    """A checkpoint says of itself what it wants: the report neither fails nor believes it."""
    folder = cli.root / "strange-1111"
    trial = make(folder, 1, policy(), until=2)
    assert ranks.run(trial, 1).verdict() is not None
    odd: dict[str, Any] = {
        "spectral": {"layers": {"low": "\x1b[31m"}, "outside": [3]},
        "entropy": {"observed": [1], "expected": 7},
        **dict.fromkeys(("ledger", "root", "seal", "optimizer", "options"), 5),
        **{key: {"a": ["\x1b[31m"]} for key in ("generators", "software", "conformance")},
        "other": ["x" * 500],
    }
    [path] = trial.checkpoints.glob("00000002.g1/MANIFEST.json")
    raw = json.loads(path.read_text())
    raw["meta"]["governance"] |= odd
    path.write_bytes(sealed_json.text(sealed_json.sealed(raw)))
    text = cli("policy", "report", "strange-1111").out
    assert "ledger: 5" in text and "out of their band: 3" in text and "x" * 70 in text
    assert "\x1b" not in text and "planned" not in text


def test_without_a_policy_there_is_nothing_to_report(cli: Cli) -> None:
    make(cli.root / "plain-1111", 1, None)
    assert "has no policy" in cli("policy", "report", "plain-1111", code=3).err


CHANGES: dict[str, tuple[str, Any]] = {
    "version": ("G101", lambda text: text.replace("hpcdet-policy/1", "hpcdet-policy/2")),
    "loosened": ("G110", lambda text: text.replace("   0.0,\n", "   1.0,\n", 1)),
    "truncated": ("G110", lambda text: text[: len(text) // 2]),
    "another": ("G110", lambda _: policy(name="other").to_json()),
}


@pytest.mark.parametrize("how", [*CHANGES, "gone"])
def test_under_a_policy_that_was_changed_nothing_is_trained(how: str, tmp_path: Path) -> None:
    trial = make(tmp_path / "EXP", 1, policy(), until=2)
    path = tmp_path / "EXP" / "policy.json"
    code, change = CHANGES.get(how, ("G110", None))
    if change is None:
        path.unlink()
    else:
        before = path.read_text()
        path.write_text(change(before))
        assert path.read_text() != before
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict in ("fail", "norestart"), attempt.log()
    assert code in attempt.log()
