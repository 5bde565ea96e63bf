"""The account of a governed trial, from checkpoints of records alone: what it shows, and where."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hpcdet.policy.compiled import (
    CompiledPolicy,
    DataSource,
    LayerGroup,
    Requires,
)
from hpcdet.read.experiment.gather import gather
from hpcdet.read.governed.governed_trials import governance
from hpcdet.read.report import render
from hpcdet.store.fs import sealed_json
from hpcdet.store.trials import standing
from tests.builders import AttemptBuilder, Builder
from tests.commands import Cli

LAYERS = [f"layer-{number:02}" for number in range(12)]
POLICY = CompiledPolicy(
    name="test",
    version=1,
    text_digest="sha256:00",
    layers=tuple(LayerGroup(name, f"^{name}") for name in LAYERS),
    sources=(DataSource("hosp-a"), DataSource("public")),
    matrix=((0.0,) * 11 + (1.0,), (1.0,) * 12),
    requires=Requires(("enclave",), "signed"),
)
CHAIN = {"source": "public", "head": "sha256:ab", "complete": True, "active": True, "reason": ""}
SAID: dict[str, Any] = {
    "layers": LAYERS,
    "sources": ["hosp-a", "public"],
    "exposure": [[0.0] * 11 + [20.0], [80.0] * 12],
    "rows": {"hosp-a": 20, "public": 80},
    "dropped": 25,
    "complete": True,
    "coverage": {"overall": 0.8, "layers": [1.0] * 11 + [0.8]},
    "chains": [CHAIN],
    "ledger": {"attempt": 1, "seq": 7, "hash": "ef"},
    "spectral": {"layers": {"layer-00": 0.97}},
}


def made(root: Path, policy: CompiledPolicy = POLICY) -> tuple[Builder, AttemptBuilder]:
    governance = {"policy": "policy.yaml", "digest": policy.digest}
    experiment = Builder(root / "ruled-7f3a", governance=governance)
    experiment.paths.compiled_policy.write_text(policy.to_json())
    return experiment, experiment.trial().attempt()


def saved(experiment: Builder, step: int, said: Any) -> None:
    """A checkpoint whose manifest alone is there."""
    folder = experiment.paths.trial(1).checkpoints / f"{step:08}.g1"
    folder.mkdir(parents=True)
    body = {
        **{"format": "hpcdet-checkpoint", "schema": 1, "writer": "test", "name": folder.name},
        **{"world": 1, "shards": [], "private": [], "shared": "0" * 64, "digest": "1" * 64},
        **{"prev_root": "", "meta": {"batches": step, "governance": said}},
    }
    sealed = {**body, sealed_json.ROOT: sealed_json.digest(body)}
    (folder / standing.MANIFEST).write_text(json.dumps(sealed))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests as they stand here: what makes them whole is tested elsewhere."""
    from hpcdet.read.governed import governed_checkpoint

    def plain(folder: Path) -> Any:
        return json.loads((folder / standing.MANIFEST).read_text())

    monkeypatch.setattr(governed_checkpoint.manifests, "read", plain)


@pytest.mark.usefixtures("read")
def test_what_checkpoints_record_is_shown(cli: Cli) -> None:
    experiment, attempt = made(cli.root)
    saved(experiment, 100, SAID | {"conformance": None})  # no probe was made yet
    attempt.line("governance", checks=[{"number": 8, "code": "G108", **WHAT}])
    [item] = cli("policy", "report", "ruled-7f3a", "-o", "json").items
    assert item["coverage"] == [1.0] * 11 + [0.8] and item["admission"] == 0.8
    assert item["statement"] == "signed" and item["chains"] == [CHAIN]
    assert item["nodes"] == [{"attempt": 1, "nodes": ["n1"], "statement": "signed"}]
    recorded = {"conformance": None, "ledger": SAID["ledger"], "spectral": SAID["spectral"]}
    assert item["recorded"] == recorded
    text = cli("policy", "report", "ruled-7f3a").out
    assert "null" not in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80, "twelve layers are printed below each other"
    assert all(sum(name in line for line in lines) >= 1 for name in LAYERS)
    for said in ("STATEMENT OF NODES SIGNED", "G108 recorded (tighten)", "chain of public: active"):
        assert said in text
    page = render(gather(experiment.paths), 1e9)
    for said in ("Statement of nodes: signed", "<td>recorded</td><td>tighten</td>", "record 7"):
        assert said in page
    assert "0.970" in page, "entropies of weights are a table"


WHAT = {"outcome": "recorded", "detail": "tighten"}

HOSTILE: dict[str, Any] = {
    "no map": [],
    "no matrix": SAID | {"exposure": [[1.0]]},
    "texts": SAID | {"exposure": [["x"] * 12] * 2, "rows": {"public": "many"}, "dropped": "x"},
    "other layers": SAID | {"layers": ["z"]},
    "coverage": SAID | {"coverage": {"layers": [1.0]}, "chains": [1, {"source": 2}]},
    "escapes": SAID | {"notes": "\x1b[2J<script>alert(1)</script>"},
}


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_has_another_form_counts_as_absent(cli: Cli, kind: str) -> None:
    experiment, _ = made(cli.root)
    saved(experiment, 100, HOSTILE[kind])
    [item] = cli("policy", "report", "ruled-7f3a", "-o", "json").items
    if kind not in ("coverage", "escapes"):
        assert item["exposure"] == [[0.0] * 12] * 2
    assert "\x1b" not in cli("policy", "report", "ruled-7f3a").out
    assert "<script>alert" not in render(gather(experiment.paths), 1e9)


@pytest.mark.usefixtures("read")
def test_the_account_of_a_step_knows_nothing_of_later_ones(tmp_path: Path) -> None:
    open_to_all = dataclasses.replace(POLICY, matrix=((1.0,) * 12,) * 2)
    experiment, attempt = made(tmp_path, open_to_all)
    saved(experiment, 100, SAID)
    saved(experiment, 200, SAID | {"exposure": [[40.0] * 12] * 2})
    norms = [[1.0] * 12] * 2
    for step in (50, 150):
        probe = {"step": step, "sources": ["hosp-a", "public"], "layers": LAYERS}
        attempt.line("governance", event="probe", **probe, on=norms, off=norms)
    [late], [early] = (governance(experiment.paths, 1, f"{n:08}.g1") for n in (200, 100))
    assert [one.step for one in late.measured] == [50, 150]
    assert [one.step for one in early.measured] == [50] and early.exposure == SAID["exposure"]
