"""The examples of other frameworks: told to leave, they go on to the same bits; with ranks."""

from __future__ import annotations

import dataclasses
import importlib.util
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet import core
from hpcdet.checkpoint import Manifest, committed
from hpcdet.integrations._steps import Steps
from hpcdet.store.config import Searcher
from hpcdet.train import notice
from hpcdet.units import Length
from tests import ranks
from tests.alone import as_script

__all__ = ["as_script"]

EXAMPLES = Path(__file__).parent.parent / "examples"
FRAMEWORKS = ("deepspeed", "keras", "lightning", "tensorflow", "transformers")

Run = Callable[..., list[Manifest]]


def needs(framework: str) -> None:
    """Skip where it is not installed; finding that out does not import it."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: pip install 'hpcdet[{framework}]'")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, as_script: None) -> Run:
    """Runs an example's ``main`` in this process, as ``python train.py`` does."""
    _ = as_script
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "KERAS_BACKEND"):
        monkeypatch.setenv(name, "")  # what adapters set ends with the test
        monkeypatch.delenv(name)

    def once(script: Path, storage: Path, until: int, leave_at: int = -1) -> list[Manifest]:
        monkeypatch.syspath_prepend(str(script.parent))
        for name in ("digits", "train"):
            sys.modules.pop(name, None)
        example = runpy.run_path(str(script))
        notice.forget()
        asked = core.PreemptContext.should_preempt

        def should_preempt(self: core.PreemptContext, auto_ack: bool = True) -> bool:
            if context.train.units.batches == leave_at:
                signal.raise_signal(signal.SIGTERM)
            return asked(self, auto_ack)

        with monkeypatch.context() as patched:
            patched.setattr(core.PreemptContext, "should_preempt", should_preempt)
            try:
                with core.init(
                    hparams=example["ALONE"], checkpoint_storage=storage, seed=3
                ) as context:
                    context.session.until = Length("batches", until)
                    example["main"](context)
            except SystemExit as end:
                if end.code:
                    raise
        return committed(storage / "checkpoints")

    return once


@pytest.mark.parametrize(
    ("framework", "example"),
    [
        ("keras", "keras/train.py"),
        ("lightning", "lightning/train.py"),
        ("lightning", "lightning/fabric.py"),
        ("tensorflow", "tensorflow/train.py"),
        ("transformers", "huggingface/train.py"),
    ],
)
@pytest.mark.xdist_group("frameworks")
def test_an_interrupted_example_ends_with_the_same_bits(
    tmp_path: Path, run: Run, framework: str, example: str
) -> None:
    """Left within the first epoch (of 22 batches), ended within the second."""
    needs(framework)
    script = EXAMPLES / example
    whole = run(script, tmp_path / "a", 26)
    left = run(script, tmp_path / "b", 26, leave_at=7)
    assert left[-1].step == 7
    resumed = run(script, tmp_path / "b", 26)
    assert [one.step for one in resumed[-2:]] == [7, 26]
    assert resumed[-1].digest == whole[-1].digest
    # nothing is left to train, and nothing is trained
    assert run(script, tmp_path / "b", 26)[-1].name == resumed[-1].name


@pytest.mark.parametrize(
    ("framework", "example"),
    [("keras", "keras/train.py"), ("lightning", "lightning/train.py")],
)
@pytest.mark.xdist_group("frameworks")
def test_a_length_that_grows_changes_no_bit(
    tmp_path: Path, run: Run, framework: str, example: str
) -> None:
    """Ended within an epoch, and validated there, then lengthened."""
    needs(framework)
    script = EXAMPLES / example
    run(script, tmp_path / "a", 9)
    longer = run(script, tmp_path / "a", 24)
    assert longer[-1].digest == run(script, tmp_path / "b", 24)[-1].digest


@pytest.mark.parametrize(
    ("framework", "example", "size", "metric"),
    [
        ("keras", "keras", 1, "val_loss"),
        ("lightning", "lightning", 2, "validation_loss"),
        ("transformers", "huggingface", 2, "eval_loss"),
    ],
)
@pytest.mark.xdist_group("frameworks")
def test_an_example_in_an_experiment(
    tmp_path: Path, framework: str, example: str, size: int, metric: str
) -> None:
    """Its ranks, its metrics in the journal, the verdict after a signal, the searcher's length."""
    needs(framework)
    trial = ranks.experiment(
        tmp_path / "EXP",
        code=EXAMPLES / example,
        ranks=size,
        hparams={"learning_rate": 0.003, "hidden": 64, "global_batch_size": 64},
        entrypoint="python3 train.py",
        until=25,
        searcher={"metric": metric, "max_length": {"batches": 25}},
        scheduling_unit=10,
    )
    with ranks.start(trial, size) as attempt:
        attempt.wait_for(lambda: any(line["kind"] == "first_step" for line in attempt.lines()))
        attempt.signal(signal.SIGUSR2, size - 1)
        attempt.wait()
    verdict = attempt.verdict()
    assert verdict is not None and verdict.cause in ("signal", "completed"), attempt.log()
    last = ranks.finish(trial, size)
    found = ranks.result(trial)
    assert found.batches == 25, last.log()
    assert metric in found.validations[25]
    assert "loss" in found.training[10]


def test_nothing_but_an_adapter_imports_a_framework() -> None:
    program = (
        "import sys, hpcdet.attempt, hpcdet.determined, hpcdet.integrations, hpcdet.pytorch;"
        f"print([name for name in {FRAMEWORKS} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.usefixtures("as_script")
def test_a_loader_goes_on_behind_any_batch(tmp_path: Path) -> None:
    """Also with workers: the same samples with the same noise, each once in an epoch."""
    import torch

    from hpcdet.errors import ConfigError
    from hpcdet.integrations._loader import Loader

    class Noise(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return index, torch.rand(1)

    def batches(workers: int, epoch: int, skip: int) -> list[list[float]]:
        loader = Loader(context, Noise(), 6, drop_last=False, num_workers=workers)
        loader.position.set(epoch, skip)
        return [torch.cat([index, noise[:, 0]]).tolist() for index, noise in loader]

    with core.init(checkpoint_storage=tmp_path) as context:
        before = torch.get_rng_state()
        whole = batches(0, 3, 0)
        assert [len(batch) // 2 for batch in whole] == [6, 6, 6, 2]
        assert sorted(one for batch in whole for one in batch[: len(batch) // 2]) == list(range(20))
        assert batches(1, 3, 2) == whole[2:]
        assert batches(0, 4, 0) != whole
        assert torch.equal(torch.get_rng_state(), before)
        with pytest.raises(ConfigError, match="no full batch"):
            Loader(context, Noise(), 21)


@pytest.mark.usefixtures("as_script")
def test_steps_say_where_trials_are_compared(tmp_path: Path) -> None:
    asked = Searcher("asha", max_length=Length("records", 90), max_trials=9, divisor=3, num_rungs=3)
    with core.init(checkpoint_storage=tmp_path) as context:
        session = context.session
        session.config = dataclasses.replace(session.config, searcher=asked)
        assert [operation.length for operation in context.searcher.operations()] == [10, 30]
        steps, found = Steps(context), []
        for batch in range(1, 10):
            steps.done(batch, records=8 * batch, epochs=0)
            found += [batch] if steps.at_rung else []
        assert found == [2, 4]  # 10 and 30 of 90 records
        assert list(context.searcher.operations()) == []  # they are behind
