"""The examples of other frameworks: however they are interrupted, they end with the same bits."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import runpy
import signal
import sys
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed import distributed_c10d

from hpcdet import checkpoint, core, integrations
from hpcdet.checkpoint import committed
from hpcdet.errors import ConfigError
from hpcdet.integrations._steps import StepCounter
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.trials import parents
from hpcdet.store.trials.standing import latest_checkpoint
from hpcdet.units import Length
from tests import TOP, ranks
from tests.alone import as_script
from tests.experiments import same_bits

__all__ = ["as_script"]

EXAMPLES = TOP / "examples"
FRAMEWORKS = ("deepspeed", "keras", "lightning", "tensorflow", "transformers")
EPOCH = 22


def needs(framework: str) -> None:
    """Skip where it is not installed; finding that out does not import it."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: make test-frameworks")


@pytest.mark.parametrize(
    ("framework", "example", "size", "metric", "grows"),
    [
        ("deepspeed", "deepspeed/train.py", 2, "validation_loss", False),
        ("keras", "keras/train.py", 1, "val_loss", True),
        ("lightning", "lightning/train.py", 2, "validation_loss", True),
        ("lightning", "lightning/fabric.py", 1, "accuracy", False),
        ("tensorflow", "tensorflow/train.py", 1, "validation_loss", False),
        ("transformers", "huggingface/train.py", 2, "eval_loss", False),
    ],
    ids=["deepspeed", "keras", "lightning", "fabric", "tensorflow", "huggingface"],
)
@pytest.mark.xdist_group("frameworks")
def test_an_interrupted_example_ends_with_the_same_bits(
    tmp_path: Path, framework: str, example: str, size: int, metric: str, grows: bool
) -> None:
    """Killed and told to leave within the first epoch, ended within the second."""
    needs(framework)
    ranks.elsewhere(interrupted, tmp_path, example, size, metric, grows)


def interrupted(folder: Path, example: str, size: int, metric: str, grows: bool) -> None:
    """The whole test of an example, in a process that imports its framework once."""
    script = EXAMPLES / example
    if script.parent.name == "keras":
        os.environ["KERAS_BACKEND"] = "torch"
    importlib.import_module(f"hpcdet.integrations.{script.parent.name}")
    interruptible()
    if script.parent.name in ("lightning", "huggingface"):  # ranks tell each other no objects
        monkey = pytest.MonkeyPatch()
        monkey.setattr(distributed_c10d, "_object_to_tensor", None)
        monkey.setattr(distributed_c10d, "_tensor_to_object", None)

    def trial(name: str, until: int = EPOCH + 4, rate: float = 0.003) -> TrialPaths:
        return ranks.experiment(
            folder / name,
            code=script.parent,
            ranks=size,
            hparams={"learning_rate": rate, "hidden": 64, "global_batch_size": 64},
            entrypoint=f"python3 {script.name}",
            until=until,
            searcher={"metric": metric, "max_length": {"batches": until}},
            scheduling_unit=10,
        )

    once, twice = trial("once"), trial("twice")
    ranks.finish(once, size)
    whole = ranks.result(once)
    assert whole.batches == EPOCH + 4
    assert metric in whole.validations[EPOCH + 4]
    assert "loss" in whole.training[10]

    killed = ranks.run(twice, size, SAVE="5", KILL="9")
    assert killed.verdict() is None, killed.log()
    left = ranks.run(twice, size, LEAVE="12")
    verdict = left.verdict()
    assert verdict is not None, left.log()
    assert (verdict.verdict, verdict.cause) == ("resume", "signal"), left.log()
    assert 12 <= verdict.batches < EPOCH
    assert left.lines()[0]["batches"] == 5
    ranks.finish(twice, size)
    same_bits(ranks.result(twice), whole)

    if grows:  # ended within an epoch, and validated there
        longer = trial("longer", 9)
        ranks.finish(longer, size)
        ranks.control(longer, "run", EPOCH + 4)
        ranks.finish(longer, size)
        same_bits(ranks.result(longer).digest, whole.digest)

    heir = trial("heir", EPOCH + 6, 0.01)
    [*_, last] = parents.donations(once, "batches")
    parents.give(last, heir)
    ranks.finish(heir, size)
    assert ranks.result(heir).batches == EPOCH + 6
    saved = checkpoint.load(heir.checkpoints / str(latest_checkpoint(heir)), 0, size)
    assert_rates(saved.shared["state"], (saved.private or {}).get("state"))

    alone = get_context("fork").Process(target=run_alone, args=(script, folder))
    alone.start()
    alone.join(ranks.PATIENCE_S)
    assert alone.exitcode == 0


