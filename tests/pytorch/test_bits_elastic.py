"""On other numbers of ranks: the same samples, and with virtual ranks the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet import checkpoint
from hpcdet.checkpoint import content_digest
from hpcdet.data import rng
from hpcdet.data.sample_order import shuffled
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.worker.attempts import evidence
from tests import TESTS, ranks
from tests.experiments import same_bits
from tests.ranks import Result

MODEL = (TESTS / "bits_model.py").read_text()
EXACT = {"elastic": "exact", "virtual_ranks": 4}
UNTIL = 16

pytestmark = pytest.mark.xdist_group("bits")


def make(root: Path, world: int = 4, **changes: Any) -> TrialPaths:
    settings: dict[str, Any] = {
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


def test_on_any_number_of_ranks_every_sample_comes_once(tmp_path: Path) -> None:
    """Four ranks, then two, then three, with other numbers of loader workers."""
    trial = make(tmp_path / "EXP", reproducibility={}, until=14)
    for world, leave, workers in ((4, "train:2", "0"), (2, "train:7", "2"), (3, "", "0")):
        attempt = ranks.run(
            trial, world, LEAVE=leave, WORKERS=workers, SEEN=str(tmp_path / f"seen-{world}")
        )
        assert attempt.verdict() is not None, attempt.log()
    batches: dict[tuple[int, int], list[int]] = {}
    files = sorted(tmp_path.glob("seen-*"), key=lambda path: path.name.split("-")[-1])
    for line in [line for path in files for line in path.read_text().splitlines()]:
        epoch, batch, *indices = map(int, line.split())
        batches.setdefault((epoch, batch), []).extend(indices)
    assert sorted(batches) == [(batch // 6, batch) for batch in range(14)]
    for (epoch, batch), indices in batches.items():
        assert indices == shuffled(82, 7, epoch)[batch % 6 * 16 :][:16].tolist()


PLANS = {
    "1": [(1, "")],
    "2": [(2, "")],
    "4": [(4, "")],
    # between two steps of the optimizer; inside a validation
    "4-1-2": [(4, "train:4"), (1, "validate:10:2"), (2, "")],
    "1-3": [(1, "train:6"), (3, "")],
}


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan != "1"])
def test_with_virtual_ranks_the_number_of_ranks_does_not_matter(
    alone: Result, tmp_path: Path, plan: str
) -> None:
    same_bits(trained(tmp_path / "EXP", *PLANS[plan]), alone)


def test_with_virtual_ranks_all_begin_with_the_parameters_of_rank_0(tmp_path: Path) -> None:
    """As with DDP, whatever a rank has drawn for itself."""
    built = "    def __init__(self, context):\n"
    code = MODEL.replace(built, f"{built}        torch.manual_seed(context.distributed.rank)\n")
    assert code != MODEL
    found = []
    for world in (1, 2):
        trial = make(tmp_path / str(world), world, until=4)
        ExperimentPaths(tmp_path / str(world)).code.joinpath("model_def.py").write_text(code)
        attempt = ranks.run(trial, world)
        assert attempt.verdict() is not None, attempt.log()
        found.append(ranks.result(trial))
    same_bits(found[0], found[1])


def tampered(trial: TrialPaths, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the shared part of the newest checkpoint; all that vouches for it is made anew."""
    latest = checkpoint.committed(trial.checkpoints)[-1]
    folder = trial.checkpoints / latest.name
    loaded = checkpoint.load(folder)
    change(loaded.shared)
    shutil.rmtree(folder)
    checkpoint.save(folder, loaded.shared, loaded.private, meta=loaded.manifest.meta)


# what is next: a batch, or the validation after five
FORGOTTEN: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "training_metrics": (
        "train:6",
        lambda own: own["training_metrics"][0]["values"]["loss"].zero_(),
    ),
    "reducers": ("train:6", lambda own: own["reducers"][0]["seen"].update(updates=[])),
    "rng": ("train:4", lambda own: own["rng"].update(python=rng.capture()["python"])),
}


