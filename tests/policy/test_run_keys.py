"""The key of an experiment's runs: where it may come from, and who has to certify it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.errors import UsageError
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup, TrustedKey
from hpcdet.policy.keys import key_files, run_keys
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder import home
from hpcdet.store.folder.layout import ExperimentPaths

STORED = Governance(run_key={"stored": "governance.run_key"})
SITE = Ed25519PrivateKey.generate()
POLICY = CompiledPolicy(
    name="p",
    version=1,
    text_digest="sha256:0",
    layers=(LayerGroup("trunk", "^t"),),
    sources=(DataSource("a"),),
    matrix=((1.0,),),
)


def trusting(*trust: tuple[str, Ed25519PrivateKey]) -> CompiledPolicy:
    keys = [
        TrustedKey(f"key-{n}", role, key_files.public(key)) for n, (role, key) in enumerate(trust)
    ]
    return dataclasses.replace(POLICY, trust=tuple(keys))


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    found = ExperimentPaths(tmp_path / "digits-7f3a")
    found.root.mkdir()
    secret = Ed25519PrivateKey.generate().private_bytes_raw().hex()
    found.secrets.write_text(json.dumps({"governance.run_key": secret}))
    found.secrets.chmod(0o600)
    return found


def certified(paths: ExperimentPaths, by: Ed25519PrivateKey = SITE, **other: Any) -> None:
    key = key_files.public(run_keys.signer(paths, STORED))
    given = {"key": key, "experiment": paths.id, "days": 9, **other}
    run_keys.keep(paths, run_keys.certify(given["key"], given["experiment"], by, given["days"]))


def refused(paths: ExperimentPaths, policy: CompiledPolicy, now: datetime | None = None) -> str:
    with pytest.raises(GovernanceBroken) as found:
        run_keys.load(paths, STORED, policy, now)
    assert found.value.check == "G102"
    return f"{found.value.what} {found.value.hint}"


def test_without_trust_the_drawn_key_signs_by_itself(paths: ExperimentPaths) -> None:
    found = run_keys.load(paths, STORED, trusting(("data", SITE), ("policy", SITE)))
    assert found.certificate is None
    assert found.public == key_files.public(run_keys.signer(paths, STORED))
    drawn = json.loads(paths.secrets.read_text())["governance.run_key"]
    assert drawn not in repr(found)


def test_a_key_that_the_policy_names_needs_no_certificate(paths: ExperimentPaths) -> None:
    own = run_keys.signer(paths, STORED)
    assert run_keys.load(paths, STORED, trusting(("run", own))).certificate is None
    assert "nobody has certified" in refused(paths, trusting(("run", SITE)))
    assert "policy sign digits-7f3a" in refused(paths, trusting(("site", SITE)))


@pytest.mark.parametrize("role", ["run", "site"])
def test_a_certificate_of_a_trusted_key_holds(paths: ExperimentPaths, role: str) -> None:
    policy = trusting((role, SITE))
    certified(paths)
    found = run_keys.load(paths, STORED, policy)
    assert found.certificate is not None
    assert stat.S_IMODE((paths.certificates / "0001.json").stat().st_mode) == 0o600


def test_each_wrong_certificate_is_refused(paths: ExperimentPaths) -> None:
    policy = trusting(("run", SITE), ("policy", other := Ed25519PrivateKey.generate()))
    certified(paths, by=other)
    assert "none of the trusted keys" in refused(paths, policy)
    certified(paths, experiment="digits-0000")
    assert "another key or experiment" in refused(paths, policy)
    certified(paths, key=key_files.public(other))
    assert "another key or experiment" in refused(paths, policy)
    certified(paths)
    run_keys.load(paths, STORED, policy)
    (paths.certificates / "0005.json").write_text("{")  # a later one that is torn takes nothing
    run_keys.load(paths, STORED, policy)


@pytest.mark.parametrize("days", [-2, 11])
def test_clocks_that_are_days_off_are_named(paths: ExperimentPaths, days: int) -> None:
    policy = trusting(("run", SITE))
    certified(paths)
    now = datetime.now(UTC)
    assert run_keys.load(paths, STORED, policy, now - timedelta(minutes=4)).certificate
    assert run_keys.load(paths, STORED, policy, now + timedelta(days=8)).certificate
    assert "look at the clock of the node" in refused(paths, policy, now + timedelta(days=days))


def test_a_certificate_holds_where_its_experiment_was_renamed(paths: ExperimentPaths) -> None:
    home.settle(paths)
    certified(paths)
    moved = ExperimentPaths(paths.root.rename(paths.root.with_name("renamed")))
    home.settle(moved)
    assert run_keys.load(moved, STORED, trusting(("run", SITE)))
    fork = ExperimentPaths(paths.root.with_name("fork"))
    shutil.copytree(moved.root, fork.root, ignore=shutil.ignore_patterns("homes"))
    home.settle(fork)
    assert "of another key or experiment" in refused(fork, trusting(("run", SITE)))


@pytest.mark.parametrize("parent", ["3", "../EXP/3@6 batches", "origin/1", "no parent"])
def test_a_parents_ledgers_are_signed_by_the_run_key_unless_the_config_names_another(
    parent: str,
) -> None:
    """Whoever has written a trial's record by hand cannot choose who may have signed."""
    config = {"governance": {"policy": "p", "digest": "sha256:0", "signer": "ab" * 32}}
    own = resolved_config.resolve({**config, "searcher": {"metric": "loss"}})
    assert run_keys.parents_signers(POLICY, own, parent) == ["ab" * 32]
    searcher = {"metric": "loss", "begin_from": "EXP/3"}
    begun = resolved_config.resolve({**config, "searcher": searcher})
    wanted = [] if parent == "origin/1" else ["ab" * 32]
    assert run_keys.parents_signers(POLICY, begun, parent) == wanted


