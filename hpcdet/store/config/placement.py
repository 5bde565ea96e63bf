"""Sections of the resolved config: a trial's resources, and how its ranks work together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True)
class Resources:
    """``resources``. ``slots_per_trial`` is the number of ranks of one trial.

    Where ``min_slots_per_trial`` is set it is the most of them, and ``nodes`` the most nodes.
    ``memory_per_slot`` is in bytes; ``resource_pool`` is the partition.
    """

    slots_per_trial: int = 1
    nodes: int = 1
    slots_per_node: int = 1
    cpus_per_slot: int = 1
    memory_per_slot: int | None = None
    walltime_s: int | None = None
    resource_pool: str | None = None
    max_slots: int | None = None
    priority: int | None = None
    is_single_node: bool | None = None
    exclude_nodes: list[str] = field(default_factory=list)
    min_slots_per_trial: int | None = None

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

    units: list[str] | int | None = None
    reshard_after_forward: bool = True
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    output_dtype: str | None = None


@dataclass(frozen=True)
class Distributed:
    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    strategy: Literal["ddp", "fsdp2"] = "ddp"
    fsdp2: Fsdp2 = Fsdp2()


@dataclass(frozen=True)
class Slurm:
    sbatch_args: list[str] = field(default_factory=list)
    gpu_type: str | None = None
    slots_per_node: int | None = None


@dataclass(frozen=True)
class Pbs:
    pbsbatch_args: list[str] = field(default_factory=list)
    slots_per_node: int | None = None
