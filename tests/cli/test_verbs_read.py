"""Verbs that read, and those on sites, templates and configs, through the command line."""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from hpcdet.cli import main
from hpcdet.cli.observe import follow
from hpcdet.control.upkeep import accounting
from hpcdet.read import report
from hpcdet.read.experiment.gather import gather
from hpcdet.read.lookup import find
from hpcdet.read.views import brief, logs
from hpcdet.search import searcher_factory
from hpcdet.search.api import codec, events
from hpcdet.store.config import resolved_config as config
from hpcdet.store.fs import files
from hpcdet.units import Length
from tests.builders import Builder, sweep
from tests.commands import Cli


def test_logs_are_cut_filtered_and_named(cli: Cli, swept: Builder) -> None:
    assert cli("logs", "digits/1.2", "--rank", "1").out == "rank 1 speaks\n"
    assert cli("logs", "digits", "--tail", "1").out.endswith("ValueError: bad batch 2\n")
    assert cli("logs", "digits", "--head", "1").out == "epoch 1\n"
    lines = cli("logs", "digits", "-g", "^epoch").out.splitlines()
    assert lines == ["[1.1 r0] epoch 1", "[1.1 r0] epoch 2", "[1.2 r0] epoch 3"]
    errors = cli("logs", "digits/3", "--errors", "--attempt", "1", "-o", "json").items
    assert [line["text"] for line in errors][-1] == "ValueError: bad batch 1"
    [path] = cli("logs", "digits/3.1", "--path").out.splitlines()
    assert Path(path).read_text().startswith("fine so far")
    assert "regular expression" in cli("logs", "digits", "-g", "(", code=2).err
    assert cli("logs", "digits", "--since", "1m").out.count("\n") == 0
    for nothing in ("yesterday", "9999999999999d"):
        assert "is no time" in cli("logs", "digits", "--since", nothing, code=2).err


def test_logs_of_the_attempt_before_the_newest_with_times(cli: Cli, swept: Builder) -> None:
    assert cli("logs", "digits", "--previous", "-g", "epoch|Error:").out.splitlines() == [
        "[1.1 r0] epoch 1",
        "[1.1 r0] epoch 2",
        "[3.1 r0] ValueError: bad batch 1",
    ]
    traces = cli("logs", "digits", "--previous", "--errors").out.splitlines()
    assert len(traces) == 4 and traces[-1] == "ValueError: bad batch 1"
    for more in (["-f"], ["--attempt", "1"]):
        assert "--previous" in cli("logs", "digits", "--previous", *more, code=2).err
    attempt = swept.paths.trial(2).attempt(1)
    attempt.logs.mkdir()
    attempt.log(0).write_text("hello\n2026-03-01T12:00:00Z INFO begin\n")
    assert cli("--utc", "logs", "digits/2", "--timestamps").out.splitlines() == [
        f"{'-':19} hello",
        "2026-03-01 12:00:00 2026-03-01T12:00:00Z INFO begin",
    ]


def test_the_best_trial_has_a_name(cli: Cli, swept: Builder) -> None:
    for name in ("@best", "@last/@best", "digits/@best"):
        assert [t["trial"] for t in cli("status", name, "--json").items[0]["trials"]] == [2]
    assert str(find.reference("digits/@best.1", cli.root)) == "digits-7f3a/2.1"
    Builder(cli.root / "mnist-1a2b").trial()
    assert "no trial has a value of validation_loss" in cli("show", "mnist/@best", code=3).err


