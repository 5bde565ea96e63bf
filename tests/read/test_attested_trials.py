"""Readers of governed trials believe what was signed: other policies, sums and ledgers are told."""

from __future__ import annotations

import dataclasses
import errno
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.cli.artefacts import reading
from hpcdet.control.upkeep.packing import pack
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup, PolicyText, TrustedKey
from hpcdet.policy.keys import key_files
from hpcdet.policy.ledger import records
from hpcdet.read.experiment.gather import gather
from hpcdet.read.exports.governed_model import governed_model
from hpcdet.read.governed.governed_trials import governance
from hpcdet.read.lookup.impact import impact
from hpcdet.read.report import render
from hpcdet.store.config import resolved_config
from hpcdet.store.fs import packed
from tests.commands import Cli
from tests.ruled import Ruled, forge

LEE = Ed25519PrivateKey.generate()
POLICY = CompiledPolicy(
    name="p",
    version=1,
    text_digest="sha256:0",
    layers=(LayerGroup("trunk", "^t"), LayerGroup("head", "^h")),
    sources=(DataSource("hosp-a"), DataSource("public")),
    matrix=((0.0, 1.0), (1.0, 1.0)),
    trust=(TrustedKey("pi-lee", "policy", key_files.public(LEE)),),
)
TIGHT = dataclasses.replace(POLICY, version=2, matrix=((0.0, 0.0), (1.0, 1.0)))
ISOLATED = dataclasses.replace(POLICY, version=2, assurance="isolated")
EXP = "ruled-7f3a"


@pytest.fixture
def ruled(cli: Cli) -> Ruled:
    return Ruled(cli.root / EXP, POLICY)


def report(cli: Cli) -> dict[str, Any]:
    [item] = cli("policy", "report", EXP, "-o", "json").items
    assert "policy.report" in cli.checked
    return item


def change(ruled: Ruled, policy: CompiledPolicy, reason: str = "because", **how: Any) -> Any:
    ruled.writer.change(PolicyText("", policy), reason, **how)
    return {"number": len(ruled.writer.history.changes), "act": "change"}


def flat(text: str) -> str:
    return " ".join(text.split())


# -- the policy -----------------------------------------------------------------------------------


def test_no_reader_believes_a_forged_policy(cli: Cli, ruled: Ruled, tmp_path: Path) -> None:
    ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    assert report(cli)["assurance"] == "state_clean"
    ruled.paths.compiled_policy.write_text(ISOLATED.to_json())
    to = tmp_path / "out"
    for verb in (
        ("policy", "report", EXP),
        ("policy", "export", EXP, "in-toto", "--to", to),
        ("ledger", "query", EXP, "--layer", "head"),
        ("ledger", "verify", EXP),
        ("report", EXP),
    ):
        assert "G110: it is not the policy that" in flat(cli(*verb, code=9).err), verb
    assert not to.exists()
    ran = cli("policy", "impact", "hosp-a", code=3)
    assert f"{EXP} is left out: policy.json: G110" in flat(ran.err)


def test_a_config_that_names_its_policy_no_more_hides_nothing(
    cli: Cli, ruled: Ruled, tmp_path: Path
) -> None:
    ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    raw = dict(resolved_config.load(ruled.paths.config).raw)
    del raw["governance"]
    ruled.paths.config.write_bytes(resolved_config.dump(raw))
    for verb in ("policy report", "ledger verify", "report", "policy show"):
        err = flat(cli(*verb.split(), EXP, code=9).err)
        assert "G110: the config names no policy, and the experiment has or had one" in err, verb


def test_each_stretch_of_training_is_judged_by_its_own_policy(cli: Cli, ruled: Ruled) -> None:
    """A gradient that was permitted is no leak afterwards, and one that was not is one."""
    first = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5}, norms=[[0.0, 1.0], [1.0, 1.0]])
    act = change(ruled, TIGHT, "its owner asked")
    before = report(cli)
    assert (before["policy_digest"], before["violations"]) == (POLICY.digest, 0)
    assert before["matrix"] == [[0.0, 1.0], [1.0, 1.0]]
    [said] = before["changes"]
    assert (said["number"], said["attempt"]) == (1, 0)
    ruled.attempt(TIGHT, {"hosp-a": 2, "public": 7}, act, norms=[[0.0, 0.5], [1.0, 1.0]])
    item = report(cli)
    assert (item["policy_digest"], item["unverified"]) == (TIGHT.digest, "")
    assert item["matrix"] == [[0.0, 0.0], [1.0, 1.0]] and item["violations"] == 1
    assert item["exposure"] == [[0.0, 3.0], [12.0, 12.0]]
    [said] = item["changes"]
    assert {key: said[key] for key in ("act", "kind", "reason", "attempt", "policy_digest")} == {
        **{"act": "change", "kind": "tighten", "reason": "its owner asked"},
        **{"attempt": 2, "policy_digest": TIGHT.digest},
    }
    assert said["by"] and said["time"]
    [early] = governance(ruled.paths, 1, first.name)
    assert (early.policy_digest, early.violations) == (POLICY.digest, 0)
    text = flat(cli("policy", "report", EXP).out)
    assert "policy 0001: change (tighten), from attempt 2 on: its owner asked (" in text
    page = render(gather(ruled.paths), 1e9)
    assert "<td>its owner asked</td>" in page and "<td>1: 2</td>" in page


