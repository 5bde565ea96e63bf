"""Names of Determined 0.38 that hpcdet does not have: why, and what replaces them.

By the names they have there; a module's sentence is that of all it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from hpcdet.determined._client import sentences

_MASTER = "hpcdet has no master to speak to"
_TF_KERAS = (
    "TFKerasTrial, which 0.38 deprecated, is not here: use model.fit with "
    "determined.keras.DeterminedCallback, or hpcdet.integrations.keras"
)
_CLIENT = "use determined.experimental.client, or hpcdet.client"
_STARTS = "hpcdet starts the ranks itself, one for each of resources.slots_per_trial"
_INSIDE = "it belongs to Determined's own workings, and no code of a trial needs it"
_FILES = "files stay in the trial's folder"
_ALONE = "core.init() alone gives a context for one rank"
_REDUCES = "the trainer reduces: wrap_reducer, and what evaluate_batch gives"
_RNG = "DeterminedCallback keeps random numbers in checkpoints"
_MODEL = "hpcdet's checkpoints hold the model"
_UTIL = (
    *("calculate_batch_sizes", "check_sshd", "download_gcs_blob_with_backoff", "filter_duplicates"),
    *("force_create_symlink", "forward_signals", "get_member_func", "has_param", "humanize_float"),
    *("is_overridden", "legacy_trial_entrypoint_to_script", "make_metrics", "make_timing_log"),
    *("mask_checkpoint_storage", "mask_config_dict", "match_legacy_trial_class"),
    *("rmtree_nfs_safe", "signal_process_tree", "validate_batch_metrics", "write_user_code"),
)
_COMMON_UTIL = (
    *("debug_mode", "deprecated", "get_config_path", "get_max_retries_config"),
    *("is_protobuf_timestamp", "parse_protobuf_timestamp", "preserve_random_state"),
    *("safe_load_yaml_with_exceptions", "sizeof_fmt", "wait_for"),
)


def _each(of: str, names: Iterable[str], why: str) -> dict[str, str]:
    return {f"{of}.{name}": why for name in names}


ABSENT = {
    **dict(sentences()),
    "determined.experimental.test_one_batch": "`hpcdet test` tries one batch",
    **_each(
        "determined.ClusterInfo",
        ("cluster_id", "master_cert_file", "master_cert_name", "master_url", "session_token"),
        _MASTER,
    ),
    "determined.EnvContext": "use get_cluster_info()",
    "determined.InvalidHP.msg": "use str(error)",
    "determined.RendezvousInfo": "use get_cluster_info().container_addrs and container_rank",
    "determined.ResourcesInfo": "use get_cluster_info().slot_ids",
    "determined.TrialContext.env": "use get_cluster_info()",
    "determined.TrialContext.from_config": "pytorch.init() gives the context",
    "determined.TrialController": _INSIDE,
    **_each("determined.LegacyTrial", ("trial_context_class", "trial_controller_class"), _INSIDE),
    "determined.cli": "the command line is `hpcdet`; see docs/reference/determined-names.md",
    "determined.common.api": _MASTER,
    "determined.common.check": _INSIDE,
    "determined.common.constants": _INSIDE,
    "determined.common.context": _INSIDE,
    "determined.common.detignore": "the code's snapshot honours .detignore without it",
    "determined.common.detlomond": _MASTER,
    "determined.common.experimental": _CLIENT,
    "determined.common.storage": "use core.init().checkpoint: store_path, restore_path, upload",
    "determined.common.streams": _MASTER,
    **_each("determined.common.util", _COMMON_UTIL, _INSIDE),
    "determined.common.v1file_utils": _INSIDE,
    "determined.constants": _INSIDE,
    "determined.core.Context.info": "use determined.get_cluster_info()",
    "determined.core.DummyDistributedContext": _ALONE,
    "determined.core.DummyCheckpointContext": "core.init() alone keeps checkpoints in a folder",
    "determined.core.DummyExperimentalCoreContext": _ALONE,
    "determined.core.DummyPreemptContext": "core.init() alone is never preempted",
    "determined.core.DummyProfilerContext": "core.init() alone measures, too",
    "determined.core.DummySearcherContext": "core.init() alone has a searcher without operations",
    "determined.core.DummySearcherOperation": "core.init() alone has a searcher without operations",
    "determined.core.DummyTrainContext": "core.init() alone keeps reports",
    "determined.core.SearcherContextMissing": _INSIDE,
    "determined.deploy": "there is nothing to deploy: `pip install hpcdet` on a login node",
    "determined.errors.InternalException.message": "use str(error)",
    "determined.exec": _STARTS,
    "determined.gpu": "use torch.cuda, or get_cluster_info().slot_ids",
    "determined.horovod": "Horovod is given up: all ranks are those of torch.distributed",
    "determined.ipc": "use core.init().distributed: gather, allgather, broadcast",
    **_each("determined.keras.DeterminedCallback", ("load_model", "save_model"), _MODEL),
    **_each(
        "determined.keras",
        (
            *("ArrayLike", "InputData", "SequenceAdapter", "TFKerasExperimentalContext"),
            *("TFKerasTrainConfig", "TFKerasTrial", "TFKerasTrialContext"),
            *("TFKerasTrialController", "load_model_from_checkpoint_path"),
        ),
        _TF_KERAS,
    ),
    "determined.keras.TFKerasTensorBoard": "use determined.keras.TensorBoard",
    "determined.keras.callbacks": "use Keras's own callbacks beside DeterminedCallback",
    **_each("determined.keras", ("get_rng_state", "set_rng_state"), _RNG),
    "determined.layers": _INSIDE,
    "determined.load": "use determined.pytorch.load_trial_from_checkpoint_path",
    **_each("determined.pytorch.Batch", ("should_stop",), _INSIDE),
    **_each("determined.pytorch.Epoch", ("should_stop",), _INSIDE),
    **_each("determined.pytorch.TrainUnit", ("should_stop",), _INSIDE),
    **_each(
        "determined.pytorch.PyTorchTrial",
        ("trial_context_class", "trial_controller_class"),
        _INSIDE,
    ),
    **{
        f"determined.pytorch.{kind}.{name}": _REDUCES
        for kind in (
            *("PyTorchTrialContext", "CheckpointLoadContext", "deepspeed.DeepSpeedTrialContext"),
            "experimental.TorchBatchProcessorContext",
        )
        for name in ("reduce_metrics", "reset_reducers", "run_cross_slot_reduction")
    },
    **_each(
        "determined.pytorch.deepspeed.DeepSpeedTrial",
        ("trial_context_class", "trial_controller_class"),
        _INSIDE,
    ),
    "determined.pytorch.deepspeed.DeepSpeedTrialController": _INSIDE,
    "determined.pytorch.deepspeed.make_deepspeed_mpu": (
        "pipelines and tensor parallelism are refused by hpcdet: ZeRO of any stage works"
    ),
    **_each(
        "determined.pytorch.samplers",
        (
            *("DistributedBatchSampler.batch_sampler", "DistributedBatchSampler.num_workers"),
            *("DistributedBatchSampler.rank", "RepeatBatchSampler.batch_sampler"),
            *("SkipBatchSampler.batch_sampler", "SkipBatchSampler.length", "SkipBatchSampler.skip"),
        ),
        "keep what the sampler was made with",
    ),
    **_each(
        "determined.tensorboard",
        (
            *("AzureTensorboardManager", "GCSTensorboardManager", "S3TensorboardManager"),
            *("azure", "base", "directory", "fetchers", "gcs", "s3", "shared", "util"),
            "get_experiment_sync_path",
            *(
                "SharedFSTensorboardManager.shared_fs_base",
                "SharedFSTensorboardManager.storage_path",
            ),
        ),
        _FILES,
    ),
    **{
        f"determined.tensorboard.{kind}.{name}": _FILES
        for kind in ("TensorboardManager", "SharedFSTensorboardManager")
        for name in ("last_sync", "sync_on_close", "to_sync", "upload_thread")
    },
    "determined.tensorboard.metric_writers.tensorflow": (
        "use tf.summary with core.init().train.get_tensorboard_path()"
    ),
    **_each(
        "determined.transformers.DetCallback",
        ("last_progress", "searcher_metric", "time_metric"),
        _INSIDE,
    ),
    **_each("determined.util", _UTIL, _INSIDE),
    "determined.workload": _INSIDE,
}
"""Nothing that is here has a sentence, nor what holds it."""


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
