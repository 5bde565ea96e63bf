"""submit, wait, pause, resume, cancel, retry: on the local backend, most with fake ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hpcdet.checkpoint import save
from hpcdet.cli.request import send_commands
from hpcdet.cli.run import preflight
from hpcdet.errors import ConfigError, Unavailable
from hpcdet.policy.codes import PolicyRefused
from hpcdet.read.lookup import find
from hpcdet.read.views import views
from hpcdet.site_files import load_site
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import WorkerClaim
from hpcdet.store.fs import journal
from hpcdet.store.trials.standing import checkpoints
from tests import experiments as x
from tests.builders import Builder
from tests.commands import Cli


@dataclass(frozen=True)
class Lab:
    """A config whose ranks are fakes, and a site where they run at once."""

    cli: Cli
    folder: Path
    site: Path

    def config(self, batches: int = 30, trials: int = 2, **changes: Any) -> Path:
        searcher = {
            "name": "random",
            "metric": "validation_loss",
            "max_length": {"batches": batches},
            "max_trials": trials,
            "max_concurrent_trials": 2,
        }
        values = {
            "name": "fake",
            "entrypoint": "model_def:Model",
            "hyperparameters": {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}},
            "searcher": searcher,
            "worker": {"min_segment_s": 0.5, "idle_s": 60},
            **changes,
        }
        path = self.folder / "model" / "config.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    def submit(self, config: Path, *flags: str, code: int = 0) -> ExperimentPaths:
        ran = self.cli(
            "submit", config, "--site", self.site, "--no-test", "-o", "id", *flags, code=code
        )
        [name] = ran.out.splitlines()
        return find.experiment(name, self.cli.root)


@pytest.fixture
def lab(cli: Cli, tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "model").mkdir(mode=0o700)
    site = tmp_path / "fakes.yaml"
    values = x.local_site(python=x.fake_python(tmp_path)).plain()
    changed = {key: values[key] for key in ("scheduler", "limits", "lease_ttl_s", "slots")}
    changed |= {"extends": "local", "python": values["python"]}
    site.write_text(yaml.safe_dump(changed))
    with x.local_jobs(tmp_path / "local-state"):
        yield Lab(cli, tmp_path, site)


def test_submit_and_wait_prints_the_id_alone_and_then_all_can_be_read(lab: Lab) -> None:
    paths = lab.submit(lab.config(), "--wait", "--name", "My Run!", "--tag", "first")
    cli, name = lab.cli, paths.id
    assert name.startswith("my-run-")
    [status] = cli("status", name, "-o", "json").items
    assert (status["state"], status["labels"]) == ("COMPLETED", ["first"])
    assert [(t["state"], t["steps"]) for t in status["trials"]] == [("COMPLETED", 30)] * 2
    [shown] = cli("show", name, "-o", "json").items
    assert [a["reason"] for a in shown["attempts"]] == ["completed"] * 2
    assert all(a["job"] for a in shown["attempts"])
    assert {"submitted", "started", "checkpoint", "ended"} <= {
        event["kind"] for event in cli("events", name, "-o", "json").items
    }
    assert cli("wait", name).code == 0
    assert cli("searcher", "status", name, "-o", "json").items[0]["held"] is False
    assert "already" in cli("cancel", name, code=2).err


def test_warnings_come_before_the_waiting(lab: Lab) -> None:
    config = lab.config(10, trials=1, debug=True)
    err = lab.cli("submit", config, "--site", lab.site, "--no-test", "--wait").err
    assert err.count("warning: ") == 1
    assert err.index("debug: ") < err.index(" is in ") < err.index("COMPLETED")


def test_the_test_leaves_out_experiments_inside_the_code(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = lab.config()
    (config.parent / "runs" / "fake-0000").mkdir(parents=True)
    (config.parent / "runs" / "fake-0000" / "experiment.yaml").write_text("")
    seen: list[str] = []

    def ended(argv: list[str], *_: Any) -> tuple[int, str]:
        seen.extend(path.name for path in (Path(argv[-1]) / "code").iterdir())
        return 0, ""

    monkeypatch.setattr("hpcdet.cli.run.preflight.processes.ended", ended)
    lab.cli("test", config, "--site", "local", "-C", config.parent / "runs")
    assert seen == ["config.yaml"]


def test_pause_resume_and_cancel(lab: Lab) -> None:
    paths = lab.submit(lab.config(100_000, data={"step_s": 0.05}))
    cli, name = lab.cli, paths.id
    cli("wait", name, "--for", "running", "--timeout", "180")
    assert cli("pause", name, "-n").out.split()[-2:] == ["would", "pause"]
    assert not paths.commands.exists()
    cli("pause", name, "--wait")
    assert views.status(paths).state == "PAUSED"
    assert "hpcdet resume" in cli("explain", name).out
    cli("resume", name, "--set", "resources.slots_per_trial=2")
    x.until(lambda: worlds(paths) == {1, 2}, lambda: x.story(paths))
    cli("cancel", f"{name}/1", "--wait")
    assert views.trials(paths)[0].state == "CANCELED"
    assert views.status(paths).state == "RUNNING"
    cli("cancel", name, "--wait")
    states = {t.trial: t.state for t in views.trials(paths)}
    assert views.status(paths).state == "CANCELED" and set(states.values()) == {"CANCELED"}
    cli("wait", name, code=6)


_DYING = """
import os, sys
from pathlib import Path
from hpcdet.store.decisions.lease import Lease
from hpcdet.store.folder.layout import ExperimentPaths

