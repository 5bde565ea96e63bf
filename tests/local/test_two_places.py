"""Experiments on project storage with a folder on scratch, which a purge may take at any time."""

from __future__ import annotations

import contextlib
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.errors import ConfigError
from hpcdet.site import Site, folders
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import journal
from hpcdet.store.trials.standing import latest_checkpoint
from tests import experiments as x


class Lab:
    """Real training at a site with project storage and scratch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.scratch = folder / "scratch"
        for each in (self.project, self.scratch):
            each.mkdir(mode=0o700)
        self.model = x.write_model(folder / "model", pace_s=0.02)
        paths = {"project": str(self.project), "scratch": str(self.scratch), "purge_days": 30}
        self.site: Site = x.local_site(paths=paths)
        self.whole: Site = x.local_site()

    def values(self, **changes: Any) -> dict[str, Any]:
        return x.config(400, min_validation_period={"batches": 40}, **changes)

    def submit(self) -> ExperimentPaths:
        root = self.project / "hpcdet-experiments"
        return x.submit(self.values(), root, self.site, self.model)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with x.local_jobs(tmp_path / "state"):
        yield Lab(tmp_path)


def committed(place: Path | None) -> list[str]:
    return [m.name for m in manifests.committed(place)] if place else []


def begun_from(paths: ExperimentPaths, attempt: int) -> str:
    return str(journal.read(paths.trial(1).attempt(attempt).journal)[0]["checkpoint"])


@contextlib.contextmanager
def killed(paths: ExperimentPaths, attempt: int) -> Iterator[None]:
    """Stop an attempt once it has a copy on project storage of its own, and kill it at the end."""
    kept = paths.trial(1).kept
    x.until(
        lambda: any(name.endswith(f".g{attempt}") for name in committed(kept)),
        lambda: x.story(paths),
    )
    x.strike(x.rank_pids(paths), signal.SIGSTOP)
    yield
    x.strike(x.rank_pids(paths))
    x.until(
        lambda: journal.read(paths.trial(1).attempt(attempt + 1).journal), lambda: x.story(paths)
    )


def test_neither_a_kill_nor_a_purge_costs_bits(lab: Lab) -> None:
    """Killed, and on from scratch; all of scratch purged, and on from project storage; the newest
    checkpoint half purged, and on from its copy."""
    undisturbed = x.submit(lab.values(), lab.folder / "root", lab.whole, lab.model)
    paths = lab.submit()
    trial = paths.trial(1)
    with killed(paths, 1):
        newest = latest_checkpoint(trial)
        assert newest in committed(trial.checkpoints)
    assert begun_from(paths, 2) == newest
    assert "scratch holds nothing newer" not in trial.attempt(2).log(0).read_text()

    with killed(paths, 2):
        kept = committed(trial.kept)
        shutil.rmtree(paths.scratch.resolve())
    assert begun_from(paths, 3) == kept[-1]
    assert "scratch holds nothing newer" in trial.attempt(3).log(0).read_text()
    assert stat.S_IMODE(paths.scratch.resolve().stat().st_mode) == 0o700

    with killed(paths, 3):
        kept = committed(trial.kept)
        for folder in trial.checkpoints.iterdir():
            (folder / "rank-00000-of-00001.h5").unlink(missing_ok=True)
    assert begun_from(paths, 4) == kept[-1]

    assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    assert set(x.ends(paths, 1)) == {"lost", "completed"}
    assert committed(trial.kept)[-1] == committed(trial.checkpoints)[-1]  # the trained model
    x.run_to_end(undisturbed)
    x.same_bits(x.final_digest(paths, 1), x.final_digest(undisturbed, 1), x.story(paths))
    assert not undisturbed.split


def test_without_project_storage_nothing_changes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where the site names the folder of experiments, or its user names one elsewhere."""
    monkeypatch.setenv("HPCDET_LOCAL_STATE", str(lab.folder))
    both = {"project": str(lab.project), "scratch": str(lab.scratch)}

    def site(**paths: Any) -> Site:
        return x.local_site(paths=paths)

    assert folders.experiments(site(**both)) == lab.project / "hpcdet-experiments"
    assert folders.scratch(site(**both), lab.project / "mine") == lab.scratch / "hpcdet-experiments"
    for alone in (
        site(scratch=str(lab.scratch)),
        site(project=str(lab.project)),
        site(**both, root=str(lab.project / "here")),
    ):
        assert folders.scratch(alone, folders.experiments(alone) or Path()) is None
    assert folders.scratch(site(**both), lab.folder / "elsewhere") is None

    lab.scratch.chmod(0o777)
    with pytest.raises(ConfigError, match="everybody"):
        x.create.create(
            x.Plain(lab.values(), {}), lab.site, lab.model, lab.project / "hpcdet-experiments"
        )
    left = [*lab.project.glob("*/*"), *lab.scratch.glob("*/*")]
    assert left == []
