"""The experiment config as users write it: every key, its type, default and meaning.

Names and meanings are Determined's where it has them. ``schema.py`` and ``docs/config.md`` are
made from the descriptions here; ``store.config.resolved_config`` is the same tree for readers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hpcdet.config.models.fields import Bytes, LengthField, Seconds, Section, Variables
from hpcdet.config.models.stopping import Stopping
from hpcdet.units import Length


class Sampler(Section):
    name: Literal["random", "tpe", "gp", "nsga2"] | None = None
    """Where hyperparameters come from: random, or what trials have shown; tpe for bayesian and
    bohb, nsga2 for nsga2, else random, if absent."""
    startup: int | None = Field(default=None, ge=1)
    """Results before the model is asked; two more than hyperparameters, at least 8, if absent."""
    random_fraction: float | None = Field(default=None, ge=0, le=1)
    """Of suggestions that stay random; a third where trials are compared at rungs, else none."""
    population_size: int | None = Field(default=None, ge=2, le=128)
    """Parents of nsga2; a fifth of max_trials, 8 to 50, if absent."""


class Objective(Section):
    metric: str = Field(min_length=1)
    """A validation metric."""
    smaller_is_better: bool = True
    """Whether a smaller value of it is the better one."""


class Constraint(Section):
    metric: str = Field(min_length=1)
    """A validation metric."""
    lower: float | None = Field(default=None, allow_inf_nan=False)
    """The least that it may be."""
    upper: float | None = Field(default=None, allow_inf_nan=False)
    """The most that it may be."""
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Beyond a bound by as much still keeps it; also the unit in which what goes further counts."""
    warmup: LengthField | None = None
    """Not before this length."""
    mode: Literal["soft", "hard"] = "soft"
    """soft: trials that break it rank behind those that do not; hard: they end."""


class Step(Section):
    until: LengthField
    """Train until this length of the whole training …"""
    hyperparameters: dict[str, Any] = {}
    """… with these hyperparameters, as they are."""


class Schedule(Section):
    seed: int | None = Field(default=None, ge=0)
    """Seed of the training; drawn by the experiment's if absent."""
    steps: list[Step] = []
    """Stretches of training, each from the checkpoint of the one before."""


class WarmStart(Section):
    experiments: list[str] = Field(min_length=1)
    """Former experiments with the same metric and, for the trials that count, the same space."""
    trials: int | None = Field(default=None, ge=1)
    """At most so many of their trials: those that trained farthest, the best of them; null: all."""
    best: int = Field(default=0, ge=0)
    """The hyperparameters of so many of the best are tried again first."""


