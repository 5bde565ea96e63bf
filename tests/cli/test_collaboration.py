"""Names and notes that people give to experiments, and roots of other users."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hpcdet import client, errors
from hpcdet.cli import main
from hpcdet.read.experiment.gather import gather
from hpcdet.read.report import ReportOptions, render
from hpcdet.store.folder import trust
from tests.builders import Builder, sweep
from tests.commands import Cli
from tests.other_users import by

ADA, LEE = 54_320, 54_321
"""Users without accounts."""


def test_a_name_is_changed_after_the_end_and_everywhere(cli: Cli, swept: Builder) -> None:
    assert swept.paths.closed.exists()
    before = swept.paths.config.read_bytes()
    words = ("name=Ten digits", "description=yes: a=b", "project=vision", "workspace=lab")
    said = cli("set", "digits", *words, "-o", "json").items[0]
    assert said["ok"] and "project=vision" in said["what"]
    [row] = cli("ls", "--project", "lab/vision", "-o", "json").items
    named = {"name": "Ten digits", "description": "yes: a=b", "project": "lab/vision"}
    assert named.items() <= row.items()
    assert (row["user"], row["owner"]) == ("ada", trust.user(os.getuid()))
    [status] = cli("status", "digits", "-o", "json").items
    assert named.items() <= status.items()
    assert "Ten digits, project lab/vision: yes: a=b" in cli("status", "digits").out
    assert f"no experiment in {cli.root} fits\n" in cli("ls", "--project", "other").err
    assert f"no trial in {cli.root} fits\n" in cli("ls", "--trials", "--user", "eve").err
    [shown] = cli("show", "digits", "-o", "json").items
    assert named.items() <= shown.items()
    assert (shown["config"]["name"], shown["config"]["project"]) == ("Ten digits", "vision")
    change = {one["key"]: one for one in shown["changes"]}["name"]
    assert (change["was"], change["value"], change["pending"]) == ("digits", "Ten digits", False)
    page = json.loads(render(gather(swept.paths), 1e9, ReportOptions(format="json")))
    summary = page["sections"]["summary"]
    assert (summary["question"], summary["project"]) == ("yes: a=b", "lab/vision")
    found = client.get("digits")
    assert (found.name, found.description) == ("Ten digits", "yes: a=b")
    assert (found.project, found.user, found.owner) == ("lab/vision", "ada", row["owner"])
    assert swept.paths.config.read_bytes() == before


def test_former_names_stay_on_record_with_author_and_time(cli: Cli, swept: Builder) -> None:
    client.get("digits").set(name="zebra", project="okapi")
    cli("set", "digits", "name=gecko", "project=")
    assert (client.get("digits").name, client.get("digits").project) == ("gecko", "")
    rows = cli("events", "digits", "--kind", "command", "-o", "json").items
    named = [row for row in rows if "name=" in row["text"]]
    assert ["zebra" in named[0]["text"], "gecko" in named[1]["text"]] == [True, True]
    user = trust.user(os.getuid())
    assert all(row["time"] and user in row["text"] for row in named)
    page = render(gather(swept.paths), 1e9, ReportOptions(format="json", anonymous=True))
    assert not any(word in page for word in ("zebra", "gecko", "okapi", "digits-7f3a"))


def test_what_was_set_is_shown_whole_in_80_columns(cli: Cli, swept: Builder) -> None:
    long = "a description of which no word may be lost, however narrow the terminal is"
    lines = cli("set", "digits", f"description={long}").out.splitlines()
    assert max(map(len, lines)) <= 80 and lines[1].startswith("digits-7f3a ")
    assert long in " ".join(" ".join(lines).split())


def test_a_note_has_its_author_and_time(cli: Cli, swept: Builder) -> None:
    cli("note", "digits", "the baseline")
    for text, what in ((" ", "empty"), ("x" * 10_001, "over 10000 characters")):
        assert f"the note is {what}" in cli("note", "digits", text, code=2).err
    [note] = client.get("digits").notes
    assert (note.text, note.user) == ("the baseline", trust.user(os.getuid()))
    assert note.at


def test_names_and_limits_are_set_at_once_or_not_at_all(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    refused = cli("set", "digits", "project=x", "searcher.metric=y", code=4)
    assert "searcher.metric" in refused.err
    assert "would set project=x" in cli("set", "digits", "project=x", "-n").out
    assert not built.paths.commands.exists()
    assert "the name is empty" in cli("set", "digits", "name= ", code=4).err
    assert "at most 200" in cli("set", "digits", f"name={'x' * 201}", code=4).err
    built.trial()
    assert "not to a trial" in cli("set", "digits/1", "name=x", code=2).err
    with pytest.raises(errors.UsageError, match="nothing to set"):
        client.get("digits").set()


def test_a_hostile_description_changes_nothing(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.command("describe", name=None, description=["x"], project={"a": 1}, entrypoint="x")
    [row] = cli("ls", "-o", "json").items
    assert (row["name"], row["description"], row["project"]) == ("digits", "", "")


# -- another user's root -----------------------------------------------------------------------


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A root of ADA's in which everybody may write, and reads must not."""
    if os.getuid() != 0:
        pytest.skip("becomes other users")
    with tempfile.TemporaryDirectory(prefix="hpcdet-test-") as top:
        Path(top).chmod(0o755)
        root = Path(top) / "root"
        built = sweep(root / "digits-7f3a")
        built.command("note", text="a note")
        Builder(root / "other-0001").trial()
        for path in (root, *root.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
            os.chown(path, ADA, ADA)
        yield root


def tree(root: Path) -> dict[str, tuple[int, ...]]:
    """What tells whether anything was written below a folder."""
    paths = (root, *root.rglob("*"))
    seen = ((str(path), path.lstat()) for path in paths)
    return {name: (s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in seen}


READING = (
    "ls", "status", "show digits", "logs digits", "metrics digits --last", "events digits",
    "explain digits", "usage", "compare digits other", "report digits", "ckpt ls digits",
    "index update", "index rebuild digits", "registry ls", "wait digits", "searcher status digits",
    "export digits csv --to out", "config show digits",
)  # fmt: skip


def as_lee(words: list[str], home: Path) -> tuple[int, str]:
    """Run a verb as another user in a process of its own: its exit code and what it said."""
    said = home / "said"

    def run() -> None:
        os.chdir(home)
        places = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
        os.environ |= dict.fromkeys(places, str(home))
        fd = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
        code = main.run(words)
        sys.stdout.flush()
        sys.stderr.flush()
        sys.exit(code)

    return by(LEE, run), said.read_text()


def test_reading_writes_nothing_in_another_users_root(
    cli: Cli, theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(theirs)
    home = theirs.parent / "lee"
    home.mkdir()
    os.chown(home, LEE, LEE)
    monkeypatch.chdir(tmp_path)
    for verb in READING:
        words = [*verb.split(), "-C", str(theirs)]
        cli(*words)  # as root, who may write everywhere; and all modules are there for LEE
        assert tree(theirs) == before, f"hpcdet {verb} has written"
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        code, said = as_lee(words, home)
        assert tree(theirs) == before, f"hpcdet {verb} has written as another user: {said}"
        assert code == 0, f"hpcdet {verb}: {said}"
    for place in (tmp_path, home):
        assert (place / "digits-7f3a-report.html").is_file()


def test_nothing_is_asked_of_another_users_experiment(cli: Cli, theirs: Path) -> None:
    before = tree(theirs)
    for verb in ("tag --add x", "note hello", "set name=x", "set max_concurrent=1", "cancel"):
        name, *words = verb.split()
        said = cli(name, theirs / "other-0001", *words, "-C", theirs, code=4)
        assert f"the experiment belongs to {trust.user(ADA)}" in said.err
        assert "use a copy of your own" in said.err
        assert tree(theirs) == before


def test_keys_of_set_are_completed(cli: Cli, swept: Builder) -> None:
    command = main.cli.get_command(click.Context(main.cli), "set")
    assert command is not None
    [words] = [one for one in command.params if isinstance(one, click.Argument)]
    found = words.shell_complete(click.Context(command), "")
    assert {"digits-7f3a", "name=", "project=", "budget.slot_hours="} <= {
        one.value for one in found
    }
    assert [one.value for one in words.shell_complete(click.Context(command), "des")] == [
        "description="
    ]
