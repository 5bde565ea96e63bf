"""A torch over which MPI hangs is refused, before anything is submitted and when a rank starts."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
from collections.abc import Callable

import pytest

from hpcdet.errors import ConfigError
from hpcdet.jobs.checks import site_checks
from hpcdet.process.ranks import Ranks
from hpcdet.store.config import mpi_torch
from hpcdet.store.config.resolved_config import resolve
from hpcdet.train import mpi
from tests import experiments as x


def _submit(python: str | None = None) -> list[str]:
    """What is said at the submission of a trial over MPI whose ranks run in an interpreter."""
    config = resolve(x.config(ranks=2, distributed={"backend": "mpi"}))
    environment = dataclasses.replace(config.environment, python=python)
    config = dataclasses.replace(config, environment=environment)
    site = x.local_site(launcher={"kind": "mpirun"})
    return site_checks._fabric(config, site, site.view())


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the version of torch that is installed."""
    return lambda version: monkeypatch.setattr(importlib.metadata, "version", lambda _: version)


@pytest.mark.parametrize("version", ["2.4.1", "2.12.1+cu130", "1.13.0"])
@pytest.mark.parametrize("refuse", [_submit, lambda: mpi.prepare(Ranks(0, 2))])
def test_an_old_torch_is_refused_and_the_repair_said(
    installed: Callable[[str], None], version: str, refuse: Callable[[], object]
) -> None:
    installed(version)
    with pytest.raises(ConfigError) as caught:
        refuse()
    assert f"torch {version} is too old" in caught.value.what
    assert caught.value.where == "distributed.backend: mpi"
    assert "torch 2.13 or later" in caught.value.hint


@pytest.mark.parametrize("version", ["2.13.0", "2.14.0a0+git1234", "3.0.0", "of our own"])
def test_others_are_taken(installed: Callable[[str], None], version: str) -> None:
    installed(version)
    assert mpi_torch.objection() == ""


def test_the_torch_of_another_interpreter_is_judged_when_a_rank_starts(
    installed: Callable[[str], None],
) -> None:
    installed("2.4.1")
    assert _submit("/opt/other/bin/python3") == []
    with pytest.raises(ConfigError, match="too old"):
        _submit(sys.executable)
