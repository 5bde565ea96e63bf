"""Commands, shells and TensorBoards in jobs of the local backend, by the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdet.schedulers.common import processes
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site_files.load_site import load
from hpcdet.store.fs import files
from hpcdet.tasks.folder import task_folder
from hpcdet.tasks.folder.task_folder import TaskEnded, TaskPaths, TaskStarted
from tests.builders import sweep
from tests.commands import Cli
from tests.experiments import until
from tests.interactive import get, in_terminal, listeners


def item(cli: Cli, kind: str) -> dict[str, Any]:
    """The newest task of a kind."""
    return cli(kind, "ls", "-o", "json").items[-1]


def paths(cli: Cli, id: str) -> TaskPaths:
    return task_folder.task(id, cli.root)


def started(cli: Cli, kind: str, *words: object) -> TaskPaths:
    """Start a task and wait until it runs."""
    found = paths(cli, cli(kind, "start", "-o", "id", *words).out.strip())
    until(found.started.exists)
    return found


def ended(found: TaskPaths) -> TaskEnded:
    until(found.ended.exists)
    record = TaskEnded.read(found.ended)
    assert record is not None
    return record


def family(found: TaskPaths) -> set[int]:
    """The processes of a task."""
    record = TaskStarted.read(found.started)
    assert record is not None
    return set(processes.members(os.getsid(record.pid)))


# -- run -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3])
def test_who_waits_for_a_command_gets_its_output_and_its_code(local: Cli, code: int) -> None:
    ran = local("run", "--wait", "--", "sh", "-c", f"echo one; pwd; exit {code}", code=code)
    assert ran.out == f"one\n{Path.cwd()}\n"
    one = item(local, "run")
    assert (one["exit_code"], one["state"]) == (code, "ERROR" if code else "COMPLETED")
    assert local("run", "logs", one["id"]).out == ran.out
    assert local("run", "logs", one["id"], "--tail", "1").out == f"{Path.cwd()}\n"


def test_a_command_has_the_environments_that_the_sites_setup_activates(
    local: Cli, tmp_path: Path
) -> None:
    """What ``activate`` exports, and functions of the shell, as ``conda`` and ``module`` are."""
    venv, shell, site = tmp_path / "venv", tmp_path / "conda.sh", tmp_path / "own.yaml"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    shell.write_text('conda() { export CONDA_DEFAULT_ENV="$2"; }\n')
    setup = [f". {venv}/bin/activate", f". {shell}", "conda activate train"]
    site.write_text(f"extends: local\nsetup: {json.dumps(setup)}\n")
    (venv / "bin" / "own-program").symlink_to("python")
    says = "echo $VIRTUAL_ENV $CONDA_DEFAULT_ENV; command -v own-program"
    ran = local("run", "--site", site, "--wait", "--", "sh", "-c", says)
    assert ran.out == f"{venv} train\n{venv}/bin/own-program\n"


def test_run_without_a_verb_is_run_start(local: Cli) -> None:
    id = local("run", "-o", "id", "--", "ls", "/").out.strip()
    assert ended(paths(local, id)).code == 0
    assert item(local, "run")["command"] == ["ls", "/"]
    assert local("run", "ls", "-o", "id").out.split() == [id]
    assert "Missing argument" in local("run", "start", code=2).err
    assert (
        local("run", "--wait", "-o", "id", "--", "sh", "-c", "exit 4", code=4).out.count("\n") == 1
    )


def test_a_signal_that_ends_a_command_is_its_code(local: Cli) -> None:
    local("run", "--wait", "--", "sh", "-c", "kill -9 $$", code=137)


def test_a_command_that_is_not_there_fails_with_its_name(local: Cli) -> None:
    ran = local("run", "--wait", "--", "no-such-command", code=6)
    assert "no-such-command" in ran.out and item(local, "run")["state"] == "ERROR"


def test_json_says_how_tasks_stand(local: Cli) -> None:
    found = started(local, "run", "--time", "600", "--", "sleep", "600")
    one = item(local, "run")
    assert one["state"] == "RUNNING" and 0 < one["left_s"] <= 600
    assert (one["socket"], one["token_file"], one["tunnel"]) == ("", "", "")
    assert one["node"] and one["job"].startswith("local-") and one["exit_code"] is None
    assert local("run", "stop", found.id, "-n", "-o", "json").items[0]["what"] == "would be ended"
    local("run", "stop", found.id)
    assert ended(found).reason == "stopped"
    until(lambda: item(local, "run")["state"] == "CANCELED")
    assert local("run", "stop", found.id, "-o", "json").items[0]["what"] == "has ended already"


def test_a_command_hears_that_it_is_to_end_and_what_it_has_started_ends_with_it(local: Cli) -> None:
    script = "trap 'echo leaving; exit 5' TERM; sleep 600 & echo $! >child; wait"
    found = started(local, "run", "--", "bash", "-c", script)
    until(Path("child").exists)
    local("run", "stop", found.id)
    assert ended(found) == TaskEnded("stopped", 5, ended(found).at)
    assert found.output.read_text() == "leaving\n"
    child = int(Path("child").read_text())
    until(lambda: processes.started(child) is None)


def test_a_task_ends_a_little_before_its_walltime(local: Cli) -> None:
    found = started(local, "run", "--time", "3", "--", "sleep", "600")
    assert ended(found).reason == "walltime"
    assert item(local, "run")["state"] == "COMPLETED"


def test_a_command_that_is_silent_for_too_long_is_ended(local: Cli) -> None:
    noisy = started(
        local, "run", "--idle", "3", "--", "sh", "-c", "while :; do echo; sleep 0.2; done"
    )
    silent = started(local, "run", "--idle", "1", "--", "sleep", "600")
    assert ended(silent).reason == "idle"
    assert not noisy.ended.exists()


def test_a_task_whose_processes_are_killed_is_lost(local: Cli) -> None:
    found = started(local, "run", "--", "sleep", "600")
    for pid in family(found):
        os.kill(pid, signal.SIGKILL)
    until(lambda: item(local, "run")["state"] == "ERROR")
    assert not found.ended.exists()


def test_a_job_that_its_scheduler_ends_is_canceled(local: Cli) -> None:
    found = started(local, "run", "--", "sleep", "600")
    open_scheduler(load("local")).cancel(item(local, "run")["job"])
    assert ended(found).reason == "canceled"


# -- shells ------------------------------------------------------------------------------


def shell_says(found: str, said: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hpcdet", "shell", "open", found]
    return subprocess.run(argv, input=said, capture_output=True, text=True, timeout=120)


def test_a_shell_opens_in_its_task_and_in_those_of_other_kinds(local: Cli) -> None:
    found = started(local, "shell")
    done = shell_says(found.id, "pwd; echo $HPCDET_JOINED; exit 7\n")
    assert (done.returncode, done.stdout) == (7, f"{Path.cwd()}\n{found.id}\n"), done.stderr
    assert found.id in done.stderr and "left" in done.stderr
    other = started(local, "run", "--", "sleep", "600")
    assert shell_says(other.id, "echo $HPCDET_JOINED").stdout == f"{other.id}\n"
    local("run", "stop", other.id)
    ended(other)
    assert "has ended" in local("shell", "open", other.id, code=2).err


def opened(found: TaskPaths) -> subprocess.Popen[str]:
    """A shell in a task that waits for commands; one that has ended if it came too late."""
    argv = [sys.executable, "-m", "hpcdet", "shell", "open", found.id]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def says(shell: subprocess.Popen[str], command: str) -> str:
    """The line that a command prints in an open shell; "" if the shell has ended."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        shell.stdin.write(f"{command}\n")
        shell.stdin.flush()
    return shell.stdout.readline()


