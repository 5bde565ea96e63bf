"""Each exit code of the table, by a command that ends with it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcdet.cli import main
from hpcdet.errors import (
    ConfigError,
    IntegrityError,
    NotFound,
    PartialSuccess,
    StillPending,
    Unavailable,
    Unsuccessful,
    UsageError,
)
from hpcdet.store.trials.standing import MANIFEST
from tests.builders import Builder
from tests.cli.started import hpcdet
from tests.commands import Cli

# -- exit codes --------------------------------------------------------------------------


def test_0_success_and_an_empty_list(cli: Cli) -> None:
    assert json.loads(cli("ls", "-o", "json").out)["items"] == []
    assert "no experiments" in cli("ls").err


def test_1_something_unexpected(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("hpcdet.read.lookup.find.experiments", fail)
    ran = cli("ls", code=1)
    assert "error: RuntimeError: boom" in ran.err and "Traceback" not in ran.err
    assert "Traceback" in cli("ls", "--debug", code=1).err


def test_2_usage_and_nobody_there_to_confirm(cli: Cli, swept: Builder) -> None:
    assert "Did you mean 'status'" in cli("stats", code=2).err
    cli("status", "--no-such-flag", code=2)
    assert cli("ckpt", code=2).err.startswith("Usage: hpcdet ckpt")
    ran = cli("rm", "digits", code=2)
    assert "add -y" in ran.err and swept.paths.root.exists()


def test_3_not_found_or_ambiguous(cli: Cli, swept: Builder) -> None:
    Builder(cli.root / "digits-9c00")
    assert "2 experiments fit" in cli("show", "digits", code=3).err
    assert "no such experiment" in cli("show", "mnist", code=3).err


LISTING = ("ls", "status", "eff", "index update", "run ls")
OF_ONE = ("show", "logs", "explain", "best", "metrics", "events", "schedule", "report", "ckpt ls")


@pytest.mark.parametrize("words", [*LISTING, *(f"{verb} x" for verb in OF_ONE), "policy impact x"])
def test_3_a_folder_of_experiments_that_is_not_there(cli: Cli, tmp_path: Path, words: str) -> None:
    absent, empty = tmp_path / "absent", tmp_path / "empty"
    said = cli("-C", absent, *words.split(), code=3).err
    assert said.startswith(f"error: -C {absent}: no such folder\nhint: ") and not absent.exists()
    empty.mkdir()
    assert "no such folder" not in cli("-C", empty, *words.split(), code=3 * (" x" in words)).err


def test_4_a_wrong_config(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text("entrypoint: model_def:X\nsercher: {name: single}\n")
    ran = cli("config", "validate", config, "--site", "local", code=4)
    assert "sercher" in ran.err and "bad.yaml:2" in ran.err and "searcher" in ran.err


def test_5_the_file_system_refuses(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    work = tmp_path / "work"
    cli("init", work)
    ran = cli(
        "submit", work / "random.yaml", "--site", "local", "--no-test", "-C",
        tmp_path / "file" / "root", code=5,
    )  # fmt: skip
    assert "cannot make the experiment's folder" in ran.err


def test_5_a_full_disk_says_of_what_and_what_to_do(
    cli: Cli, swept: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> int:  # as by a write into an open file: it names none
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hpcdet.control.requests.commands.ask", full)
    said = cli("tag", "digits", "--add", "paper", code=5).err
    assert "digits: No space left" in said and "make room" in said


def test_6_it_ended_badly(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.close("ERROR", "ValueError: bad batch")
    ran = cli("wait", "digits", code=6)
    assert "ValueError: bad batch" in ran.err and "hpcdet explain digits-7f3a" in ran.err
    cli("status", "--exit-status", code=6)


def test_7_a_bulk_action_worked_for_some(cli: Cli, swept: Builder) -> None:
    ran = cli("tag", "digits", "mnist", "--add", "paper", "-o", "json", code=7)
    assert [(item["id"], item["ok"]) for item in ran.items] == [
        ("digits-7f3a", True),
        ("mnist", False),
    ]
    assert json.loads(ran.err)["error"]["code"] == "PARTIAL"


def test_8_the_time_is_over(cli: Cli) -> None:
    Builder(cli.root / "digits-7f3a")
    assert "not finished within" in cli("wait", "@last", "--timeout", "0", code=8).err
    assert "is no time; write" in cli("wait", "@last", "--timeout", "5x", code=2).err


def test_9_a_file_is_not_what_was_written(cli: Cli, swept: Builder) -> None:
    folder = swept.paths.trial(1).checkpoint(100, 1)
    ran = cli("ckpt", "verify", folder, "-o", "json", code=9)
    assert ran.items[0]["state"] == "damaged"
    shown = cli("ckpt", "verify", folder, code=9)
    assert shown.out.splitlines()[-1] == f"damaged  {folder}"
    assert f"{folder}: {MANIFEST}: it is not" in shown.err and shown.err.count(str(folder)) == 1


@pytest.mark.parametrize("minimal", [True, False])
def test_init_makes_what_is_valid_and_names_a_site(
    cli: Cli, tmp_path: Path, minimal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: local\n")
    flags = ["--minimal"] if minimal else []
    for site, kept in (("local", "local"), ("mine.yaml", str(tmp_path / "mine.yaml"))):
        ran = cli("init", f"for-{site}", "--profile", site, *flags)
        made = [tmp_path / line for line in ran.out.splitlines()]
        [config] = [path for path in made if path.suffix == ".yaml"]
        assert (len(made) == 2) == minimal and f"submit {config.name}" in ran.err
        [shown] = cli("config", "show", config, "-o", "json").items
        assert shown["site"] == kept
    cli("init", "other", "--profile", "nowhere", *flags, code=4)
    assert not (tmp_path / "other").exists()


def test_one_value_of_a_config(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "work")
    get = ["config", "get", tmp_path / "work" / "random.yaml"]
    site = ["--site", "local"]
    assert cli(*get, "searcher.metric", *site).out == "validation_loss\n"
    assert cli(*get, "max_restarts", *site, "--set", "max_restarts=2").out == "2\n"
    assert json.loads(cli(*get, "searcher.max_length", *site).out) == {"batches": 300}
    assert "max_trails" in cli(*get, "searcher.max_trails", *site, code=3).err


def test_an_index_is_checked_and_copied(cli: Cli, swept: Builder, tmp_path: Path) -> None:
    cli("index", "check", "digits", code=3)
    file = Path(cli("index", "snapshot", "digits", tmp_path / "copy.sqlite").out.strip())
    cli("index", "snapshot", "digits", tmp_path / "absent" / "copy.sqlite", code=3)
    assert not (tmp_path / "absent").exists()
    assert not swept.paths.index.exists()
    swept.paths.index.write_bytes(file.read_bytes())
    cli("index", "check", "digits")
    swept.command("tag", add=["late"])
    ran = cli("index", "check", "digits", code=9)
    assert "events" in ran.err and "metrics" not in ran.err and "index update" in ran.err
    swept.paths.index.write_bytes(b"no database")
    assert "metrics" in cli("index", "check", "digits", code=9).err


def test_only_those_in_a_state_are_canceled_and_the_reason_is_kept(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    Builder(cli.root / "mnist-1a2b").close()
    ids = ["digits-7f3a", "mnist-1a2b"]
    ran = cli("cancel", *ids, "--state", "running", "-o", "json")
    assert ran.items == [] and not built.paths.commands.exists()
    argv = ["--state", "pending", "--state", "RUNNING", "--reason", "wrong data"]
    [item] = cli("cancel", *ids, *argv, "-o", "json").items
    assert (item["id"], item["ok"]) == ("digits-7f3a", True)
    events = cli("events", "digits", "--kind", "command", "-o", "json").items
    assert [event["text"].endswith(": wrong data") for event in events] == [True]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_130_and_143_ending_a_follower_leaves_the_job_alone(
    cli: Cli, sent: signal.Signals, code: int
) -> None:
    Builder(cli.root / "digits-7f3a").trial().attempt()
    process = hpcdet("wait", "digits-7f3a", stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        first = process.stderr.readline()  # it follows now
        process.send_signal(sent)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert b"RUNNING" in first
    assert process.returncode == code, err
    assert sent == signal.SIGTERM or b"the jobs go on" in err
    assert not (cli.root / "digits-7f3a" / "commands").exists()


def test_143_what_is_half_done_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    undone: list[str] = []

    def half(_: list[str]) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            return 0
        finally:
            undone.append("all")

    monkeypatch.setattr(main, "run", half)
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.raises(SystemExit) as ended:
            main.main([])
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    assert ended.value.code == 143 and undone == ["all"]


def test_the_table_of_exit_codes_is_the_errors(cli: Cli) -> None:
    out = cli("help", "exit-codes").out
    codes = [int(line.split()[0]) for line in out.splitlines()]
    assert codes == [*range(10), 130, 143]
    for kind in (
        UsageError,
        NotFound,
        ConfigError,
        Unavailable,
        Unsuccessful,
        PartialSuccess,
        StillPending,
        IntegrityError,
    ):
        assert (kind.__doc__ or "").splitlines()[0].rstrip(".") in out


@pytest.mark.parametrize("form", [["-o", "json"], ["--json"], ["-ojson"], ["--output=json"]])
def test_errors_are_one_line_of_json_where_json_is_asked_for(cli: Cli, form: list[str]) -> None:
    ran = cli("show", "mnist", *form, code=3)
    assert ran.out == ""
    assert json.loads(ran.err)["error"]["code"] == "NOT_FOUND"
    usage = cli("show", "mnist", "--bad", *form, code=2)
    assert json.loads(usage.err)["error"]["code"] == "USAGE"
