"""MPI as a backend of torch.distributed, on the machine's own MPI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcdet.errors import ConfigError
from hpcdet.train import mpi
from hpcdet.train.ranks import Ranks

MPIRUN = (
    *("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,tcp"),
    *("--mca", "mpi_yield_when_idle", "1"),
)


def run(program: str, folder: Path, ranks: int = 3) -> str:
    """What rank 0 of a program printed; all ranks must have ended well."""
    command = (*MPIRUN, "-np", str(ranks), sys.executable, "-m", "tests.mpi_ranks", program)
    store = folder / f"{program}-{len(list(folder.iterdir()))}"
    done = subprocess.run(
        (*command, str(store)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_collective_does_what_torch_means_by_it(tmp_path: Path) -> None:
    run("collectives", tmp_path)


def test_ddp_over_mpi_is_that_over_gloo_and_the_same_bits_from_run_to_run(tmp_path: Path) -> None:
    first, second = run("training", tmp_path), run("training", tmp_path)
    assert first.startswith("digest ") and first == second


def test_a_rank_that_does_not_come_is_an_error_and_no_hang(tmp_path: Path) -> None:
    said = run("missing", tmp_path, 2)
    assert "missed: " in said and "MPI allreduce: the other ranks did not come" in said


def test_processes_that_mpi_does_not_know_as_ranks_are_told_how_to_start() -> None:
    # in a process of its own: MPI starts once
    code = (
        "from hpcdet.errors import ConfigError; from hpcdet.train import mpi; "
        "from hpcdet.train.ranks import Ranks\n"
        "try: mpi.prepare(Ranks(1, 4))\nexcept ConfigError as e: print(e, e.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "MPI says rank 0 of 1, the launcher rank 1 of 4" in done.stdout, done.stderr
    assert "--mpi=pmix" in done.stdout


def test_without_mpi4py_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match="MPI cannot be loaded") as caught:
        mpi.prepare(Ranks(0, 2))
    assert "hpcdet[mpi]" in caught.value.hint