class Searcher(Section):
    name: Literal[
        "single",
        "random",
        "grid",
        "bayesian",
        "async_halving",
        "asha",
        "adaptive_asha",
        "hyperband",
        "pasha",
        "bohb",
        "nsga2",
        "pbt",
        "pb2",
        "schedule",
        "custom",
    ] = "single"
    """single: one trial; random: max_trials samples; grid: every point; others: docs/search.md."""
    metric: str = Field(default="validation_loss", min_length=1)
    """The validation metric that decides which trial and checkpoint is best."""
    smaller_is_better: bool = True
    """Whether a smaller value of the metric is the better one."""
    objectives: list[Objective] = []
    """Instead of metric and smaller_is_better, where several metrics are to be good at once."""
    constraints: list[Constraint] = []
    """Bounds of metrics that trials have to keep."""
    max_length: LengthField | None = None
    """How long each trial trains. Without it the code decides (commands only)."""
    max_trials: int | None = Field(default=None, ge=1)
    """How many trials a search makes; those with InvalidHP do not count."""
    max_concurrent_trials: int = Field(default=16, ge=0)
    """How many trials are open at once; 0: no limit."""
    max_time: int | None = Field(default=None, ge=1)
    """The whole training in units of time_metric; of batches, records, epochs: max_length."""
    time_metric: str | None = Field(default=None, min_length=1)
    """A validation metric that says how far a trial is, where the code counts by itself."""
    rule: Literal["hybrid", "stopping", "promotion", "cohorts"] = "hybrid"
    """What becomes of a trial at a rung: the best go on in place, others are paused (hybrid) or
    stopped; promotion pauses all of them first; cohorts decides later, on more trials."""
    promotion_share: float | None = Field(default=0.5, ge=0)
    """Until all trials were made, hybrid promotes paused ones only while fewer than this share of
    those that may go on have gone on; null: whenever they are among the best."""
    rule_version: Literal[4, 5, 6] = 6
    """How rules are kept: 6, or 4 or 5 as in experiments of former versions (docs/search.md)."""
    divisor: float = Field(default=4, gt=1)
    """Of this many trials at a rung one goes on."""
    num_rungs: int | None = Field(default=None, ge=1, le=1000)
    """Rungs of async_halving and pasha; as many as fit into the length, but 5, if absent."""
    max_rungs: int = Field(default=5, ge=1, le=1000)
    """Most rungs of a bracket (adaptive_asha, hyperband)."""
    mode: Literal["aggressive", "standard", "conservative"] = "standard"
    """How early adaptive_asha stops trials: all of them, or brackets with fewer rungs, too."""
    bracket_rungs: list[Annotated[int, Field(ge=1, le=1000)]] = []
    """Numbers of rungs of adaptive_asha's brackets, instead of mode."""
    population_size: int | None = Field(default=None, ge=2)
    """Trials that pbt trains side by side, and copies."""
    perturbation_interval: LengthField | None = None
    """Length after which pbt compares them; a tenth of max_length if absent."""
    quantile: float = Field(default=0.2, gt=0, le=0.5)
    """Share of the population that is given up then, and that may be copied into its place."""
    resample_probability: float = Field(default=0.25, ge=0, le=1)
    """Of each hyperparameter of a copy, to be drawn anew; else it moves to a neighbour."""
    factors: list[Annotated[float, Field(gt=0)]] = Field(default=[0.8, 1.2], min_length=1)
    """By which numbers among them are multiplied, each as likely as the next."""
    synchronous: bool = False
    """Whether pbt waits for the whole population after each interval."""
    schedule: Schedule = Schedule()
    sampler: Sampler = Sampler()
    initial: list[dict[str, Any]] = []
    """Hyperparameters of the first trials, one map for each; what a map leaves out is drawn."""
    warm_start: WarmStart | None = None
    begin_from: str | None = Field(default=None, min_length=1)
    """A checkpoint that all trials go on from: ID/3 (trial 3's newest), ID/3@400 batches."""
    begin_at: LengthField | None = None
    """How far that checkpoint is; filled in when the experiment is made."""
    stopping: Stopping = Stopping()
    stopping_version: Literal[1, 2] = 2
    """By which rules stopping ends things: 2, or 1 as in experiments of former versions, which let
    pass what is not finite, and count what trials inherited."""
    program: str | list[str] | None = None
    """The searcher of name: custom: module:Class of the code, or a command that answers lines."""
    options: dict[str, Any] = {}
    """Given to a custom searcher as they are."""
    answer_within_s: Seconds = Field(default=60, ge=1)
    """Time that a custom searcher has for an answer, in seconds or as '5m'."""
    wait_at_rungs_s: Seconds = Field(default=0, ge=0)
    """The longest wait for a decision at a rung, where the next rung would come first; 0: none."""


class Reproducibility(Section):
    experiment_seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Seed of everything random; generated at submission and recorded if absent."""
    deterministic: bool = False
    """Ask torch for deterministic algorithms; an operation without one is an error."""
    elastic: Literal["exact"] | None = None
    """exact: the same bits with any number of slots, changed at any time (implies deterministic);
    null: then equal to rounding."""
    virtual_ranks: int | None = Field(default=None, ge=1)
    """Shares that elastic: exact cuts each global batch into, the most slots that a trial can
    have; slots_per_trial if absent."""


class CheckpointStorage(Section):
    type: Literal["shared_fs", "directory"] = "shared_fs"
    """Checkpoints always lie in the experiment's folder; both words mean that here."""
    host_path: str | None = None
    """Determined's; has no effect here, with a warning."""
    storage_path: str | None = None
    """Determined's; has no effect here, with a warning."""
    save_experiment_best: int = Field(default=0, ge=0)
    """Keep this many checkpoints that are best over all trials."""
    save_trial_best: int = Field(default=1, ge=0)
    """Keep this many best checkpoints of each trial."""
    save_trial_latest: int = Field(default=1, ge=0)
    """Keep this many latest checkpoints of each trial."""
    local_staging: str | None = Field(default=None, pattern=r"^[/$]")
    """Commit checkpoints on the node's own disk first, below this folder ($TMPDIR, /dev/shm), and
    copy them from there beside the training. For trials on one node."""
    max_paused_bytes: Bytes | None = Field(default=None, ge=0)
    """Warn when checkpoints of paused trials hold more than this, in bytes or as '500G'."""


class PowerSGD(Section):
    rank: int = Field(default=1, ge=1)
    """Rank of the matrices that stand for each gradient."""
    start_step: int = Field(default=1000, ge=2)
    """Steps of the optimizer before which gradients are sent as they are."""


