"""No verb runs anything of an experiment that belongs to another user.

Every command of the command line is taken from click, so that a new one is covered by itself: over
a folder of another user in which all that can run leaves a mark. A command that has an argument of
a new kind fails here until it is said what to give for it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hpcdet.cli import main
from hpcdet.read.lookup import find
from hpcdet.store.folder.layout import ExperimentPaths
from tests.commands import Cli

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")

NOBODY = 65534
SOON_S = 0.5
"""Commands that go on for ever (``logs -f``) are left to themselves after so long."""
SHADOWS = ("torch", "numpy", "h5py", "yaml", "click", "submitit", "sitecustomize", "hpcdet")

PROGRAM = """\
#!{python}
import json, pathlib, sys
pathlib.Path({mark!r}).touch()
for line in sys.stdin:
    event = json.loads(line)["event"]
    actions = [{{"kind": "create"}}, {{"kind": "create"}}] if event["kind"] == "start" else []
    print(json.dumps({{"state": None, "actions": actions}}), flush=True)
"""
CONFIG = """\
name: trap
entrypoint: {program} rank
hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
searcher: {{name: custom, program: [{program}], metric: m, max_length: {{batches: 4}},
  max_trials: 2}}
environment: {{python: {program}}}
notify: {{command: {program}, on: [end, failure, stuck]}}
"""


def leaves(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that can be given, with its words."""
    if isinstance(command, click.Group):
        for name, found in command.commands.items():
            yield from leaves(found, (*path, name))
    else:
        yield path, command


