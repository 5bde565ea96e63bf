"""On other numbers of ranks: the same samples, and with virtual ranks the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcdet.store.layout import TrialPaths
from tests import ranks
from tests.experiments import same_bits
from tests.ranks import Result

MODEL = (Path(__file__).parent / "bits_model.py").read_text()
EXACT = {"elastic": "exact", "virtual_ranks": 4}
UNTIL = 16

pytestmark = pytest.mark.xdist_group("bits")


def make(root: Path, world: int = 4, **changes: Any) -> TrialPaths:
    settings = {
        "entrypoint": "model_def:BitsTrial",
        "hparams": {"global_batch_size": 16},
        "until": UNTIL,
        "scheduling_unit": 3,
        "min_validation_period": {"batches": 5},
        "optimizations": {"aggregation_frequency": 2},
        "reproducibility": EXACT,
    }
    return ranks.experiment(root, code=MODEL, ranks=world, **{**settings, **changes})


def trained(root: Path, *plan: tuple[int, str], **changes: Any) -> Result:
    """Train with so many ranks up to where they leave, then with the next number."""
    trial = make(root, **changes)
    for world, leave in plan:
        attempt = ranks.run(trial, world, LEAVE=leave, WORKERS="1" if world == 2 else "0")
        verdict = attempt.verdict()
        assert verdict is not None, attempt.log()
        assert verdict.verdict == ("resume" if leave else "done"), attempt.log()
    return ranks.result(trial)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """By one rank."""
    return trained(tmp_path_factory.mktemp("alone") / "EXP", (1, ""))


PLANS = {
    "2": [(2, "")],
    "3": [(3, "")],
    "4": [(4, "")],
    # between two steps of the optimizer; inside a validation
    "4-1-2": [(4, "train:4"), (1, "validate:10:2"), (2, "")],
    "1-4-3": [(1, "train:6"), (4, "train:11"), (3, "")],
}


@pytest.mark.parametrize("plan", PLANS)
def test_with_virtual_ranks_the_number_of_ranks_does_not_matter(
    alone: Result, tmp_path: Path, plan: str
) -> None:
    same_bits(trained(tmp_path / "EXP", *PLANS[plan]), alone)