def test_assurance_is_the_least_that_weights_were_trained_under(cli: Cli, ruled: Ruled) -> None:
    ruled.attempt(POLICY, {"public": 5})
    ruled.attempt(ISOLATED, {"public": 5}, change(ruled, ISOLATED))
    item = report(cli)
    assert (item["policy_digest"], item["assurance"]) == (ISOLATED.digest, "state_clean")
    assert len(item["residual_channels"]) == 3


def test_sources_that_had_ended_are_in_the_matrix_as_they_were(cli: Cli, ruled: Ruled) -> None:
    ended = POLICY.denying({"hosp-a"})
    ruled.attempt(ended, {"hosp-a": 3, "public": 5}, norms=[[0.0, 0.1], [1.0, 1.0]])
    item = report(cli)
    assert (item["policy_digest"], item["violations"]) == (ended.digest, 1)
    assert item["matrix"][0] == [0.0, 0.0] and item["unverified"] == ""


def test_exports_are_of_the_policy_of_the_checkpoint(cli: Cli, ruled: Ruled) -> None:
    first = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    ruled.attempt(TIGHT, {"public": 7}, change(ruled, TIGHT))
    model = governed_model(gather(ruled.paths), 1, first.name)
    assert model.policy == POLICY and model.account.matrix[0] == [0.0, 1.0]
    assert [one.number for one in model.account.changes] == [1]
    assert governed_model(gather(ruled.paths), 1, "20").policy == TIGHT


def test_the_shown_file_is_the_one_whose_contents_are_shown(cli: Cli, ruled: Ruled) -> None:
    [item] = cli("policy", "show", EXP, "-o", "json").items
    assert item["path"] == str(ruled.paths.compiled_policy)
    change(ruled, TIGHT)
    ruled.writer.override("G114", "we looked")
    [item] = cli("policy", "show", EXP, "-o", "json").items
    assert item["path"] == str(ruled.paths.policy_changes / "0001.json")
    assert item["policy_digest"] == TIGHT.digest


# -- checkpoints ----------------------------------------------------------------------------------


def hidden(said: dict[str, Any]) -> None:
    said["exposure"][0] = [0.0, 0.0]


def without_a_layer(said: dict[str, Any]) -> None:
    for row in (said["layers"], *said["exposure"]):
        row.pop()


def unsigned(said: dict[str, Any]) -> None:
    del said["seal"]


FORGED: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "exposure": ("G102", hidden),
    "rows": ("G102", lambda said: said["rows"].update({"hosp-a": 1})),
    "no signature": ("G102", unsigned),
    "another state": ("G103", lambda said: said.update(root="sha256:11")),
    "another record": ("G105", lambda said: said["ledger"].update(hash="0" * 64)),
    "no record": ("G105", lambda said: said.pop("ledger")),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_account_is_refused_or_marked_by_every_reader(
    how: str, cli: Cli, ruled: Ruled, tmp_path: Path
) -> None:
    code, forgery = FORGED[how]
    folder = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    assert report(cli)["unverified"] == ""
    assert "NOT VERIFIED" not in cli("policy", "impact", "hosp-a").err
    cli("ledger", "verify", EXP)
    forge(folder, forgery)
    item = report(cli)
    assert item["unverified"].startswith(f"{code}: "), item["unverified"]
    text = flat(cli("policy", "report", EXP).out)
    assert f"UNVERIFIED, and proves nothing: {code}: " in text
    assert f"This account is not verified, and proves nothing: {code}: " in render(
        gather(ruled.paths), 1e9
    )
    [found] = cli("ledger", "verify", EXP, "-o", "json", code=9).items
    assert not found["ok"] and f"{code}: checkpoint {folder.name}: " in found["first_bad"]
    to = tmp_path / "out"
    err = cli("policy", "export", EXP, "in-toto", "--to", to, code=9).err
    assert f"{code}: " in err and not to.exists()
    err = cli("policy", "impact", "hosp-a").err
    assert f"{EXP}/1: NOT VERIFIED: {folder.name}: {code}: " in flat(err)


