"""``determined.transformers``: ``DetCallback`` for Hugging Face's ``Trainer``.

What it stores are the Trainer's own folders ``checkpoint-N``. ``hpcdet.integrations.huggingface``
keeps the state itself, with the same bits after every end; this one goes on as the Trainer does.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from transformers import trainer_utils

from hpcdet import core
from hpcdet.core._files import seen_by_all
from hpcdet.determined._info import get_cluster_info
from hpcdet.errors import ConfigError

__all__ = ["DetCallback"]

_TIMES = ("_runtime", "_per_second", "_compilation_time")
_NO_STATE = ("training_args.bin",)
"""What the Trainer writes and does not read; it holds times and paths."""


class DetCallback(transformers.TrainerCallback):
    """Reports, checkpoints, and leaving when that is asked for; the same on each rank.

    Make it before the ``Trainer``: it lets ``args.output_dir`` be a folder of this attempt alone,
    and ``args.resume_from_checkpoint`` what the trial goes on from.

    Args:
        core_context: of ``core.init``.
        args: what the ``Trainer`` gets.
        filter_metrics: parts of the names of metrics that are reported; None: all are.
        user_data: plain values, stored in each checkpoint as ``my_data.json``.

    Raises:
        ConfigError: the config says another length than ``args``.
    """

    def __init__(
        self,
        core_context: core.Context,
        args: transformers.TrainingArguments,
        filter_metrics: Sequence[str] | None = None,
        user_data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.core_context = core_context
        self.user_data = user_data
        self.info = get_cluster_info()
        searcher = core_context.session.config.searcher
        wanted = [searcher.metric, searcher.time_metric]
        self.filter_metrics = (
            [*filter_metrics, *(one for one in wanted if one)] if filter_metrics else None
        )
        self.last_train_metrics = self.last_eval_metrics = self.last_save = -1
        _check_length(core_context, args)
        place = core_context.session.place
        base = Path(args.output_dir)
        args.output_dir = str(base / f"trial-{place.trial.number}.{place.attempt.number}")
        self.load_last_checkpoint(args)

    def load_last_checkpoint(self, args: transformers.TrainingArguments) -> None:
        """Let the Trainer go on from the newest checkpoint, if there is one."""
        latest = self.core_context.checkpoint.latest_id()
        if latest is None:
            return
        folder = tempfile.mkdtemp(prefix="hpcdet-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.core_context.checkpoint.download(latest, folder)
        args.resume_from_checkpoint = trainer_utils.get_last_checkpoint(folder)
        self.last_save = self.core_context.train.units.batches

    # -- the trainer's hooks ------------------------------------------------------------------

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.core_context.train.advance(state.global_step)
        if self.core_context.preempt.should_preempt():
            control.should_training_stop = control.should_save = True
        elif args.max_steps > 0:
            self.core_context.train.report_progress(state.global_step / args.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        metrics = self._metrics(logs or {}, state)
        step = state.global_step
        if any(name.startswith("eval_") for name in logs or {}):
            if self.last_eval_metrics != step:
                self.last_eval_metrics = step
                self.core_context.train.report_validation_metrics(step, metrics)
        elif "loss" in (logs or {}) and self.last_train_metrics != step:
            self.last_train_metrics = step
            self.core_context.train.report_training_metrics(step, metrics)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, peers = state.global_step, self.core_context.session.peers
        self.last_save = step
        folder = Path(args.output_dir) / f"{trainer_utils.PREFIX_CHECKPOINT_DIR}-{step}"
        if peers.ranks.chief:
            if self.user_data is not None:
                (folder / "my_data.json").write_text(json.dumps(dict(self.user_data)))
            _forget_times(folder / "trainer_state.json")
        peers.barrier()
        seen_by_all(folder, peers)
        self.core_context.checkpoint.upload(
            args.output_dir if peers.ranks.chief else None,
            {"steps_completed": step, "trial_id": self.core_context.session.record.number},
            shard=True,
            selector=lambda path: (
                path.startswith(f"{folder.name}/") and not path.endswith(_NO_STATE)
            ),
        )

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        over = control.should_training_stop or state.global_step >= state.max_steps
        if over and state.global_step > self.last_save:
            control.should_save = True
        if over and state.global_step > self.last_eval_metrics:
            leaving = self.core_context.preempt.cause is not None
            control.should_evaluate = not leaving and args.eval_strategy != "no"

    def _metrics(self, logs: Mapping[str, Any], state: Any) -> dict[str, Any]:
        kept = {
            name: value
            for name, value in logs.items()
            if name != "epoch"
            and not name.endswith(_TIMES)
            and (not self.filter_metrics or any(part in name for part in self.filter_metrics))
        }
        return {"batches": state.global_step, "epochs": state.epoch, **kept}


def _check_length(context: core.Context, args: transformers.TrainingArguments) -> None:
    """The Trainer trains as long as its arguments say.

    Raises:
        ConfigError: the config says something else.
    """
    until = context.session.config.searcher.max_length
    if until is None or until.unit not in ("batches", "epochs"):
        return
    by_steps = args.max_steps > 0
    asked = ("batches", args.max_steps) if by_steps else ("epochs", args.num_train_epochs)
    if asked != (until.unit, until.value):
        raise ConfigError(
            f"it is {until.value} {until.unit}, and the Trainer's arguments say {asked[1]} "
            f"{asked[0]}",
            where="searcher.max_length",
            hint="leave it out, or let --max_steps or --num_train_epochs be the same",
        )


def _forget_times(file: Path) -> None:
    """Leave times out of the log that the Trainer keeps: equal runs then have equal files."""
    state = json.loads(file.read_text())
    state["log_history"] = [
        {name: value for name, value in entry.items() if not name.endswith(_TIMES)}
        for entry in state["log_history"]
    ]
    file.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
