"""A copy of an experiment's folder: it says so, and touches nothing of the original's."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdet.control import daemon
from hpcdet.errors import UsageError
from hpcdet.store.folder import home, scratch
from hpcdet.store.folder.layout import ExperimentPaths
from tests import experiments as x
from tests.builders import Builder
from tests.commands import Cli
from tests.slurm_runs import undisturbed

pytestmark = pytest.mark.xdist_group("copies")
BATCHES = 60


def copy_of(source: ExperimentPaths, folder: Path) -> ExperimentPaths:
    """As a person copies it while it runs: files may vanish meanwhile."""
    folder.parent.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", source.root, folder], stderr=subprocess.DEVNULL)
    return ExperimentPaths(folder)


@pytest.fixture
def original(cli: Cli, tmp_path: Path) -> Iterator[ExperimentPaths]:
    """An experiment of one fake trial that runs, and waits at step 40 for the file ``go``."""
    go = tmp_path / "go"
    values = x.config(BATCHES, data={"every": 10, "hold": {"at": 40, "until": str(go)}})
    with x.local_jobs(tmp_path / "local-state"):
        site = x.local_site(python=x.fake_python(tmp_path))
        paths = x.submit(values, cli.root, site)
        x.until(lambda: x.progress(paths) >= 40, lambda: x.story(paths))
        yield paths


def test_a_copy_of_a_running_experiment_says_so_and_touches_nothing(
    cli: Cli, original: ExperimentPaths, tmp_path: Path
) -> None:
    daemon.start(original)
    try:
        for folder in (cli.root / "copy-0001", tmp_path / "elsewhere" / original.id):
            copy = copy_of(original, folder)
            [item] = cli("status", folder, "-o", "json").items
            assert item["health"] == "stalled"
            assert f"this is a copy of {original.root}" in item["health_why"]
            assert f"hpcdet move {folder} --here" in cli("explain", folder).out
            for verb in (("cancel",), ("cancel", "--now"), ("pause",), ("resume",), ("hold",)):
                failed = cli(verb[0], folder, *verb[1:], code=2)
                assert f"this is a copy of {original.root}" in failed.err + failed.out, verb
            for words in (("run", "--once"), ("start",), ("stop",)):
                failed = cli("searcher", words[0], folder, *words[1:], code=2)
                assert "this is a copy of" in failed.err, words
            assert not copy.commands.exists()
        assert x.daemon_pids(original), "its searcher was stopped for the copy's"
        cli("rm", cli.root / "copy-0001", "--yes")
    finally:
        (tmp_path / "go").touch()
    assert x.run_to_end(original).state == "COMPLETED"
    assert x.ends(original, 1) == ["completed"]
    assert x.final_digest(original, 1) == undisturbed(BATCHES)


def test_a_copy_that_is_taken_over_goes_on_by_itself(
    cli: Cli, original: ExperimentPaths, tmp_path: Path
) -> None:
    copy = copy_of(original, tmp_path / "elsewhere" / "copy-0001")
    said = cli("move", copy.root, "--here", "-n", "-o", "json").items
    assert said[0]["what"] == "would be taken over" and home.original(copy) == original.root
    taken = cli("move", copy.root, "--here")
    assert "its former jobs are left alone" in taken.err
    assert "lives here already" in cli("move", copy.root, "--here").out
    (tmp_path / "go").touch()
    cli("resume", copy.root)
    assert x.crank_to_end(copy).state == "COMPLETED"
    assert x.ends(copy, 1) == ["lost", "completed"]
    assert x.run_to_end(original).state == "COMPLETED"
    assert x.ends(original, 1) == ["completed"]
    assert len(original.submissions()) == 1
    digests = {x.final_digest(paths, 1) for paths in (original, copy)}
    assert digests == {undisturbed(BATCHES)}


def test_what_was_moved_or_is_of_an_older_version_is_no_copy(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path / "a-0001")
    paths.root.mkdir()
    assert home.original(paths) is None and home.left_behind(paths) == 0
    home.settle(paths)
    moved = ExperimentPaths(tmp_path / "b-0001")
    paths.root.rename(moved.root)
    assert home.original(moved) is None and not home.is_here(moved)
    shutil.copytree(moved.root, paths.root)  # now that one lives where both say
    assert home.original(moved) == paths.root and home.original(paths) is None
    link = tmp_path / "by-another-way"
    link.symlink_to(paths.root)
    assert home.original(ExperimentPaths(link)) is None
    with pytest.raises(UsageError, match="this is a copy of"):
        home.refuse_copy(moved)
    home.settle(moved)
    assert home.original(moved) is None and home.is_here(moved)


def test_move_wants_a_place_or_here_and_not_both(cli: Cli, tmp_path: Path) -> None:
    for words in ((), (tmp_path, "--here")):
        assert "no destination given" in cli("move", "any-0001", *words, code=2).err
    assert json.loads(cli("move", "any-0001", "-o", "json", code=2).err)["error"]["code"] == "USAGE"


@pytest.mark.parametrize("where", [("--here",), ("to",)])
def test_what_a_copy_has_on_scratch_is_the_originals(
    cli: Cli, tmp_path: Path, where: tuple[str]
) -> None:
    original = Builder(cli.root / "a-0001").paths
    on_scratch = tmp_path / "scratch" / "a-0001"
    on_scratch.parent.mkdir()
    scratch.link(original, on_scratch)
    scratch.prepare(original)
    home.settle(original)
    copy = copy_of(original, tmp_path / "elsewhere" / "a-0001")
    words = [tmp_path / "new-name" if word == "to" else word for word in where]
    said = cli("move", copy.root, *words, code=2).err
    assert "in the original's folder" in said and f"hpcdet fork {original.root}" in said
    assert copy.root.is_dir() and scratch.target(copy) == scratch.target(original) == on_scratch
    assert on_scratch.is_dir()