@pytest.mark.parametrize("part", FORGOTTEN)
def test_each_part_of_what_virtual_ranks_have_is_needed(
    alone: Result, tmp_path: Path, part: str
) -> None:
    trial = make(tmp_path / "EXP")
    leave, forget = FORGOTTEN[part]
    ranks.run(trial, 1, LEAVE=leave)
    tampered(trial, lambda shared: forget(shared["virtual"]))
    ranks.run(trial, 1)
    assert ranks.result(trial) != alone


def test_a_stop_that_one_rank_asks_for_ends_all_at_the_same_step(tmp_path: Path) -> None:
    """Asked for after step 3, they end after step 17: at any pace, on any ranks, interrupted."""

    def stopped(root: Path, pace: str, *plan: tuple[int, str]) -> Result:
        trial = make(root, until=24, min_validation_period={"batches": 20})
        for world, leave in plan:
            attempt = ranks.run(trial, world, LEAVE=leave, STOP="3:2", PACE=pace)
            verdict = attempt.verdict()
            assert verdict is not None, attempt.log()
            assert verdict.cause == ("signal" if leave else "stopped"), attempt.log()
        return ranks.result(trial)

    fast = stopped(tmp_path / "fast", "0", (2, ""))
    assert fast.batches == 17
    same_bits(stopped(tmp_path / "slow", "0.006", (1, "train:4"), (2, "")), fast)
    # of whom nobody heard, the checkpoint alone knows that it has stopped
    trial = ExperimentPaths(tmp_path / "slow").trial(1)
    for cause, batches in (("stopped", 17), ("completed", 24)):
        trial.attempts()[-1].verdict.unlink()
        verdict = ranks.run(trial, 1).verdict()
        assert verdict is not None and (verdict.cause, verdict.batches) == (cause, batches)
        if cause == "stopped":
            tampered(trial, lambda shared: shared["progress"].pop("stopped"))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
@pytest.mark.parametrize("plan", ["1", "2", "4", "4-1-2"])
def test_over_mpi_the_bits_are_those_over_gloo(alone: Result, tmp_path: Path, plan: str) -> None:
    trial = make(tmp_path / "EXP", distributed={"backend": "mpi"})
    for world, leave in PLANS[plan]:
        verdict = ranks.by_mpirun(trial, world, LEAVE=leave).verdict()
        assert verdict is not None and verdict.verdict == ("resume" if leave else "done")
    same_bits(ranks.result(trial), alone)


OWN_LOOP = """
import numpy as np, torch
from hpcdet import core

with core.init() as context:
    torch.manual_seed(0)
    weights = [torch.randn(50), torch.randn(7)]
    state = context.checkpoint.latest() or {"weights": weights, "records": 0, "step": 0}
    weights, records, step = state["weights"], state["records"], state["step"]
    virtual = context.virtual
    parts = context.order(82, 16).shares(records, virtual.mine, virtual.count)
    while step < context.searcher.length(10):
        def compute(v):
            global records
            part = next(parts)
            records += part.records if v == virtual.mine[0] else 0
            drop = torch.rand(50) + float(np.random.rand())
            x = torch.from_numpy(part.indices).float().sin()
            return [weights[0] * drop * x.mean(), x.sum() * torch.randn(7)]
        sums = virtual.sum(step, compute)
        for weight, one in zip(weights, sums):
            weight -= 0.1 * one + 0.01 * torch.rand(())
        step += 1
        context.train.report_training_metrics(step, {"first": float(weights[0][0])})
        if step == int(PAUSE) or context.preempt.should_preempt():
            break
    context.checkpoint.save({"weights": weights, "records": records, "step": step}, step)
    if step == int(PAUSE):
        context.preempt.cause = "signal"
"""


def test_a_loop_of_ones_own_has_the_same_bits_on_any_number_of_ranks(tmp_path: Path) -> None:
    def trained(name: str, *plan: tuple[int, int]) -> str:
        code = OWN_LOOP.replace("PAUSE", "__import__('os').environ['PAUSE']")
        entrypoint = "python3 model_def.py"
        trial = ranks.experiment(
            tmp_path / name, code=code, entrypoint=entrypoint, until=10, reproducibility=EXACT
        )
        for world, pause in plan:
            attempt = ranks.run(trial, world, PAUSE=str(pause))
            assert attempt.verdict() is not None, attempt.log()
        return ranks.result(trial).digest

    assert trained("alone", (1, 0)) == trained("many", (2, 4), (3, 0))