class Optimizations(Section):
    aggregation_frequency: int = Field(default=1, ge=1)
    """Gradients of this many batches are added up before each step of the optimizer."""
    average_aggregated_gradients: bool = True
    """Divide the added-up gradients by aggregation_frequency."""
    average_training_metrics: Literal[True] = True
    """Training metrics are averaged over all ranks."""
    mixed_precision: Literal["O0"] = "O0"
    """O0: no Apex. Automatic mixed precision is asked for in the code."""
    gradient_compression: bool | Literal["fp16", "bf16", "powersgd"] = False
    """How DDP sends gradients: false: as they are; true or fp16, bf16: as such; powersgd."""
    powersgd: PowerSGD = PowerSGD()
    activation_checkpointing: Literal["none", "full"] | list[str] = "none"
    """What forward computes again in backward: nothing, each block, or modules of these classes."""
    compile: bool | dict[str, bool | str] = False
    """torch.compile: false, true, or its options: mode, backend, fullgraph, dynamic."""


class Resources(Section):
    slots_per_trial: int = Field(default=1, ge=1)
    """Ranks of one trial: accelerators, or processes on CPU sites."""
    min_slots_per_trial: int | None = Field(default=None, ge=1)
    """With elastic: exact, as few ranks, on fewer whole nodes, if the scheduler has no more; null:
    slots_per_trial."""
    nodes: int = Field(default=1, ge=1)
    """Nodes of one trial; slots_per_trial is a multiple of it."""
    slots_per_node: int | None = Field(default=None, ge=1)
    """Ranks on each node; slots_per_trial / nodes if absent."""
    cpus_per_slot: int = Field(default=1, ge=1)
    """Processor cores of each rank."""
    memory_per_slot: Bytes | None = Field(default=None, ge=1)
    """Main memory of each rank, in bytes or as '4G'."""
    walltime_s: Seconds | None = Field(default=None, ge=1)
    """Length of one allocation, in seconds or as '12:00:00', '2h'. A trial may need many."""
    resource_pool: str | None = None
    """The partition or queue."""
    max_slots: int | None = Field(default=None, ge=1)
    """Slots that all trials of the experiment may hold at once."""
    priority: int | None = Field(default=None, ge=1, le=99)
    """Determined's; has no effect here, with a warning."""
    is_single_node: bool | None = None
    """All ranks of a trial on one node."""
    exclude_nodes: list[str] = []
    """Names of nodes not to use."""


Precision = Literal["float32", "bf16", "fp16"]


class Fsdp2(Section):
    units: list[str] | Annotated[int, Field(ge=1)] | None = None
    """What is gathered at once: modules of classes, or of so many parameters; null: layers."""
    reshard_after_forward: bool = True
    """Give a unit's rows of others back after forward, and gather them again for backward."""
    param_dtype: Precision | None = None
    """Type in which forward and backward compute; null: the parameters' own."""
    reduce_dtype: Precision | None = None
    """Type in which gradients are summed; null: that of forward and backward."""
    output_dtype: Precision | None = None
    """Type of what forward returns; null: as it comes."""


class Distributed(Section):
    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    """How ranks exchange gradients; auto: nccl where there is a GPU for each rank, else gloo.
    mpi: any MPI library, through mpi4py."""
    strategy: Literal["ddp", "fsdp2"] = "ddp"
    """ddp: each rank has the whole model; fsdp2: each has its rows of every tensor."""
    fsdp2: Fsdp2 = Fsdp2()


class Worker(Section):
    mode: Literal["shared", "per_trial"] = "shared"
    """shared: an allocation takes trial after trial; per_trial: one job for each."""
    lanes: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """Trials side by side in one allocation, on one node; auto: as many as fit into a node."""
    min_segment_s: float = Field(default=300, ge=0)
    """A trial is not begun with less than this many seconds left in the allocation."""
    idle_s: float = Field(default=120, ge=0)
    """An allocation with nothing to do is given back after this many seconds."""
    spares: int | None = Field(default=None, ge=0)
    """Tasks that wait to replace ended ones where no job can be submitted later; null: enough."""


class Budget(Section):
    slot_hours: float | None = Field(default=None, gt=0)
    """Slots times hours that the experiment may hold, then it pauses; null: no bound."""
    wall_s: Seconds | None = Field(default=None, ge=1)
    """Time from its first allocation after which it pauses, in seconds or as '12:00:00', '2h'."""


