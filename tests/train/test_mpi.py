"""MPI as a backend of torch.distributed, on the machine's own MPI: programs and whole trials."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from hpcdet import checkpoint
from hpcdet.errors import ConfigError
from hpcdet.process.ranks import Ranks
from hpcdet.schedulers.common import processes
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import End
from hpcdet.store.trials.standing import latest_checkpoint
from hpcdet.train import mpi
from tests import experiments as x

pytestmark = [
    pytest.mark.xdist_group("mpi"),
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine"),
]
ARGS = ("--allow-run-as-root", "--mca", "btl", "self,vader,tcp")


def run(program: str, folder: Path, ranks: int = 3) -> subprocess.CompletedProcess[str]:
    """A program of ``tests/mpi_ranks.py``."""
    return subprocess.run(
        (
            *("mpirun", *ARGS, "--oversubscribe", "-np", str(ranks)),
            *(sys.executable, "-m", "tests.mpi_ranks", program, str(folder / program)),
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_collective_does_what_torch_means_by_it_and_ddp_what_it_does_over_gloo(
    tmp_path: Path,
) -> None:
    done = run("everything", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missed: " in done.stdout
    assert "MPI allreduce failed: the other ranks did not come" in done.stdout


def test_a_script_that_raises_on_one_rank_ends_all(tmp_path: Path) -> None:
    """Without hpcdet around it: MPI's own end would wait for ranks that wait for this one."""
    done = run("raising", tmp_path)
    assert done.returncode != 0
    assert "ValueError: on rank 1" in done.stderr


def test_processes_that_mpi_does_not_know_as_ranks_are_told_how_to_start() -> None:
    # in a process of its own: MPI starts once
    code = (
        "from hpcdet.errors import ConfigError; from hpcdet.train import mpi; "
        "from hpcdet.process.ranks import Ranks\n"
        "try: mpi.prepare(Ranks(1, 4))\nexcept ConfigError as e: print(e, e.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "MPI gives rank 0 of 1, the launcher rank 1 of 4" in done.stdout, done.stderr
    assert "--mpi=pmix" in done.stdout


def test_without_mpi4py_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match="MPI cannot be loaded") as caught:
        mpi.prepare(Ranks(0, 2))
    assert "hpcdet[mpi]" in caught.value.hint


# -- trials on the local backend ------------------------------------------------------------

RANKS = 3
BATCHES = 40


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with x.local_jobs(tmp_path / "state"):
        yield tmp_path


def submit(folder: Path, backend: str, name: str, **model: object) -> ExperimentPaths:
    """A trial of three ranks, over MPI by mpirun, over gloo without."""
    launcher = {"kind": "mpirun", "args": list(ARGS)} if backend == "mpi" else {"kind": "local"}
    values = x.config(
        BATCHES,
        ranks=RANKS,
        name=name,
        distributed={"backend": backend},
        min_validation_period={"batches": 20},
        max_restarts=3,
        checkpoint_every_s=0.2,
        scheduling_unit=1,
    )
    source = x.write_model(folder / f"model-{name}", loaders=1, **model)  # type: ignore[arg-type]
    return x.submit(values, folder / "root", x.local_site(launcher=launcher), source)


def weights(paths: ExperimentPaths) -> dict[str, torch.Tensor]:
    trial = paths.trial(1)
    name = latest_checkpoint(trial)
    assert name is not None
    found: dict[str, torch.Tensor] = checkpoint.load(trial.checkpoints / name).shared["models"][0]
    return found


def launchers(paths: ExperimentPaths) -> list[psutil.Process]:
    """What started the ranks of an experiment: its children are ranks, theirs are loaders."""
    found = [psutil.Process(pid) for pid in x.rank_pids(paths)]
    return [one for one in found if one.name() in ("mpirun", "prterun")]


def test_a_trial_over_mpi_ends_as_over_gloo_however_it_is_disturbed(folder: Path) -> None:
    gloo = submit(folder, "gloo", "gloo")
    assert x.run_to_end(gloo).state == "COMPLETED"
    once = submit(folder, "mpi", "once")
    assert x.run_to_end(once).state == "COMPLETED", x.story(once)
    assert x.ends(once, 1) == ["completed"], x.story(once)
    for name, value in weights(gloo).items():
        assert torch.allclose(value, weights(once)[name], rtol=1e-4, atol=1e-6), name

    paths = submit(folder, "mpi", "often", pace_s=0.1, crash_at=6)

    def at_work(attempt: int) -> None:
        """Wait until an attempt is some steps further than what it began with."""
        begun = x.progress(paths)
        x.until(
            lambda: len(x.ends(paths, 1)) == attempt and x.progress(paths) > begun,
            lambda: x.story(paths),
        )

    x.until(lambda: len(x.ends(paths, 1)) == 2, lambda: x.story(paths))
    at_work(2)
    x.strike(x.worker_pids(paths), signal.SIGUSR2)
    x.until(lambda: len(x.ends(paths, 1)) == 3, lambda: x.story(paths))
    at_work(3)
    x.strike([launchers(paths)[0].children()[-1].pid])
    x.until(lambda: len(x.ends(paths, 1)) == 4, lambda: x.story(paths))
    at_work(4)
    [mpirun] = launchers(paths)
    orphans = [one.pid for one in mpirun.children(recursive=True)]
    x.strike([mpirun.pid])
    x.until(lambda: len(x.ends(paths, 1)) == 5, lambda: x.story(paths))
    x.until(lambda: not any(processes.started(pid) for pid in orphans), lambda: x.story(paths))
    assert x.run_to_end(paths).state == "COMPLETED"
    ends = ["user_error", "preempted", "lost", "lost", "completed"]
    assert x.ends(paths, 1) == ends, x.story(paths)
    first = End.read(paths.trial(1).attempt(1).end)
    assert first is not None and first.error == "RuntimeError: crash at batch 6"
    x.same_bits(x.final_digest(paths, 1), x.final_digest(once, 1), x.story(paths))