def test_a_loop_that_knows_no_virtual_ranks_is_refused(tmp_path: Path) -> None:
    code = "from hpcdet import core\nwith core.init() as c: c.checkpoint.save({'a': 1}, 1)"
    trial = ranks.experiment(
        tmp_path / "EXP", code=code, entrypoint="python3 model_def.py", reproducibility=EXACT
    )
    verdict = ranks.run(trial).verdict()
    assert verdict is not None and verdict.verdict == "fail"
    assert "does not train by virtual ranks" in verdict.error


REFUSED = {
    "a step of ones own": ("optimizer.step()", "SGD.step was called in train_batch"),
    "a backward of ones own": ("loss.backward()", "computed without context.backward"),
    "training on after the step": (
        "context.step_optimizer(self.optimizer); context.backward(self.model(x).sum())",
        "calls backward after step_optimizer",
    ),
    "not deterministic": (
        "torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))",
        "put_ has no deterministic implementation on this device: torch.zeros(4).put_",
    ),
}
TRIAL = """
import torch
from hpcdet import pytorch

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(2, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        return pytorch.DataLoader(list(torch.randn(8, 2)), batch_size=2)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, x, epoch_idx, batch_idx):
        context, optimizer, loss = self.context, self.optimizer, self.model(x).sum()
        DO
        # METRICS

    def evaluate_batch(self, x, batch_idx):
        return {"validation_loss": self.model(x).sum()}
"""


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_exact_is_refused_by_name(tmp_path: Path, what: str) -> None:
    code, why = REFUSED[what]
    trial = ranks.experiment(
        tmp_path / "EXP",
        code=TRIAL.replace("DO", code),
        entrypoint="model_def:Trial",
        reproducibility=EXACT,
    )
    attempt = ranks.run(trial)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "fail", attempt.log()
    assert why in verdict.error and "reproducibility." in verdict.error
    shown = evidence.traceback(attempt.log(), tmp_path)
    assert shown is not None and why in shown.error, attempt.log()


def test_what_is_not_finite_is_said_and_saved(tmp_path: Path) -> None:
    code = TRIAL.replace("DO", "context.backward(loss * float('nan')); context.step_optimizer(o)")
    code = code.replace("context, optimizer, loss", "context, o, loss").replace(
        "# METRICS", "return {'loss': loss * float('nan')}"
    )
    settings: dict[str, Any] = {"entrypoint": "model_def:Trial", "scheduling_unit": 2, "until": 6}
    trial = ranks.experiment(tmp_path / "EXP", code=code, **settings)
    attempt = ranks.run(trial)
    said = [line for line in attempt.lines() if line["kind"] == "not_finite"]
    assert [(line["group"], line["step"], line["names"]) for line in said] == [
        ("training", 2, ["loss"]),
        ("validation", 6, ["validation_loss"]),
    ], attempt.log()
    assert ranks.result(trial).batches == 6


def test_what_is_of_another_trial_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    step = "context.backward(loss); context.step_optimizer(optimizer)"
    code = TRIAL.replace("DO", step)
    settings: dict[str, Any] = {"entrypoint": "model_def:Trial", "until": 4}
    trial = ranks.experiment(tmp_path / "EXP", code=code, **settings)
    ranks.run(trial)
    before = ranks.result(trial)
    ranks.control(trial, "run", until=8)
    model = trial.root.parent.parent / "code" / "model_def.py"

    def failure(code: str, world: int, expected: str) -> str:
        model.write_text(code)
        verdict = ranks.run(trial, world).verdict()
        assert verdict is not None and verdict.verdict == expected
        assert content_digest(trial.checkpoints / "00000004.g1") == before.digest
        return verdict.error

    assert "a step would be 4 samples, and was 2 with 1 ranks" in failure(code, 2, "fail")
    wider, adam = code.replace("(2, 1)", "(2, 3)"), code.replace("SGD(", "Adam(")
    assert "size mismatch for weight" in failure(wider, 1, "norestart")
    assert "Adam has no dampening, momentum" in failure(adam, 1, "norestart")
    model.write_text(code)
    assert ranks.finish(trial).verdict() is not None
    assert ranks.result(trial).batches == 8
