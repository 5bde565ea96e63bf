"""The examples in the docs: commands parse, configs are valid, code runs."""

from __future__ import annotations

import datetime
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hpcdet.cli import main
from hpcdet.config.policy.compile_policy import compile_policy
from hpcdet.store.fs import yaml12
from tests import TOP
from tests.commands import Cli
from tests.house.test_docs import PAGES

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    (hpcdet .*)$", re.MULTILINE)
INLINE = re.compile(r"`(hpcdet [a-z][^`\n]*)`")
PLACES = {"ID": "digits-7f3a", "CONFIG": "random.yaml", "NAME": "digits", "DIR": "folder"}
PROSE = re.compile(r"[…|\[\]]|\.\.\.|[a-z]/[a-z]+,")
"""Marks of what describes a command instead of being one."""


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [text for _, language, text in found if language in languages]


def commands(page: Path) -> Iterator[str]:
    """The command lines of hpcdet on a page."""
    for text in blocks(page, "console", "sh", ""):
        for line in text.splitlines():
            for part in re.split(r"\|\||&&|\$\(|   {3,}(?=hpcdet)", line.removeprefix("$ ")):
                if part.strip().startswith("hpcdet "):
                    alone = re.split(r"  #| # | > | \| |; ", part.strip())[0]
                    yield alone.rstrip(")")
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from INDENTED.findall(text)
    yield from (line for line in INLINE.findall(text) if not PROSE.search(line))


def parse(line: str) -> None:
    """Parse a command line as click does, up to the values of options. Raises UsageError."""
    words = [PLACES.get(word, word) for word in shlex.split(line)[1:]]
    command: click.Command = main.cli
    context = click.Context(command, info_name="hpcdet")
    while isinstance(command, click.Group):
        if "--" in words and not any(word in command.commands for word in words):
            words = ["start", *words]  # `run [FLAGS] -- COMMAND`
        _, words, _ = command.make_parser(context).parse_args(args=words)
        if not words:
            return
        name, command, words = command.resolve_command(context, words)  # type: ignore[assignment]
        assert command is not None
        context = click.Context(command, info_name=name, parent=context)
    options, left, _ = command.make_parser(context).parse_args(args=words)
    assert not left, f"too many words: {left}"
    del options


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_commands_in_the_docs_can_be_typed(page: Path) -> None:
    for line in commands(page):
        try:
            parse(line)
        except (click.UsageError, AssertionError) as error:
            if "is a verb of Determined's" in str(error):
                continue  # and the answer names ours
            raise AssertionError(f"{page.name}: {line}: {error}") from error


# -- configs -----------------------------------------------------------------------------------

SITE_KEYS = {"extends", "paths", "capabilities", "limits", "scheduler"}
BASE: dict[str, Any] = {
    "name": "digits",
    "entrypoint": ["true"],
    "hyperparameters": {
        "global_batch_size": 64,
        "learning_rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
        "optimizer": {"choice": {"sgd": {}, "adam": {}}},
    },
    "searcher": {
        "name": "random",
        "metric": "validation_loss",
        "max_trials": 4,
        "max_length": {"batches": 300},
    },
}
ALL_KEYS = "docs/reference/files.md"
"""It lists every key of both files with its default, some of which only another file gives."""


def _examples() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(TOP)), text)
        for page in PAGES
        for text in blocks(page, "yaml")
        if str(page.relative_to(TOP)) != ALL_KEYS
    ]


@pytest.mark.parametrize(("page", "text"), _examples())
def test_configs_in_the_docs_are_valid(page: str, text: str, cli: Cli, tmp_path: Path) -> None:
    value = yaml12.parse(text, page).values
    if "apiVersion" in value:
        compile_policy(text, page, datetime.date(2026, 1, 1))
        return
    if SITE_KEYS & set(value) or "capabilities" in value.get("governance", {}):
        file = tmp_path / "delta.yaml"
        file.write_text(yaml.safe_dump({"extends": "generic-slurm", **value}))
        cli("site", "show", file)
        return
    searcher, space = value.get("searcher", {}), dict(BASE["hyperparameters"])
    if "objectives" in searcher:
        base = {k: v for k, v in BASE["searcher"].items() if k != "metric"}
    else:
        base = BASE["searcher"]
    if searcher.get("name") == "schedule":
        base = {k: v for k, v in base.items() if k != "max_trials"}
        space = {"learning_rate": space["learning_rate"]}  # each step names all of them
    whole = {**BASE, "hyperparameters": space, **value, "searcher": {**base, **searcher}}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    # one where images and staged data have a place
    there = {"extends": "local", "container": {"kind": "apptainer"}, "paths": {"local": "/tmp"}}
    site = tmp_path / "there.yaml"
    site.write_text(yaml.safe_dump(there))
    elsewhere = "/project/" in text  # folders of a cluster: they are all that may be missing
    said = cli("--profile", site, "config", "validate", file, code=4 if elsewhere else 0)
    assert not elsewhere or " is not there" in said.err


# -- code --------------------------------------------------------------------------------------


def run(folder: Path, code: str) -> str:
    """Run a script alone in a folder; return what it wrote."""
    (folder / "train.py").write_text(code)
    ended = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_python_in_the_docs_compiles(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(textwrap.dedent(code), page.name, "exec")


def test_the_loop_of_ones_own_trains(tmp_path: Path) -> None:
    first, second = blocks(TOP / "docs" / "guides" / "own-loop.md", "python")
    code = first.replace("default=1000", "default=200")
    assert code != first
    out = run(tmp_path, f"{code}\nprint(model.weight.item(), step)\n")
    weight, step = out.splitlines()[-1].split()
    assert float(weight) == pytest.approx(3, abs=0.1) and step == "200"
    # the loop over rungs in its place
    head = code[: code.index("    while step <")]
    evaluate = "def evaluate(model):\n    return abs(model.weight.item() - 3)\n\n\n"
    (tmp_path / "rungs").mkdir()
    run(tmp_path / "rungs", f"{evaluate}{head}{second}")


def test_the_loop_over_virtual_ranks_trains(tmp_path: Path) -> None:
    [code] = blocks(TOP / "docs" / "guides" / "elastic.md", "python")
    assert float(run(tmp_path, f"{code}\nprint(model.weight.item())\n")) == pytest.approx(
        3, abs=0.5
    )


def test_the_trial_trains(tmp_path: Path) -> None:
    [code] = blocks(TOP / "docs" / "guides" / "training.md", "python")
    rest = textwrap.dedent("""
        if __name__ == "__main__":
            hparams = {"width": 8, "global_batch_size": 64}
            with pytorch.init(hparams=hparams) as context:
                trainer = pytorch.Trainer(MyTrial(context), context)
                trainer.fit(max_length=pytorch.Batch(20), validation_period=pytorch.Batch(10))
            print("done")
    """)
    assert "done" in run(tmp_path, code + rest)