def test_a_shell_task_lives_as_long_as_a_shell_is_open(local: Cli) -> None:
    for idle in (2, 8, 32):  # until a slow machine opens a shell before the task is over
        found = started(local, "shell", "--idle", idle)
        shell = opened(found)
        said = says(shell, "echo ready"), says(shell, f"sleep {2 * idle}; echo late")
        if said == ("ready\n", "late\n"):
            break
        shell.wait()
    assert said == ("ready\n", "late\n") and not found.ended.exists()
    shell.communicate()
    assert shell.returncode == 0 and ended(found).reason == "idle"


def test_no_shell_opens_in_a_task_that_is_just_ending(local: Cli) -> None:
    """Its process still lives, and has ended those shells that were open."""
    found = started(local, "shell", "--idle", 600)
    TaskEnded("idle", None, files.now()).write_once(found.ended)
    argv = [sys.executable, "-Pm", "hpcdet.tasks.shell_session", str(found.root)]
    done = subprocess.run(argv, input="echo late\n", capture_output=True, text=True, check=False)
    assert done.returncode == 3 and done.stdout == "", done
    assert f"{found.id}: it has ended" in done.stderr
    running = TaskStarted.read(found.started)
    assert running is not None
    os.kill(running.pid, signal.SIGTERM)


def test_a_shell_at_a_terminal_is_interactive(local: Cli) -> None:
    found = started(local, "shell")
    argv = [sys.executable, "-m", "hpcdet", "shell", "open", found.id]
    code, shown = in_terminal(argv, "echo $-; sleep 600 & jobs; kill %1; exit 9\n")
    assert code == 9 and "i" in shown and "Running" in shown, shown


