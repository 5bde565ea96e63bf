"""The policy of an experiment: written once, carried along, and the one under which it trains."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdet.config import api as config
from hpcdet.config.load import enforced
from hpcdet.config.policy.policy_file import read_policy
from hpcdet.errors import ConfigError
from hpcdet.jobs.create import begin_from, create
from hpcdet.policy import experiment_policy
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.keys import key_files, run_keys
from hpcdet.policy.memorization import twin_keys
from hpcdet.site_files import load_site as sites
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import GOVERNANCE_KEYS, Governance
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.trials.parents import Donation
from tests.config.test_policies import POLICY

CONFIG = """\
name: governed
entrypoint: model_def:Trial
searcher: {name: single, metric: loss, max_length: {batches: 4}}
"""
GOVERNED = CONFIG + "governance: {policy: rules/p.yaml}\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "rules").mkdir(parents=True)
    (folder / "model_def.py").write_text("x = 1\n")
    (folder / "rules" / "p.yaml").write_text(POLICY.replace("2027-12-31", "2999-12-31"))
    return folder


def loaded(model: Path, text: str = GOVERNED) -> config.LoadedConfig:
    """A checked config with its policy, as ``cli.inputs.load_request`` makes it."""
    (model / "config.yaml").write_text(text)
    return governed(model / "config.yaml")


def governed(file: Path) -> config.LoadedConfig:
    checked = config.load(file)
    named = checked.config.governance
    policy = None if named is None else read_policy(named.policy, file.parent)
    return checked if policy is None else enforced.governed(checked, policy)


def made(model: Path, **changes: Any) -> ExperimentPaths:
    wanted = loaded(model, **changes)
    return create.create(wanted, sites.load("local"), model, model.parent / "root")


def named(paths: ExperimentPaths) -> Governance:
    found = resolved_config.load(paths.config).governance
    assert found is not None
    return found


def test_an_experiment_keeps_text_and_compiled_policy_and_names_it(model: Path) -> None:
    wanted = loaded(model).policy
    assert wanted is not None
    paths = made(model)
    assert paths.policy.read_text() == (model / "rules" / "p.yaml").read_text()
    assert experiment_policy.load(paths, named(paths)) == wanted.compiled
    digest = wanted.compiled.digest
    assert (named(paths).policy, named(paths).digest) == ("policy.yaml", digest)
    record = json.loads(paths.provenance.read_text())["policy"]
    assert record == {"name": "notes", "version": 3, "digest": digest}
    assert not (paths.policy.stat().st_mode | paths.compiled_policy.stat().st_mode) & 0o077


def test_keys_that_are_not_given_are_drawn_and_stand_in_one_private_file(model: Path) -> None:
    paths = made(model)
    keys = [experiment_policy.key(paths, named(paths), name) for name in GOVERNANCE_KEYS]
    assert len(set(keys)) == 2 and all(len(bytes.fromhex(key)) == 32 for key in keys)
    assert not paths.secrets.stat().st_mode & 0o077
    everywhere = b"".join(p.read_bytes() for p in paths.root.rglob("*") if p.is_file())
    assert [everywhere.count(key.encode()) for key in keys] == [1, 1]
    other = made(model)
    assert experiment_policy.key(other, named(other), "twin_key") not in keys


def test_a_submission_commits_to_the_key_of_twins(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert named(made(model)).commitment == ""  # the policy asks for none
    policy = model / "rules" / "p.yaml"
    policy.write_text(policy.read_text() + "memorization: {twins: {pairs: 5}}\n")
    paths = made(model)
    key = experiment_policy.key(paths, named(paths), "twin_key")
    assert twin_keys.reveals(key.encode(), named(paths).commitment)
    assert named(made(model)).commitment != named(paths).commitment
    text = f"{CONFIG}governance: {{policy: rules/p.yaml, twin_key: {{env: TWIN}}}}\n"
    for value, says in ((None, "TWIN is not set"), ("short", "has 5 bytes")):
        if value is not None:
            monkeypatch.setenv("TWIN", value)
        with pytest.raises(PolicyRefused, match=f"P10: .*{says}"):
            made(model, text=text)
    monkeypatch.setenv("TWIN", "0123456789abcdef")
    assert twin_keys.reveals(b"0123456789abcdef", named(made(model, text=text)).commitment)


def test_canaries_alone_commit_to_the_key_too(model: Path) -> None:
    policy = model / "rules" / "p.yaml"
    policy.write_text(policy.read_text() + "memorization: {canaries: {}}\n")
    paths = made(model)
    key = experiment_policy.key(paths, named(paths), "twin_key")
    assert twin_keys.reveals(key.encode(), named(paths).commitment)


@pytest.mark.parametrize("kind", ["twins", "canaries"])
@pytest.mark.parametrize("mode", ["prune", "stop", "warn"])
def test_weights_that_may_have_seen_the_twins_are_refused_where_a_gate_judges_them(
    model: Path, monkeypatch: pytest.MonkeyPatch, mode: str, kind: str
) -> None:
    policy = model / "rules" / "p.yaml"
    policy.write_text(f"{policy.read_text()}memorization: {{{kind}: {{}}, on_violation: {mode}}}\n")
    monkeypatch.setenv("TWIN", "0123456789abcdef")
    text = f"{CONFIG}governance: {{policy: rules/p.yaml, twin_key: {{env: TWIN}}}}\n"
    wanted = loaded(model, text).policy
    assert wanted is not None
    own = twin_keys.commitment(b"0123456789abcdef")
    resolved = {"governance": {"commitment": own}}

    compiled = wanted.compiled

    def begin(meta: dict[str, Any]) -> None:
        donation = Donation(model, 4, {"meta": meta})
        begin_from.refuse_other_tests(resolved, donation, compiled)

    begin({"governance": {kind: {"commitment": own, "void": ""}}})
    others = [{"commitment": "sha256:11", "void": ""}, {"commitment": own, "void": "seen"}]
    metas: list[dict[str, Any]] = [{}, *({"governance": {kind: one}} for one in others)]
    for meta in metas:
        if mode == "warn":
            begin(meta)
            continue
        with pytest.raises(ConfigError, match=r"searcher.begin_from: its weights may have seen"):
            begin(meta)


def test_references_to_keys_stay_and_are_followed_where_they_are_needed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = model.parent / "key"
    file.write_text("ab" * 32 + "\n")
    file.chmod(0o600)
    keys = f"run_key: {{file: {file}}}, twin_key: {{env: TWIN}}"
    paths = made(model, text=f"{CONFIG}governance: {{policy: rules/p.yaml, {keys}}}\n")
    assert not paths.secrets.exists()
    assert experiment_policy.key(paths, named(paths), "run_key") == "ab" * 32
    file.chmod(0o644)
    for name, says in (("run_key", "others may read"), ("twin_key", "TWIN is not set")):
        with pytest.raises(PolicyRefused, match=f"governance.{name}: P10: .*{says}"):
            experiment_policy.key(paths, named(paths), name)
    monkeypatch.setenv("TWIN", "cd")
    assert experiment_policy.key(paths, named(paths), "twin_key") == "cd"
    with pytest.raises(PolicyRefused, match="P10: there is no key"):
        experiment_policy.key(paths, Governance("policy.yaml"), "twin_key")


def test_a_key_is_looked_for_beside_the_config_wherever_a_command_begins(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs, and later commands of their owner, begin in other folders than the submission."""
    (model.parent / "key").write_text("ab" * 32 + "\n")
    (model.parent / "key").chmod(0o600)
    text = f"{CONFIG}governance: {{policy: rules/p.yaml, run_key: {{file: ../key}}}}\n"
    monkeypatch.chdir(model / "rules")
    (model / "config.yaml").write_text(text)
    loaded = governed(Path("../config.yaml"))
    paths = create.create(loaded, sites.load("local"), model, model.parent / "root")
    monkeypatch.chdir("/")
    assert named(paths).run_key == {"file": str(model.parent / "key")}
    assert experiment_policy.key(paths, named(paths), "run_key") == "ab" * 32
    (model.parent / "links").mkdir()
    (model.parent / "links" / "model").symlink_to(model)  # the key is where the policy is
    linked = governed(model.parent / "links" / "model" / "config.yaml").resolved()["governance"]
    assert linked["run_key"] == {"file": str(model.parent / "key")}
    (model / "config.yaml").write_text(text.replace("../key", "~/key"))
    kept = governed(model / "config.yaml").resolved()["governance"]
    assert kept["run_key"] == {"file": "~/key"}
    (model.parent / "key").unlink()
    with pytest.raises(
        PolicyRefused, match=r"governance.run_key: P10: cannot read .*/key"
    ) as found:
        experiment_policy.key(paths, named(paths), "run_key")
    assert "absolute path" in found.value.hint


