"""What all verbs share: exit codes, output formats, errors, help, and what they import."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from hpcdet.cli import main, table_of_verbs
from hpcdet.cli.frame import output, progress
from hpcdet.cli.frame.settings import Settings
from hpcdet.cli.observe import follow
from hpcdet.config.load.layers import Layered
from hpcdet.errors import (
    HpcdetError,
)
from hpcdet.read.experiment import changes
from hpcdet.read.lookup import find
from hpcdet.read.report import scale
from hpcdet.read.views import views
from hpcdet.store.cost.budget import Charge
from hpcdet.store.cost.charges import Book
from hpcdet.store.folder import home
from hpcdet.store.folder.records import Claim, End, WorkerEnd
from tests import TOP
from tests.builders import Builder, put, sweep
from tests.cli.started import hpcdet
from tests.commands import Cli


def test_words_of_an_options_value_do_not_ask_for_json(cli: Cli) -> None:
    ran = cli("submit", "absent.yaml", "--note", "see -o json or --json", code=4)
    assert ran.err.startswith("error: ")


# -- output ------------------------------------------------------------------------------


def test_json_is_an_envelope_and_all_there_is_on_stdout(cli: Cli, swept: Builder) -> None:
    value = json.loads(cli("status", "digits", "-o", "json").out)
    assert value.keys() == {"schema", "generated_at", "items", "warnings"}
    assert value["schema"] == "hpcdet.status/1" and value["warnings"] == []
    [item] = value["items"]
    assert {"id", "state", "trials"} <= item.keys()
    assert {"id", "state", "steps", "best", "restarts"} <= item["trials"][0].keys()
    [shown] = cli("show", "digits", "--json").items
    assert {"config", "attempts"} <= shown.keys()
    assert {"trial", "attempt", "job", "start", "end", "reason", "steps"} <= (
        shown["attempts"][0].keys()
    )
    [ckpt] = cli("ckpt", "ls", "digits/2", "-o", "json").items
    assert {"trial", "step", "path", "bytes", "digest", "state"} <= ckpt.keys()
    metric = cli("metrics", "digits", "-o", "json").items[0]
    assert {"trial", "group", "step", "name", "value", "time"} <= metric.keys()


def test_the_other_formats(cli: Cli, swept: Builder) -> None:
    assert cli("ls", "-o", "id").out == "digits-7f3a\n" == cli("-q", "ls").out
    lines = cli("metrics", "digits", "-o", "jsonl").out.splitlines()
    assert len(lines) > 5 and all(json.loads(line)["name"] for line in lines)
    out = cli("metrics", "digits", "--fields", "trial,name", "-o", "csv", "--no-header").out
    assert next(csv.reader(io.StringIO(out))) == ["1", "loss"]
    assert "SUPERSEDED" in cli("metrics", "digits", "-o", "wide").out
    assert "no such field: nothing" in cli("ls", "--fields", "nothing", "-o", "json", code=2).err


def test_a_field_that_is_not_there_is_refused_before_anything_is_done(
    cli: Cli, swept: Builder
) -> None:
    for argv in (["tag", "--add", "draft"], ["archive"], ["rm", "-y"], ["ckpt", "rm", "-y"]):
        said = cli(*argv, "digits", "--fields", "nothing", code=2).err
        assert "no such field: nothing" in said
    assert cli("ls", "-o", "json").items[0]["labels"] == ["example"]
    assert cli("ckpt", "ls", "digits").out and not list(cli.root.glob("*.gz"))


def test_streams_that_are_closed_full_or_cannot_spell_it(
    cli: Cli, swept: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Builder(cli.root / "a-1a2b", name="日本")
    written = io.BytesIO()
    for stream in (None, io.TextIOWrapper(written, "latin-1")):
        monkeypatch.setattr(sys, "stdout", stream)
        main._mend_streams()
        assert main.run(["ls", "-o", "json"]) == 0
        if stream is None:
            sys.stdout.close()
    assert b'"??"' in written.getvalue()
    with open("/dev/full", "wb") as full:
        process = hpcdet("ls", "-o", "json", stdout=full, stderr=subprocess.PIPE)
        said = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 5 and said.count("\n") == 1, said


def test_a_folder_that_is_gone_or_nobodys_home(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("status", "~nobody-of-that-name/x", code=3)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the current folder no longer exists" in cli("status", "./x", code=5).err
    monkeypatch.setenv("HPCDET_ROOT", "~nobody-of-that-name/x")
    assert "set HOME" in cli("ls", code=4).err


def test_csv_is_no_formula_and_tables_move_no_cursor(cli: Cli) -> None:
    Builder(cli.root / "digits-7f3a", name="=cmd()", labels=["a\x1b[2Jb"])
    out = cli("ls", "-o", "csv", "--fields", "name").out
    assert out.splitlines()[1] == "'=cmd()"
    assert "\x1b" not in cli("ls").out


@pytest.mark.parametrize(
    "argv", [["ls"], ["status"], ["ckpt", "ls", "@last"], ["events", "@last"], ["metrics", "@last"]]
)
def test_tables_fit_into_80_columns(cli: Cli, swept: Builder, argv: list[str]) -> None:
    built = Builder(cli.root / ("a-name-that-is-as-long-as-a-slug-ever-is-7f3a"))
    attempt = built.trial(**{f"hyperparameter_{n}": 0.123456789 for n in range(9)}).attempt()
    attempt.metrics("validation", 100, **{"a_metric_with_a_very_long_name_" * 3: 1.0})
    attempt.checkpoint(100)
    out = cli(*argv).out
    assert out and max(len(line) for line in out.splitlines()) <= 80


def test_global_flags_mean_the_same_before_and_after_the_verb(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Builder(other / "mnist-1a2b")
    assert cli("-C", other, "ls", "-o", "id").out == cli("ls", "-C", other, "-o", "id").out
    assert cli("ckpt", "ls", "mnist", "-C", other).code == 0
    assert cli("ls", "-o", "id").out == ""


def test_times_are_local_unless_utc_is_asked_for(
    cli: Cli, swept: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "Etc/GMT-5")
            time.tzset()
            assert "17:00:00" in cli("ls", "-o", "wide").out
            assert "12:00:00" in cli("ls", "-o", "wide", "--utc").out
    finally:
        time.tzset()


def test_a_reader_that_has_seen_enough_is_no_error(cli: Cli, swept: Builder) -> None:
    read, write = os.pipe()
    os.close(read)
    process = hpcdet("metrics", "digits", stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")


# -- help --------------------------------------------------------------------------------


def all_commands() -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for verb, command in main.cli.commands.items():
        found.append((verb, command))
        if isinstance(command, click.Group):
            found += [(f"{verb} {name}", each) for name, each in command.commands.items()]
    return found


def test_every_verb_has_an_example_and_fits_into_80_columns(cli: Cli) -> None:
    out = cli("--help").out
    assert out.count("  hpcdet ") == 3 and cli().out == out
    for name, command in all_commands():
        text = cli(*name.split(), "--help").out
        assert max(len(line) for line in text.splitlines()) <= 80, name
        if not command.hidden:
            _, begun, examples = text.partition("Example")
            assert begun or isinstance(command, click.Group), name
            assert f"hpcdet {name}" in (examples or text), name


def test_a_next_command_names_the_folder_of_an_experiment_elsewhere(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = sweep(tmp_path / "else where" / "digits-7f3a")
    elsewhere.close("ERROR", "ValueError: bad batch")
    folder = str(elsewhere.paths.root)
    by_path, by_root = (
        cli("wait", folder, code=6),
        cli("wait", "digits", "-C", tmp_path / "else where", code=6),
    )
    for ran in (by_path, by_root):
        command = next(line for line in ran.err.splitlines() if "hpcdet logs" in line)
        words = shlex.split(command.partition("hpcdet ")[2])
        assert words == ["logs", folder, "--errors"]
        cli(*words)
    monkeypatch.setenv("HPCDET_ROOT", str(tmp_path / "else where"))
    assert "hpcdet logs digits-7f3a --errors" in cli("wait", "digits", code=6).err


def test_what_commands_call_an_experiment_a_trial_and_an_attempt(
    cli: Cli, swept: Builder, tmp_path: Path
) -> None:
    for numbers, text in (((), ""), ((3,), "/3"), ((3, 2), "/3.2")):
        assert home.called(swept.paths, *numbers) == f"digits-7f3a{text}"
        away = home.called(swept.paths, *numbers, among=tmp_path)
        found = find.reference(away, tmp_path)
        assert (found.paths.root, found.trial, found.attempt) == (
            swept.paths.root,
            *(*numbers, 0, 0)[:2],
        )


def test_progress_on_a_terminal_redraws_the_lines_that_fit(
    cli: Cli, swept: Builder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Settings, "live", True)
    item = views.status(swept.paths)
    many = dataclasses.replace(item, trials=item.trials * 5)
    with click.Context(main.cli), progress.progress() as shown:
        for lines, columns, view in ((24, 80, item), (3, 30, many), (24, 80, item)):
            monkeypatch.setenv("LINES", str(lines))
            monkeypatch.setenv("COLUMNS", str(columns))
            shown.update([view])
    first, second, third = re.split(r"\x1b\[(?:\d+)F\x1b\[J", capsys.readouterr().err)
    assert first == third and first.count("\n") == 1 + len(item.trials)
    assert "  trial 1     [====" in first
    assert second.count("\n") == 2 and max(map(len, second.splitlines())) == 29


def test_work_on_a_terminal_leaves_an_empty_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Settings, "live", True)
    with click.Context(main.cli), progress.working("copying") as done:
        for fraction in (0.0, 0.5, 0.501, 1.0):
            done(fraction)
    start, half, whole, rest = capsys.readouterr().err.split("\r\x1b[K")
    assert (start, rest) == ("copying …", "")
    assert half.startswith(f"copying  [{'=' * 10}{' ' * 10}] 50 %") and "100 %" in whole


def test_the_list_of_verbs_says_what_the_verbs_say() -> None:
    for name, command in all_commands():
        verb = table_of_verbs.VERBS.get(name)
        if verb is not None and not verb.hidden:
            assert command.short_help == verb.help, name


def test_completion_knows_verbs_and_ids(
    cli: Cli, swept: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_HPCDET_COMPLETE" in cli("completion", shell).out
    from click.shell_completion import ShellComplete

    complete = ShellComplete(main.cli, {}, "hpcdet", "_HPCDET_COMPLETE")
    assert [c.value for c in complete.get_completions(["show"], "dig")] == ["digits-7f3a"]
    assert "status" in [c.value for c in complete.get_completions([], "st")]


# -- imports -----------------------------------------------------------------------------

HEAVY = {"torch", "h5py", "numpy", "sqlite_utils", "pydantic", "jinja2", "submitit"}


@pytest.mark.parametrize(
    "argv", [["--help"], ["ls"], ["status"], ["logs", "@last"], ["metrics", "@last"]]
)
def test_reading_imports_nothing_heavy(cli: Cli, swept: Builder, argv: list[str]) -> None:
    code = (
        "import sys; from hpcdet.cli.main import run; code = run(sys.argv[1:]);"
        "print('LOADED', *sorted({m.partition('.')[0] for m in sys.modules})); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split()[1:])
    assert "click" in loaded
    assert loaded & HEAVY == set()


def test_comparing_code_with_its_snapshot_needs_no_models_of_configs() -> None:
    """What ``status`` does of every experiment that lives."""
    code = "import sys, hpcdet.jobs.create.code_drift; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr


def test_all_of_the_login_side_does_without_torch() -> None:
    modules = sorted({f"hpcdet.cli.{verb.module}" for verb in table_of_verbs.VERBS.values()})
    code = f"import sys, {', '.join(modules)}; print({{'torch', 'h5py'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "set()\n", done.stderr


# -- waiting -----------------------------------------------------------------------------


def test_waiting_ends_when_it_ends_and_says_what_moved(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Builder(cli.root / "digits-7f3a")
    attempt = built.trial().attempt()

    def step(_: float) -> None:
        if not attempt.batches:
            attempt.metrics("validation", 100, validation_loss=0.5)
        elif not built.paths.closed.exists():
            attempt.end("completed")
            built.close("COMPLETED")

    monkeypatch.setattr(follow, "pause", step)
    err = cli("wait", "digits").err.splitlines()
    assert err[0] == "digits-7f3a  PENDING" or err[0] == "digits-7f3a  RUNNING"
    assert "digits-7f3a/1  RUNNING  step 100  best 0.5" in err
    assert err[-1] == "digits-7f3a  COMPLETED"


def test_on_a_terminal_the_lines_are_redrawn(
    cli: Cli, swept: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcdet.cli.frame.settings import Settings

    swept.paths.closed.unlink()
    monkeypatch.setattr(Settings, "live", property(lambda _: True))
    monkeypatch.setattr(follow, "pause", lambda _: swept.close())
    err = cli("wait", "digits", "--color", "never").err
    assert "trial 1" in err and "best 0.25" in err and "COMPLETED" in err
    cli("index", "rebuild", "digits")


def test_trouble_ends_the_waiting_and_a_pause_does_not(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.decide("state", state="PAUSED", why="paused by its user", by="")
    cli("wait", "digits", "--timeout", "0", code=8)
    built.decide("state", state="PAUSED", why="no such partition", by="scheduler")
    assert "no such partition" in cli("wait", "digits", code=6).err


def test_waiting_for_any_of_several(cli: Cli) -> None:
    Builder(cli.root / "digits-7f3a")
    Builder(cli.root / "mnist-1a2b").close()
    cli("wait", "digits", "mnist", "--timeout", "0", code=8)
    cli("wait", "digits", "mnist", "--any", "--timeout", "0")


def test_an_error_of_ours_has_where_and_hint(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise HpcdetError("it broke\nin two lines", where="here", hint="repair it")

    monkeypatch.setattr("hpcdet.read.lookup.find.experiments", fail)
    assert cli("ls", code=1).err == "error: here: it broke\n  in two lines\nhint: repair it\n"


def test_the_manual_names_every_verb() -> None:
    text = (TOP / "docs" / "reference" / "cli.md").read_text()
    for name, command in all_commands():
        if not command.hidden:
            assert f"`{name.split()[-1]}" in text or f"`{name}" in text, name


def test_numbers_that_json_has_not_are_strings(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output.Output("show", "json", (), True)
    shown.emit([{"id": "a", "x": [float("nan"), {"y": -math.inf}]}], [])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["items"][0]["x"] == ["NaN", {"y": "-Infinity"}]


def test_set_asks_for_what_may_change_and_refuses_the_rest(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.trial()
    ran = cli("set", "digits", "max_concurrent=3", "-n", "-o", "json")
    assert ran.items[0]["what"] == "would set searcher.max_concurrent_trials=3"
    assert not built.paths.commands.exists()
    cli("set", "digits", "max_concurrent=many", code=4)
    cli("set", "digits", "entrypoint=rm", code=4)
    cli("set", "digits", code=2)
    cli("set", "max_concurrent=3", code=2)
    cli("set", "digits/1", "max_concurrent=3", code=2)
    cli("set", "digits", "max_concurrent=3")
    assert "searcher.max_concurrent_trials=3" in cli("events", "digits", "-o", "json").out


def test_what_of_a_budget_is_spent_is_said_wherever_one_looks(cli: Cli, tmp_path: Path) -> None:
    built = Builder(
        cli.root / "digits-7f3a", resources={"slots_per_trial": 2}, budget={"slot_hours": 1.0}
    )
    trial = built.trial()
    worker = built.worker()
    attempt = trial.attempt()
    built.clock += 1740
    attempt.end("walltime")
    again = trial.paths.attempt(2)
    put(again.claim, Claim(worker, "n1", at=built.tick(), reserved_slot_s=900.0))
    put(again.end, End("released", at=built.tick()))
    built.clock += 20
    put(built.paths.worker(1, 0, 0).end, WorkerEnd("idle", worker, built.tick()))
    built.decide("state", state="PAUSED", why="budget of 1 slot hours is used up", by="budget")
    [item] = cli("show", "digits", "-o", "json").items
    spent, [row] = item["spent"], item["allocations"]
    assert spent["training_slot_hours"] == pytest.approx(2 * 1745 / 3600, rel=0.01)
    assert spent["overhead_slot_hours"] == pytest.approx(2 * 24 / 3600, rel=0.2)
    assert row["slot_hours"] == spent["slot_hours"] and row["worker"] == worker
    assert spent["budget"] == {"slot_hours": 1.0, "wall_s": None}
    assert (item["trials"][0]["restarts"], item["attempts"][1]["reason"]) == (0, "released")
    assert spent["left_slot_hours"] == pytest.approx(1 - spent["slot_hours"], abs=1e-5)
    # accounting has seen it begin before its worker did
    book = Book(built.paths)
    book.write([Charge(worker, "123_0", 2, 0.0, 1782.0, 3564.0)], [1])
    [item] = cli("show", "digits", "-o", "json").items
    charged, [row] = item["spent"], item["allocations"]
    assert charged["slot_hours"] == charged["charged_slot_hours"] == 0.99
    assert charged["counted_slot_hours"] == spent["slot_hours"] == row["counted_slot_hours"]
    assert "0.99 of 1 slot hours" in cli("status", "digits").out
    said = " ".join(cli("status", "digits").out.split())
    assert "0.99 charged by accounting, 0.01 left" in said
    assert "OVERHEAD" in cli("show", "digits", "--section", "allocations").out
    assert "budget.slot_hours=3" in cli("set", "digits", "budget=3", "-n", "-o", "json").out
    assert "next: hpcdet set digits-7f3a budget.slot_hours=MORE" in cli("explain", "digits").out
    page = tmp_path / "report.html"
    cli("report", "digits", "-o", page)
    assert "charged by accounting" in page.read_text()
    assert "left of a budget of 1 slot hours" in page.read_text()
    work = tmp_path / "work"
    cli("init", work)
    [plan] = cli("plan", work / "random.yaml", "--set", "budget.wall_s=2h", "-o", "json").items
    assert plan["budget"] == {"slot_hours": None, "wall_s": 7200}


def test_the_spare_tasks_of_a_site_are_in_the_script_that_is_shown(
    cli: Cli, tmp_path: Path
) -> None:
    site = tmp_path / "strict.yaml"
    nobody = "{submit_from_compute: false, login_daemon: forbidden}"
    spares = "config: {worker: {spares: 3}}"
    site.write_text(
        f"schema: 1\nname: strict\nextends: generic-slurm\ncapabilities: {nobody}\n{spares}\n"
    )
    work = tmp_path / "work"
    cli("init", work)
    shown = ("submit", work / "random.yaml", "--site", site, "-n", "--offline")
    assert "#SBATCH --array=0-4%2\n" in cli(*shown).out
    assert "#SBATCH --array=0-7%2\n" in cli(*shown, "--set", "worker.spares=6").out


def test_a_tree_of_hyperparameters_in_one_line() -> None:
    blocks = [{"name": "residual", "expansion": 2}, {"name": "pooling", "kind": "max"}]
    tree = {"blocks": blocks, "head": {"name": "linear"}, "sizes": [1, 2], "lr": 0.123456789}
    said = "blocks=residual(expansion=2), pooling(kind=max) head=linear sizes=[1,2] lr=0.12346"
    assert output.text(tree) == said
    assert output.text({"block": {"name": "a\x1b[2J", "size": 1}}) == "block=a?[2J(size=1)"
    assert changes.assigned({"searcher.max_length": {"batches": 32}, "budget.wall_s": None}) == [
        "searcher.max_length={batches: 32}",
        "budget.wall_s=null",
    ]


SETTABLE = (True, False, None, 3, 0.25, -1e-4, "no", "adam", "", "-", "true", "1e-3", "012", "a: b")
SETTABLE += ("it's", "[x", [1, 2], [True, "no", None], ["a", "1"], [])  # type: ignore[assignment]


@pytest.mark.parametrize("value", SETTABLE, ids=repr)
def test_a_printed_hyperparameter_can_be_typed_back(value: Any) -> None:
    printed = output.text({"key": value})
    given = Layered()
    given.set(f"hyperparameters.{printed}")
    assert given.values == {"hyperparameters": {"key": value}}
    [typed] = [type(known) for known in given.values["hyperparameters"].values()]
    assert typed is type(value)
    assert scale.number(value) == printed.removeprefix("key=") or not isinstance(value, bool)
