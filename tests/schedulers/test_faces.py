"""Backends that are opened by names have each face whole: mypy reads this file, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.errors import Unavailable
from hpcdet.schedulers import opening
from hpcdet.schedulers.common import questions
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.backend import FactsFace, InsideFace, NamesFace, ScriptFace
from hpcdet.schedulers.common.base import Queues, Scheduler
from hpcdet.schedulers.pbs import pbs_facts, pbs_inside
from hpcdet.schedulers.pbs.pbs import PbsScheduler
from hpcdet.schedulers.pbs.pbs_script import SCRIPT
from hpcdet.schedulers.pbs_family import pbs_commands
from hpcdet.schedulers.pbs_family.pbs_names import NAMES
from hpcdet.schedulers.slurm import slurm_facts, slurm_inside, slurm_names
from hpcdet.schedulers.slurm.script import slurm_script
from hpcdet.schedulers.slurm.slurm import SlurmScheduler
from hpcdet.schedulers.torque import torque_facts, torque_inside, torque_names, torque_script
from hpcdet.schedulers.torque.torque import TorqueScheduler
from hpcdet.site_files.load_site import load

CONTROL: dict[str, type[Scheduler]] = {
    "slurm": SlurmScheduler,
    "pbs": PbsScheduler,
    "torque": TorqueScheduler,
}
SCRIPTS: dict[str, ScriptFace] = {
    "slurm": slurm_script,
    "pbs": SCRIPT,
    "torque": torque_script.SCRIPT,
}
INSIDE: dict[str, InsideFace] = {"slurm": slurm_inside, "pbs": pbs_inside, "torque": torque_inside}
FACES_OF_NAMES: dict[str, NamesFace] = {
    "slurm": slurm_names,
    "pbs": NAMES,
    "torque": torque_names.NAMES,
}
FACTS: dict[str, FactsFace] = {"slurm": slurm_facts, "pbs": pbs_facts, "torque": torque_facts}


@pytest.mark.parametrize("name", sorted(CONTROL))
def test_a_backend_gives_the_faces_of_its_scheduler(name: str) -> None:
    backend = opening.backend(name)
    assert backend.name == name and backend.cluster
    assert type(backend.control(load(backend.facts.generic))) is CONTROL[name]
    assert backend.script is SCRIPTS[name] and backend.inside is INSIDE[name]
    assert backend.names is FACES_OF_NAMES[name] and backend.facts is FACTS[name]


@pytest.mark.parametrize("name", sorted(CONTROL))
def test_a_job_calls_no_command_that_asks_where_none_is_answered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would take its whole limit of time, and the lease might expire meanwhile."""
    backend, called = opening.backend(name), tmp_path / "called"
    for program in ("squeue", "sacct", "sinfo", "scontrol", "qstat", "qselect", "pbsnodes"):
        (tmp_path / program).write_text(f'#!/bin/sh\necho "$0 $*" >> {called}\nexit 1\n')
        (tmp_path / program).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(questions.VARIABLE, "1")
    pbs_commands.path.cache_clear()
    scheduler = backend.control(load(backend.facts.generic))
    assert isinstance(scheduler, Queues)
    for ask in (lambda: scheduler.find("x-1", "hpcdet:x:1"), scheduler.partitions):
        with pytest.raises(Unavailable, match="answers no questions inside jobs here"):
            ask()
    assert backend.inside.shown_node("n1") is None
    assert backend.inside.stands(Allocation("7", ("n1",)))
    assert not called.exists(), called.read_text()
    pbs_commands.path.cache_clear()
