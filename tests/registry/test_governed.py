"""Versions of governed trials: policy digest, exposure and ledger head, without the experiment."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from hpcdet.errors import IntegrityError
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup, PolicyText
from hpcdet.registry import add_version, registered_models, version_views
from hpcdet.registry.registered_models import Version
from hpcdet.registry.version_check import check
from hpcdet.store.trials import manifests
from tests.commands import Cli
from tests.registry.models import flip
from tests.ruled import Ruled, forge

POLICY = CompiledPolicy(
    name="p",
    version=1,
    text_digest="sha256:0",
    layers=(LayerGroup("trunk", "^t"), LayerGroup("head", "^h")),
    sources=(DataSource("hosp-a"), DataSource("public")),
    matrix=((0.0, 1.0), (1.0, 1.0)),
)
TIGHT = dataclasses.replace(POLICY, version=2, matrix=((0.0, 0.0), (1.0, 1.0)))


@pytest.fixture
def ruled(cli: Cli) -> Ruled:
    return Ruled(cli.root / "ruled-7f3a", POLICY)


@pytest.fixture
def registry(cli: Cli) -> Path:
    return cli.root / "registry"


def content(folder: Path) -> str:
    """The digest of a checkpoint made of records alone."""
    return str(manifests.read(folder)["digest"])


def added(registry: Path, ruled: Ruled, folder: Path, model: str = "wards") -> Version:
    source = add_version.CheckpointSource(ruled.paths, 1, folder)
    return add_version.add(registry, model, source, "", content)


def test_a_version_carries_what_the_policy_recorded(ruled: Ruled, registry: Path) -> None:
    ruled.attempt(POLICY, {"hosp-a": 4, "public": 2})
    made = added(registry, ruled, ruled.attempt(POLICY, {"public": 6}))
    said = version_views.view(made).governance
    assert said["policy_digest"] == POLICY.digest and said["doubt"] == ""
    assert (said["sources"], said["layers"]) == (["hosp-a", "public"], ["trunk", "head"])
    assert said["exposure"] == [[0.0, 4.0], [8.0, 8.0]]
    assert said["ledger"]["attempt"] == 2 and len(said["ledger"]["hash"]) == 64
    shutil.rmtree(ruled.paths.root)
    found = check(made)
    assert (found.state, found.governed, found.errors) == ("valid", "verified", [])


def test_what_does_not_fit_its_ledger_is_not_added(ruled: Ruled, registry: Path) -> None:
    folder = ruled.attempt(POLICY, {"hosp-a": 4, "public": 2})
    forge(folder, lambda said: said.update(exposure=[[0.0, 0.0], [2.0, 2.0]]))
    with pytest.raises(IntegrityError, match="G102"):  # the run has signed another one
        added(registry, ruled, folder)
    assert version_views.newest(registry).items == []


def test_a_policy_that_was_changed_is_verified_with_its_changes(
    ruled: Ruled, registry: Path
) -> None:
    ruled.attempt(POLICY, {"hosp-a": 4})
    ruled.writer.change(PolicyText("", TIGHT), "withdrawn")
    folder = ruled.attempt(TIGHT, {"public": 6}, {"number": 1, "act": "change"})
    made = added(registry, ruled, folder)
    shutil.rmtree(ruled.paths.root)
    assert (check(made).state, check(made).governed) == ("valid", "verified")
    assert made.record.governance["policy_digest"] == TIGHT.digest


@pytest.mark.parametrize("what", ["policy.json", "trials/0001/attempts/1/ledger.jsonl"])
def test_evidence_that_was_changed_is_found(ruled: Ruled, registry: Path, what: str) -> None:
    made = added(registry, ruled, ruled.attempt(POLICY, {"public": 6}))
    flip(made.paths.root / what)
    found = check(made)
    assert (found.state, found.governed) == ("damaged", "doubtful") and what in found.errors[0]


def test_a_ledger_that_was_exchanged_with_its_digests_is_found(
    ruled: Ruled, registry: Path, tmp_path: Path
) -> None:
    """Lists that fit are made by anybody who may write there, but not the signature of the run."""
    made = added(registry, ruled, ruled.attempt(POLICY, {"public": 6}))
    other = Ruled(tmp_path / "other-1c2d", POLICY)
    other.attempt(POLICY, {"public": 6})
    ledger = made.paths.trial(1).attempt(1).ledger
    ledger.write_bytes(other.trial.paths.attempt(1).ledger.read_bytes())
    sealed = _seal_again(made)
    found = check(sealed)
    assert found.state == "damaged"
    assert any("attempt 1" in error for error in found.errors), found.errors


def _seal_again(version: Version) -> Version:
    """Give a changed version lists and a record that fit, as its owner could."""
    from blake3 import blake3

    from hpcdet.registry import version_files
    from hpcdet.store.fs import files

    root = version.paths.root
    list_of = json.loads((root / "files.json").read_text())
    for name in list_of["files"]:
        list_of["files"][name] = list(version_files.measured(root / name))
    data = files.canonical(list_of) + b"\n"
    (root / "files.json").write_bytes(data)
    record = dataclasses.replace(version.record, files=blake3(data).hexdigest()).encode()
    (root / "version.json").write_bytes(record)
    standing = dataclasses.replace(version.standing, record=blake3(record).hexdigest())
    return Version(version.model, standing)


def test_the_control_of_an_ablation_is_no_model(cli: Cli, registry: Path) -> None:
    control = dataclasses.replace(POLICY, assurance="none", ablates="ruled-0000")
    ruled = Ruled(cli.root / "control-7f3a", control)
    with pytest.raises(PolicyRefused, match="control of an ablation"):
        added(registry, ruled, ruled.attempt(control, {"public": 6}))


def test_the_reach_of_a_source_names_versions(cli: Cli, ruled: Ruled, registry: Path) -> None:
    first = ruled.attempt(POLICY, {"public": 6})
    added(registry, ruled, first, "clean")
    folder = ruled.attempt(POLICY, {"hosp-a": 4})
    added(registry, ruled, folder), added(registry, ruled, folder)
    [item] = cli("policy", "impact", "hosp-a", "-o", "json").items
    assert item["versions"] == ["model:wards:1", "model:wards:2"]
    assert item["checkpoint"] == str(folder)
    shutil.rmtree(ruled.paths.root)
    [item] = cli("policy", "impact", "hosp-a", "-o", "json").items
    assert (item["experiment"], item["trial"]) == ("ruled-7f3a", 1)
    assert item["versions"] == ["model:wards:1", "model:wards:2"] and item["layers"] == ["head"]
    newest = registered_models.version(registry, "wards:1").checkpoint
    assert item["checkpoint"] == str(newest)
    assert [one["versions"] for one in cli("policy", "impact", "public", "-o", "json").items] == [
        ["model:clean:1", "model:wards:1", "model:wards:2"]
    ]
    assert "no policy and no checkpoint" in cli("policy", "impact", "hosp-b", code=3).err
    flip(registry / "wards" / "events" / "000001.json")
    said = cli("policy", "impact", "public").err
    assert "model:wards is left out" in said
