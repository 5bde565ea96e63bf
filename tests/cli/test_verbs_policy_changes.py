"""Verbs of keys, approvals and changes: a policy is changed by who may, and by nobody else."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

from hpcdet.policy.changes.policy_history import HARD
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from tests.cli.test_verbs_policy import prepared
from tests.commands import Cli
from tests.config.test_policies import POLICY
from tests.security.test_private_folders import as_nobody


@pytest.fixture
def key(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "pi.key"
    cli("policy", "keygen", "--to", file)
    return file


def public(cli: Cli, key: Path) -> str:
    other = key.with_name(f"{key.name}.public.json")
    if not other.exists():
        options = ("--from", "open", "--key", key, "--to", other, "-o", "json")
        shipped = cli("policy", "sign", "head-only", *options)
        other.with_suffix(".txt").write_text(shipped.items[0]["key"])
    return other.with_suffix(".txt").read_text()


@pytest.fixture
def policy(cli: Cli, tmp_path: Path, key: Path) -> Path:
    trust = f"trust: [{{id: pi, role: policy, key: '{public(cli, key)}'}}]\n"
    file = tmp_path / "p.yaml"
    text = re.sub(r"    chain: .*\n", "", POLICY.replace("2027-12-31", "2999-12-31"))
    text = text.replace("requires: {capabilities: [enclave]}\n", "coverage: {min: 0}\n")
    file.write_text(text.replace(", requires: [no_egress]", "") + trust)
    return file


def changed(policy: Path, name: str, weight: str) -> Path:
    file = policy.with_name(name)
    text = policy.read_text().replace("version: 3", "version: 4")
    file.write_text(text.replace("weight: 0.5", f"weight: {weight}"))
    return file


def test_a_key_is_made_once_and_is_its_owners(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    [item] = cli("policy", "keygen", "--to", file, "-o", "json").items
    assert item["path"] == str(file) and len(item["public"]) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_text()
    assert item["public"] not in before
    assert "never overwritten" in cli("policy", "keygen", "--to", file, code=2).err
    sign = ("policy", "sign", "head-only", "--from", "open", "--key", file, "--to")
    assert "is there already" in cli(*sign, file, code=2).err
    assert file.read_text() == before
    for verb in (("policy", "keygen", "--to"), sign):
        err = cli(*verb, tmp_path / "nowhere" / "k", code=2).err
        assert "there is no such folder" in err and "mkdir -p" in err
    assert not (tmp_path / "nowhere").exists()
    assert "cannot write" in cli("policy", "keygen", "--to", "/proc/x.key", code=5).err


def test_a_policy_is_tightened_by_its_owner(cli: Cli, policy: Path) -> None:
    id = prepared(cli, policy)
    [item] = cli(
        "policy",
        "change",
        id,
        changed(policy, "t.yaml", "0.25"),
        "--reason",
        "amended",
        "-o",
        "json",
    ).items
    assert (item["number"], item["act"], item["kind"]) == (1, "change", "tighten")
    assert "hosp-a in high" in item["differs"] and item["reason"] == "amended"
    assert Path(item["path"]).name == "0001.json"
    [shown] = cli("policy", "show", id, "-o", "json").items
    assert shown["policy_digest"] == item["after"] != item["before"]
    ended = cli("policy", "change", id, "--revoke", "hosp-b", "--reason", "withdrawn")
    assert "from the next attempt" in ended.err
    [shown] = cli("policy", "show", id, "-o", "json").items
    assert shown["matrix"] == [[0, 0.25, 0.25], [0, 0, 0], [1, 1, 1]]
    assert cli.checked >= {"policy.change", "policy.show"}


def test_a_policy_is_loosened_with_an_approval(cli: Cli, policy: Path, key: Path) -> None:
    id = prepared(cli, policy)
    loose, other = changed(policy, "l.yaml", "1"), policy.with_name("o.key")
    cli("policy", "keygen", "--to", other)
    why = ("--reason", "DUA 118 amended")
    err = cli("policy", "change", id, loose, *why, code=4).err
    assert "G108" in err and "needs 1 approvals" in err and "hpcdet policy sign FILE" in err
    assert "does not trust" in cli("policy", "change", id, loose, *why, "--key", other, code=4).err
    wrong = policy.with_name("wrong.json")
    assert "which policy" in cli("policy", "sign", loose, "--key", key, "--to", wrong, code=2).err
    cli("policy", "sign", loose, "--from", policy, "--key", other, "--to", wrong)
    assert "has 0" in cli("policy", "change", id, loose, *why, "--approval", wrong, code=4).err
    elsewhere = policy.with_name("elsewhere.json")
    of = ("--from", policy, "--run-key", "ab" * 32)
    cli("policy", "sign", loose, "--key", key, "--to", elsewhere, *of)
    assert "has 0" in cli("policy", "change", id, loose, *why, "--approval", elsewhere, code=4).err
    good = policy.with_name("good.json")
    [item] = cli(
        "policy", "sign", loose, "--key", key, "--to", good, "--for", id, "-o", "json"
    ).items
    assert (item["kind"], item["key"]) == ("approval", public(cli, key))
    again = ("policy", "sign", loose, "--for", id, "--key", key, "--to", good)
    assert "there already" in cli(*again, code=2).err
    cli("policy", "change", id, loose, *why, "--approval", good)
    [shown] = cli("policy", "show", id, "-o", "json").items
    assert shown["matrix"][0] == [0, 1, 1]
    cli("policy", "change", id, "--revoke", "hosp-a", "--reason", "withdrawn")
    fifth = changed(policy, "five.yaml", "1")
    fifth.write_text(fifth.read_text().replace("version: 4", "version: 5"))
    for file, says in ((loose, "count up"), (fifth, "has 0")):  # the approval was of one change
        assert says in cli("policy", "change", id, file, *why, "--approval", good, code=4).err
    assert cli.checked >= {"policy.sign", "policy.show"}


def test_what_cannot_be_changed_is_told(cli: Cli, policy: Path) -> None:
    id = prepared(cli, policy)
    why = ("--reason", "x")
    same = policy.with_name("p.yaml")
    assert "in effect already" in cli("policy", "change", id, same, *why, code=4).err
    assert "give a policy" in cli("policy", "change", id, *why, code=2).err
    assert (
        "give a policy" in cli("policy", "change", id, same, "--revoke", "hosp-a", *why, code=2).err
    )
    assert (
        "say in some words why"
        in cli("policy", "change", id, "--revoke", "hosp-a", "--reason", " ", code=2).err
    )
    assert "no such source" in cli("policy", "change", id, "--revoke", "z", *why, code=4).err
    open_to_all = changed(policy, "w.yaml", "0.1")
    open_to_all.chmod(0o666)
    assert (
        "may be changed by everybody" in cli("policy", "change", id, open_to_all, *why, code=4).err
    )
    assert not (cli.root / id / "policies").exists()


@pytest.mark.parametrize("code", HARD)
def test_overrides_that_would_hide_a_leak_are_refused_by_name(
    cli: Cli, policy: Path, code: str
) -> None:
    id = prepared(cli, policy)
    err = cli("policy", "override", id, "--code", code, "--reason", "why not", code=4).err
    assert f"{code}: cannot be overridden" in err
    assert not (cli.root / id / "policies").exists()
    [item] = cli("policy", "override", id, "--code", "G117", "--reason", "new", "-o", "json").items
    assert (item["act"], item["code"], item["kind"]) == ("override", "G117", "same")
    assert "policy.override" in cli.checked


def test_a_run_key_is_certified_here_or_by_who_cannot_read_it(
    cli: Cli, policy: Path, key: Path
) -> None:
    text = policy.read_text().replace("role: policy", "role: run")
    policy.write_text(text)
    id = prepared(cli, policy)
    [item] = cli("policy", "sign", id, "-o", "json").items
    assert item["kind"] == "run_key" and item["key"] == ""
    run = item["what"]
    assert run in cli("policy", "sign", id).out, "for who certifies it elsewhere"
    for option in ("--for", "--from", "--to"):
        assert f"{option}: it says nothing" in cli("policy", "sign", id, option, "x", code=2).err
    both = ("policy", "sign", id, "--add", key, "--key", key)
    assert "--key: it says nothing" in cli(*both, code=2).err
    assert cli("policy", "sign", id, "-o", "id").out.split() == [run]
    [made] = cli("policy", "sign", id, "--key", key, "-o", "json").items
    assert (made["kind"], made["what"]) == ("certificate", run)
    folder = cli.root / id / "certificates"
    assert [one.name for one in folder.iterdir()] == ["0001.json"]
    given = policy.with_name("c.json")
    cli("policy", "sign", id, "--run-key", run, "--key", key, "--to", given)
    cli("policy", "sign", id, "--add", given)
    assert sorted(one.name for one in folder.iterdir()) == ["0001.json", "0002.json"]
    other = policy.with_name("o.key")
    cli("policy", "keygen", "--to", other)
    assert "does not trust" in cli("policy", "sign", id, "--key", other, code=4).err
    forged = policy.with_name("f.json")
    cli("policy", "sign", id, "--run-key", run, "--key", other, "--to", forged)
    assert "none of the trusted keys" in cli("policy", "sign", id, "--add", forged, code=4).err
    stranger = policy.with_name("s.json")
    cli("policy", "sign", "other-1", "--run-key", run, "--key", key, "--to", stranger)
    assert "another key or experiment" in cli("policy", "sign", id, "--add", stranger, code=4).err
    assert len(list(folder.iterdir())) == 2


def test_no_key_is_in_an_archive_or_in_anything_that_is_shown(
    cli: Cli, policy: Path, tmp_path: Path
) -> None:
    id = prepared(cli, policy)
    paths = ExperimentPaths(cli.root / id)
    drawn = json.loads(paths.secrets.read_text())["governance.run_key"]
    assert stat.S_IMODE(paths.secrets.stat().st_mode) == 0o600
    cli("policy", "change", id, "--revoke", "hosp-a", "--reason", "withdrawn")
    said = [cli("policy", "show", id).out, cli("policy", "sign", id, "-o", "json").out]
    assert not any(drawn in one for one in said)
    for file in paths.root.rglob("*"):
        if file.is_file() and file != paths.secrets:
            assert drawn.encode() not in file.read_bytes(), file
    named = resolved_config.load(paths.config).governance
    assert named is not None and named.run_key == {"stored": "governance.run_key"}


def test_an_archive_can_be_verified_and_signs_nothing(
    cli: Cli, policy: Path, key: Path, tmp_path: Path
) -> None:
    id = prepared(cli, policy)
    paths = ExperimentPaths(cli.root / id)
    loose = changed(policy, "l.yaml", "1")
    cli("policy", "change", id, loose, "--reason", "amended", "--key", key)
    cli("policy", "override", id, "--code", "G120", "--reason", "new torch")
    digest = cli("policy", "show", id, "-o", "json").items[0]["policy_digest"]
    private = [*json.loads(paths.secrets.read_text()).values(), key.read_text().strip()]
    cli("cancel", id, "-y")
    out = cli("archive", id, "-o", "json").items[0]["path"]
    elsewhere = tmp_path / "elsewhere"
    with tarfile.open(out) as packed:
        packed.extractall(elsewhere, filter="data")
    found = [one for one in elsewhere.rglob("*") if one.is_file()]
    assert {"0001.json", "0002.json"} <= {one.name for one in found}
    for one in found:
        assert not any(each.encode() in one.read_bytes() for each in private), one
    copy = elsewhere / id
    assert cli("policy", "show", copy, "-o", "json").items[0]["policy_digest"] == digest
    said = cli("policy", "override", copy, "--code", "G117", "--reason", "mine", code=4).err
    assert "P10: cannot read the run key" in said and "only the experiment's owner signs" in said
    shutil.copy(paths.policy_changes / "0001.json", copy / "policies" / "0003.json")
    assert "G108" in cli("policy", "show", copy, code=9).err


def test_without_its_run_key_an_experiment_is_neither_forked_nor_resumed(
    cli: Cli, policy: Path
) -> None:
    id = prepared(cli, policy)
    cli("pause", id)
    (cli.root / id / "secrets.json").unlink()
    before = sorted(one.name for one in cli.root.iterdir())
    for verb in (("fork", id), ("fork", id, "-n"), ("resume", id)):
        err = cli(*verb, code=4).err
        assert "P10: its run_key is not here any more" in err and "submit its config anew" in err
    assert sorted(one.name for one in cli.root.iterdir()) == before


def test_a_key_beside_the_code_is_not_copied_into_the_experiment(cli: Cli, policy: Path) -> None:
    cli("policy", "keygen", "--to", policy.with_name("mine.key"))
    config = policy.with_name("config.yaml")
    config.write_text(
        "entrypoint: ['true']\nsearcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
        f"governance: {{policy: {policy.name}}}\nsite: local\n"
    )
    submit = ("submit", config, "--prepare", "--no-test", "-o", "id")
    said = cli(*submit, code=4).err
    assert "mine.key: not copied into the experiment" in said and ".hpcdetignore" in said
    policy.with_name(".hpcdetignore").write_text("/mine.key\n")
    id = cli(*submit).out.strip()
    assert not list((cli.root / id).rglob("*.key"))


@pytest.mark.parametrize(
    "words", [("change", "--revoke", "hosp-a"), ("override", "--code", "G117")]
)
def test_what_is_asked_of_nothing_or_for_nothing_is_refused(
    cli: Cli, policy: Path, words: tuple[str, ...]
) -> None:
    id = prepared(cli, policy)
    verb, *rest = words
    assert (
        "no trial 7"
        in cli("policy", "override", f"{id}/7", "--code", "G117", "--reason", "x", code=3).err
    )
    assert cli("policy", verb, "nothing", *rest, "--reason", "x", code=3).err
    assert "some words" in cli("policy", verb, id, *rest, "--reason", "\n ", code=2).err
    override = ("policy", "override", id, "--code", "G117", "--reason", "x")
    for until in ("0", "-3", "soon"):
        assert "--until" in cli(*override, "--until", until, code=2).err
    (cli.root / id / "policies").write_text("")
    said = cli("policy", verb, id, *rest, "--reason", "x", code=9).err
    assert "cannot list the changes of the policy" in said


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_neither_reads_the_run_key_nor_signs(cli: Cli, policy: Path) -> None:
    """Not even where the experiment itself is shown to all, and all may add files to it."""
    id = prepared(cli, policy)
    paths = ExperimentPaths(cli.root / id)
    cli("policy", "change", id, "--revoke", "hosp-a", "--reason", "withdrawn")
    for folder in (paths.root, *paths.root.parents):
        if folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    for file in paths.root.rglob("*"):
        if file != paths.secrets:
            file.chmod(0o755 if file.is_dir() else 0o644)
    paths.policy_changes.chmod(0o777)
    words = ["policy", "change", id, "--revoke", "hosp-b", "--reason", "mine"]
    code, said = as_nobody(["-C", str(cli.root), *words])
    assert code == 4 and "P10" in said and "secrets.json" in said, said
    words = ["policy", "override", id, "--code", "G120", "--reason", "mine"]
    code, said = as_nobody(["-C", str(cli.root), *words])
    assert code == 4 and "P10" in said and "only the experiment's owner signs" in said, said
    assert [one.name for one in paths.policy_changes.iterdir()] == ["0001.json"]
    # and what others may write counts no more
    assert "may be changed by everybody" in cli("policy", "show", id, code=9).err
