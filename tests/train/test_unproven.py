"""Ranks that cannot prove to each other who they are, under a real worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.store.folder.records import End
from tests import experiments as x

IMPOSTOR = """
import os
from hpcdet.train.meeting import proof
from hpcdet.process.ranks import Ranks

if os.environ["HPCDET_ATTEMPT"] == "1" and Ranks.from_environment().rank == 1:
    prove = proof.prove

    def forge(secret, role, *facts):
        return prove(bytes(32) if role == "gloo" else secret, role, *facts)

    proof.prove = forge
"""


@pytest.mark.xdist_group("mpi")
def test_an_attempt_whose_ranks_are_not_proven_is_charged_to_nobody(
    tmp_path: Path,
) -> None:
    """One rank of the first attempt says what somebody says who does not know the secret."""
    digests = []
    for name, more in (("once", ""), ("twice", IMPOSTOR)):
        model = x.write_model(tmp_path / name)
        (model / "model_def.py").write_text(more + (model / "model_def.py").read_text())
        values = x.config(8, ranks=2, name=name, max_restarts=0, hyperparameters={"x": 0.5})
        with x.local_jobs(tmp_path / "state"):
            paths = x.submit(values, tmp_path / "root", x.local_site(), model)
            assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
        assert x.ends(paths, 1) == ["unproven", "completed"][bool(not more) :], x.story(paths)
        digests.append(x.final_digest(paths, 1))
    x.same_bits(*digests)
    first = End.read(paths.trial(1).attempt(1).end)
    assert first is not None and "speaks to rank" in first.error
