"""Modules and files of a rank that starts anew until its first step is over; counts, no times."""

from __future__ import annotations

import json
from pathlib import Path

from hpcdet.jobs.create import provenance
from hpcdet.store.folder.layout import ExperimentPaths
from tests import ranks
from tests.train.test_attempt import line, verdict_of

OURS = 217
"""So many modules of hpcdet; each is a file that a shared file system is asked for."""
ELSEWHERE = (
    "hpcdet.pytorch.gradients.ddp",
    "hpcdet.pytorch.gradients.virtual_reducer",
    "hpcdet.store.cost",
    "hpcdet.train.attempt.script_process",
    "hpcdet.train.mpi",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
)
"""Of several ranks, virtual ones, searches by rungs, commands, MPI, and compressed gradients."""
LOOK = (
    "import gc, json, sys; from hpcdet.process import installed_packages as packages; "
    "found = [sorted(sys.modules), gc.isenabled(), gc.get_freeze_count(), "
    "packages._read.cache_info().misses]; open({!r}, 'w').write(json.dumps(found))"
)


def test_a_cold_rank_loads_what_a_first_step_needs_and_reads_no_known_versions(
    tmp_path: Path,
) -> None:
    said = tmp_path / "said.json"
    trial = line(tmp_path / "EXP", LOOK.format(str(said)), until=1)
    record = {"code": {"model_def.py": ""}, "packages": provenance.packages()}
    ExperimentPaths(tmp_path / "EXP").provenance.write_text(json.dumps(record))
    verdict = verdict_of(ranks.by_mpirun(trial, 1))
    assert (verdict.verdict, verdict.error) == ("done", "")
    modules, collects, frozen, read = json.loads(said.read_text())
    ours = [name for name in modules if name.split(".")[0] == "hpcdet"]
    assert len(ours) <= OURS, ours
    assert not {*ELSEWHERE} & {*modules}
    assert collects and frozen > 100_000, "imports are left alone, and what follows is not"
    assert read == 0