def test_followed_logs_and_events_end_with_the_experiment(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Builder(cli.root / "digits-7f3a")
    attempt = built.trial().attempt()
    attempt.log("begin\n")
    steps = iter([lambda: attempt.log("mid"), lambda: attempt.log("dle\n"), built.close] * 2)
    monkeypatch.setattr(follow, "pause", lambda _: next(steps)())
    assert cli("logs", "digits", "-f").out == "begin\nmiddle\n"
    built.paths.closed.unlink()
    followed = iter([lambda: attempt.checkpoint(100), built.close])
    monkeypatch.setattr(follow, "pause", lambda _: next(followed)())  # type: ignore[operator]
    assert (
        "no events of kind nonsense; there are: "
        in cli("events", "digits", "--kind", "nonsense").err
    )
    assert "no metrics of --name nonsense" in cli("metrics", "digits", "--name", "nonsense").err
    kinds = cli("events", "digits", "-f", "-o", "id").out.split()
    assert kinds == ["started", "start", "first_step", "checkpoint", "state"]


def test_followed_logs_are_filtered_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Builder(cli.root / "digits-7f3a")
    attempt = built.trial().attempt()
    attempt.log("INFO one\nERROR tw")
    steps = iter([lambda: None, lambda: attempt.log("o\nINFO three\nERROR four\n"), built.close])
    monkeypatch.setattr(follow, "pause", lambda _: next(steps)())
    out = cli("logs", "digits", "-f", "--level", "ERROR", "-o", "json").out
    texts = [line.strip() for line in out.splitlines() if '"text"' in line]
    assert texts == ['"text": "ERROR two",', '"text": "ERROR four",']
    assert out.count("generated_at") == 2, "a poll without news prints nothing"


def test_status_says_why_a_trial_stands_as_it_does(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.trial()
    assert "WHY" not in cli("status", "digits").out
    why = "rung 1 of 3 (100 batches): rank 3 of 6, the best 2 go on"
    many = {"learning_rate": 0.0046416, "hidden": 320, "optimizer": "adam"}
    built.trial(**many).control("pause", why=why)
    out = cli("status", "digits").out
    assert "rank 3 of 6 (rung 1)" in out and max(map(len, out.splitlines())) <= 80
    assert "RESTARTS" not in out and "PROMOTED" not in out, "columns without a value"
    assert cli("status", "digits", "-o", "json").items[0]["trials"][1]["why"] == why


def test_explain_of_a_trial_begins_with_its_own_state(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.trial().control("stop", why="threshold: 0.5 is above 0.4")
    built.trial()
    assert "digits-7f3a/1: STOPPED: threshold: 0.5 is above 0.4" in cli("explain", "digits/1").out
    assert "digits-7f3a/2: PENDING" in cli("explain", "digits/2").out
    assert "digits-7f3a/1: STOPPED" not in cli("explain", "digits").out


def test_events_as_a_chart(cli: Cli, swept: Builder) -> None:
    out = cli("--utc", "events", "digits", "--gantt").out
    title, *rows, legend = out.splitlines()
    assert out.isascii() and all(len(line) <= 80 for line in out.splitlines())
    assert title.startswith("2026-03-01 12:00:") and "c saves" in legend
    bars = {row.split(" |")[0]: row.split("|")[1] for row in rows}
    assert list(bars) == ["1.1", "1.2", "2.1", "3.1", "3.2"]
    assert bars["1.1"].startswith("sss=") and bars["1.1"].count("c") == 1
    assert ".s" in bars["1.2"] and bars["3.2"].rstrip().endswith("=")
    assert rows[0].endswith("| preempted") and rows[4].endswith("| user_error")
    [_, one, _] = cli("events", "digits/1.2", "--gantt").out.splitlines()
    assert one.endswith("| completed")
    cli("events", "digits", "--gantt", "-f", code=2)
    built = Builder(cli.root / "mnist-1a2b")
    assert "nothing was started" in cli("events", "mnist", "--gantt").err
    attempt = built.trial().attempt()
    assert "=| running" in cli("events", "mnist", "--gantt").out
    attempt.paths.journal.unlink()  # it has not done its first step yet
    assert "s| running" in cli("events", "mnist", "--gantt").out


def test_status_follows_to_the_end(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Builder(cli.root / "digits-7f3a")
    monkeypatch.setattr(follow, "pause", lambda _: built.close())
    out = cli("status", "-w", "digits").out
    assert out.index("PENDING") < out.index("COMPLETED")
    assert cli("status", "digits", "-w").out == cli("status", "-w", "2", "digits").out
    cli("status", "digits", "-w", "0.5", code=2)


def test_metrics_are_chosen_and_plotted(cli: Cli, swept: Builder) -> None:
    best = cli("metrics", "digits", "--best", "--name", "validation_loss", "-o", "json").items
    assert [(row["trial"], row["value"]) for row in best] == [(1, 0.25), (2, 0.1)]
    last = cli("metrics", "digits/2", "--last", "-o", "json").items
    assert {row["name"]: row["value"] for row in last} == {
        "validation_loss": "NaN",
        "accuracy": 0.94,
    }
    plot = cli("metrics", "digits/1", "--name", "loss", "--plot").out
    assert plot.startswith("digits-7f3a/1 training loss\n") and plot.count("*") == 5
    assert len(cli("metrics", "digits", "--all", "-o", "json").items) == (
        # trial 1 at step 150 and trial 3 at step 20 were trained twice
        len(cli("metrics", "digits", "-o", "json").items) + 2
    )
    cli("metrics", "digits", "--best", "--last", code=2)


def test_metrics_along_epochs_and_time(cli: Cli, swept: Builder) -> None:
    argv = ("metrics", "digits/1", "--name", "loss")
    rows = cli(*argv, "--x", "wall", "--json").items
    assert [row["x"] for row in rows] == [3.0, 4.0, 14.0, 15.0, 16.0]
    assert "x" not in cli(*argv, "--json").items[0]
    lines = cli(*argv, "--x", "wall", "--plot").out.splitlines()
    assert lines[-1].split() == ["3", "s", "16", "s"]
    assert lines[0] == "digits-7f3a/1 training loss"
    assert "nothing to plot" in cli(*argv, "--x", "epoch", "--plot").err
    attempt = swept.trial().attempt()
    for step, epochs in ((100, 0), (200, 1)):
        units = {"batches": step, "epochs": epochs}
        attempt.line("metrics", group="training", step=step, metrics={"loss": 1.0}, units=units)
    assert cli("metrics", "digits/4", "--x", "epoch", "--plot").out.split()[-2:] == ["0", "1"]


def test_explain_names_the_cause_and_the_next_command(cli: Cli, swept: Builder) -> None:
    out = " ".join(cli("explain", "digits").out.split())
    assert "the scheduler took the nodes back (1 time); 50 steps again" in out
    assert 'raise ValueError("bad batch 2")' in out
    assert "next: hpcdet logs digits-7f3a/3 --errors" in out
    grown = Builder(cli.root / "grown-3c4d").trial()
    for reason in ("resized", "completed"):
        grown.attempt().end(reason)
    out = " ".join(cli("explain", "grown").out.split())
    assert "left for a job with all of them (1 time); 0 steps again" in out
    Builder(cli.root / "mnist-1a2b").job("77", error="invalid partition")
    [_, refused, *_] = cli("explain", "mnist", "-o", "json").items
    assert refused["evidence"] == ["invalid partition"]


def test_explain_gives_a_long_message_once(cli: Cli) -> None:
    """As the error of an attempt, within the reason to give the trial up, and of the experiment."""
    error = f"ValueError: {'very ' * 100}bad"
    why = f"failed 1 time (max_restarts 0): {error}"
    built = Builder(cli.root / "mnist-1a2b")
    trial = built.trial()
    attempt = trial.attempt()
    attempt.end("user_error", error=error)
    trial.control("fail", why=why)
    built.close("ERROR", f"trial 1: {why}")
    for log in ("", f"Traceback (most recent call last):\n  here\n{error}\n"):
        attempt.paths.logs.mkdir(exist_ok=True)
        attempt.paths.log(0).write_text(log)
        out = " ".join(cli("explain", "mnist").out.split())
        assert out.count("very bad") == 1 and "failed 1 time (max_restarts 0)" in out
        assert ("most recent call last" in out) is bool(log)
    halted = Builder(cli.root / "digits-7f3a")
    halted.job(error=error)
    halted.decide("state", state="PAUSED", why=error, by="scheduler")
    assert cli("explain", "digits").out.count("bad") == 1


def test_explain_shows_the_rank_that_failed_and_prints_nothing_for_no_error(cli: Cli) -> None:
    built = Builder(cli.root / "mnist-1a2b")
    trial = built.trial()
    attempt = trial.attempt()
    error = "ValueError: bad batch"
    attempt.end("user_error", error=error)
    trial.control("fail", why=f"failed 1 time: {error}")
    lost = "Traceback (most recent call last):\n  here\nRuntimeError: lost a peer\n"
    attempt.paths.logs.mkdir(exist_ok=True)
    attempt.paths.log(0).write_text(lost)
    for its in ("", lost.replace("RuntimeError: lost a peer", error)):
        attempt.paths.log(1).write_text(its)
        out = " ".join(cli("explain", "mnist").out.split())
        assert out.count(error) == 1 and ("lost a peer" in out) is not bool(its)
    built = Builder(cli.root / "digits-7f3a")
    built.trial().attempt().end("launch_failed")
    items = cli("explain", "digits", "-o", "json").items
    assert [item["evidence"] for item in items if item["kind"] == "failure"] == [[]]
    built = Builder(cli.root / "over-1a2b", distributed={"backend": "mpi"})
    built.trial().attempt().end("launch_failed")
    assert "MPI has to support the site file's launcher" in cli("explain", "over").out


def test_status_says_once_and_shortly_why_its_trial_failed(cli: Cli) -> None:
    built = Builder(cli.root / "mnist-1a2b")
    trial = built.trial()
    why = f"ValueError: {'very ' * 200}bad"
    trial.attempt().end("user_error", error=why)
    trial.control("fail", why=why)
    built.close("ERROR", f"trial 1: {why}")
    ran = cli("status", "mnist")
    assert (ran.out + ran.err).count("ValueError") == 1 and len(ran.out + ran.err) < 700
    assert cli("status", "mnist", "-o", "json").items[0]["trials"][0]["why"] == why


def test_explain_tells_what_an_attempt_complained_of(cli: Cli) -> None:
    built = Builder(cli.root / "mnist-1a2b")
    attempt = built.trial().attempt()
    attempt.line("unregistered", found=["trial.ema (Linear): pass it to context.wrap_model"])
    for step in (10, 20):
        attempt.line("not_finite", group="training", step=step, names=["loss"])
    attempt.end("completed")
    assert "trial 1: loss not finite since step 10" in cli("status", "mnist").out
    out = cli("explain", "mnist").out
    assert "\n    trial.ema (Linear): pass it to context.wrap_model\n" in out
    assert "not finite since step 10: loss" in out
    assert "unregistered" in cli("events", "mnist").out


def test_what_is_decided_of_a_trial_is_in_events_explain_and_the_report(cli: Cli) -> None:
    """Of one at a rung, one that diverged, and those that end with a search at its target."""
    asked = {"max_length": {"batches": 40}, "max_trials": 6, "max_concurrent_trials": 3}
    asked |= {"divisor": 2, "num_rungs": 3, "stopping": {"nan": {}, "target": {"value": 0.01}}}
    searcher = {"name": "async_halving", "metric": "validation_loss", **asked}
    built = Builder(cli.root / "digits-7f3a", searcher=searcher)
    method = searcher_factory.searcher(config.load(built.paths.config))
    state = method.initial()
    told = [(1, 10, 0.5), (2, 10, 0.7), (3, 10, math.nan)]
    target = (1, 20, 0.001)

    def tell(event: events.Event) -> None:
        nonlocal state
        state, actions = method.on_event(state, event)
        for action in actions:
            if isinstance(action, events.Create):
                built.trial(**action.params)
            built.decide("action", action=codec.encode_action(action))

    def said(trial: int, what: str) -> None:
        [found] = [
            row["finding"]
            for row in cli("explain", f"digits-7f3a/{trial}", "-o", "json").items
            if row["kind"] == "decision"
        ]
        assert found == f"the searcher decided: {what}"
        rows = cli("events", f"digits-7f3a/{trial}", "-o", "json").items
        assert [row["text"] for row in rows if row["kind"] == "decision"][-1] == what
        assert f'<td class="said">{what}</td>' in report.render(gather(built.paths), 0.0)

    tell(events.Start())
    for trial, at, value in told:
        tell(events.Report(trial, Length("batches", at), {"validation_loss": value}))
    said(2, "pause: rung 1 of 3 (10 batches): rank 2 of 2, the best 1 go on")
    said(3, "stop: nan: the metric is nan")
    trial, at, value = target
    tell(events.Report(trial, Length("batches", at), {"validation_loss": value}))
    for trial in (1, 2):
        said(trial, "stop: target: trial 1 reached the target with 0.001")


def test_events_of_an_attempt_lists_the_kinds_that_it_has(cli: Cli, swept: Builder) -> None:
    def kinds(name: str) -> set[str]:
        said = cli("events", name, "--kind", "nonsense").err
        return set(said.partition("there are: ")[2].strip().split(", "))

    its = {item["kind"] for item in cli("events", "digits/3.2", "-o", "json").items}
    assert kinds("digits/3.2") == its < kinds("digits/3")


def test_explain_answers_what_is_asked(cli: Cli, swept: Builder) -> None:
    def about(name: str, *flags: str) -> list[tuple[str, str]]:
        items = cli("explain", name, *flags, "--json").items
        return [(item["kind"], item["about"]) for item in items]

    state = ("state", "digits-7f3a")
    assert about("digits", "--failure") == [state, ("failure", "digits-7f3a/3")]
    assert about("digits", "--pending") == [state]
    assert "nothing else is known" in cli("explain", "digits", "--pending").err
    assert ("restart", "digits-7f3a/1") in about("digits")
    Builder(cli.root / "mnist-1a2b").job("77", error="invalid partition")
    assert ("pending", "mnist-1a2b") in about("mnist", "--pending", "--failure")


def test_explain_of_a_trial_without_memory_says_how_to_get_more(cli: Cli) -> None:
    built = Builder(cli.root / "mnist-1a2b", resources={"memory_per_slot": 2**30})
    trial = built.trial()
    trial.attempt().end("oom", error="killed")
    trial.control("fail", why="killed")
    assert "next: hpcdet retry mnist-1a2b/1 --mem x2" in cli("explain", "mnist").out
    built.close("ERROR")
    out = cli("retry", "mnist/1", "--mem", "x2", "--exclude-node", "n1", "-n").out
    assert "would retry: trial 1, 2048M of memory per slot, not on n1" in out
    assert cli("retry", "mnist/1", "mnist/1", "--mem", "x2", "-n").out.count("2048M") == 2
    assert not built.paths.commands.exists() and built.paths.closed.exists()


def test_explain_shows_what_a_worker_that_died_at_once_printed(cli: Cli) -> None:
    built = Builder(cli.root / "mnist-1a2b")
    built.worker(end="lost")
    built.job()
    built.paths.job_log(1).mkdir()
    (built.paths.job_log(1) / "0.log").write_text("ModuleNotFoundError: hpcdet\n")
    out = cli("explain", "mnist").out
    assert "ModuleNotFoundError: hpcdet" in out and "hpcdet searcher start mnist-1a2b" in out


MISSING = "0001.sh: line 16: module: command not found"


def test_explain_shows_what_a_job_printed_before_any_worker_took_a_trial(cli: Cli) -> None:
    built = Builder(cli.root / "mnist-1a2b")
    for number in (built.job(), built.job()):
        built.paths.job_log(number).mkdir()
        (built.paths.job_log(number) / "0.log").write_text(f"{MISSING} {number}\n")
    [printed] = cli("explain", "mnist", "--failure", "-o", "json").items[1:]
    assert printed["evidence"] == [f"{MISSING} 2"], "though nobody has seen that it ended"
    why = "5 submissions in a row ended before a worker took a trial"
    built.decide("state", state="PAUSED", why=why, by="scheduler")
    [printed] = cli("explain", "mnist", "--failure", "-o", "json").items[1:]
    assert printed["evidence"] == [f"{MISSING} 2"]
    assert printed["finding"] == "the job of submission 2 printed"
    built.decide("state", state="PAUSED", why="paused by its user", by="")
    assert "module" not in cli("explain", "mnist").out


def test_explain_shows_what_the_job_of_a_failed_attempt_printed(cli: Cli) -> None:
    built = Builder(cli.root / "mnist-1a2b")
    built.job()
    built.paths.job_log(1).mkdir()
    (built.paths.job_log(1) / "123_0.log").write_text(f"{MISSING}\n")
    (built.paths.job_log(1) / "123_1.log").write_text("another task's\n" * 30)
    attempt = built.trial().attempt()
    attempt.end("preempted")
    assert "module" not in cli("explain", "mnist").out
    built.trial().attempt().end("user_error", error="OSError: libcudart.so.12")
    out = cli("explain", "mnist").out
    assert out.index("libcudart") < out.index("the job of submission 1 printed")
    assert MISSING in out
    assert "module" not in cli("explain", "mnist/1").out


def test_show_of_a_part(cli: Cli, swept: Builder) -> None:
    [item] = cli("show", "digits/3.2", "-o", "json").items
    assert [(a["trial"], a["attempt"]) for a in item["attempts"]] == [(3, 2)]
    assert [t["trial"] for t in item["trials"]] == [3]
    out = cli("show", "digits", "--section", "config").out
    assert yaml.safe_load(out.partition("Config\n")[2])["name"] == "digits"


def test_show_tells_each_environment_once_and_needs_no_torch(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    one, two = built.trial(), built.trial()
    for trial, name in ((one, "ab12"), (two, "cd34"), (two, "ab12"), (two, "older"), (two, "")):
        trial.attempt(fingerprint=name)
    for name in ("ab12", "cd34"):
        parts = {"processor": f"CPU of {name}", "$OMP_NUM_THREADS": "3"}
        record = {
            "schema": 1,
            "parts": parts,
            "packages": {"torch": "2.13"},
            "threads": {"cores": 8},
        }
        files.write_once(built.paths.fingerprint(name), files.canonical(record))
    [item] = cli("show", "digits", "-o", "json").items
    assert [(one["digest"], one["attempts"]) for one in item["fingerprints"]] == [
        ("ab12", ["1.1", "2.2"]), ("cd34", ["2.1"]),
    ]  # fmt: skip
    assert item["fingerprints"][1]["parts"]["processor"] == "CPU of cd34"
    assert item["fingerprints"][1]["packages"] == {"torch": "2.13"}
    assert item["fingerprints"][1]["threads"] == {"cores": 8}
    [item] = cli("show", "digits/2.1", "-o", "json").items
    assert [one["digest"] for one in item["fingerprints"]] == ["cd34"]
    argv = ["show", "digits", "--section", "fingerprints"]
    code = (
        f"import sys; from hpcdet.cli import main; print(main.run({argv}), 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "processor: CPU of ab12" in ran.stdout and ran.stdout.endswith("0 False\n")


def test_ls_chooses(cli: Cli, swept: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    Builder(cli.root / "mnist-1a2b")
    assert cli("ls", "--state", "COMPLETED", "-o", "id").out == "digits-7f3a\n"
    cli("tag", "mnist", "--add", "paper")
    assert cli("ls", "--tag", "paper", "-o", "id").out == "mnist-1a2b\n"
    assert cli("ls", "--limit", "1", "-o", "id").out == "mnist-1a2b\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("digits mnist\n"))
    assert len(cli("tag", "-", "--add", "all", "-o", "json").items) == 2
    assert cli("ls", "--since", "2026-03-02", "-o", "id").out == ""
    (cli.root / "mnist-1a2b" / "experiment.yaml").write_text("]")
    for verb in ("ls", "status"):
        found = json.loads(cli(verb, "-o", "json").out)
        assert [item["id"] for item in found["items"]] == ["digits-7f3a"]
        assert "mnist-1a2b is left out" in found["warnings"][0]
    assert cli("status", "mnist", code=9).err


def test_ls_of_trials_sorted_and_of_users(cli: Cli, swept: Builder) -> None:
    other = Builder(cli.root / "mnist-1a2b")
    other.paths.provenance.write_bytes(b'{"created_at": "2026-03-01T11:00:00Z", "user": "bob"}')
    assert cli("ls", "--user", "bob", "-o", "id").out == "mnist-1a2b\n"
    assert cli("ls", "--user", "bob", "--user", "ada", "-o", "id").out.count("\n") == 2
    assert cli("ls", "--sort", "created", "-o", "id").out == "mnist-1a2b\ndigits-7f3a\n"
    assert cli("ls", "--sort", "-created", "--limit", "1", "-o", "id").out == "digits-7f3a\n"

    def trials(*argv: str) -> list[int]:
        return [item["trial"] for item in cli("ls", "--trials", *argv, "--json").items]

    assert trials("--sort", "best") == [2, 1, 3], "without a value comes last"
    assert trials("--sort", "-best") == [1, 2, 3]
    assert trials("--limit", "1") == [3]
    assert trials("--state", "ERROR") == [3]
    assert "digits-7f3a/2  COMPLETED" in cli("ls", "--trials").out
    assert "keys: id, trial" in cli("ls", "--trials", "--sort", "loss", code=2).err


def test_the_index_is_rebuilt_and_found(cli: Cli, swept: Builder) -> None:
    file = cli("index", "rebuild", "digits").out.strip()
    assert file == cli("index", "path", "digits").out.strip() and Path(file).is_file()
    assert cli("index", "rebuild").out.strip() == file


HOSTILE = "n\x1b[31m\x9b2J\x07\x7f\x85o"
FORMATS = ("table", "wide", "json", "jsonl", "csv")


def test_no_control_character_that_others_wrote_reaches_a_terminal_or_a_page(cli: Cli) -> None:
    """Name, labels, hyperparameters, metrics, errors, commands; in every format of every verb."""
    built = Builder(
        cli.root / "odd-7f3a",
        name=HOSTILE,
        labels=[HOSTILE],
        description=HOSTILE,
        hyperparameters={HOSTILE: HOSTILE},
    )
    built.job(tasks=1)
    built.worker(0, host=HOSTILE, end="idle")
    trial = built.trial(**{HOSTILE: HOSTILE})
    attempt = trial.attempt()
    attempt.metrics("validation", 100, **{"validation_loss": 0.5, HOSTILE: HOSTILE})
    attempt.checkpoint(100)
    attempt.line("notice", signal=HOSTILE)
    attempt.log(f"Traceback (most recent call last):\nValueError: {HOSTILE}\n")
    attempt.end("user_error", error=f"ValueError: {HOSTILE}")
    trial.control("fail", why=HOSTILE)
    built.decide("fail", trial=1, why=HOSTILE)
    built.command("tag", add=[HOSTILE])
    built.close("ERROR", why=HOSTILE)
    verbs = [
        *(["ls"], ["status"], ["status", "odd"], ["show", "odd"], ["show", "odd/1"]),
        *(["metrics", "odd"], ["events", "odd"], ["explain", "odd"], ["eff", "odd"]),
        *(["ckpt", "ls", "odd"], ["config", "show", "odd"]),
        *(["best", "odd"], ["schedule", "odd"], ["logs", "odd"], ["searcher", "status", "odd"]),
    ]
    said = dict[tuple[str, ...], str]()
    for verb in verbs:
        for form in FORMATS:
            if verb[0] == "logs" and form in ("table", "wide"):
                continue  # the log as the code wrote it, colours and all
            cli.capture.readouterr()
            assert main.run([*verb, "-o", form]) == 0, (verb, form)
            said[*verb, form] = "".join(cli.capture.readouterr())
    cli("report", "odd")
    said["report",] = built.paths.report.read_text()
    raw = {key: re.findall(r".{0,20}[\x00-\x08\x0b-\x1f\x7f-\x9f].{0,9}", text)
           for key, text in said.items()}  # fmt: skip
    assert {key: found[:2] for key, found in raw.items() if found} == {}
    for key in (("ls", "json"), ("ls", "csv"), ("metrics", "odd", "jsonl"), ("report",)):
        assert r"n\u001b[31m\u009b2J" in said[key], said[key][:500]
    assert cli("ls", "-o", "json").items[0]["name"] == HOSTILE


READERS = (
    *("ls", "ls --trials", "status", "show digits", "metrics digits", "best digits", "eff digits"),
    *("events digits", "explain digits", "logs digits", "ckpt ls digits", "searcher status digits"),
    *("report digits -o {tmp}/report.html", "status digits/1 -o json", "wait digits"),
)


def test_verbs_that_read_write_nothing(
    cli: Cli, swept: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("accounting is asked, and its answer would be written")

    monkeypatch.setattr(accounting, "settle", asked)

    def held() -> dict[str, tuple[int, bytes]]:
        files = (path for path in sorted(cli.root.rglob("*")) if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = held()
    for verb in READERS:
        cli(*verb.format(tmp=tmp_path).split())
    assert held() == before and (tmp_path / "report.html").exists()


def test_the_newest_experiments_are_listed_without_reading_the_others(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        built = Builder(cli.root / f"digits-000{number}")
        built.trial()
        os.utime(built.paths.config, (number, number))
    read: list[str] = []
    made = brief.brief
    monkeypatch.setattr(brief, "brief", lambda one: read.append(one.id) or made(one))
    assert cli("ls", "--limit", "2", "-o", "id").out.split() == ["digits-0004", "digits-0005"]
    assert read == ["digits-0005", "digits-0004"]
    read.clear()
    assert cli("ls", "--limit", "2", "--sort", "id", "-o", "id").out.split()[0] == "digits-0000"
    assert len(read) == 6, "any of them may be the first by that key"
    read.clear()
    assert cli("ls", "--limit", "2", "--state", "ERROR", "-o", "id").out == "" and len(read) == 6


def test_status_shows_few_trials_and_few_experiments_in_tables(cli: Cli) -> None:
    for number in range(12):
        built = Builder(cli.root / f"old-{number:04}")
        if number != 1:
            built.close("ERROR" if not number else "COMPLETED")
    built = Builder(cli.root / "wide-0000")
    for number in range(1, 31):
        trial = built.trial(hidden=number)
        attempt = trial.attempt()
        if number == 30:
            continue
        if number == 29:
            attempt.end("user_error")
            trial.control("fail", why="ValueError: x")
            continue
        attempt.metrics("validation", 100, validation_loss=abs(number - 25))
        attempt.end("completed")
    for place, folder in enumerate(sorted(cli.root.iterdir())):
        os.utime(folder / "experiment.yaml", (place, place))

    ran = cli("status", "wide")
    rows = [line.split()[:2] for line in ran.out.partition("HYPERPARAMETERS")[2].splitlines()[1:]]
    assert rows[:4] == [
        ["25", "COMPLETED"], ["30", "RUNNING"], ["29", "ERROR"], ["24", "COMPLETED"],
    ]  # fmt: skip
    assert len(rows) == 20 and "20 of 30 trials; all of them: --all" in ran.err
    whole = cli("status", "wide", "--all")
    assert len(whole.out.partition("HYPERPARAMETERS")[2].splitlines()) == 31
    assert [trial["trial"] for trial in cli("status", "wide", "-o", "json").items[0]["trials"]] == [
        *range(1, 31)
    ]

    ran = cli("status")
    shown = [line.split()[0] for line in ran.out.splitlines() if line[:4] in ("old-", "wide")]
    assert shown == ["old-0001", *(f"old-{n:04}" for n in range(3, 12)), "wide-0000"]
    assert "2 older experiments have ended: hpcdet status --all" in ran.err
    assert len(cli("status", "-o", "json").items) == 13 and "old-0000" in cli("status", "--all").out
    assert cli("status", "--exit-status", code=6).err.count("old-0000") == 1


FRAMES = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/hpcdet/pytorch/entry.py", line 29, in run_entrypoint
    fit_as_configured(trial_class(context), context)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/hpcdet/pytorch/trainer.py", line 86, in fit
    Loop(self._trial).run()
  File "/ada/hpcdet/model_def.py", line 50, in train_batch
    self.context.backward(loss)
  File "/opt/venv/lib/python3.11/site-packages/hpcdet/pytorch/trainer.py", line 1, in backward
    loss.backward()
  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 5, in backward
    raise RuntimeError("no grad")
RuntimeError: no grad
"""
FOLDED = """\
Traceback (most recent call last):
  … 2 frames of hpcdet
  File "/ada/hpcdet/model_def.py", line 50, in train_batch
    self.context.backward(loss)
  … 1 frame of hpcdet
  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 5, in backward
    raise RuntimeError("no grad")
RuntimeError: no grad
"""


def test_explain_begins_with_failures_and_folds_frames_of_hpcdet(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.job(error="no such partition")
    built.trial().attempt().end("lost")
    trial = built.trial()
    attempt = trial.attempt()
    attempt.log(FRAMES)
    attempt.end("user_error", error="RuntimeError: no grad")
    trial.control("fail", why="failed 1 time: RuntimeError: no grad")
    items = cli("explain", "digits", "-o", "json").items
    assert [item["kind"] for item in items[:3]] == ["state", "failure", "pending"]
    assert "\n".join(items[1]["evidence"][-len(FOLDED.splitlines()) :]) + "\n" == FOLDED
    cli("report", "digits")
    page = (built.paths.root / "report.html").read_text()
    told = page[page.index('<section id="failures">') : page.index('<section id="logs">')]
    assert "… 2 frames of hpcdet" in told and "fit_as_configured" not in told
    own = [line for line in FRAMES.splitlines() if "ada" not in line and "torch" not in line]
    assert logs.folded(own) == own


def test_explain_says_where_starting_took_most_of_the_time(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    attempt = built.trial().attempt()
    built.clock -= 1  # two seconds to its first step, one of training
    attempt.end("completed")
    items = cli("explain", "digits", "-o", "json").items
    [said] = [item for item in items if item["kind"] == "slow"]
    [used] = cli("usage", "-o", "json").items
    hours = used["slot_hours"]
    share = hours["starting"] / hours["allocated"]
    assert said["finding"].startswith(
        f"slow: starting: {100 * share:.0f} % of the slot hours (2 s from"
    )
    assert "hpcdet eff digits-7f3a --waste" in said["next"]
    cli("eff", "digits-7f3a", "--waste")
    attempt = built.trial().attempt()
    for step in range(1, 20):
        attempt.metrics("training", step, loss=0.5)
    attempt.end("completed")
    assert "starting" not in cli("explain", "digits").out
    assert "slow: starting: " in cli("explain", "digits/1").out
    assert "starting" not in cli("explain", "digits/2").out


def test_report_refuses_trials_and_formats_and_metrics_names_what_there_is(
    cli: Cli, swept: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli("report", "digits/3", code=2).err
    assert "whole experiment" in said and "hpcdet show digits-7f3a/3" in said
    assert "hpcdet show ID -o json" in cli("report", "digits", "-o", "json", code=2).err
    assert not (tmp_path / "json").exists() and not (swept.paths.root / "report.html").exists()
    said = cli("metrics", "digits", "--name", "typo").err
    assert said.startswith("no metrics of --name typo; there are: ") and "validation_loss" in said


def test_help_has_no_marks_of_documentation() -> None:
    def every(command: click.Command, context: click.Context) -> Iterator[click.Command]:
        yield command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from every(below, context)

    for command in every(main.cli, click.Context(main.cli)):
        options = [one.help for one in command.params if isinstance(one, click.Option)]
        assert not any("`" in text for text in [command.help, *options] if text), command.name
        context = click.Context(command, terminal_width=80)
        below = command.get_help(context).partition("Commands:")[2].splitlines()
        assert not [line for line in below if line.endswith("...") or len(line) > 80]


def test_show_never_cuts_a_job(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    job = "local-66154c87e92a3-844f00112233@node01.example.org"
    built.job(job)
    assert job in cli("show", "digits", "--section", "jobs").out


def test_a_report_is_made_as_asked(
    cli: Cli, swept: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    for form in ("html", "json", "md"):
        said = cli("report", "digits", "--format", form, "--plain").out
        file = Path(said.strip())
        assert file == swept.paths.root / f"report.{form}"
        first = file.read_bytes()
        cli("report", "digits", "--format", form, "--plain")
        assert file.read_bytes() == first
        assert b"2027-01-15" in first
    followed = tmp_path / "followed.html"
    cli("report", "digits", "--follow=1s", "-o", followed)  # over already: it is written once
    assert 'http-equiv="refresh"' not in followed.read_text()
    assert "script-src" in followed.read_text()
    cli("report", "digits", "--anon", "--plain", "-o", followed)
    assert "ada" not in followed.read_text().split()
    assert "user-1" in followed.read_text()
    assert "cannot be redacted" in cli("report", "digits", "--redact", "shoes", code=2).err
    assert "--max-mb" in cli("report", "digits", "--max-mb", "0.01", code=2).err
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    assert "SOURCE_DATE_EPOCH" in cli("report", "digits", code=2).err


def test_a_followed_report_is_written_until_the_experiment_is_over(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(cli.root / "digits-7f3a", ended=False)
    seen: list[str] = []
    page = tmp_path / "page.html"

    def pause(seconds: float) -> None:
        seen.append(page.read_text())
        built.close("COMPLETED")

    monkeypatch.setattr("hpcdet.cli.observe.report.pause", pause)
    assert cli("report", "digits", "--follow=5s", "-o", page).out == f"{page}\n"
    [going] = seen
    assert 'http-equiv="refresh" content="5"' in going
    assert 'http-equiv="refresh"' not in page.read_text()
