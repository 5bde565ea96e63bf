"""Who else may read what hpcdet makes, and where a secret stands."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hpcdet.config.load.secret_references import redacted
from hpcdet.errors import ConfigError
from hpcdet.jobs.checks import site_checks
from hpcdet.jobs.create import likely_secrets
from hpcdet.read.lookup import find
from tests.commands import Cli

LITERAL, NESTED, SHELL, EXPORTED, OTHER = (f"{name}-plAnted-t0ken" for name in "abcde")
CONFIG = f"""\
name: secretive
entrypoint: "true"
hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
searcher: {{name: random, metric: m, max_trials: 2, max_length: {{batches: 1}}}}
resources: {{slots_per_trial: 1}}
environment:
  environment_variables: {{WANDB_API_KEY: {EXPORTED}}}
data:
  api_key: {OTHER}
  secrets:
    token: {LITERAL}  # of the data base
    login:
      user: me
      password: "{NESTED}"
    # comes from the node
    other: {{env: SOMETHING}}
"""


def model(folder: Path) -> Path:
    """A folder under version control whose config has changed since, and its config."""
    folder.mkdir(mode=0o700)
    config = folder / "c.yaml"
    config.write_text(CONFIG.replace(LITERAL, "old-token-of-last-year"))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", folder, *command], check=True, timeout=60)
    config.write_text(CONFIG)
    return config


def every_file(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield str(path), path.read_bytes()
    for archive in folder.rglob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield f"{archive}:{member.name}", file.read()


def test_a_planted_token_is_in_no_file_but_its_own(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = model(tmp_path / "model")
    monkeypatch.setenv("HPCDET_TOKEN", SHELL)
    monkeypatch.setenv("SOME_TOKEN", SHELL)
    monkeypatch.setenv("SOMETHING", SHELL)
    ran = cli("submit", config, "--site", "local", "--no-test", "--wait", "-o", "json")
    assert "data.api_key" in " ".join(json.loads(ran.out)["warnings"])
    paths = find.experiment("@last", cli.root)
    cli("report", paths.id)
    cli("index", "update")
    cli("fork", paths.id, "--set", "searcher.max_trials=3")
    cli("wait", "@last", "--timeout", "120")
    cli("archive", paths.id)
    places = [tmp_path / "root", tmp_path / "local-state", tmp_path / "cache"]
    found = [item for place in places for item in every_file(place)]
    names = [name for name, _ in found]
    assert any(name.endswith("/job.json") for name in names)
    assert any("report.html" in name for name in names)
    assert any("tar.gz:" in name for name in names)
    for token in (LITERAL, NESTED):
        holders = [name for name, data in found if token.encode() in data]
        assert len(holders) == 2  # of the experiment, and of the one that was forked
        assert all(Path(name).name == "secrets.json" for name in holders)
    for token in (SHELL, "old-token-of-last-year"):
        assert not [name for name, data in found if token.encode() in data]
    reports = [data for name, data in found if "report.html" in name]
    assert reports and not any(t.encode() in data for t in (EXPORTED, OTHER) for data in reports)
    assert b"(not shown: its name says that it is a secret)" in reports[0]


def test_the_code_differs_by_no_secret_that_was_left_out(cli: Cli, tmp_path: Path) -> None:
    config = model(tmp_path / "model")
    cli("submit", config, "--site", "local", "--no-test", "--prepare")
    paths = find.experiment("@last", cli.root)
    copied = yaml.safe_load((paths.code / "c.yaml").read_text())
    mine = yaml.safe_load(config.read_text())
    stored = {"token": {"stored": "token"}, "login": {"stored": "login"}}
    assert copied["data"].pop("secrets") == {**stored, "other": {"env": "SOMETHING"}}
    del mine["data"]["secrets"]
    assert copied == mine
    recorded = json.loads(paths.provenance.read_text())
    assert recorded["git"]["diff_note"] == "without that of files with secrets"
    assert recorded["git"]["dirty"] and recorded["git"]["uncommitted"] == ["c.yaml"]
    assert site_checks.code_differs(paths) == []
    config.write_text(CONFIG.replace("max_trials: 2", "max_trials: 3"))
    assert site_checks.code_differs(paths) == ["c.yaml (changed)"]


def test_a_snapshot_of_a_former_version_is_no_different_code(cli: Cli, tmp_path: Path) -> None:
    """It has the digest of the whole file."""
    import hashlib

    config = model(tmp_path / "model")
    cli("submit", config, "--site", "local", "--no-test", "--prepare")
    paths = find.experiment("@last", cli.root)
    record = json.loads(paths.provenance.read_text())
    record["code"]["c.yaml"] = hashlib.sha256(config.read_bytes()).hexdigest()
    paths.provenance.write_text(json.dumps(record))
    assert site_checks.code_differs(paths) == []


@pytest.mark.parametrize(
    "where",
    ["notes.txt", "model.py", "c.yaml", "hyperparameters"],
)
def test_a_secret_that_stands_elsewhere_too_is_refused_by_its_name(
    cli: Cli, tmp_path: Path, where: str
) -> None:
    config = model(tmp_path / "model")
    if where == "hyperparameters":
        config.write_text(
            CONFIG.replace("hyperparameters: {", f"hyperparameters: {{y: {LITERAL}, ")
        )
        where = "c.yaml"
    else:
        with (config.parent / where).open("a") as file:
            file.write(f"\n# {LITERAL}\n")
    ran = cli("submit", config, "--site", "local", "--no-test", "--prepare", code=4)
    assert where in ran.err and "data.secrets.token" in ran.err and LITERAL not in ran.err
    assert not [name for name in os.listdir(cli.root) if name.startswith("secretive")]


@pytest.mark.parametrize(
    "text",
    [
        "data: {secrets: {t: 's3cret-value'}}\n",
        "# ü\ndata:\n  secrets:\n    t: |\n      s3cret-value\n      more\n  other: 1\n",
        '{"data": {"secrets": {"t": "s3cret-value"}, "other": 1}}',
        "data:\r\n  secrets:\r\n    t: s3cret-value\r\n  other: 1\r\n",
        "x: &t s3cret-value\ndata:\n  secrets: {t: *t}\n",
        "b: &b {t: s3cret-value}\ndata:\n  secrets: {<<: *b}\n",
        "data:\n  secrets:\n    t: [a, 's3cret-value']\n    # and so on\n    u: {file: x}\n",
        "data:\n  secrets:\n    t: s3cret-value\n      goes on\n\n      and on # c\n  other: 1\n",
        'data:\n  secrets:\n    t: "s3cret-value\n\n      and \\\n      on" # c\n  other: 1\n',
        "data:\n  secrets:\n    t: |+\n      s3cret-value\n\n\n  other: 1\n",
        "data:\n  secrets:\n    t:\n    - s3cret-value\n    - |\n      s3cret-value\n  other: 1\n",
        "data:\n  secrets:\n    t: &t !!str >-\n      s3cret-value\nx: *t\n",
        "data:\n  secrets:\n    t: !!str &t 's3cret-value'\nx: *t\n",
        "d: &d\n  secrets: {t: s3cret-value}\ndata: *d\n",
        "\ufeffdata:\n  secrets:\n    t: s3cret-value\n  other: 1\n",
        '{"d\\x61ta": {"s\\u0065crets": {"t": "s3cret-value"}}}',
    ],
)
def test_every_way_to_write_a_secret_is_found(text: str) -> None:
    shown = redacted(text.encode())
    assert b"s3cret-value" not in shown
    before, after = yaml.safe_load(text), yaml.safe_load(shown.decode())
    assert after["data"]["secrets"]["t"] == {"stored": "t"}
    assert before["data"].get("other") == after["data"].get("other")
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["data = {'secrets': 1}", "data: {secrets: {t: {env: X}}}", "data: [secrets]", "&a [*a, data"],
)
def test_what_holds_no_secret_is_copied_as_it_is(text: str) -> None:
    assert redacted(text.encode()) == text.encode()


def test_a_secret_that_another_one_is_made_of_leaves_nothing_behind() -> None:
    text = "data: {secrets: {t: &b {u: a-s3cret-value-longer-than-a-reference}, <<: *b}}\n"
    assert redacted(text.encode()) == b'data: {secrets: {t: &b {stored: "t"}, <<: *b}}\n'


LINES = '-- one of them --\nthe "s3cret"\tvalu\u00e9 \\n\nit ends\n'


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        json.dumps({"a": LINES}),
        json.dumps({"a": LINES}, ensure_ascii=False),
        "a: |\n" + "".join(f"    {line}\n" for line in LINES.splitlines()),
        yaml.safe_dump({"a": {"b": LINES}}, width=10, allow_unicode=True),
        yaml.safe_dump({"a": {"b": LINES}}, default_style="'", allow_unicode=True),
        "".join(f"# {line}\r\n" for line in LINES.splitlines()),
        f'"""\n{LINES}"""\n',
        "".join(f"{line!r}\n" for line in LINES.splitlines(keepends=True)),
    ],
)
def test_a_secret_of_several_lines_is_found_however_it_is_written(text: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.secrets\.key"):
        likely_secrets.refuse_literal(text.encode(), {"key": LINES}, "x")


def test_short_secrets_are_not_looked_for() -> None:
    likely_secrets.refuse_literal(b"it is 4 2 4 2 4 2", {"pin": "4\n2\n4\n2\n4\n"}, "x")
    likely_secrets.refuse_literal(b"it is 42", {"pin": "42"}, "x")
    with pytest.raises(ConfigError, match=r"data\.secrets\.pin"):
        likely_secrets.refuse_literal(b"it is 12345678", {"pin": ["a", {"b": "12345678"}]}, "x")


@pytest.mark.parametrize("mask", ["000", "022"])
def test_nobody_else_may_read_anything(mask: str, tmp_path: Path) -> None:
    config = model(tmp_path / "model")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "HPCDET_ROOT": str(tmp_path / "made" / "root"),
        "HPCDET_LOCAL_STATE": str(tmp_path / "made" / "state"),
        "XDG_CACHE_HOME": str(tmp_path / "made" / "cache"),
        "TMPDIR": str(tmp_path / "made"),
    }
    (tmp_path / "made").mkdir(mode=0o700)
    hpcdet = f"{sys.executable} -m hpcdet"
    script = f"""
    set -e
    umask {mask}
    {hpcdet} submit {config} --site local --no-test --wait
    {hpcdet} report @last
    {hpcdet} status @last
    {hpcdet} index update
    {hpcdet} searcher start @last || true
    {hpcdet} archive @last --out {tmp_path}/made/all.tar.gz
    {hpcdet} init {tmp_path}/made/mine --minimal
    """
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    made = list((tmp_path / "made").rglob("*"))
    names = {path.name for path in made}
    assert {"supervisor.log", "0.log", "report.html", "index.sqlite", "all.tar.gz"} <= names
    open_to_others = [
        f"{path} {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in made
        if not path.is_symlink() and path.lstat().st_mode & 0o077
    ]
    assert open_to_others == []
    [script_] = [path for path in made if path.name == "run.sh"]
    assert stat.S_IMODE(script_.stat().st_mode) == 0o700