class Trap:
    """Somebody else's experiment, and what is asked of it."""

    def __init__(self, paths: ExperimentPaths, mark: Path, aside: Path) -> None:
        self.paths, self.mark, self.aside = paths, mark, aside
        self.copy = aside / "copy"
        shutil.copytree(paths.root, self.copy, symlinks=True)
        self.restore()

    def restore(self) -> None:
        """Put back what has been changed, as its owner had it."""
        shutil.rmtree(self.paths.root, ignore_errors=True)
        shutil.copytree(self.copy, self.paths.root, symlinks=True)
        for path in (self.paths.root, *self.paths.root.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        self.mark.unlink(missing_ok=True)

    def argument(self, parameter: click.Argument, fresh: str) -> list[str]:
        """What to give for an argument of a command."""
        root = str(self.paths.root)
        given = {
            **{name: [root] for name in ("id", "ids", "exp", "what", "sources", "a")},
            "b": [f"{root}/trials/0001"],
            **{name: ["trap"] for name in ("model", "reference", "alias", "text")},
            **{name: [fresh] for name in ("folder", "to")},
            "config_file": [str(self.paths.code / "c.yaml")],
            **{
                name: [str(self.paths.code / "c.yaml")]
                for name in ("file", "files", "before", "after")
            },
            "kind": ["acquire"],
            "source": ["public"],
            "model_dir": [str(self.paths.code)],
            "name": ["local"],
            "names": ["local"],
            "command": ["true"],
            "key": ["searcher.name"],
            "value": ["random"],
            "shell": ["bash"],
            "step": [],
            "form": ["training-content"],
            "topic": ["ids"],
            "words": [root, "budget.slot_hours=1"],
        }
        name = parameter.name or ""
        assert name in given, f"what is to be given for the argument {name!r}?"
        return given[name]

    def calls(self) -> Iterator[list[str]]:
        """Each command by itself, and with each of its own flags."""
        common = {"--json", "--no-header", *(n for o in main.cli.params for n in o.opts)}
        for path, command in leaves(main.cli):
            fresh = str(self.aside / "-".join(path))
            positional: list[str] = []
            for one in command.params:
                if isinstance(one, click.Argument):
                    positional += self.argument(one, fresh)
            if path == ("worker",):
                positional += ["--submission", "1", "--index", "0"]
            yield [*path, *positional]
            for option in command.params:
                plain = isinstance(option, click.Option) and option.is_flag and not option.multiple
                if plain and not set(option.opts) & common:
                    yield [*path, option.opts[-1], *positional]


def start(words: list[str], here: Path, output: Path) -> int:
    """Begin a command in a process of its own, in a session of its own; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(here)
        fd = os.open(output, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        for stream in (1, 2):
            os.dup2(fd, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        streams = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
        sys.stdin, sys.stdout, sys.stderr = streams
        code = main.run(words)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def ends(pid: int, within_s: float) -> bool:
    """Whether it ends by itself, and what it has left behind with it."""
    limit = time.monotonic() + within_s
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def trap(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    mark, model, program = tmp_path / "mark", tmp_path / "model", tmp_path / "program"
    model.mkdir(mode=0o700)
    program.write_text(PROGRAM.format(python=sys.executable, mark=str(mark)))
    program.chmod(0o755)
    (model / "c.yaml").write_text(CONFIG.format(program=program))
    (model / "train.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n")
    cli("submit", model / "c.yaml", "--site", "local", "--no-test", "--prepare")
    assert mark.exists()  # one's own runs
    paths = find.experiment("@last", cli.root)
    site = paths.site.read_text()
    assert "\npython: null" in site
    paths.site.write_text(site.replace("\npython: null", f"\npython: {program}"))
    for folder in (paths.root, paths.code):
        for name in SHADOWS:
            shutil.copy(model / "train.py", folder / f"{name}.py")
        os.system(f"git -C {folder} init -q && git -C {folder} config core.fsmonitor {program}")
        (folder / ".hpcdet" / "sites").mkdir(parents=True)
        (folder / ".hpcdet" / "sites" / "local.yaml").write_text(f"python: {program}\n")
    aside = tmp_path / "aside"
    aside.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Trap(paths, mark, aside)


def test_no_verb_runs_anything_of_somebody_else(trap: Trap) -> None:
    calls = list(trap.calls())
    assert {words[0] for words in calls} == set(main.VERBS)
    endless: dict[int, list[str]] = {}
    neutral = trap.aside / "neutral"  # where a site is found, so that verbs come to the experiment
    neutral.mkdir()
    traps = itertools.cycle((trap.paths.root, trap.paths.code))
    plain = [words for words in calls if not any(word.startswith("-") for word in words)]
    runs = [(words, neutral) for words in calls] + list(zip(plain, traps, strict=False))
    for number, (words, here) in enumerate(runs):
        output = trap.aside / f"{number}.out"
        pid = start(words, here, output)
        if not ends(pid, SOON_S):
            endless[pid] = words
            continue
        said = output.read_text(errors="replace")
        assert not trap.mark.exists(), f"hpcdet {words} has run something: {said}"
        assert "Traceback" not in said and "UNEXPECTED" not in said, f"{words}: {said}"
        if not trap.paths.config.exists() or trap.paths.closed.exists():
            trap.restore()
    for pid in endless:
        if not ends(pid, SOON_S):
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert not trap.mark.exists(), f"one of these has run something: {endless.values()}"


@pytest.mark.parametrize(
    "words", [("searcher", "replay", "--verify"), ("searcher", "run", "--once"), ("fork",)]
)
def test_the_refusal_says_whose_it_is_and_what_to_do(
    trap: Trap, cli: Cli, words: list[str]
) -> None:
    said = cli(*words, trap.paths.root, code=4).err
    root = trap.paths.root
    assert said.startswith(f"error: {root}: the experiment belongs to nobody\nhint: ")
    assert f"use a copy of your own: cp -r {root} ." in said
    assert not trap.mark.exists()


def test_a_copy_of_ones_own_runs(trap: Trap, cli: Cli) -> None:
    mine = cli.root / "mine-0001"
    shutil.copytree(trap.paths.root, mine, symlinks=True)
    for path in (mine, *mine.rglob("*")):
        os.chown(path, 0, 0, follow_symlinks=False)
    cli("searcher", "replay", "--verify", mine)
    assert trap.mark.exists()