def test_the_end_of_a_task_ends_its_shells(local: Cli) -> None:
    found = started(local, "shell")
    shell = opened(found)
    assert says(shell, "echo ready; sleep 600") == "ready\n"
    local("shell", "stop", found.id)
    assert shell.wait(timeout=120) == -signal.SIGHUP


def test_no_shell_beside_an_attempt_that_has_ended(local: Cli) -> None:
    sweep(local.root / "digits-7f3a")
    assert "no attempt of it runs" in local("shell", "open", "digits/1", code=2).err
    local("shell", "open", "digits/9", code=3)
    local("shell", "open", "nothing", code=3)
    local("shell", "open", "shell-7f3a", code=3)


# -- TensorBoard -------------------------------------------------------------------------


def test_a_tensorboard_shows_trials_to_who_has_the_token(local: Cli, tmp_path: Path) -> None:
    built = sweep(local.root / "digits-7f3a")
    (tmp_path / "runs").mkdir()
    words = ("tensorboard", "start", "digits", tmp_path / "runs", "--wait", "-o", "json")
    [one] = local(*words).items
    path, token = one["socket"], Path(one["token_file"]).read_text()
    assert get(path, "/data/runs")[0] == 403
    assert get(path, "/data/runs", token, host="evil.example")[0] == 421
    status, body = get(path, "/data/runs", token)
    assert status == 200 and json.loads(body) == [f"digits-7f3a/{n}" for n in (1, 2, 3)]
    tag = "/data/plugin/scalars/scalars?tag=training%2Floss&run=digits-7f3a%2F3"
    assert [row[1:] for row in json.loads(get(path, tag, token)[1])] == [[20, 3.0]]

    late = built.trial().attempt()
    late.metrics("training", 7, loss=0.5)
    tag = tag[:-1] + "4"
    until(lambda: get(path, tag, token)[0] == 200)  # as TensorBoard looks again
    assert [row[1:] for row in json.loads(get(path, tag, token)[1])] == [[7, 0.5]]

    found = paths(local, one["id"])
    assert listeners(family(found)) == []
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    assert found.token.stat().st_mode & 0o777 == 0o600
    local("tensorboard", "stop", found.id)
    ended(found)
    until(lambda: not Path(path).parent.exists())
    assert not found.token.exists() and not found.events.exists()
    assert "has ended" in local("tensorboard", "url", found.id, code=2).err


