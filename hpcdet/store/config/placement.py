"""Keys of a trial's resources, its scheduler's options, and how its ranks work together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from hpcdet.store.fs.typed_fields import Bytes, Key, Seconds

Precision = Literal["float32", "bf16", "fp16"]


@dataclass(frozen=True)
class Resources:
    """``resources``. ``slots_per_trial`` is the number of ranks of one trial.

    Where ``min_slots_per_trial`` is set it is the most of them, and ``nodes`` the most nodes.
    ``memory_per_slot`` is in bytes; ``resource_pool`` is the partition.
    """

    slots_per_trial: Annotated[int, Key(ge=1)] = 1
    """Ranks of one trial: accelerators, or processes on CPU sites."""
    min_slots_per_trial: Annotated[int | None, Key(ge=1)] = None
    """With elastic: exact, as few ranks, on fewer whole nodes, if the scheduler has no more; null:
    slots_per_trial."""
    regrow_min_s: Annotated[Seconds | None, Key(ge=1)] = 1800
    """Least time between two questions of a trial on fewer nodes whether all of its nodes are free;
    null: it does not ask."""
    nodes: Annotated[int, Key(ge=1)] = 1
    """Nodes of one trial; slots_per_trial is a multiple of it."""
    slots_per_node: Annotated[int, Key(kind=int | None, new=None, ge=1)] = 1
    """Ranks on each node; slots_per_trial / nodes if absent."""
    cpus_per_slot: Annotated[int, Key(ge=1)] = 1
    """Processor cores of each rank."""
    memory_per_slot: Annotated[Bytes | None, Key(ge=1)] = None
    """Main memory of each rank, in bytes or as '4G'."""
    walltime_s: Annotated[Seconds | None, Key(ge=1)] = None
    """Length of one allocation, in seconds or as '12:00:00', '2h'. A trial may need many."""
    resource_pool: Annotated[str | None, Key(kind=str | list[str] | None)] = None
    """The partition or queue; several, [a, b], where the scheduler takes lists."""
    preemptible: bool = False
    """Jobs may go to a partition or queue whose jobs are ended at any time to run others."""
    max_slots: Annotated[int | None, Key(ge=1)] = None
    """Slots that all trials of the experiment may hold at once."""
    priority: Annotated[int | None, Key(ge=1, le=99)] = None
    """1 to 99, the higher the later; above 42 the jobs give way to others in the queue."""
    is_single_node: bool | None = None
    """All ranks of a trial on one node."""
    exclude_nodes: list[str] = field(default_factory=list)
    """Names of nodes not to use."""

    @property
    def least_nodes(self) -> int:
        """The least number of nodes with which a trial begins."""
        if self.min_slots_per_trial is None:
            return self.nodes
        return min(self.nodes, max(1, self.min_slots_per_trial // self.slots_per_node))

    def granted(self, nodes: int) -> Resources:
        """Return the resources of a trial that was granted this number of nodes."""
        if self.min_slots_per_trial is None or not 0 < nodes < self.nodes:
            return self
        return replace(self, nodes=nodes, slots_per_trial=nodes * self.slots_per_node)


@dataclass(frozen=True)
class Fsdp2:
    """``distributed.fsdp2``. ``units``: names of classes, a number of parameters, or None."""

    units: list[str] | Annotated[int, Key(ge=1)] | None = None
    """What is gathered at once: modules of classes, or of so many parameters; null: layers."""
    reshard_after_forward: bool = True
    """Give a unit's rows of others back after forward, and gather them again for backward."""
    param_dtype: Precision | None = None
    """Type in which forward and backward compute; null: the parameters' own."""
    reduce_dtype: Precision | None = None
    """Type in which gradients are summed; null: that of forward and backward."""
    output_dtype: Precision | None = None
    """Type of what forward returns; null: as it comes."""


@dataclass(frozen=True)
class Distributed:
    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    """How ranks exchange gradients; auto: nccl where there is a GPU for each rank, else gloo.
    mpi: any MPI library, through mpi4py."""
    strategy: Literal["ddp", "fsdp2"] = "ddp"
    """ddp: each rank has the whole model; fsdp2: each has its rows of every tensor."""
    fsdp2: Fsdp2 = Fsdp2()


@dataclass(frozen=True)
class Slurm:
    sbatch_args: list[str] = field(default_factory=list)
    """Further options for sbatch: ['--account=p1', '--constraint=a100']."""
    gpu_type: str | None = None
    """The type in --gres=gpu:TYPE:N."""
    slots_per_node: Annotated[int | None, Key(ge=1)] = None
    """Determined's word for resources.slots_per_node."""


@dataclass(frozen=True)
class Pbs:
    pbsbatch_args: list[str] = field(default_factory=list)
    """Further options for qsub."""
    slots_per_node: Annotated[int | None, Key(ge=1)] = None
    """Determined's word for resources.slots_per_node."""


@dataclass(frozen=True)
class UserOptions:
    """Options that a user gives the scheduler by the config.

    Attributes:
        words: as they were written.
        where: the config's key.
        gpu_type: the kind of accelerator; None: any.
    """

    words: tuple[str, ...] = ()
    where: str = ""
    gpu_type: str | None = None


def user_options(slurm: Slurm, pbs: Pbs, scheduler: str) -> UserOptions:
    """The user's options for a scheduler; none for those without a section of the config."""
    if scheduler == "slurm":
        return UserOptions(tuple(slurm.sbatch_args), "slurm.sbatch_args", slurm.gpu_type)
    if scheduler in ("pbs", "torque"):
        return UserOptions(tuple(pbs.pbsbatch_args), "pbs.pbsbatch_args")
    return UserOptions()