def assert_rates(*states: Any) -> None:
    """A trial that began from another one's checkpoint has its own learning rate, and schedule."""
    found = dict[str, set[float]]()

    def look(value: Any) -> None:
        for name, one in value.items() if isinstance(value, dict) else ():
            if name in ("lr", "initial_lr", "base_lrs", "_last_lr"):
                rates = one if isinstance(one, list) else [one]
                found.setdefault(name, set()).update(round(float(rate), 6) for rate in rates)
            look(one)
        for one in value if isinstance(value, list | tuple) else ():
            look(one)

    for state in states:
        look(state)
    if "position" in states[0]:  # Keras's, whose variables have no names
        found["lr"] = {round(float(states[0]["optimizer"][1]), 6)}
    if "loops" in states[0] or "lr_scheduler" in states[0]:
        assert found["initial_lr"] == found["base_lrs"] == {0.01}
        now = 0.009 if "loops" in states[0] else 0.0  # at the end of the Trainer's own schedule
        assert found["lr"] == found["_last_lr"] == {now}
    else:  # TensorFlow's example has no optimizer
        assert found == ({} if "variables" in states[0] else {"lr": {0.01}})


def interruptible() -> None:
    """What the environment says happens when a rank has trained so many batches.

    ``SAVE``: a checkpoint is due; ``KILL``: the last rank is killed; ``LEAVE``: it is told to
    leave.
    """
    asked = core.PreemptContext.should_preempt

    def should_preempt(self: core.PreemptContext, auto_ack: bool = True) -> bool:
        batches, last = str(self._train.units.batches), self._session.ranks
        for name, number in (("KILL", signal.SIGKILL), ("LEAVE", signal.SIGUSR2)):
            if os.environ.get(name) == batches and last.rank == last.world - 1:
                signal.raise_signal(number)
        answer = asked(self, auto_ack)
        self.checkpoint_due |= os.environ.get("SAVE") == batches
        return answer

    core.PreemptContext.should_preempt = should_preempt  # type: ignore[method-assign]


def run_alone(script: Path, folder: Path) -> None:
    """``python train.py``."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    os.chdir(folder)
    sys.path.insert(0, str(script.parent))
    sys.argv = [script.name]
    with open("alone.log", "w") as log, contextlib.redirect_stdout(log):
        runpy.run_path(str(script), run_name="__main__")


def test_nothing_but_an_adapter_imports_a_framework() -> None:
    ranks.elsewhere(without_adapters)


def without_adapters() -> None:
    for name in ("attempt", "determined", "integrations", "pytorch"):
        importlib.import_module(f"hpcdet.{name}")
    found = [name for name in FRAMEWORKS if name in sys.modules]
    assert not found, found


@pytest.mark.xdist_group("frameworks")
def test_deepspeeds_engine_goes_on_in_every_stage_of_zero(tmp_path: Path) -> None:
    needs("deepspeed")
    ranks.elsewhere(in_every_stage, tmp_path)


def in_every_stage(folder: Path) -> None:
    """Each engine has a process of its own: DeepSpeed's groups of ranks last as long as one."""
    importlib.import_module("hpcdet.integrations.deepspeed")
    half: dict[str, Any] = {"bf16": {"enabled": True}}
    for stage, precision in ((0, {}), (1, half), (2, {}), (3, half)):
        once, twice = folder / f"{stage}-once", folder / f"{stage}-twice"
        config = {"zero_optimization": {"stage": stage}, **precision}
        for storage, until in ((once, 5), (twice, 3), (twice, 5)):
            ranks.elsewhere(with_deepspeed, storage, config, until)
        whole, resumed = (committed(one / "checkpoints") for one in (once, twice))
        assert [one.step for one in resumed] == [3, 5]
        same_bits(resumed[-1].digest, whole[-1].digest, f"stage {stage}")
    other = {"zero_optimization": {"stage": 2}, **half}
    with pytest.raises(AssertionError, match="saved with ZeRO 1, and this is 2"):
        ranks.elsewhere(with_deepspeed, folder / "1-once", other, 7)
    waiting = {"gradient_accumulation_steps": 2}
    with pytest.raises(AssertionError, match="gradients are still being accumulated"):
        ranks.elsewhere(with_deepspeed, folder / "waiting", waiting, 3)