@pytest.mark.parametrize(
    ("section", "where", "says"),
    [
        ("{policy: rules/q.yaml}", "rules/q.yaml", "P01: cannot read the policy: No such file"),
        ("{policy: strict}", "strict", "ships no policy named 'strict'"),
        ("{policy: rules/p.yaml, run_key: 0123456789}", "governance.run_key", "not the key itself"),
        ("{policy: rules/p.yaml, twin_key: {env: 7}}", "governance.twin_key", "not the key itself"),
        ("{}", "config.yaml:4: governance.policy", "'policy' is missing"),
        ("{policy: ''}", "config.yaml:4: governance.policy", "at least 1 character"),
        ("{polcy: a}", "governance.polcy", "did you mean 'policy'?"),
    ],
)
def test_what_is_wrong_with_the_section_is_said_at_its_key(
    model: Path, section: str, where: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=where) as caught:
        loaded(model, f"{CONFIG}governance: {section}\n")
    assert says in str(caught.value) and "0123456789" not in str(caught.value)


def test_a_secret_cannot_take_the_place_of_a_key(model: Path) -> None:
    text = GOVERNED + "data: {secrets: {governance.twin_key: guessed}}\n"
    with pytest.raises(ConfigError, match="the name is hpcdet's own"):
        loaded(model, text)


