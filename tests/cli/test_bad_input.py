"""Every verb with bad input, by the tree of commands, so that a new verb is in it by itself.

What is expected of each: an exit code of the table, no traceback, and an error that names what it
is about.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from hpcdet.cli import main
from hpcdet.read.lookup import find
from tests.builders import Builder
from tests.commands import Cli
from tests.registry.models import trained

ABSENT = "nobody-0000"
NAMES = re.compile(r"\b(ID|EXP|MODEL|TASK)\b|^[AB]$")
"""Arguments that name something that has to be there."""
MORE = {
    "set": ("name=x",),
    "tag": ("--add", "x"),
    "registry label": ("--add", "x"),
    "registry best": ("--metric", "x"),
    "policy change": ("--revoke", "x"),
    "ledger query": ("--layer", "x"),
    "move": ("--here",),
}
"""What verbs need beside the arguments and options that click requires."""
UNEXPECTED = 1


def leaves(command: click.Command, words: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that has none below it, and its words."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, f"{words} {name}".strip())


def naming() -> dict[str, click.Command]:
    """The verbs that take a name of something."""
    named = {
        words: verb
        for words, verb in leaves(main.cli)
        if any(NAMES.search(_metavar(one)) for one in _arguments(verb))
    }
    assert len(named) > 70
    return named


def _arguments(verb: click.Command) -> list[click.Parameter]:
    return [one for one in verb.params if isinstance(one, click.Argument)]


def _metavar(argument: click.Parameter) -> str:
    return argument.metavar or str(argument.name)


def line(words: str, verb: click.Command, name: str, folder: Path) -> list[str]:
    """A command line in which all that has to be there is called ``name``."""
    said = words.split()
    for one in verb.params:
        if isinstance(one, click.Argument) and (one.required or NAMES.search(_metavar(one))):
            said.append(_value(one, name, folder))
        elif one.required:
            said += [one.opts[-1], _value(one, name, folder)]
    return [*said, *MORE.get(words, ())]


def _value(one: click.Parameter, name: str, folder: Path) -> str:
    if isinstance(one, click.Argument) and NAMES.search(metavar := _metavar(one)):
        if "MODEL" in metavar and "ID" not in metavar:
            return f"{name}{'@x' if '@' in metavar else ':1' if ':' in metavar else ''}"
        return name
    if isinstance(one.type, click.Choice):
        return str(one.type.choices[0])
    return str(folder / "made.pt") if isinstance(one.type, click.Path) else "x"


def wrong(
    cli: Cli, lines: Mapping[str, Sequence[str]], expected: Callable[[str, int, str], bool]
) -> dict[str, tuple[int, str]]:
    """Run all; returns what ended otherwise than expected."""
    found = {}
    for words, said in lines.items():
        cli.capture.readouterr()
        code = main.run([*map(str, said)])
        err = cli.capture.readouterr().err
        if code == UNEXPECTED or "Traceback" in err or not expected(words, code, err):
            found[words] = (code, err[-400:])
    return found


def test_of_nothing_that_is_there(cli: Cli, tmp_path: Path) -> None:
    lines = {words: line(words, verb, ABSENT, tmp_path) for words, verb in naming().items()}
    assert not wrong(cli, lines, lambda _, code, err: code == 3 and ABSENT in err)


def test_in_a_folder_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    lines = {
        words: ["-C", str(absent), *line(words, verb, ABSENT, tmp_path)]
        for words, verb in naming().items()
    }
    assert not wrong(cli, lines, lambda _, code, err: code == 3 and bool(err))
    assert not absent.exists()


OF_ALL = (
    "ls", "status", "usage", "eff", "index update", "index rebuild", "registry ls",
    "registry verify", "policy impact x", "notebook ls", "tensorboard ls", "shell ls", "run ls",
    "serve --idle 1s",
)  # fmt: skip
"""Verbs that look at all experiments of a folder, or all models."""


def test_of_all_in_a_folder_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    lines = {words: ["-C", str(absent), *words.split()] for words in OF_ALL}
    assert not wrong(cli, lines, lambda _, code, err: code == 3 and str(absent) in err)
    assert not absent.exists()


def test_of_all_in_an_empty_folder(cli: Cli, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    lines = {words: ["-C", str(empty), *words.split()] for words in OF_ALL if "serve" not in words}
    assert not wrong(cli, lines, lambda words, code, err: code == (3 if words[-1] == "x" else 0))
    assert not [*empty.iterdir()]


APART = re.compile("notebook|tensorboard|shell|run|searcher|registry|ckpt (digest|verify)|index")
"""Verbs for which something is started, or what is named is no experiment."""


def lines_of(name: str, folder: Path) -> dict[str, list[str]]:
    """Command lines of what reads or changes an experiment."""
    return {
        words: line(words, verb, name, folder)
        for words, verb in naming().items()
        if not APART.match(words)
    }


def any_of_the_table(_: str, code: int, err: str) -> bool:
    return code in (0, 2, 3, 4, 5, 6, 7, 9) and (code == 0 or "error: " in err)


def test_of_what_is_removed_while_it_is_read(
    cli: Cli, swept: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = tmp_path / "aside"
    shutil.copytree(swept.paths.root, aside)
    found = find.reference

    def removing(text: str, root: Path) -> Any:
        known = found(text, root)
        shutil.rmtree(known.paths.root, ignore_errors=True)
        return known

    monkeypatch.setattr(find, "reference", removing)
    bad: dict[str, tuple[int, str]] = {}
    for words, said in lines_of(swept.paths.id, tmp_path).items():
        shutil.copytree(aside, swept.paths.root, dirs_exist_ok=True)
        bad |= wrong(cli, {words: said}, any_of_the_table)
    assert not bad


@pytest.mark.parametrize("what", ["journal.jsonl", "*"])
def test_of_damaged_records(cli: Cli, swept: Builder, tmp_path: Path, what: str) -> None:
    for file in swept.paths.root.rglob(what):
        if file.is_file():
            file.write_bytes(b"\x00\xff{not json\n" * 3)
    assert not wrong(cli, lines_of(swept.paths.id, tmp_path), any_of_the_table)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB of its own."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", place], capture_output=True
    )
    if made.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_on_a_read_only_file_system(cli: Cli, tmp_path: Path, small: Path, swept: Builder) -> None:
    shutil.copytree(swept.paths.root, small / swept.paths.id)
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    lines = lines_of(swept.paths.id, tmp_path)
    lines = {words: ["-C", str(small), *said] for words, said in lines.items()}
    assert not wrong(cli, lines, any_of_the_table)


def test_on_a_full_file_system(cli: Cli, tmp_path: Path, small: Path, swept: Builder) -> None:
    shutil.copytree(swept.paths.root, small / swept.paths.id)
    with (small / "filling").open("wb", buffering=0) as file:
        file.write(bytes(1 << 20))  # as much of it as there is room for
    lines = lines_of(swept.paths.id, tmp_path)
    lines = {words: ["-C", str(small), *said] for words, said in lines.items()}
    assert not wrong(cli, lines, any_of_the_table)


FORMS = ("tensorboard", "csv", "jsonl", "parquet", "ro-crate")


@pytest.mark.parametrize("words", ["report", *(f"export {form}" for form in FORMS)])
def test_onto_a_full_disk(
    cli: Cli, swept: Builder, tmp_path: Path, small: Path, words: str
) -> None:
    """Each file is whole, as it is where there is room, or is not there."""
    (small / "filling").write_bytes(bytes((1 << 20) - 8192))
    verb, *form = words.split()
    target = small / "made"
    said = [verb, swept.paths.id, *form, "-o" if verb == "report" else "--to"]
    bad = wrong(
        cli,
        {words: [*said, str(target)]},
        lambda _, code, err: code == 5 and "No space left" in err,
    )
    assert not bad
    cli(*said, tmp_path / "made")
    for file in target.rglob("*"):
        whole = tmp_path / file.relative_to(small)
        assert file.is_dir() or file.read_bytes() == whole.read_bytes(), file
    assert {one.name for one in small.iterdir()} <= {"filling", "made"}


@pytest.mark.parametrize("words", ["export {} mlflow --to", "export {} optuna --to"])
def test_into_a_store_on_a_full_disk(cli: Cli, swept: Builder, small: Path, words: str) -> None:
    (small / "filling").write_bytes(bytes((1 << 20) - 8192))
    ran = cli(*words.format(swept.paths.id).split(), small / "made.db", code=5)
    told = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(told) == 1 and told[0].endswith("database or disk is full")
    assert "SQL:" not in ran.err


@pytest.mark.parametrize("form", ["pt", "safetensors", "hdf5"])
def test_weights_onto_a_full_disk(cli: Cli, small: Path, form: str) -> None:
    trained(cli.root / "digits-7f3a")
    (small / "filling").write_bytes(bytes(1 << 20))
    said = ("ckpt", "export", "digits-7f3a/1", "--best", "--format", form, "-o", small / "made")
    assert "No space left on device" in cli(*said, code=5).err
    assert [one.name for one in small.iterdir()] == ["filling"]
