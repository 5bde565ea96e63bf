"""Looking at somebody's Git repository runs no program that it names.

Each way in plants a program that leaves a mark. Plain Git leaves it, which shows that the plant
works; hpcdet does not, and still records the commit and what was changed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdet.jobs.create import provenance
from hpcdet.read.lookup import find
from tests.commands import Cli

ME = ("-c", "user.name=x", "-c", "user.email=x@example.org")


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    argv = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(argv, check=check, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def setting(folder: Path, key: str, value: str) -> None:
    git(folder, "config", key, value)


def attribute(folder: Path, text: str) -> None:
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text(f"* {text}\n")


def monitor(folder: Path, program: str) -> None:
    setting(folder, "core.fsmonitor", program)


def hook(folder: Path, program: str) -> None:
    (folder / ".git" / "hooks").mkdir(exist_ok=True)
    (folder / ".git" / "hooks" / "post-index-change").symlink_to(program)


def hooks_elsewhere(folder: Path, program: str) -> None:
    (folder / "hooks").mkdir()
    (folder / "hooks" / "post-index-change").symlink_to(program)
    (folder / ".hpcdetignore").write_text("hooks\n")
    setting(folder, "core.hooksPath", str(folder / "hooks"))


def clean_filter(folder: Path, program: str) -> None:
    attribute(folder, "filter=x")
    setting(folder, "filter.x.clean", program)


def process_filter(folder: Path, program: str) -> None:
    attribute(folder, "filter=x")
    setting(folder, "filter.x.process", program)
    setting(folder, "filter.x.required", "true")


def attributes_of_the_code(folder: Path, program: str) -> None:
    (folder / ".gitattributes").write_text("* filter=x\n")
    setting(folder, "filter.x.clean", program)
    setting(folder, "filter.x.smudge", program)


def textconv(folder: Path, program: str) -> None:
    attribute(folder, "diff=x")
    setting(folder, "diff.x.textconv", program)


def driver(folder: Path, program: str) -> None:
    attribute(folder, "diff=x")
    setting(folder, "diff.x.command", program)


def external_diff(folder: Path, program: str) -> None:
    setting(folder, "diff.external", program)


def submodule(folder: Path, program: str) -> None:
    inner = folder / "inner"
    inner.mkdir()
    repository(inner)
    git(folder, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
    git(folder, *ME, "commit", "-qm", "with a submodule")
    setting(inner, "core.fsmonitor", program)


def include(folder: Path, program: str) -> None:
    (folder / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    setting(folder, "include.path", "more")


def include_if(folder: Path, program: str) -> None:
    (folder / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    setting(folder, "includeIf.gitdir:/.path", str(folder / ".git" / "more"))


def lazy_fetch(folder: Path, program: str) -> None:
    """A partial clone that lacks a file: reading it asks the remote, by a command."""
    blob = git(folder, "rev-parse", "HEAD:a.py")
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for key, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": "ssh://example.invalid/x",
        "core.sshCommand": program,
    }.items():
        setting(folder, key, value)


def worktree_elsewhere(folder: Path, program: str) -> None:
    setting(folder, "core.fsmonitor", program)
    (folder / ".git").rename(folder.parent / "elsewhere")
    (folder / ".git").write_text(f"gitdir: {folder.parent / 'elsewhere'}\n")


def configuration_of_the_worktree(folder: Path, program: str) -> None:
    setting(folder, "core.repositoryformatversion", "1")
    setting(folder, "extensions.worktreeConfig", "true")
    (folder / ".git" / "config.worktree").write_text(f"[core]\n\tfsmonitor = {program}\n")


def bare(folder: Path, program: str) -> None:
    """The folder is itself what ``.git`` would be."""
    setting(folder, "core.fsmonitor", program)
    setting(folder, "core.bare", "false")
    setting(folder, "core.worktree", str(folder))
    for path in list((folder / ".git").iterdir()):
        path.rename(folder / path.name)
    (folder / ".git").rmdir()
    (folder / ".hpcdetignore").write_text("hooks\nconfig\nobjects\n")


WAYS: tuple[Callable[[Path, str], None], ...] = (
    monitor,
    hook,
    hooks_elsewhere,
    clean_filter,
    process_filter,
    attributes_of_the_code,
    textconv,
    driver,
    external_diff,
    submodule,
    include,
    include_if,
    lazy_fetch,
    worktree_elsewhere,
    configuration_of_the_worktree,
    bare,
)


def repository(folder: Path) -> None:
    """A commit, and a change since."""
    git(folder, "init", "-q")
    (folder / "a.py").write_text("a = 1\n")
    git(folder, "add", ".")
    git(folder, *ME, "commit", "-qm", "one")
    (folder / "a.py").write_text("a = 2\n")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def program(tmp_path: Path, mark: Path) -> str:
    file = tmp_path / "program"
    file.write_text(f"#!/bin/sh\necho ran > {mark}\nexit 1\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def folder(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "model"
    cli("init", folder, "--minimal")
    repository(folder)
    return folder


def plain_git(folder: Path) -> None:
    for command in (["diff", "HEAD"], ["status"]):
        git(folder, *command, check=False)


def submit(cli: Cli, folder: Path, *flags: str) -> None:
    cli("submit", folder / "single.yaml", "--site", "local", *flags)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_submission_runs_nothing_of_a_repository(
    way: Callable[[Path, str], None], cli: Cli, folder: Path, mark: Path, program: str
) -> None:
    way(folder, program)
    plain_git(folder)
    assert mark.exists(), "the plant does not work"
    mark.unlink()
    os.utime(folder / "a.py")  # what git remembers of the file is out of date again
    submit(cli, folder, "-n", "--offline")
    submit(cli, folder, "--prepare", "--no-test")
    assert not mark.exists()
    if way not in (bare, lazy_fetch):
        recorded = json.loads(find.experiment("@last", cli.root).provenance.read_text())["git"]
        assert recorded["commit"] == git(folder, "rev-parse", "HEAD")
        assert "+a = 2" in recorded["diff"] and "a.py" in recorded["uncommitted"]


def test_neither_plan_nor_test_runs_anything_of_a_repository(
    cli: Cli, folder: Path, mark: Path, program: str
) -> None:
    for way in (monitor, hook, attributes_of_the_code, external_diff, submodule, include):
        way(folder, program)
    plain_git(folder)
    assert mark.exists()
    mark.unlink()
    os.utime(folder / "a.py")
    (folder / ".hpcdetignore").write_text("inner\n")
    cli("plan", folder / "single.yaml", "--site", "local")
    cli("test", folder / "single.yaml", "--site", "local")
    assert not mark.exists()


def test_variables_of_the_caller_are_not_for_git(
    folder: Path, mark: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(folder, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", program)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", program)
    plain_git(folder)
    assert mark.exists()
    mark.unlink()
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    recorded = provenance.git(folder)
    assert recorded is not None and recorded["commit"] == commit and "+a = 2" in recorded["diff"]
    assert not mark.exists()


def test_objects_of_another_clone_and_worktrees_are_read(folder: Path, tmp_path: Path) -> None:
    commit = git(folder, "rev-parse", "HEAD")
    shared, tree = tmp_path / "shared", tmp_path / "tree"
    subprocess.run(["git", "clone", "-qs", folder, shared], check=True, timeout=60)
    git(folder, "worktree", "add", "-q", "--detach", str(tree))
    for place in (shared, tree):
        clean = provenance.git(place)
        assert clean is not None and (clean["commit"], clean["dirty"]) == (commit, False)
        (place / "a.py").write_text("a = 3\n")
        dirty = provenance.git(place)
        assert dirty is not None and "+a = 3" in dirty["diff"]


@pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")
def test_of_a_repository_of_another_user_the_commit_alone_is_recorded(folder: Path) -> None:
    commit = git(folder, "rev-parse", "HEAD")
    os.chown(folder / ".git", 65534, 65534)
    recorded = provenance.git(folder)
    assert recorded is not None and recorded["commit"] == commit
    assert (recorded["diff"], recorded["dirty"], recorded["uncommitted"]) == ("", False, [])
    assert recorded["diff_note"] == "not looked at: the repository belongs to nobody"