def test_the_token_is_in_its_file_and_in_the_address_alone(local: Cli, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    found = paths(local, local("tensorboard", "start", "./runs", "--wait", "-o", "id").out.strip())
    token = found.token.read_text()
    lines = local("tensorboard", "url", found.id, "--port", "7000").out.splitlines()
    assert lines[0].startswith("ssh -N ") and " -L 7000:/" in lines[0]
    assert lines[1] == f"http://localhost:7000/?token={token}"
    assert lines[2].startswith("time left: 3 h 59 min")
    until(lambda: get(item(local, "tensorboard")["socket"], "/", token)[0] == 200)
    for form in ("json", "csv", "jsonl"):
        for verb in ("ls", "url"):
            words = (verb,) if verb == "ls" else (verb, found.id)
            assert token not in local("tensorboard", *words, "-o", form).out
    for root in (found.root, tmp_path):
        for file in (one for one in root.rglob("*") if one.is_file() and one != found.token):
            assert token.encode() not in file.read_bytes(), file
    for pid in family(found):
        for name in ("cmdline", "environ"):
            assert token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_a_tensorboard_that_nobody_looks_at_ends(local: Cli, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    found = started(local, "tensorboard", "./runs", "--idle", "1")
    assert ended(found) == TaskEnded("idle", 0, ended(found).at)


# -- refusals ----------------------------------------------------------------------------


def test_what_cannot_be_is_refused_and_leaves_nothing(local: Cli, tmp_path: Path) -> None:
    assert "no such experiment or folder" in local("tensorboard", "start", "nothing", code=3).err
    local("run", "start", "--site", "nowhere", "--", "true", code=4)
    assert "no partition" in local("run", "--partition", "gpu", "--", "true", code=4).err
    local("run", "--time", "soon", "--", "true", code=2)
    local("run", "--slots", "0", "--", "true", code=2)
    local("run", "--fields", "nothing", "-o", "json", "--", "true", code=2)
    local("notebook", "ls", "-o", "json")
    for verb in ("logs", "stop"):
        assert "no such run" in local("run", verb, "run-0000", code=3).err
    assert "no such notebook" in local("notebook", "url", "notebook-0000", code=3).err
    assert not list((local.root / "tasks").glob("*"))


def test_a_missing_package_is_named_with_the_line_to_type(
    local: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without its packages
    python.chmod(0o755)
    site = tmp_path / "bare.yaml"
    files.replace(site, f"schema: 1\nextends: local\npython: {python}\n".encode())
    said = local("notebook", "start", "--site", site, code=4).err
    assert f"{python} has no jupyterlab" in said
    assert f"hint: {python} -m pip install 'hpcdet[notebook]'" in said
    said = local("tensorboard", "start", tmp_path, "--site", site, code=4).err
    assert f"hint: {python} -m pip install 'hpcdet[tensorboard]'" in said
    assert not list((local.root / "tasks").glob("*"))


def test_a_scheduler_that_refuses_leaves_nothing(
    local: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcdet.schedulers.common.base import Refusal, SubmissionRefused
    from hpcdet.schedulers.local.local import LocalScheduler

    for kind, code in (("invalid", 4), ("limit", 4), ("unavailable", 5)):

        def refuse(*_: object, kind: str = kind) -> str:
            raise SubmissionRefused(Refusal(kind, f"it is {kind}"))

        monkeypatch.setattr(LocalScheduler, "submit", refuse)
        assert f"it is {kind}" in local("run", "--", "true", code=code).err
    assert not list((local.root / "tasks").glob("*"))


def test_an_interrupted_start_is_found_by_its_tag(local: Cli) -> None:
    found = started(local, "run", "--", "sleep", "600")
    submitted = found.job.submitted(1)
    job = item(local, "run")["job"]
    submitted.unlink()
    assert item(local, "run")["job"] == job and submitted.exists()


def test_a_prefix_that_fits_several_is_refused(local: Cli) -> None:
    for _ in range(2):
        ended(started(local, "run", "--", "true"))
    assert "2 fit" in local("run", "logs", "run-", code=3).err


def test_what_ended_long_ago_is_removed_at_the_next_start(local: Cli) -> None:
    old = started(local, "run", "--", "true")
    ended(old)
    record = TaskEnded("completed", 0, "2020-01-01T00:00:00.000000Z")
    files.replace(old.ended, record.encode())
    local("run", "--", "true")
    assert not old.root.exists() and len(local("run", "ls", "-o", "id").out.split()) == 1


def test_ids_are_completed(local: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    id = local("run", "-o", "id", "--", "true").out.strip()
    for words in ("hpcdet run logs run-", "hpcdet run stop "):
        done = subprocess.run(
            [sys.executable, "-m", "hpcdet"],
            env={
                **os.environ,
                "_HPCDET_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": "3",
            },
            capture_output=True,
            text=True,
        )
        assert id in done.stdout, done.stderr