held = Lease(ExperimentPaths(Path(sys.argv[1])), "script", 5).try_acquire()
print("held" if held else "", flush=True)
os.kill(os.getpid(), 9)
"""


def test_resume_waits_out_the_lease_of_who_has_just_died(lab: Lab) -> None:
    """As the script of a job that pausing has canceled, in its last turn."""
    paths = lab.submit(lab.config(100_000, data={"step_s": 0.05}))
    cli, name = lab.cli, paths.id
    cli("wait", name, "--for", "running", "--timeout", "180")
    cli("pause", name, "--wait")
    x.until(lambda: not x.worker_pids(paths), lambda: x.story(paths))
    command = [sys.executable, "-c", _DYING, str(paths.root)]
    dying = lambda: subprocess.run(command, capture_output=True).stdout == b"held\n"  # noqa: E731
    x.until(dying, lambda: x.story(paths))
    cli("resume", f"{name}/1")
    assert len(paths.submissions()) == 2, x.story(paths)
    cli("cancel", name, "--now", "--wait")


def worlds(paths: ExperimentPaths) -> set[int]:
    """On how many ranks attempts have begun."""
    attempts = [one for trial in paths.trials() for one in trial.attempts()]
    lines = [line for one in attempts for line in journal.read(one.journal)]
    return {line["world"] for line in lines if line["kind"] == "start"}


def test_ctrl_c_while_waiting_leaves_the_jobs_alone(lab: Lab) -> None:
    config = lab.config(100_000, trials=1, data={"step_s": 0.05})
    argv = ["submit", str(config), "--site", str(lab.site), "--no-test", "-o", "id", "--wait"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcdet", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        name = process.stdout.readline().decode().strip()
        paths = find.experiment(name, lab.cli.root)
        x.until(lambda: any(t.state == "RUNNING" for t in views.trials(paths)))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=180)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and f"hpcdet cancel {name}" in err.decode()
    before = views.trials(paths)[0].steps
    x.until(lambda: views.trials(paths)[0].steps > before)
    assert views.status(paths).health == "ok"
    lab.cli("cancel", name, "--wait")


def test_a_search_that_fails_ends_with_6_and_says_why(lab: Lab) -> None:
    config = lab.config(trials=1, data={"crash": {"1": [3, 2]}}, max_restarts=1)
    paths = lab.submit(config, "--wait", code=6)
    assert views.status(paths).state == "ERROR"
    assert [a.reason for a in views.attempts(paths)] == ["user_error"] * 2
    out = lab.cli("explain", paths.id).out
    assert "the code raised an error" in out and f"hpcdet logs {paths.id}/1 --errors" in out
    assert "Traceback" in lab.cli("logs", paths.id, "--errors").out
    lab.cli("resume", paths.id, code=2)
    lab.cli("retry", paths.id, "--state", "TIMEOUT", code=2)
    assert "trial 1" in lab.cli("retry", paths.id, "--state", "FAILED").out
    lab.cli("wait", paths.id, "--timeout", "180")
    assert views.status(paths).state == "COMPLETED"
    assert [a.reason for a in views.attempts(paths)][2:] == ["completed"]


def test_a_trial_that_was_given_up_is_tried_again(lab: Lab) -> None:
    pace = lab.folder / "pace"
    pace.write_text("0.05")
    variables = {"environment_variables": {"PACE": str(pace)}}
    crash = {"crash": {"1": [3, 2]}}
    config = lab.config(20_000, data=crash, max_restarts=1, environment=variables)
    paths = lab.submit(config)
    lab.cli("wait", paths.id, "--for", "running", "--timeout", "180")
    x.until(lambda: views.trials(paths)[0].state == "ERROR", lambda: x.story(paths))
    lab.cli("retry", f"{paths.id}/1")
    x.until(lambda: views.trials(paths)[0].state == "RUNNING", lambda: x.story(paths))
    assert views.trials(paths)[0].failures == 2
    lab.cli("cancel", paths.id, "--wait")


def test_a_trial_goes_on_alone_from_an_older_checkpoint_with_other_settings(lab: Lab) -> None:
    paths = lab.submit(lab.config(100_000, data={"step_s": 0.02, "every": 10}))
    cli, name, trial = lab.cli, paths.id, paths.trial(1)
    x.until(lambda: len(checkpoints(trial)) > 2 and checkpoints(paths.trial(2)))
    cli("resume", f"{name}/1", "--time", "2h", code=2)  # it runs
    cli("pause", name, "--wait")
    old, newest = checkpoints(trial)[0], checkpoints(trial)[-1]
    foreign = paths.trial(2).checkpoints / checkpoints(paths.trial(2))[0]
    for flags, code in (
        (["--set", "hyperparameters.x=1"], 4),
        (["--set", "resources.resource_pool=none"], 4),
        (["--from", "12345"], 3),
        (["--from", foreign], 2),
        (["--verify"], 9),  # fakes leave nothing that is a checkpoint for others
    ):
        assert f"{name}" in cli("resume", f"{name}/1", *flags, code=code).err or code == 4
    assert len(list(paths.commands.iterdir())) == 1, "nothing of that was asked"
    said = cli("resume", f"{name}/1", "--from", old, "--time", "2h").out
    assert "trial 1 alone" in said and "walltime_s=7200" in said and old in said
    x.until(lambda: views.attempts(paths, 1)[-1].checkpoint == old, lambda: x.story(paths))
    assert [t.state for t in views.trials(paths)] == ["RUNNING", "PAUSED"]
    states_ = {row.name: row.state for row in views.checkpoints(paths, 1)}
    assert (states_[old], states_[newest]) == ("complete", "superseded")
    shown = views.show(paths)
    assert shown.config["resources"]["walltime_s"] == 7200
    assert shown.changes[0].origin == "command 2" and not shown.changes[0].pending
    script = paths.script(max(paths.submissions())).read_text()
    assert "walltime_s=7200" in script
    assert "command 2 by" in cli("config", "show", name, "--origin").out
    assert f"from {old}" in cli("events", f"{name}/1", "--kind", "command").out
    assert "already" in cli("pause", f"{name}/2").out
    assert "already" in cli("resume", f"{name}/1").out
    cli("retry", f"{name}/2", code=2)
    cli("cancel", f"{name}/1", f"{name}/9", "-y", code=7)
    cli("cancel", name, "--now", "--wait")


def test_cancel_now_saves_nothing_and_leaves_the_others_alone(lab: Lab) -> None:
    # the first trial does not listen, so that its worker has to kill it
    data = {"step_s": 0.05, "every": 10**9, "stubborn": [1]}
    paths = lab.submit(lab.config(100_000, data=data))
    cli, name = lab.cli, paths.id
    x.until(lambda: all(views.attempts(paths, n) for n in (1, 2)), lambda: x.story(paths))
    x.until(lambda: all(views.attempts(paths, n)[0].steps is not None for n in (1, 2)))
    cli("cancel", f"{name}/1", "--now", "--wait")
    assert [t.state for t in views.trials(paths)][:2] == ["CANCELED", "RUNNING"]
    assert views.attempts(paths, 1)[0].reason == "canceled"
    cli("cancel", name, "--now", "--wait")
    assert not any(checkpoints(trial) for trial in paths.trials())
    assert {a.reason for a in views.attempts(paths)} == {"canceled"}
    assert "without saving" in cli("events", name, "--kind", "command").out
    said = cli("resume", name, code=2).err
    assert "CANCELED" in said and "submit the config again" in said


def test_the_checkpoints_to_go_on_from_are_read_before_anything_is_queued(cli: Cli) -> None:
    built = Builder(cli.root / "fake-0001")
    trial = built.trial()
    trial.attempt().end("paused")
    trial.control("pause", why="paused by its user")
    built.decide("state", state="PAUSED", why="paused by its user", by="")
    good, bad = (trial.paths.checkpoint(step, 1) for step in (10, 20))
    for folder in (good, bad):
        save(folder, {"weights": [1.0, 2.0]})
    [shard] = [file for file in bad.iterdir() if file.suffix == ".h5"]
    shard.write_bytes(shard.read_bytes().replace(b"weights", b"heights"))
    ran = cli("resume", "fake-0001", "--verify", "-n")
    assert f"{good.name} is whole" in ran.out and f"{bad.name} is damaged" in ran.err
    assert not built.paths.commands.exists()


def test_dry_run_shows_everything_and_makes_nothing(lab: Lab) -> None:
    config = lab.config()
    argv = ["submit", config, "--site", lab.site, "-n", "--set", "searcher.max_trials=3"]
    out = lab.cli(*argv).out
    assert "searcher.max_trials: 3    # --set searcher.max_trials" in out
    assert "max_restarts: 5    # default" in out
    assert "#!/bin/bash" in out and "hpcdet.worker" in out
    [item] = lab.cli(*argv, "-o", "json").items
    assert (item["trials"], item["tasks"]) == (3, 2) and item["code"] == ["config.yaml"]
    assert list(lab.cli.root.iterdir()) == []


def test_a_dry_run_offline_asks_no_scheduler(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any) -> Any:
        raise Unavailable("the scheduler was asked")

    monkeypatch.setattr("hpcdet.jobs.checks.site_checks.open_scheduler", ask)
    monkeypatch.setattr("hpcdet.cli.inputs.preview.open_scheduler", ask)
    argv = ["submit", lab.config(), "--site", lab.site, "-n", "-o", "json"]
    [item] = lab.cli(*argv).items
    assert item["verdict"] == "the scheduler was asked"
    [item] = lab.cli(*argv, "--offline").items
    assert item["verdict"] == "" and "#!/bin/bash" in item["script"]
    lab.cli(*argv[:-3], "--offline", code=2)
    assert list(lab.cli.root.iterdir()) == []


def test_note_and_limit_are_layers_and_the_id_alone_is_parsable(lab: Lab) -> None:
    flags = ["--max-parallel", "1", "--note", 'a: "b" # é\n- c', "--prepare", "--parsable"]
    argv = ["--site", lab.site, "--no-test", *flags]
    ran = lab.cli("submit", lab.config(), *argv)
    [shown] = lab.cli("show", ran.out.strip(), "-o", "json").items
    assert shown["config"]["description"] == 'a: "b" # é\n- c'
    assert shown["config"]["searcher"]["max_concurrent_trials"] == 1
    ran = lab.cli("submit", lab.config(description="mine"), *argv)
    [shown] = lab.cli("show", ran.out.strip(), "-o", "json").items
    assert shown["config"]["description"] == "mine" and "warning: " in ran.err


def test_cancel_ends_what_only_waits_in_the_queue(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_commands, "_SEE_OFF_S", 120)
    argv = ["--site", lab.site, "--no-test", "--hold", "--parsable"]
    for died in (False, True):
        name = lab.cli("submit", lab.config(), *argv).out.strip()
        if died:  # and nobody has seen it yet
            worker = find.experiment(name, lab.cli.root).worker(1, 0, 0)
            assert WorkerClaim("local-1-gone", "here", 1).write_once(worker.claim)
        assert lab.cli("cancel", name).err == ""
        assert lab.cli("status", name, "-o", "json").items[0]["state"] == "CANCELED"


def test_prepare_makes_all_but_the_submission(lab: Lab) -> None:
    ran = lab.cli(
        "submit", lab.config(), "--site", lab.site, "--no-test", "--prepare", "-o", "json"
    )
    [item] = ran.items
    [script] = item["scripts"]
    assert item["jobs"] == [] and item["state"] == "PENDING" and item["argv"] == [[script]]
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert ran.err == ""
    said = lab.cli("explain", item["id"]).out
    assert "submitted by hand" in said and f"  next: {script}\n" in said


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["{model}/none.yaml"], 4, "none.yaml"),
        (["{model}/config.yaml", "{model}/nothing"], 4, "no such model folder"),
        (["{model}/config.yaml", "--site", "nowhere"], 4, "no site 'nowhere'"),
        (["{model}/config.yaml", "--set", "searcher"], 2, "sets nothing"),
        (["{model}/config.yaml", "--set", "searcher.max_trials=some"], 4, "searcher.max_trials"),
    ],
)
def test_what_cannot_be_submitted_says_why(lab: Lab, argv: list[str], code: int, says: str) -> None:
    lab.config()
    words = [word.format(model=lab.folder / "model") for word in argv]
    assert says in lab.cli("submit", "--site", "local", *words, code=code).err
    assert list(lab.cli.root.iterdir()) == []


def test_an_unknown_site_is_named_with_what_names_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = lab.config()
    monkeypatch.setenv("HPCDET_SITE", "nowhere")
    assert "$HPCDET_SITE: no site 'nowhere'" in lab.cli("submit", config, code=4).err
    lines = config.read_text().splitlines()
    config.write_text("\n".join([*lines, "site: frontire"]))
    said = lab.cli("submit", config, code=4).err
    assert f"{config.name}:{len(lines) + 1}: site: no site 'frontire'" in said
    assert "did you mean 'frontier'?" in said


def test_local_is_not_taken_for_granted_on_a_login_node(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "login01")
    monkeypatch.setenv("PATH", str(lab.folder))
    ran = lab.cli("submit", lab.config(), "--no-test", code=4)
    assert "login node" in ran.err and "--site local" in ran.err
    assert list(lab.cli.root.iterdir()) == []


# -- real training -----------------------------------------------------------------------


def test_from_init_to_a_report_with_real_training(lab: Lab) -> None:
    cli, folder = lab.cli, lab.folder / "spirals"
    cli("init", folder)
    assert "already" in cli("init", folder, code=2).err
    sets = ["searcher.max_trials=1", "searcher.max_length={batches: 20}", "worker.idle_s=1"]
    flags = [word for value in sets for word in ("--set", value)]
    ran = cli("submit", folder / "random.yaml", "--site", "local", "--wait", "-o", "json", *flags)
    [item] = ran.items
    assert item["state"] == "COMPLETED" and ran.err == ""
    [checkpoint] = cli("ckpt", "ls", item["id"], "-o", "json").items
    path = checkpoint["path"]
    [verified] = cli("ckpt", "verify", item["id"], "-o", "json").items
    assert (verified["state"], verified["digest"]) == ("valid", checkpoint["digest"])
    shard = next(Path(path).glob("*.h5"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert "hpcdet ckpt verify" in cli("ckpt", "digest", path, code=9).err
    assert cli("metrics", item["id"], "--best", "--name", "accuracy", "--larger").out
    assert Path(cli("report", item["id"], "-o", lab.folder / "r.html").out.strip()).is_file()


def test_code_that_fails_its_test_is_never_queued(lab: Lab) -> None:
    config = lab.config()
    (config.parent / "model_def.py").write_text("import no_such_module_anywhere\n")
    ran = lab.cli("submit", config, "--site", "local", "-o", "json", code=4)
    error = json.loads(ran.err)["error"]
    assert "no_such_module_anywhere" in error["message"] and "model_def.py" in error["hint"]
    assert list(lab.cli.root.iterdir()) == []


def test_what_a_policy_refuses_is_told_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "settings", lambda: SimpleNamespace(verbose=False))
    error = PolicyRefused("P07", "it mixes the rows", where="norm", hint="use GroupNorm")
    frame = '  File "/tmp/x/code/model_def.py", line 3, in __init__\n'
    output = f"Traceback\n{frame}hpcdet.policy.codes.PolicyRefused: {error}\n"
    output += f"hpcdet: the test failed while training and saving: {error}\n"
    wanted: Any = SimpleNamespace(model_dir=tmp_path)
    with pytest.raises(ConfigError, match="norm: P07: it mixes") as caught:
        preflight.judge(wanted, 1, output)
    assert caught.value.hint == "use GroupNorm"


@pytest.mark.parametrize("frame", ["", '  File "/tmp/x/code/train.py", line 3, in main\n'])
def test_the_test_of_the_code_says_what_is_wrong_before_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: str
) -> None:
    monkeypatch.setattr(preflight, "settings", lambda: SimpleNamespace(verbose=False))
    error = ConfigError("it is so", where="fit(…)", hint="do otherwise")
    output = f"Traceback\n{frame}hpcdet.errors.ConfigError: {error}\nhpcdet: the test failed: it"
    wanted: Any = SimpleNamespace(model_dir=tmp_path)
    with pytest.raises(ConfigError, match="failed its test: fit") as caught:
        preflight.judge(wanted, 1, output)
    assert caught.value.what.endswith("fit(…): it is so")
    assert "do otherwise" in caught.value.hint and ("train.py" in caught.value.hint) == bool(frame)


def test_an_experiment_records_its_command_and_where_each_value_comes_from(lab: Lab) -> None:
    config = lab.config(data={"folder": "/data"})
    template = lab.folder / "template.yaml"
    template.write_text("description: of the template\n")
    token = "ghp_" + "a" * 36
    sets = ["searcher.max_trials=3", f"data.note={token}", "data.secrets.short=abc"]
    more = ["environment.environment_variables={API_KEY: k3}", "data.url=https://me:pass@host/x"]
    flags = ["--prepare", "--template", str(template), "--set=data.secrets.long=hunter2hunter2"]
    flags += [word for value in (*sets, *more) for word in ("--set", value)]
    paths = lab.submit(config, *flags, "--tag", "seen")
    record = json.loads(paths.provenance.read_text())
    hidden = "(not shown: its name says that it is a secret)"
    assert record["argv"][:3] == ["hpcdet", "submit", str(config)]
    assert record["argv"][record["argv"].index("--prepare") :] == [
        *("--prepare", "--template", str(template), f"--set=data.secrets.long={hidden}"),
        *("--set", "searcher.max_trials=3", "--set", hidden),
        *("--set", f"data.secrets.short={hidden}"),
        *("--set", f"environment.environment_variables={hidden}"),
        *("--set", "data.url=https://host/x", "--tag", "seen"),
    ]
    assert record["cwd"] == str(Path.cwd())
    origins = record["origins"]
    line = config.read_text().splitlines().index("  max_concurrent_trials: 2") + 1
    assert origins["searcher.max_concurrent_trials"] == f"{config}:{line}"
    assert origins["searcher.max_trials"] == "--set searcher.max_trials"
    assert origins["labels"] == "--set labels"
    assert origins["description"] == f"{template}:1"
    assert origins["searcher.max_length.batches"].startswith(f"{config}:")
    assert origins["reproducibility.experiment_seed"] == "generated"
    assert origins["max_restarts"] == "default"
    assert origins["site"] == "derived"
    left = {
        key for key, _ in load_site.walk(resolved_config.load(paths.config).raw)
    } - origins.keys()
    assert not left
    assert "hunter2" not in paths.provenance.read_text()


def test_the_data_of_a_submission_is_digested_and_verified_by_its_manifest(lab: Lab) -> None:
    images = lab.folder / "images"
    images.mkdir()
    (images / "a.bin").write_text("one")
    paths = lab.submit(lab.config(data={"paths": str(images)}), "--prepare")
    [entry] = json.loads(paths.provenance.read_text())["data"]
    manifest = paths.root / entry["manifest"]
    assert entry["path"] == str(images) and entry["files"] == 1
    assert lab.cli("data", "verify", manifest, "--deep", "-o", "id").out.strip() == entry["digest"]
    (images / "b.bin").write_text("added")
    assert "b.bin: is not listed" in lab.cli("data", "verify", manifest, code=9).err
    [item] = lab.cli("show", paths.id, "-o", "json").items
    assert item["provenance"]["data"] == [entry]
    for flags in (["--prepare"], ["-n", "--offline"]):
        gone = lab.config(data={"paths": [str(images), "no/such"]})
        argv = ["submit", gone, "--site", lab.site, "--no-test", *flags]
        assert "no/such is not there" in lab.cli(*argv, code=4).err
