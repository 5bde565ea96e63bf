"""Verbs of data: manifests and provenance chains, from the first file to a trusted source."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.policy.provenance.source_manifests import SourceManifest
from tests.commands import Cli

KEY = "11" * 32
PUBLIC = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(KEY)).public_key()
TRUST = PUBLIC.public_bytes_raw().hex()


@pytest.fixture
def made(cli: Cli, tmp_path: Path) -> Path:
    """A folder with data, a manifest and a signed chain."""
    data, chain, listed = tmp_path / "notes", tmp_path / "a.chain", tmp_path / "a.json"
    data.mkdir()
    (data / "1.txt").write_text("one\ntwo\n")
    (data / "2.txt").write_text("three\n")
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    key.chmod(0o600)
    cli("data", "manifest", data, "--source", "hosp-a", "--records", "lines", "--to", listed)
    raw = f"export.csv=sha256:{'0' * 64}"
    acquired = ("data", "chain", "add", chain, "acquire", "--subject", raw, "--actor", "ada")
    digest = cli(*acquired, "-o", "id").out.strip()
    assert digest == f"sha256:{hashlib.sha256(chain.read_bytes().strip()).hexdigest()}"
    with_tool = ("--tool", "dedupe:1.2", "--params", data / "2.txt", "--subject", data / "1.txt")
    cli("data", "chain", "add", chain, "transform", *with_tool)
    cli("data", "chain", "add", chain, "shard", "--manifest", listed)
    cli("data", "chain", "add", chain, "admit", "--manifest", listed)
    [signed] = cli("data", "chain", "sign", chain, "--key", key, "-o", "json").items
    assert (signed["seq"], signed["kind"], signed["key"]) == (3, "admit", TRUST)
    return tmp_path


def policy(folder: Path, expires: str = "2999-12-31", root: str = "") -> Path:
    """A policy that rests on the manifest and the chain."""
    root = root or SourceManifest.load(folder / "a.json").root
    head = hashlib.sha256((folder / "a.chain").read_bytes().splitlines()[3]).hexdigest()
    file = folder / "p.yaml"
    file.write_text(f"""\
apiVersion: hpcdet/governance-v1
name: notes
version: 1
trust: [{{id: steward, role: data, key: "{TRUST}"}}]
layers: [{{id: all, match: '.'}}]
sources:
  - id: hosp-a
    manifest: {{uri: a.json, merkle_root: "{root}"}}
    chain: {{uri: a.chain, head: "sha256:{head}"}}
    agreement: {{id: DUA-1, expires: {expires}}}
