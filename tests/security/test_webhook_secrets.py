"""Where the address and the key of a webhook stand: nowhere, or in the one file for literals."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.config.load.secret_references import redacted
from hpcdet.control.messages import deliver
from hpcdet.control.upkeep import notify
from hpcdet.read.lookup import find
from hpcdet.store.config import data_secrets, resolved_config
from tests.commands import Cli

URL, SECRET = "https://hooks.example.org/plAnted-t0ken", "plAnted-s3cret"
CONFIG = """\
name: told
entrypoint: "true"
hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
searcher: {{name: random, metric: m, max_trials: 2, max_length: {{batches: 1}}}}
{notify}
"""
LITERAL = f"notify:\n  webhook:\n    url: {URL}  # ours\n    secret: '{SECRET}'"
REFERENCES = "notify: {webhook: {url: {env: HOOK_URL}, secret: {file: %s}}, email: [ada@x.org]}"


def model(folder: Path, notify: str) -> Path:
    folder.mkdir(mode=0o700)
    config = folder / "c.yaml"
    config.write_text(CONFIG.format(notify=notify))
    return config


def holding(root: Path) -> set[str]:
    """Names of the files below a root that hold any of both."""
    words = (b"plAnted-t0ken", b"plAnted-s3cret")
    return {
        path.name
        for path in root.rglob("*")
        if path.is_file() and any(word in path.read_bytes() for word in words)
    }


def shown(cli: Cli) -> str:
    """What verbs print of the newest experiment."""
    ran = [
        cli("show", "@last"),
        cli("show", "@last", "-o", "json"),
        cli("config", "show", "@last"),
        cli("status", "@last", "-o", "json"),
        cli("events", "@last"),
        cli("report", "@last", "--format", "json", "-o", cli.root.parent / "r.json"),
    ]
    return "".join(one.out + one.err for one in ran) + (cli.root.parent / "r.json").read_text()


def test_literals_stand_in_one_private_file(cli: Cli, tmp_path: Path) -> None:
    config = model(tmp_path / "model", LITERAL)
    submit = ("submit", config, "--site", "local", "--no-test")
    assert "plAnted" not in (preview := cli(*submit, "-n")).out + preview.err
    cli(*submit, "--prepare")
    paths = find.experiment("@last", cli.root)
    assert holding(cli.root) == {"secrets.json"}
    assert paths.secrets.stat().st_mode & 0o077 == 0
    hook = resolved_config.load(paths.config).notify.webhook
    assert data_secrets.value("url", hook.url or {}, paths.secrets) == URL
    assert data_secrets.value("secret", hook.secret or {}, paths.secrets) == SECRET
    assert "plAnted" not in shown(cli)
    copied = (paths.code / "c.yaml").read_text()
    assert 'url: {stored: "notify.webhook.url"}  # ours' in copied


def test_literals_of_flags_are_in_no_record(cli: Cli, tmp_path: Path) -> None:
    config = model(tmp_path / "model", "")
    sets = (f"notify.webhook.url={URL}", f"notify.webhook={{secret: {SECRET}}}")
    flags = [word for one in sets for word in ("--set", one)]
    cli("submit", config, "--site", "local", "--no-test", "--prepare", *flags)
    assert holding(cli.root) == {"secrets.json"}
    assert "plAnted" not in shown(cli)
    cli("fork", "@last", "--more-trials", 1, "-n")


def test_what_references_name_is_in_no_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text(f"{SECRET}\n")
    monkeypatch.setenv("HOOK_URL", "http://127.0.0.1:1/plAnted-t0ken")
    config = model(tmp_path / "model", REFERENCES % key)
    cli("submit", config, "--site", "local", "--no-test", "--prepare")
    paths = find.experiment("@last", cli.root)
    wishes = resolved_config.load(paths.config).notify
    notify.leave(paths, wishes, "end", "end", "it is over", "told")
    deliver.send_all(paths)  # nobody listens there
    [status] = cli("status", "@last", "-o", "json").items
    assert {one["channel"]: one["tries"] for one in status["unsent"]} == {"webhook": 1, "email": 1}
    assert holding(cli.root) == set()
    assert "plAnted" not in shown(cli)


def test_a_change_takes_references_only(cli: Cli, tmp_path: Path) -> None:
    config = model(tmp_path / "model", "")
    cli("submit", config, "--site", "local", "--no-test", "--prepare")
    said = cli("set", "@last", f"notify.webhook.url={URL}", code=4)
    assert "expected a reference" in said.err and "plAnted" not in said.err + said.out
    cli("set", "@last", "notify.webhook.url={env: HOOK_URL}", "notify.email=ada@example.org")
    [shown] = cli("show", "@last", "-o", "json").items
    assert shown["config"]["notify"]["webhook"]["url"] == {"env": "HOOK_URL"}
    bad = cli("set", "@last", "notify.email='ada@x.org, b@x.org'", code=4)
    assert "is no address" in bad.err
    assert holding(cli.root) == set()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (f"notify: {{webhook: {URL}}}", "notify.webhook: expected a map of url and secret"),
        ("notify: {webhook: {url: http://x.org/plAnted-t0ken}}", "webhook.url: it is not https"),
        (f"notify: {{webhook: {{secret: {SECRET}}}}}", "no url to send to"),
        (f"notify: {{webhook: {{url: [{URL}]}}}}", "notify.webhook.url: expected text"),
        (f"notify: {{webhook: {{secret: {{stored: {SECRET}}}}}}}", "another experiment"),
        ("notify: {email: '-oQ/tmp'}", "notify.email: '-oQ/tmp' is no address"),
        ("data: {secrets: {notify.webhook.url: x}}", "the name is hpcdet's own"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_without_the_secret(
    cli: Cli, tmp_path: Path, section: str, said: str
) -> None:
    config = model(tmp_path / "model", section)
    ran = cli("config", "validate", config, code=4)
    assert said in ran.err and "plAnted" not in ran.err + ran.out


def test_copies_of_configs_hold_references() -> None:
    text = f"notify: {{webhook: {URL}}}\n"
    assert redacted(text.encode()) == b'notify: {webhook: {stored: "notify.webhook"}}\n'
    same = b"notify: {webhook: {url: {env: A}, secret: {file: b}}}\n"
    assert redacted(same) == same
