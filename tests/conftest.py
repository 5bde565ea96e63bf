"""What every test shares: a clean environment, the private Slurms, and the order of the run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import dose
from tests.cluster import slurm as private
from tests.cluster.configuration import Options
from tests.commands import cli as cli

if TYPE_CHECKING:
    from tests.slurm_runs import Lab

_FOREIGN = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "PBS_", "PMI", "OMPI_", "HPCDET_")
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_LONGEST_FIRST = ("slurm", "slurm-b")
"""Groups of tests that one worker runs from end to end; they must not be what is left last."""


# A failure here is a failure everywhere, and a slow machine is none.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def pytest_configure(config: pytest.Config) -> None:
    """Tests see no job, rank, site or deafness of whoever runs them.

    A shell that starts something in the background has it ignore SIGINT, and what is ignored
    is inherited by every process that a test starts.
    """
    for name in list(os.environ):
        if name not in dose.NAMES and (name.startswith(_FOREIGN) or name in _RANKS):
            del os.environ[name]
    # where all cores are busy, threads that wait for each other take most of the time
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    hear_signals()


def pytest_report_header() -> str:
    """What a campaign that passes says nowhere else where its worker's output is not shown."""
    return f"chaos: HPCDET_CHAOS={dose.BLOWS} HPCDET_CHAOS_SEED={dose.SEED}"


def hear_signals() -> None:
    """Every signal as it is in a fresh process of a terminal."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """Handlers and the umask that code under test sets in this process end with their test."""
    mask = os.umask(0o022)
    os.umask(mask)
    yield
    os.umask(mask)
    hear_signals()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the long groups first, so that the two workers end together."""

    def rank(item: pytest.Item) -> int:
        marker = item.get_closest_marker("xdist_group")
        group = marker.args[0] if marker and marker.args else ""
        return _LONGEST_FIRST.index(group) if group in _LONGEST_FIRST else len(_LONGEST_FIRST)

    items.sort(key=rank)


def _cluster(name: str, options: Options) -> Iterator[private.SlurmCluster]:
    reason = private.why_not(options.accounting)
    if reason:
        pytest.skip(reason)
    cluster = private.SlurmCluster(f"{name}-{os.getpid()}", options)
    cluster.up(owner=os.getpid())
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def main_slurm() -> Iterator[private.SlurmCluster]:
    """A Slurm with accounting; ``batch`` is preempted without grace. Group ``slurm`` only."""
    yield from _cluster("a", Options())


@pytest.fixture(scope="session")
def other_slurm() -> Iterator[private.SlurmCluster]:
    """A Slurm without accounting, to be reconfigured at will. Group ``slurm-b`` only."""
    yield from _cluster("b", Options(accounting=False))


@pytest.fixture
def slurm(main_slurm: private.SlurmCluster) -> Iterator[private.SlurmCluster]:
    """The main Slurm with an empty queue; emptied again at the end."""
    yield main_slurm
    main_slurm.clear()


@pytest.fixture
def slurm_b(other_slurm: private.SlurmCluster) -> Iterator[private.SlurmCluster]:
    """The other Slurm, as it was booted; emptied and set back at the end."""
    booted = other_slurm.options
    yield other_slurm
    other_slurm.clear()
    if other_slurm.options != booted:
        other_slurm.reconfigure(booted)


@pytest.fixture
def lab(
    slurm: private.SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """A folder for experiments on the main Slurm."""
    from tests.slurm_runs import Lab

    lab = Lab(slurm, tmp_path, monkeypatch)
    yield lab
    lab.end()


@pytest.fixture
def lab_b(
    slurm_b: private.SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """A folder for experiments on the other Slurm."""
    from tests.slurm_runs import Lab

    lab = Lab(slurm_b, tmp_path, monkeypatch)
    yield lab
    lab.end()
