"""``hpcdet policy export``: the formats of others, read back by their own libraries."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.policy.compiled import CompiledPolicy, UseAgreement
from hpcdet.store.fs import files
from tests import ranks
from tests.commands import Cli
from tests.guard.test_governed import make, policy
from tests.ruled import forge

pytestmark = pytest.mark.xdist_group("governed")

ODD = "CC-BY | <b>4.0</b>\n# *x*\x1b[31m\u202e"
FORMATS = ("in-toto", "cyclonedx", "model-signing", "training-content")


def wanted() -> CompiledPolicy:
    plain = policy()
    agreed = UseAgreement("DUA-1", "2999-12-31")
    sources = (
        dataclasses.replace(plain.sources[0], labels={"license": ODD}),
        dataclasses.replace(plain.sources[1], agreement=agreed),
        plain.sources[2],
    )
    return dataclasses.replace(plain, sources=sources)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "governed-7f3a"
    attempt = ranks.run(make(folder, 2, wanted()), 2)
    assert attempt.verdict() is not None, attempt.log()
    return folder


def exported(cli: Cli, folder: Path, form: str, to: Path, *flags: object) -> bytes:
    ran = cli("policy", "export", folder, form, "--to", to, *flags, "-o", "json")
    assert "policy.export" in cli.checked
    [item] = ran.items
    assert item["bytes"] == to.stat().st_size and item["path"] == str(to)
    assert item["signed"] == ("--key" in flags) and item["model"].startswith("governed-7f3a/1@")
    return to.read_bytes()


def checkpoint(cli: Cli, folder: Path) -> Path:
    """The best checkpoint, by another verb."""
    rows = cli("ckpt", "ls", folder, "-o", "json").items
    best = min((row for row in rows if row["metric"] is not None), key=lambda row: row["metric"])
    return Path(best["path"])


def report(cli: Cli, folder: Path) -> dict[str, Any]:
    [item] = cli("policy", "report", folder, "-o", "json").items
    return item


def secret(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    path.chmod(0o600)
    return path


def pem(key: Any) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    encoding = serialization.Encoding.PEM
    found: bytes = key.private_bytes(encoding, form, serialization.NoEncryption())
    return found


def test_a_statement_is_one_of_in_toto(cli: Cli, trained: Path, tmp_path: Path) -> None:
    statement = pytest.importorskip("in_toto_attestation.v1.statement")
    pb = pytest.importorskip("in_toto_attestation.v1.statement_pb2")
    from google.protobuf import json_format

    data = exported(cli, trained, "in-toto", tmp_path / "s.json")
    found = statement.Statement.copy_from_pb(json_format.Parse(data, pb.Statement()))
    found.validate()
    folder = checkpoint(cli, trained)
    assert {one.name: dict(one.digest) for one in found.pb.subject} == {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in folder.iterdir()
    }
    predicate = json.loads(data)["predicate"]
    assert predicate["assurance"] == "state_clean" and predicate["matrix"][2] == [0, 0, 0.5]
    assert predicate["records"] == "permission and exposure, not influence"
    assert len(predicate["residualChannels"]) == 3
    [restricted] = [one for one in predicate["sources"] if one["id"] == "b"]
    assert restricted["agreement"] == {"id": "DUA-1", "expires": "2999-12-31"}
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    assert predicate["checkpoint"]["stateDigest"] == manifest["digest"]
    counted = manifest["meta"]["governance"]["exposure"]
    assert predicate["exposure"] == counted and counted[1][0] == 0 < counted[1][1]


def test_with_a_key_it_is_an_envelope_of_dsse(cli: Cli, trained: Path, tmp_path: Path) -> None:
    dsse = pytest.importorskip("securesystemslib.dsse")
    signer = pytest.importorskip("securesystemslib.signer")
    errors = pytest.importorskip("securesystemslib.exceptions")
    key = Ed25519PrivateKey.generate()
    file = secret(tmp_path / "key", key.private_bytes_raw().hex().encode() + b"\n")
    data = exported(cli, trained, "in-toto", tmp_path / "s.json", "--key", file)
    plain = exported(cli, trained, "in-toto", tmp_path / "plain.json")
    public = key.public_key()
    raw = json.loads(data)
    [signature] = raw["signatures"]
    envelope = dsse.Envelope.from_dict(json.loads(data))
    known = signer.SSlibKey.from_crypto(public, keyid=signature["keyid"])
    assert envelope.verify([known], 1)
    assert json.loads(envelope.payload) == json.loads(plain)
    assert envelope.payload_type == "application/vnd.in-toto+json"
    raw["payload"] = base64.b64encode(
        envelope.payload.replace(b"state_clean", b"isolated")
    ).decode()
    with pytest.raises(errors.VerificationError):
        dsse.Envelope.from_dict(raw).verify([known], 1)


def test_a_bill_of_materials_is_one_of_cyclonedx(cli: Cli, trained: Path, tmp_path: Path) -> None:
    schema = pytest.importorskip("cyclonedx.schema")
    checks = pytest.importorskip("cyclonedx.validation.json")
    data = exported(cli, trained, "cyclonedx", tmp_path / "bom.json")
    validator = checks.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(data.decode()) is None
    assert validator.validate_str(data.decode().replace('"bomFormat"', '"bomForm"')) is not None
    found = json.loads(data)
    model = found["metadata"]["component"]
    assert model["type"] == "machine-learning-model"
    assert {one["name"] for one in model["components"]} == {
        path.name for path in checkpoint(cli, trained).iterdir()
    }
    card = model["modelCard"]
    refs = {one["bom-ref"] for one in found["components"]}
    assert refs == {one["ref"] for one in card["modelParameters"]["datasets"]}
    facts = {one["name"]: one["value"] for one in card["properties"]}
    assert facts["hpcdet:assurance"] == "state_clean" and facts["hpcdet:violations"] == "0"
    [odd] = [one for one in found["components"] if one["name"] == "a"]
    assert odd["licenses"] == [{"license": {"name": ODD}}]
    [metric] = card["quantitativeAnalysis"]["performanceMetrics"]
    assert metric["type"] == "validation_loss" and float(metric["value"]) > 0


def test_a_bundle_is_verified_by_model_signing(cli: Cli, trained: Path, tmp_path: Path) -> None:
    signing = pytest.importorskip("model_signing.verifying")
    key = ec.generate_private_key(ec.SECP256R1())
    private = secret(tmp_path / "key.pem", pem(key))
    public = tmp_path / "public.pem"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    bundle = tmp_path / "model.sig"
    data = exported(cli, trained, "model-signing", bundle, "--key", private)
    folder = shutil.copytree(checkpoint(cli, trained), tmp_path / "copy")
    verifier = signing.Config().use_elliptic_key_verifier(public_key=public)
    verifier.verify(folder, bundle)
    # without a key it is what the bundle signs, made without that package
    plain = exported(cli, trained, "model-signing", tmp_path / "manifest.json")
    payload = base64.b64decode(json.loads(data)["dsseEnvelope"]["payload"])
    assert json.loads(plain) == json.loads(payload)
    shard = next(folder.glob("rank-*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    with pytest.raises(ValueError, match="rank-"):
        verifier.verify(folder, bundle)


def test_training_content_says_what_was_exposed_and_what_it_is_not(
    cli: Cli, trained: Path, tmp_path: Path
) -> None:
    text = exported(cli, trained, "training-content", tmp_path / "t.md").decode()
    assert "No law that asks for such a summary asks for layer-level routing" in text
    assert "Nothing in this file is legal advice" in text
    assert "permission and exposure, not influence" in text
    rows = [line for line in text.splitlines() if line.startswith("| b ")]
    assert "DUA-1 (until 2999-12-31)" in rows[0] and "| denied |" in rows[1]
    # nothing that others have written is Markdown or HTML
    [row] = [line for line in text.splitlines() if line.startswith("| a | CC")]
    assert r"CC-BY \| \<b\>4.0\</b\> \# \*x\*" in row and row.count(" | ") == 6
    assert "\x1b" not in text and "\u202e" not in text  # nor does it move a terminal
    assert r"\\u001b\[31m\\u202e" in row
    assert "<b>" not in text.replace(r"\<b\>", "")


def test_a_crate_has_the_policy_and_the_account_of_each_trial(
    cli: Cli, trained: Path, tmp_path: Path
) -> None:
    crates = pytest.importorskip("rocrate.rocrate", reason="reads the crate back: rocrate")
    shutil.copy(trained / "policy.json", trained / "policy.yaml")  # as a submission keeps the text
    (trained / "provenance.json").write_text("{}")
    cli("export", trained, "ro-crate", "--to", tmp_path)
    folder = tmp_path / trained.name
    crate = crates.ROCrate(folder)
    for name in ("policy.yaml", "policy.json", "governance.json"):
        assert crate.dereference(name).type == "File" and (folder / name).is_file()
    assert "no record of influence" in crate.dereference("governance.json")["name"]
    assert json.loads((folder / "governance.json").read_text()) == [report(cli, trained)]
    compiled = (trained / "policy.json").read_text()
    (trained / "policy.json").write_text(compiled.replace("0.0", "1.0", 1))
    try:
        assert "G110" in cli("export", trained, "ro-crate", "--to", tmp_path / "x", code=9).err
    finally:
        (trained / "policy.json").write_text(compiled)
    assert not (tmp_path / "x").exists()


def test_what_is_there_is_never_overwritten(cli: Cli, trained: Path, tmp_path: Path) -> None:
    to = tmp_path / "taken"
    to.write_text("mine")
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    for form in FORMATS:
        for path in (to, dangling):
            assert (
                "it is there already"
                in cli("policy", "export", trained, form, "--to", path, code=2).err
            )
    assert to.read_text() == "mine" and not (tmp_path / "nowhere").exists()
    nowhere = tmp_path / "no" / "file"
    assert "folder" in cli("policy", "export", trained, "in-toto", "--to", nowhere, code=3).err


def test_damaged_checkpoints_are_not_exported(cli: Cli, trained: Path, tmp_path: Path) -> None:
    """Bits of a tensor, a file too many, one that is gone."""
    copy = cli.root / "governed-7f3a"
    for number, harm in enumerate((_flip, _add, _remove)):
        shutil.copytree(trained, copy)
        harm(checkpoint(cli, copy))
        to = tmp_path / str(number)
        err = cli("policy", "export", "governed-7f3a", "in-toto", "--to", to, code=9).err
        assert "--checkpoint STEP" in err, err
        assert not to.exists()
        shutil.rmtree(copy)


def test_a_forged_account_is_no_valid_checkpoint(cli: Cli, trained: Path, tmp_path: Path) -> None:
    """Its root is that of what was forged: only the ledger knows better."""
    copy = cli.root / "governed-7f3a"
    shutil.copytree(trained, copy)
    folder = checkpoint(cli, copy)
    cli("ckpt", "verify", copy)
    forge(folder, lambda said: said["exposure"].__setitem__(2, [0.0, 0.0, 0.0]))
    for flag in ("--deep", "--quick"):
        ran = cli("ckpt", "verify", folder, flag, "-o", "json", code=9)
        [row] = ran.items
        assert row["state"] == "damaged" and "G114: its exposure is not what" in row["error"]
    assert "G114" in cli("ckpt", "verify", copy, code=9).err
    for form in FORMATS:
        to = tmp_path / form
        assert "G114" in cli("policy", "export", copy, form, "--to", to, code=9).err
        assert not to.exists()
    cli("ckpt", "verify", shutil.copytree(folder, tmp_path / folder.name))  # of no experiment


def _flip(folder: Path) -> None:
    shard = next(folder.glob("rank-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)


def _add(folder: Path) -> None:
    (folder / "model.pkl").write_bytes(b"")


def _remove(folder: Path) -> None:
    next(folder.glob("rank-*")).unlink()


def test_flags_and_keys_that_are_wrong_are_told(
    cli: Cli, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "out"
    hex_key = Ed25519PrivateKey.generate().private_bytes_raw().hex().encode()
    good = secret(tmp_path / "good", hex_key)
    open_key = secret(tmp_path / "open", hex_key)
    open_key.chmod(0o644)
    none = secret(tmp_path / "none", b"\xff\xfe no key")
    rsa_like = secret(tmp_path / "ed.pem", pem(Ed25519PrivateKey.generate()))

    def refused(code: int, *words: object) -> str:
        err = cli("policy", "export", *words, "--to", to, code=code).err
        assert not to.exists() and "Traceback" not in err
        return err

    assert "is not signed" in refused(2, trained, "cyclonedx", "--key", good)
    assert f"chmod 600 {open_key}" in refused(4, trained, "in-toto", "--key", open_key)
    assert hex_key.decode() not in refused(4, trained, "in-toto", "--key", open_key)
    refused(4, trained, "in-toto", "--key", none)
    refused(4, trained, "model-signing", "--key", good)
    refused(4, trained, "model-signing", "--key", rsa_like)
    refused(3, trained, "in-toto", "--checkpoint", "4711")
    refused(3, f"{trained}/99", "in-toto")
    make(cli.root / "plain-1111", 1, None)
    assert "has no policy" in refused(3, "plain-1111", "in-toto")
    monkeypatch.setitem(__import__("sys").modules, "model_signing", None)
    key = secret(tmp_path / "key.pem", pem(ec.generate_private_key(ec.SECP256R1())))
    err = refused(2, trained, "model-signing", "--key", key)
    assert "pip install 'hpcdet[model-signing]'" in err


def test_a_full_disk_leaves_nothing_behind(
    cli: Cli, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(files, "write_all", full)
    folder = tmp_path / "there"
    folder.mkdir()
    err = cli("policy", "export", trained, "in-toto", "--to", folder / "s.json", code=5).err
    assert "No space left" in err and list(folder.iterdir()) == []
