"""What Determined 0.38 has and hpcdet has not: why, and what there is in its place.

By the names they have there; a module's sentence is that of all it holds.
"""

from __future__ import annotations

from typing import NoReturn

_MASTER = "hpcdet has no master to speak to"
_TF_KERAS = (
    "TFKerasTrial, which 0.38 deprecated, is not here: use model.fit with "
    "determined.keras.DeterminedCallback, or hpcdet.integrations.keras"
)
_CLIENT = (
    "it comes with hpcdet's Python API, which is not in this version; until then `hpcdet ls, show, "
    "metrics, ckpt … -o json` tell what it would"
)
_STARTS = "hpcdet starts the ranks itself, one for each of resources.slots_per_trial"
_INSIDE = "it belongs to Determined's own workings, and no code of a trial needs it"

_OF_THE_CLIENT = (
    *("Checkpoint", "Determined", "Experiment", "ExperimentReference", "Model", "ModelOrderBy"),
    *("ModelSortBy", "ModelVersion", "OrderBy", "Project", "Trial", "TrialOrderBy"),
    *("TrialReference", "TrialSortBy", "checkpoint", "metrics", "model"),
)

ABSENT = {
    **{f"determined.experimental.{name}": _CLIENT for name in _OF_THE_CLIENT},
    "determined.experimental.test_one_batch": "`hpcdet test` tries one batch",
    "determined.TrialContext.from_config": "pytorch.init() gives the context",
    "determined.pytorch.TrainUnit.should_stop": _INSIDE,
    "determined.tensorboard.TensorboardManager.to_sync": "files stay in the trial's folder",
    "determined.tensorboard.get_experiment_sync_path": "files stay in the trial's folder",
    "determined.EnvContext": _INSIDE,
    "determined.RendezvousInfo": "use get_cluster_info().container_addrs and container_rank",
    "determined.ResourcesInfo": "use get_cluster_info().slot_ids",
    "determined.TrialController": _INSIDE,
    "determined.cli": "the command line is `hpcdet`; docs/determined.md has a table of the verbs",
    "determined.common.api": _MASTER,
    "determined.common.check": _INSIDE,
    "determined.common.constants": _INSIDE,
    "determined.common.context": _INSIDE,
    "determined.common.detignore": "the code's snapshot honours .detignore without it",
    "determined.common.detlomond": _MASTER,
    "determined.common.experimental": _CLIENT,
    "determined.common.storage": "use core.init().checkpoint: store_path, restore_path, upload",
    "determined.common.streams": _MASTER,
    "determined.common.util": _INSIDE,
    "determined.common.v1file_utils": _INSIDE,
    "determined.constants": _INSIDE,
    "determined.core.DummyDistributedContext": "core.init() alone gives a context for one rank",
    "determined.core.DummyCheckpointContext": "core.init() alone keeps checkpoints in a folder",
    "determined.core.DummyExperimentalCoreContext": _INSIDE,
    "determined.core.DummyPreemptContext": "core.init() alone is never told to leave",
    "determined.core.DummyProfilerContext": "core.init() alone measures, too",
    "determined.core.DummySearcherContext": "core.init() alone has a searcher without operations",
    "determined.core.DummySearcherOperation": "core.init() alone has a searcher without operations",
    "determined.core.DummyTrainContext": "core.init() alone keeps reports",
    "determined.core.SearcherContextMissing": _INSIDE,
    "determined.deploy": "there is nothing to deploy: `pip install hpcdet` on a login node",
    "determined.exec": _STARTS,
    "determined.experimental.client": _CLIENT,
    "determined.gpu": "use torch.cuda, or get_cluster_info().slot_ids",
    "determined.horovod": "Horovod is given up: all ranks are those of torch.distributed",
    "determined.ipc": "use core.init().distributed: gather, allgather, broadcast",
    "determined.keras.DeterminedCallback.load_model": "hpcdet's checkpoints hold the model",
    "determined.keras.DeterminedCallback.save_model": "hpcdet's checkpoints hold the model",
    "determined.keras.InputData": _TF_KERAS,
    "determined.keras.ArrayLike": _TF_KERAS,
    "determined.keras.SequenceAdapter": _TF_KERAS,
    "determined.keras.TFKerasExperimentalContext": _TF_KERAS,
    "determined.keras.TFKerasTensorBoard": "use determined.keras.TensorBoard",
    "determined.keras.TFKerasTrainConfig": _TF_KERAS,
    "determined.keras.TFKerasTrial": _TF_KERAS,
    "determined.keras.TFKerasTrialContext": _TF_KERAS,
    "determined.keras.TFKerasTrialController": _TF_KERAS,
    "determined.keras.callbacks": "use Keras's own callbacks beside DeterminedCallback",
    "determined.keras.get_rng_state": "DeterminedCallback keeps random numbers in checkpoints",
    "determined.keras.set_rng_state": "DeterminedCallback keeps random numbers in checkpoints",
    "determined.keras.load_model_from_checkpoint_path": _TF_KERAS,
    "determined.launch.tensorflow": "with TensorFlow one rank trains: leave the launcher out",
    "determined.layers": _INSIDE,
    "determined.load": "use determined.pytorch.load_trial_from_checkpoint_path",
    "determined.pytorch.deepspeed.DeepSpeedTrialController": _INSIDE,
    "determined.pytorch.deepspeed.make_deepspeed_mpu": (
        "pipelines and tensor parallelism are refused by hpcdet: ZeRO of any stage works"
    ),
    "determined.tensorboard.AzureTensorboardManager": "files stay in the trial's folder",
    "determined.tensorboard.GCSTensorboardManager": "files stay in the trial's folder",
    "determined.tensorboard.S3TensorboardManager": "files stay in the trial's folder",
    "determined.tensorboard.azure": "files stay in the trial's folder",
    "determined.tensorboard.base": "files stay in the trial's folder",
    "determined.tensorboard.directory": "files stay in the trial's folder",
    "determined.tensorboard.fetchers": "files stay in the trial's folder",
    "determined.tensorboard.gcs": "files stay in the trial's folder",
    "determined.tensorboard.metric_writers.tensorflow": (
        "use tf.summary with core.init().train.get_tensorboard_path()"
    ),
    "determined.tensorboard.s3": "files stay in the trial's folder",
    "determined.tensorboard.shared": "files stay in the trial's folder",
    "determined.tensorboard.util": "files stay in the trial's folder",
    "determined.util": _INSIDE,
    "determined.workload": _INSIDE,
}


def why_absent(name: str) -> str:
    """The sentence for a name of Determined's, or for what holds it; "" if none is known."""
    while name:
        if name in ABSENT:
            return ABSENT[name]
        name = name.rpartition(".")[0]
    return ""


def absent(module: str, name: str) -> NoReturn:
    """For ``__getattr__`` of a module.

    Raises:
        ImportError: Determined has that name: why hpcdet has not. Not an AttributeError, whose
            words ``from … import`` would swallow.
        AttributeError: nobody has it.
    """
    theirs = module.removeprefix("hpcdet.")
    why = "" if name.startswith("__") else why_absent(f"{theirs}.{name}")  # Python asks, too
    if why:
        raise ImportError(f"hpcdet has no {theirs}.{name}: {why}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