def test_a_clock_that_is_behind_brings_no_certificate_back(paths: ExperimentPaths) -> None:
    policy = trusting(("run", SITE))
    certified(paths, days=1)
    now = datetime.now(UTC)
    assert run_keys.load(paths, STORED, policy, recorded=(now + timedelta(hours=5)).isoformat())
    with pytest.raises(GovernanceBroken, match="holds from"):
        run_keys.load(paths, STORED, policy, recorded=(now + timedelta(days=2)).isoformat())


def test_a_renewed_certificate_takes_the_place_of_one_that_has_ended(
    paths: ExperimentPaths,
) -> None:
    policy = trusting(("run", SITE))
    certified(paths, days=1)
    later = datetime.now(UTC) + timedelta(days=5)
    refused(paths, policy, later)
    certified(paths, days=9)
    assert sorted(one.name for one in paths.certificates.iterdir()) == ["0001.json", "0002.json"]
    run_keys.load(paths, STORED, policy, later)


def test_a_drawn_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    public = key_files.draw(tmp_path / "a.key")
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600
    assert key_files.public(key_files.read(tmp_path / "a.key")) == public
    before = (tmp_path / "a.key").read_bytes()
    os.symlink("nowhere", tmp_path / "link.key")
    for name in ("a.key", "link.key"):
        with pytest.raises(UsageError, match="never overwritten"):
            key_files.draw(tmp_path / name)
    assert (tmp_path / "a.key").read_bytes() == before
    assert not (tmp_path / "nowhere").exists()


def test_a_key_of_openssl_is_one(tmp_path: Path) -> None:
    path = tmp_path / "pem.key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", path], check=True)
    path.chmod(0o600)
    assert len(key_files.public(key_files.read(path))) == 64


@pytest.mark.parametrize("text", ["", "ab" * 31, "zz" * 32, "-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(PolicyRefused, match="P10") as found:
        key_files.read(path)
    assert not text or text not in str(found.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_key_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    key_files.draw(tmp_path / "a.key")
    (tmp_path / "a.key").chmod(mode)
    with pytest.raises(PolicyRefused, match=r"P10.*others may read") as found:
        key_files.read(tmp_path / "a.key")
    assert "chmod 600" in found.value.hint


def test_a_key_may_be_a_variable(paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_KEY", SITE.private_bytes_raw().hex())
    named = Governance(run_key={"env": "RUN_KEY"})
    assert run_keys.load(paths, named, trusting(("run", SITE))).public == key_files.public(SITE)
    monkeypatch.delenv("RUN_KEY")
    with pytest.raises(PolicyRefused, match=r"P10.*RUN_KEY is not set"):
        run_keys.load(paths, named, POLICY)