def test_sums_without_a_signature_are_compared_with_the_ledger(cli: Cli, ruled: Ruled) -> None:
    """Of a run without a key: the owner of the ledger alone could rewrite both."""
    ruled.key = None
    config = ruled.paths.config
    config.write_text(config.read_text().replace(ruled.governance.signer, ""))
    folder = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    assert report(cli)["unverified"] == ""
    for forgery in (hidden, without_a_layer, FORGED["rows"][1]):
        whole = (folder / "MANIFEST.json").read_bytes()
        forge(folder, forgery)
        assert report(cli)["unverified"].startswith("G114: ")
        (folder / "MANIFEST.json").write_bytes(whole)


def test_a_ledger_that_cannot_be_read_hides_no_checkpoint(
    cli: Cli, ruled: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})

    def fails(number: int, path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(records, "read", fails)
    found = impact([ruled.paths], "hosp-a")
    assert [one.trial for one in found.items] == [1]
    assert found.warnings == [
        f"{EXP}/1: NOT VERIFIED: {folder.name}: a ledger cannot be read: Input/output error"
    ]


def test_a_checkpoint_in_the_folder_of_another_is_told(cli: Cli, ruled: Ruled) -> None:
    old = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    new = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    (new / "MANIFEST.json").write_bytes((old / "MANIFEST.json").read_bytes())
    assert report(cli)["unverified"].startswith("G103: ")


@pytest.mark.parametrize("left", [b"", b"\0\x9f\1", b"[1]", None])
def test_a_checkpoint_without_a_manifest_is_no_untrained_trial(
    cli: Cli, ruled: Ruled, left: bytes | None
) -> None:
    assert report(cli)["unverified"] == "", "it has saved nothing"
    manifest = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5}) / "MANIFEST.json"
    manifest.unlink()
    if left is not None:
        manifest.write_bytes(left)
    item = report(cli)
    assert (item["step"], item["checkpoint"]) == (0, "")
    assert item["unverified"].startswith(f"G103: the manifest of checkpoint {manifest.parent.name}")
    told = cli("ledger", "verify", EXP, "-o", "json", code=0 if left is None else 9)
    [row] = told.items
    assert row["ok"] is (left is None), "a checkpoint may be removed, and not be damaged"
    if left is not None:
        assert f"G103: checkpoint {manifest.parent.name}: it is" in row["first_bad"]
        assert str(manifest) in flat(told.err)


@pytest.mark.parametrize("verb", ["ledger verify", "ckpt verify", "policy report"])
def test_a_damaged_config_is_no_file_that_a_person_wrote(cli: Cli, ruled: Ruled, verb: str) -> None:
    ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    for damage in (b"\xff{", b"", b"- a\n", b"governance: [1]\n"):
        ruled.paths.config.write_bytes(damage)
        err = flat(cli(*verb.split(), EXP, code=9).err)
        assert "experiment.yaml: the config is damaged" in err


def test_a_ledger_beside_a_checkpoint_is_named_by_its_whole_path(
    cli: Cli, ruled: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    ledger = ruled.paths.trial(1).attempt(1).ledger
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:2]))
    whole = [reading.CheckedView("", "", str(folder), "valid")]  # its tensors are not the matter
    monkeypatch.setattr(reading, "run", lambda *_: whole)
    assert f" {ledger}: G105: " in flat(cli("ckpt", "verify", EXP, code=9).err)


def test_a_policy_that_never_was_is_told(cli: Cli, ruled: Ruled) -> None:
    never = dataclasses.replace(POLICY, matrix=((0.0, 0.5), (1.0, 1.0)))
    ruled.attempt(never, {"public": 5})
    item = report(cli)
    assert item["unverified"].startswith("G108: ") and item["policy_digest"] == POLICY.digest


# -- ledgers --------------------------------------------------------------------------------------


def cut(keep: int) -> Callable[[Path], Any]:
    def act(path: Path) -> None:
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:keep]))

    return act


DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "gone": (lambda path: path.unlink(), "attempt 1 has trained, and has no ledger"),
    "empty": (cut(0), "attempt 1 has trained, and has no ledger"),
    "its first records alone": (cut(3), "record 3: it has no end, and its attempt has ended well"),
    "all but its end": (cut(5), "record 5: it has no end, and its attempt has ended well"),
}


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("how", DAMAGED)
def test_a_ledger_that_lacks_something_is_told(
    how: str, checkpoint: bool, cli: Cli, ruled: Ruled
) -> None:
    damage, says = DAMAGED[how]
    folder = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    path = ruled.trial.paths.attempt(1).ledger
    if not checkpoint:
        (folder / "MANIFEST.json").unlink()
    damage(path)
    err = flat(cli("ledger", "verify", EXP, code=9).err)
    assert "G105" in err and says in err and str(path) in err and "backup" in err
    cli("ledger", "query", EXP, "--layer", "head", code=9)


def test_what_a_checkpoint_names_has_to_be_in_the_ledger_of_a_killed_attempt(
    cli: Cli, ruled: Ruled
) -> None:
    folder = ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    attempt = ruled.trial.paths.attempt(1)
    attempt.verdict.unlink()  # it was killed
    cut(5)(attempt.ledger)
    cli("ledger", "verify", EXP)
    cut(3)(attempt.ledger)
    [item] = cli("ledger", "verify", EXP, "-o", "json", code=9).items
    assert f"G105: checkpoint {folder.name}: attempt 1, record 4: " in item["first_bad"]


def test_an_attempt_that_never_trained_needs_no_ledger(cli: Cli, ruled: Ruled) -> None:
    built = ruled.trial.attempt()
    lines = built.paths.journal.read_bytes().splitlines(keepends=True)
    built.paths.journal.write_bytes(lines[0])  # without its first step
    assert "no trial has a ledger" in cli("ledger", "verify", EXP, code=3).err
    assert report(cli)["unverified"] == ""


@pytest.mark.parametrize("bound", ["MOST", "LARGEST"])
def test_a_ledger_beyond_all_bounds_is_read_no_further(
    bound: str, cli: Cli, ruled: Ruled, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    path = ruled.trial.paths.attempt(1).ledger
    first, second = path.read_bytes().splitlines(keepends=True)[:2]
    monkeypatch.setattr(records, bound, 2 if bound == "MOST" else len(first) + len(second))
    found = records.read(1, path)
    assert found is not None and len(found.records) == 2 and "it has more than" in found.wrong
    err = flat(cli("ledger", "verify", EXP, code=9).err)
    assert "G104: record 2: it has more than" in err


# -- sources --------------------------------------------------------------------------------------


def test_a_source_that_nobody_knows_is_not_said_to_have_reached_nothing(
    cli: Cli, ruled: Ruled
) -> None:
    ruled.attempt(POLICY, {"public": 5})
    assert "no checkpoint was exposed to hosp-a" in cli("policy", "impact", "hosp-a").err
    err = flat(cli("policy", "impact", "hosp-q", code=3).err)
    assert "hosp-q: no policy and no checkpoint knows this source" in err
    assert "did you mean hosp-a?" in err
    assert json.loads(cli("policy", "impact", "public", "-o", "json").out)["items"]


# -- packed trials --------------------------------------------------------------------------------


def test_ledgers_of_a_packed_trial_are_read_verified_and_reported(cli: Cli, ruled: Ruled) -> None:
    ruled.attempt(POLICY, {"hosp-a": 3, "public": 5})
    ruled.attempt(POLICY, {"hosp-a": 1, "public": 7})

    def told() -> list[Any]:
        verbs = (("ledger", "verify"), ("ledger", "show"), ("policy", "report"))
        asked = [cli(*verb, EXP, "-o", "json").items for verb in verbs]
        return [*asked, cli("ledger", "query", EXP, "--layer", "head", "-o", "json").items]

    before, ledger = told(), ruled.trial.paths.attempt(1).ledger
    assert before[0][0]["ok"] and len(before[1]) > 8
    assert pack(ruled.trial.paths, lambda: None) == "packed"
    assert not ledger.exists() and told() == before
    archive = packed.archive(ruled.trial.paths.root, 1)
    with zipfile.ZipFile(archive) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    with zipfile.ZipFile(archive, "w") as opened:
        for name, data in members.items():
            opened.writestr(name, data.replace(b'"public":5', b'"public":6'))
    assert "G104" in cli("ledger", "verify", EXP, code=9).err
