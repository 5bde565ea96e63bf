"""Hugging Face's ``Trainer`` in an experiment.

    with core.init() as context:
        arguments = huggingface.arguments(context, eval_strategy="steps", eval_steps=50)
        trainer = Trainer(model, arguments, train_dataset=..., eval_dataset=...)
        huggingface.train(context, trainer)

Model, optimizer, schedule, scaler, random numbers and the trainer's own state are in hpcdet's
checkpoints; the trainer's ``checkpoint-N`` folders are neither needed nor read. Batches behind
are left out by their numbers, without being read.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import transformers
from transformers.trainer_callback import ExportableState

from hpcdet import core
from hpcdet.core import warm_start
from hpcdet.errors import ConfigError
from hpcdet.integrations._ranks import announce
from hpcdet.integrations._steps import StepCounter

State = dict[str, Any]

_OF_THIS_PROCESS = ("is_local_process_zero", "is_world_process_zero", "log_history")
"""What the trainer's state says about this rank or the time: of no use to go on from."""
_TIMES = ("runtime", "samples_per_second", "steps_per_second")


def arguments(context: core.Context, **own: Any) -> transformers.TrainingArguments:
    """``TrainingArguments`` for this rank; make them before the model is anywhere.

    The length is the searcher's, the seed the trial's, the batch that of the hyperparameter
    ``global_batch_size`` if there is one; no folder of checkpoints, no other tracker.

    Args:
        own: arguments of ``TrainingArguments``, which count more.
    """
    announce(context)
    given: State = {
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": context.seed % 2**32,
        "data_seed": context.seed % 2**32,
        "use_cpu": context.session.device.type == "cpu",
    }
    batch = context.hparams.get("global_batch_size")
    if batch is not None:
        given["per_device_train_batch_size"] = max(1, int(batch) // context.distributed.size)
    if "output_dir" not in own:
        given["output_dir"] = tempfile.mkdtemp(prefix="hpcdet-")
        atexit.register(shutil.rmtree, given["output_dir"], ignore_errors=True)
    made = transformers.TrainingArguments(**given | own)
    until = context.searcher.until
    if until is not None and until.unit == "epochs":
        made.num_train_epochs, made.max_steps = until.value, -1
    elif until is not None:
        a_step = _step_records(made) if until.unit == "records" else 1
        made.max_steps = math.ceil(until.value / a_step)
    return made


def train(context: core.Context, trainer: transformers.Trainer) -> Any:
    """``trainer.train()``, going on from the newest checkpoint; what it returns.

    Raises:
        SystemExit: with 0, where the attempt was told to leave and has saved.
        ConfigError: the trainer shards its model, which has no state that is equal on all ranks.
    """
    callback = Callback(context, trainer)
    trainer.add_callback(callback)
    with callback.resumed() as folder:
        return trainer.train(resume_from_checkpoint=folder)


class Callback(transformers.TrainerCallback):
    """Metrics, preemption, checkpoints; ``train`` adds it. Every rank has one."""

    def __init__(self, context: core.Context, trainer: transformers.Trainer) -> None:
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigError(
                "FSDP and DeepSpeed inside the Trainer cannot be saved by hpcdet",
                where="huggingface.train",
                hint="use PyTorchTrial with FSDP, or hpcdet.integrations.deepspeed",
            )
        self._context = context
        self._trainer = trainer
        self._steps = StepCounter(context)
        self._evaluated = -1

    @contextlib.contextmanager
    def resumed(self) -> Iterator[str | None]:
        """A folder for ``resume_from_checkpoint``, while the block lasts; None at the beginning.

        It tells the trainer where it is and no more: the rest is put back in memory.
        """
        state = self._steps.restore()
        if state is None:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="hpcdet-") as folder:
            known = transformers.TrainerState(**state["trainer"])
            known.save_to_json(str(Path(folder) / "trainer_state.json"))
            # without a file of weights the trainer refuses; an empty one it complains about
            safetensors.torch.save_file({}, str(Path(folder) / "model.safetensors"))
            model = self._trainer.model
            if not hasattr(model, "_keys_to_ignore_on_save"):  # only the library's own have it,
                model._keys_to_ignore_on_save = None  # and it asks all of them
            with _no_word_of_missing_weights():
                yield folder

    # -- the trainer's hooks ------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        saved = self._steps.state
        if saved is None:
            return
        trainer = self._trainer
        trainer.model.load_state_dict(saved["model"])
        if self._steps.inherited:
            warm_start.load(trainer.optimizer, saved["optimizer"])
            warm_start.catch_up([(trainer.lr_scheduler, saved["lr_scheduler"])])
        else:
            trainer.optimizer.load_state_dict(saved["optimizer"])
            trainer.lr_scheduler.load_state_dict(saved["lr_scheduler"])
        if trainer.accelerator.scaler is not None and saved["scaler"] is not None:
            trainer.accelerator.scaler.load_state_dict(saved["scaler"])
        loss = saved["loss"]
        own = loss["sums"] if len(loss["sums"]) == self._context.distributed.size else None
        if own is not None:
            trainer._tr_loss.fill_(own[self._context.distributed.rank])
            trainer._globalstep_last_logged = loss["since"]

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._steps.begin(self._state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._steps.validating()
        over = self._steps.done(
            state.global_step,
            records=state.global_step * _step_records(args),
            epochs=int(state.epoch + 1e-9),
        )
        if over or state.global_step >= state.max_steps:
            control.should_training_stop = control.should_log = True
        if over or self._steps.at_rung or state.global_step >= state.max_steps:
            control.should_evaluate = self._trainer.eval_dataset is not None

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._evaluated == state.global_step:
            control.should_evaluate = False

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
        self._steps.validated()
        self._evaluated = state.global_step
        timeless = {
            name: value
            for name, value in metrics.items()
            if name != "epoch" and not name.endswith(_TIMES)
        }
        self._context.train.report_validation_metrics(state.global_step, timeless)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        if "loss" in logs:
            values = {name: value for name, value in logs.items() if name != "epoch"}
            self._context.train.report_training_metrics(state.global_step, values)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._steps.save(self._state)

    # -- the state ----------------------------------------------------------------------------

    def _state(self) -> State:
        trainer = self._trainer
        scaler = trainer.accelerator.scaler
        return {
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "lr_scheduler": trainer.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "trainer": self._trainer_state(),
            "loss": {  # what the next log will be the mean of
                "sums": self._context.distributed.allgather(trainer._tr_loss.item()),
                "since": trainer._globalstep_last_logged,
            },
        }

    def _trainer_state(self) -> State:
        """The trainer's state with that of its callbacks, as its own checkpoints have it."""
        trainer = self._trainer
        state = dataclasses.asdict(trainer.state)
        callbacks: dict[str, Any] = {}
        for one in trainer.callback_handler.callbacks:
            if isinstance(one, ExportableState):
                callbacks.setdefault(type(one).__name__, []).append(one.state())
        state["stateful_callbacks"] = {
            name: each[0] if len(each) == 1 else each for name, each in callbacks.items()
        }
        return {name: value for name, value in state.items() if name not in _OF_THIS_PROCESS}


def _step_records(args: Any) -> int:
    """Samples in one step of the optimizer over all ranks."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


@contextlib.contextmanager
def _no_word_of_missing_weights() -> Iterator[None]:
    """Loading a file without weights is meant; they come from hpcdet's checkpoint."""
    log = logging.getLogger("transformers.trainer")

    def meant(record: logging.LogRecord) -> bool:
        return "missing keys in the checkpoint" not in record.getMessage()

    log.addFilter(meant)
    try:
        yield
    finally:
        log.removeFilter(meant)