def with_deepspeed(storage: Path, config: dict[str, Any], until: int) -> None:
    """Train on one rank until so many batches."""
    import torch

    from hpcdet.integrations import deepspeed

    with core.init(checkpoint_storage=storage, seed=3) as context:
        network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
        engine, *_ = deepspeed.initialize(
            context,
            model=network,
            optimizer=torch.optim.Adam(network.parameters()),
            config={
                "train_micro_batch_size_per_gpu": 4,
                "zero_allow_untested_optimizer": True,
                **config,
            },
        )
        known = deepspeed.restore(context, engine) or {"step": 0}
        for _ in range(known["step"], until):
            data = torch.rand(4, 8, dtype=next(engine.module.parameters()).dtype)
            engine.backward(engine(data).float().square().mean())
            engine.step()
        deepspeed.save(context, engine, until, {"step": until})


@pytest.mark.usefixtures("as_script")
def test_who_begins_from_another_keeps_the_rate_behind_a_scaled_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras wraps the optimizer in one with a rate that nobody reads. TensorFlow is a sham here."""

    class Variable:
        shape = ()

        def __init__(self, value: float) -> None:
            self.value = value

        def numpy(self) -> float:
            return self.value

        def assign(self, value: Any) -> None:
            self.value = float(value)

    def optimizer(rate: float, momentum: float) -> Any:
        own, unread = Variable(rate), Variable(0)
        inner = SimpleNamespace(_learning_rate=own)
        variables = [unread, own, Variable(momentum)]
        return SimpleNamespace(inner_optimizer=inner, _learning_rate=unread, variables=variables)

    random = SimpleNamespace(Generator=type("Generator", (), {}))
    monkeypatch.setitem(
        sys.modules, "tensorflow", cast(Any, SimpleNamespace(Variable=Variable, random=random))
    )
    source = Path(integrations.__file__).with_name("tensorflow.py")
    spec = importlib.util.spec_from_file_location("adapter", source)
    assert spec is not None and spec.loader is not None
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    with core.init(checkpoint_storage=tmp_path / "parent") as context:
        adapter.Tracked(context, optimizer=optimizer(0.1, 5)).save(1)
    [given] = parents.donations(TrialPaths(tmp_path / "parent", 1), "batches")
    parents.give(given, TrialPaths(tmp_path / "heir", 1))
    with core.init(checkpoint_storage=tmp_path / "heir") as context:
        mine = optimizer(0.3, 0)
        assert adapter.Tracked(context, optimizer=mine).restore() == 1
    assert [one.value for one in mine.variables] == [0, 0.3, 5]


@pytest.mark.usefixtures("as_script")
def test_a_loader_goes_on_behind_any_batch(tmp_path: Path) -> None:
    """Also with workers: the same samples with the same noise, each once in an epoch."""
    import torch

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
        session.length.rungs = asked.rungs
        assert [operation.length for operation in context.searcher.operations()] == [10, 30]
        steps, found = StepCounter(context), []
        for batch in range(1, 10):
            steps.done(batch, records=8 * batch, epochs=0)
            found += [batch] if steps.at_rung else []
        assert found == [2, 4]  # 10 and 30 of 90 records
        assert list(context.searcher.operations()) == []  # they are behind