class Environment(Section):
    environment_variables: Variables = {}
    """Variables of the training processes: a map, or a list of 'NAME=value'."""
    cpu_variables: Variables = {}
    """More of them, where a trial has no accelerator; Determined's environment_variables.cpu."""
    cuda_variables: Variables = {}
    """More of them, where it has; Determined's environment_variables.cuda."""
    image: None = None
    """A container image: not in this version."""
    python: str | None = None
    """The Python interpreter on the nodes; the site's, or the submitting one, if absent."""


class Notify(Section):
    command: str | list[str] | None = None
    """A command run on the events below, with HPCDET_EVENT and others in its environment."""
    on: list[Literal["end", "failure", "stuck"]] = ["end", "failure", "stuck"]
    """The events."""


class Slurm(Section):
    sbatch_args: list[str] = []
    """Further options for sbatch: ['--account=p1', '--constraint=a100']."""
    gpu_type: str | None = None
    """The type in --gres=gpu:TYPE:N."""
    slots_per_node: int | None = Field(default=None, ge=1)
    """Determined's word for resources.slots_per_node."""


class Pbs(Section):
    pbsbatch_args: list[str] = []
    """Further options for qsub."""
    slots_per_node: int | None = Field(default=None, ge=1)
    """Determined's word for resources.slots_per_node."""


class Profiling(Section):
    measure: bool = True
    """Tell where each step's time goes and what each rank uses; costs next to nothing."""
    enabled: bool = False
    """Also record some batches with torch's profiler, into attempts/K/profile/."""
    begin_on_batch: int = Field(default=0, ge=0)
    """The first batch to record, counted over the whole trial."""
    end_after_batch: int | None = Field(default=None, ge=0)
    """The last one; null: 20 are recorded."""
    sync_timings: bool = True
    """Wait for the accelerator at each phase of what is recorded, so that they do not overlap."""


class Compat(Section):
    determined: Literal["auto", "off"] = "auto"
    """auto: where there is no package `determined`, hpcdet stands in for it; off: it does not."""


class Config(Section):
    """A whole experiment config."""

    name: str = Field(default="", max_length=200)
    """What people call it; the start of the experiment's id. The file's name if absent."""
    description: str = ""
    """Free text."""
    labels: list[str] = []
    """Words to find it by; layers add to each other."""
    data: dict[str, Any] = {}
    """Anything, handed to the code as it is; data.secrets holds references only."""
    workspace: str | None = None
    """Free grouping, with project."""
    project: str | None = None
    """Free grouping, with workspace."""
    entrypoint: str | list[str] = Field(min_length=1)
    """module:Class of a PyTorchTrial, a command for sh -c, or a list of arguments."""
    hyperparameters: dict[str, Any] = {}
    """The search space (docs/config.md has the language)."""
    searcher: Searcher = Searcher()
    max_restarts: int = Field(default=5, ge=0)
    """Times a trial is tried again after an error in its code; other ends do not count."""
    reproducibility: Reproducibility = Reproducibility()
    min_validation_period: LengthField = Length("batches", 0)
    """Validate at least this often; 0: at the end only."""
    min_checkpoint_period: LengthField = Length("batches", 0)
    """Make a checkpoint to keep at least this often; 0: as checkpoint_policy says."""
    checkpoint_every_s: float = Field(default=600, gt=0)
    """Make a checkpoint to resume from at least every so many seconds."""
    perform_initial_validation: bool = False
    """Validate before the first step."""
    scheduling_unit: int = Field(default=100, ge=1)
    """Batches between two reports of training metrics."""
    records_per_epoch: int = Field(default=0, ge=0)
    """Determined's; has no effect here, with a warning: the data loader has a length."""
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    """After which validations a checkpoint is made."""
    checkpoint_storage: CheckpointStorage = CheckpointStorage()
    optimizations: Optimizations = Optimizations()
    resources: Resources = Resources()
    distributed: Distributed = Distributed()
    worker: Worker = Worker()
    budget: Budget = Budget()
    environment: Environment = Environment()
    notify: Notify = Notify()
    on_env_change: Literal["warn", "refuse"] = "warn"
    """What an attempt does when packages or interpreter are not those of the first one."""
    on_unregistered: Literal["warn", "refuse"] = "warn"
    """What an attempt does when a trial has state that no checkpoint would hold."""
    slurm: Slurm = Slurm()
    pbs: Pbs = Pbs()
    profiling: Profiling = Profiling()
    compat: Compat = Compat()
    debug: bool = False
    """Determined's; has no effect here, with a warning."""
    site: str | None = None
    """The site to run at; detected if absent."""