rules: [{{id: r1, match: {{source: hosp-a}}, layers: ['*'], weight: 1.0}}]
""")
    return file


def test_what_was_made_is_verified(cli: Cli, made: Path) -> None:
    [listed] = cli("data", "verify", made / "a.json", "--deep", "-o", "json").items
    root = SourceManifest.load(made / "a.json").root
    assert (listed["kind"], listed["source"], listed["ok"]) == ("manifest", "hosp-a", True)
    assert listed["digest"] == root
    by_keys = ("--trust", TRUST, "--manifest", made / "a.json", "-o", "json")
    [chain] = cli("data", "verify", made / "a.chain", *by_keys).items
    assert (chain["ok"], chain["complete"], chain["problems"]) == (True, True, [])
    assert (chain["links_verified"], chain["links_required"]) == (4, 4)
    by_policy = ("--policy", policy(made), "--manifest", made / "a.json")
    cli("data", "verify", made / "a.chain", *by_policy)
    cli("data", "verify", made / "a.json", "--policy", policy(made))


def test_the_format_of_output_is_never_taken_for_a_file(
    cli: Cli, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    argv = ("data", "manifest", made / "notes", "--source", "a")
    assert "--to" in cli(*argv, "-o", "json", code=2).err
    [item] = cli(*argv, "--records", "lines", "--to", made / "m.json", "-o", "json").items
    root = SourceManifest.load(made / "m.json").root
    assert (item["digest"], item["files"], item["bytes"], item["records"]) == (root, 2, 14, 3)
    [link] = cli(
        *("data", "chain", "add", made / "b.chain", "acquire"),
        *("--subject", made / "notes" / "1.txt", "-o", "json"),
    ).items
    assert (link["seq"], link["kind"], link["signed_by"]) == (0, "acquire", [])
    assert not (made / "json").exists()


def test_what_others_may_write_is_refused_as_a_policy_is(cli: Cli, made: Path) -> None:
    chain, listed = made / "a.chain", made / "a.json"
    options = ("--policy", policy(made), "--manifest", listed)
    for file in (chain, listed):
        file.chmod(0o666)
        err = cli("data", "verify", chain, *options, code=4).err
        assert "may be changed by everybody (mode 0666)" in err and f"chmod go-w {file}" in err
        err = cli("policy", "check", made / "p.yaml", code=4).err
        assert "P06" in err and "mode 0666" in err and f"chmod go-w {file}" in err
        file.chmod(0o644)
    cli("data", "verify", chain, *options)


def test_a_folder_without_files_and_a_chain_without_a_source_are_mistakes_of_usage(
    cli: Cli, made: Path
) -> None:
    (made / "empty" / "inner").mkdir(parents=True)
    argv = ("data", "manifest", made / "empty", "--source", "a", "--to", made / "m.json")
    err = cli(*argv, code=2).err
    assert "there are no files in it" in err and "put the source's files there" in err
    err = cli("data", "verify", made / "a.chain", "--policy", policy(made), code=2).err
    assert "does not say of which source" in err and "--manifest FILE" in err and "hosp-a" in err


def test_links_are_shown(cli: Cli, made: Path) -> None:
    links = cli("data", "chain", "show", made / "a.chain", "-o", "json").items
    assert [one["kind"] for one in links] == ["acquire", "transform", "shard", "admit"]
    assert (links[0]["actor"], links[1]["tool"]) == ("ada", "dedupe 1.2")
    assert links[1]["materials"] == links[0]["subject"]
    digest = hashlib.sha256((made / "notes" / "1.txt").read_bytes()).hexdigest()
    assert links[1]["subject"] == [{"name": "1.txt", "sha256": f"sha256:{digest}"}]
    assert [one["signed_by"] for one in links] == [[], [], [], [TRUST]]
    assert TRUST[:8] in cli("data", "chain", "show", made / "a.chain").out


def test_changed_data_end_with_nine(cli: Cli, made: Path) -> None:
    (made / "notes" / "1.txt").write_text("one\nTWO\n")
    (made / "notes" / "3.txt").touch()
    ran = cli("data", "verify", made / "a.json", "-o", "json", code=9)
    [item] = ran.items
    assert [one["what"] for one in item["problems"]] == [
        "3.txt: is not listed",
        "1.txt: its contents are not those that are listed",
    ]
    assert "G111: 3.txt: is not listed" in ran.err
    err = cli("data", "verify", made / "a.json", code=9).err
    assert "1.txt: its contents" in err


def test_record_digests_are_verified_with_the_rest(cli: Cli, made: Path) -> None:
    digests = made / "a.json.records"
    assert len(digests.read_bytes()) == 3 * 32
    digests.write_bytes(bytes(3 * 32))
    cli("data", "verify", made / "a.json")
    err = cli("data", "verify", made / "a.json", "--deep", code=9).err
    assert "a.json.records: it is not what was written" in err


def test_a_chain_is_of_its_data_and_its_policy(cli: Cli, made: Path) -> None:
    chain, listed = made / "a.chain", made / "a.json"
    assert "no key may sign" in cli("data", "verify", chain, code=2).err
    other = ("--trust", "ab" * 32, "--manifest", listed)
    assert "not signed by a trusted key" in cli("data", "verify", chain, *other, code=9).err
    named = policy(made, root=f"sha256:{'1' * 64}")
    assert "the policy names" in cli("data", "verify", listed, "--policy", named, code=9).err
    again = made / "b.json"
    cli("data", "manifest", made / "notes", "--source", "hosp-b", "--to", again)
    wrong = ("--trust", TRUST, "--manifest", again)
    assert "not the data of hosp-b" in cli("data", "verify", chain, *wrong, code=9).err
    unknown = ("--policy", policy(made), "--manifest", again)
    assert "no source hosp-b" in cli("data", "verify", chain, *unknown, code=2).err


def test_a_source_that_was_withdrawn_is_revoked(cli: Cli, made: Path) -> None:
    chain = made / "a.chain"
    named = policy(made)
    cli("data", "chain", "add", chain, "revoke", "--actor", "ada")
    cli("data", "chain", "sign", chain, "--key", made / "key")
    options = ("--policy", named, "--manifest", made / "a.json", "-o", "json")
    ran = cli("data", "verify", chain, *options, code=9)
    [item] = ran.items
    assert (item["complete"], item["ok"]) == (True, False)
    assert "G112: the source was revoked by ada" in ran.err


def test_what_cannot_be_is_refused(cli: Cli, made: Path) -> None:
    chain, data = made / "a.chain", made / "notes"
    before = chain.read_bytes()
    late = ("data", "chain", "add", chain, "transform", "--subject", data / "1.txt")
    assert "transform cannot come after admit" in cli(*late, code=4).err
    lost = ("data", "chain", "add", made / "b.chain", "acquire", "--subject", "nowhere")
    assert "it is no file, and no digest" in cli(*lost, code=2).err
    (made / "key").chmod(0o640)
    err = cli("data", "chain", "sign", chain, "--key", made / "key", code=4).err
    assert "others may read" in err
    assert KEY not in err
    assert chain.read_bytes() == before
    inside = ("data", "manifest", data, "--source", "hosp-a", "--to", data / "m.json")
    assert "would be one of the files" in cli(*inside, code=2).err
    name = ("data", "manifest", data, "--source", "Hosp A", "--to", made / "m.json")
    assert "no id of a source" in cli(*name, code=2).err
    form = ("data", "manifest", data, "--source", "a", "--records", "csv", "--to", made / "m.json")
    assert "no format of records" in cli(*form, code=2).err
    assert not (made / "m.json").exists()


def test_a_link_out_of_the_folder_leaves_nothing_behind(cli: Cli, made: Path) -> None:
    (made / "notes" / "x").symlink_to("/etc/hostname")
    argv = ("data", "manifest", made / "notes", "--source", "a", "--records", "lines")
    assert "leads out of the folder" in cli(*argv, "--to", made / "m.json", code=9).err
    assert not list(made.glob("*m.json*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_chain_counts_by_its_signature(cli: Cli, made: Path) -> None:
    chain = made / "a.chain"
    assert [one.stat().st_mode & 0o777 for one in (chain, made / "a.json")] == [0o644] * 2
    os.chown(chain, 54_321, 54_321)
    options = ("--policy", policy(made), "--manifest", made / "a.json")
    cli("data", "verify", chain, *options)
    cli("data", "chain", "add", chain, "revoke", "--actor", "eve")
    (made / "eve").write_text("22" * 32)
    (made / "eve").chmod(0o600)
    cli("data", "chain", "sign", chain, "--key", made / "eve")
    err = cli("data", "verify", chain, *options, code=9).err
    assert "G111: link 4 (revoke) is not signed by a trusted key" in err


def croissant(folder: Path, name: str, digest: str) -> Path:
    """Croissant metadata of one file."""
    file = folder / "croissant.json"
    value = {
        "@context": {
            "@language": "en",
            "@vocab": "https://schema.org/",
            "sc": "https://schema.org/",
            "cr": "http://mlcommons.org/croissant/",
            "dct": "http://purl.org/dc/terms/",
            "conformsTo": "dct:conformsTo",
        },
        "@type": "sc:Dataset",
        "name": "ward-notes",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "license": "https://example.org/dua-118",
        "url": "https://example.org/notes",
        "description": "notes",
        "datePublished": "2026-01-01",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": "object",
                "name": "object",
                "contentUrl": f"https://example.org/data/{name}?v=1",
                "encodingFormat": "text/plain",
                "sha256": digest,
            }
        ],
    }
    file.write_text(json.dumps(value))
    return file


def test_croissant_metadata_are_compared_and_taken_over(cli: Cli, made: Path) -> None:
    pytest.importorskip("mlcroissant")
    digest = hashlib.sha256((made / "notes" / "1.txt").read_bytes()).hexdigest()
    argv = ("data", "manifest", made / "notes", "--source", "a", "--to", made / "m.json")
    cli(*argv, "--croissant", croissant(made, "1.txt", digest))
    assert SourceManifest.load(made / "m.json").about == {
        "name": "ward-notes",
        "license": "https://example.org/dua-118",
    }
    (made / "m.json").unlink()
    for name, said, wrong in (
        ("1.txt", "0" * 64, "1.txt: its contents are not those"),
        ("9.txt", digest, "9.txt: the file is missing"),
    ):
        assert wrong in cli(*argv, "--croissant", croissant(made, name, said), code=9).err
    assert "is none" in cli(*argv, "--croissant", croissant(made, "1.txt", "x"), code=4).err
    (made / "croissant.json").write_text("{}")
    err = cli(*argv, "--croissant", made / "croissant.json", code=4).err
    assert "it is no Croissant metadata" in err
    assert not (made / "m.json").exists()


def test_croissant_metadata_need_a_package(
    cli: Cli, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlcroissant", None)
    argv = ("data", "manifest", made / "notes", "--source", "a", "--to", made / "m.json")
    err = cli(*argv, "--croissant", croissant(made, "1.txt", "0" * 64), code=2).err
    assert "pip install 'hpcdet[croissant]'" in err