def test_the_config_of_an_experiment_is_a_config_and_draws_keys_of_its_own(model: Path) -> None:
    paths = made(model)
    again = governed(paths.config)
    assert again.policy is not None and again.policy.text == paths.policy.read_text()
    other = create.create(again, sites.load("local"), paths.code, model.parent / "other")
    first, second = (json.loads(one.secrets.read_text()) for one in (paths, other))
    assert first.keys() == second.keys() and not set(first.values()) & set(second.values())
    signer = named(other).signer
    assert signer != named(paths).signer
    assert dataclasses.replace(named(other), signer=named(paths).signer) == named(paths)


def test_the_run_key_is_fixed_by_its_public_half(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = made(model)
    key = key_files.parse(experiment_policy.key(paths, named(paths), "run_key"), "")
    assert named(paths).signer == key_files.public(key)
    policy = experiment_policy.load(paths, named(paths))
    assert run_keys.signers(policy, named(paths)) == [named(paths).signer]

    text = f"{CONFIG}governance: {{policy: rules/p.yaml, run_key: {{env: RUN}}}}\n"
    with pytest.raises(ConfigError, match="P10: the variable RUN is not set"):
        made(model, text=text)
    monkeypatch.setenv("RUN", "01" * 32)
    paths = made(model, text=text)
    monkeypatch.setenv("RUN", "02" * 32)
    with pytest.raises(ConfigError, match="P10: it is another key than the experiment was"):
        run_keys.load(paths, named(paths), policy)


def test_without_the_section_nothing_of_a_policy_is_there(model: Path) -> None:
    plain = loaded(model, CONFIG)
    assert plain.policy is None and "governance" not in plain.resolved()
    paths = create.create(plain, sites.load("local"), model, model.parent / "root")
    assert not paths.policy.exists() and not paths.compiled_policy.exists()
    assert "policy" not in json.loads(paths.provenance.read_text())
    assert "governance" not in paths.config.read_text() and not paths.secrets.exists()


def test_an_experiment_made_again_has_policy_changes_and_keys(model: Path) -> None:
    paths = made(model)
    paths.policy_changes.mkdir()
    (paths.policy_changes / "0001.json").write_text("{}")
    other = create.again(paths, lambda _: None)
    for name in ("policy.yaml", "policy.json", "secrets.json", "policies/0001.json"):
        assert (other.root / name).read_bytes() == (paths.root / name).read_bytes(), name
    assert experiment_policy.load(other, named(other)) == loaded(model).policy.compiled  # type: ignore[union-attr]


def test_a_policy_that_is_gone_or_another_one_does_not_train(model: Path) -> None:
    moved = ExperimentPaths(model.parent / "moved")
    shutil.move(made(model).root, moved.root)
    assert experiment_policy.load(moved, named(moved)).name == "notes"
    text = moved.compiled_policy.read_text()
    (model / "rules" / "p.yaml").write_text(POLICY.replace("2027-", "2999-").replace("0.5}", "1}"))
    looser = loaded(model).policy
    assert looser is not None
    for says, changed in {
        "G110: it is damaged": text[:-9],
        "G110: it is not what was written": text.replace("0.5", "1.0"),
        "G101": text.replace("hpcdet-policy/1", "hpcdet-policy/9"),
        "G110: it is not the policy that the": looser.compiled.to_json(),
    }.items():
        assert changed != text
        moved.compiled_policy.write_text(changed)
        with pytest.raises(GovernanceBroken, match=says) as caught:
            experiment_policy.load(moved, named(moved))
        assert caught.value.exit_code == 9
    moved.compiled_policy.unlink()
    with pytest.raises(GovernanceBroken, match="is gone"):
        experiment_policy.load(moved, named(moved))


def test_checking_a_config_brings_numpy_only_with_a_policy(model: Path) -> None:
    (model / "config.yaml").write_text(CONFIG)
    code = (
        "import sys; from pathlib import Path; from hpcdet.config import api as config;"
        "config.load(Path(sys.argv[1])); print('numpy' in sys.modules)"
    )
    argv = [sys.executable, "-c", code, str(model / "config.yaml")]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "False\n"
