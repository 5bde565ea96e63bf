"""The resolved config of an experiment, ``experiment.yaml``, as both towers read it.

``submit`` writes it once with every default filled in, after the login tower's models
(``hpcdet.config``) have checked it. Here it is only read, without pydantic: unknown keys are
ignored and missing ones take their default, so that a folder made by another version of
hpcdet stays readable.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.store.config.placement import (
    Distributed,
    Pbs,
    Resources,
    Slurm,
    UserOptions,
    user_options,
)
from hpcdet.store.config.sections.checkpoint_storage import CheckpointStorage
from hpcdet.store.config.sections.image_keys import BindMount
from hpcdet.store.config.sections.log_policies import LogPolicy
from hpcdet.store.config.sections.notify_keys import Notify
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.store.config.sections.worker_keys import Worker
from hpcdet.store.fs import files, typed_fields, yaml_bounds
from hpcdet.store.fs.typed_fields import Key, Seconds, Variables
from hpcdet.units import Length

_HINT = "hpcdet writes it once and never changes it: put it back from a backup"

_NO_PERIOD = Length("batches", 0)


@dataclass(frozen=True)
class Reproducibility:
    """``virtual_ranks``: None, as of experiments made without it, means ``slots_per_trial``."""

    experiment_seed: Annotated[int, Key(kind=int | None, new=None, ge=0, lt=2**31)] = 0
    """Seed of everything random; generated at submission and recorded if absent."""
    deterministic: bool = False
    """Ask torch for deterministic algorithms; an operation without one is an error."""
    elastic: Literal["exact"] | None = None
    """exact: the same bits with any number of slots, changed at any time (implies deterministic);
    null: then equal to rounding."""
    virtual_ranks: Annotated[int | None, Key(ge=1)] = None
    """Shares that elastic: exact cuts each global batch into, the most slots that a trial can
    have; slots_per_trial if absent."""
    threads: Annotated[int | None, Key(ge=1)] = None
    """Threads of each rank in torch and in every BLAS, whatever cores it has; null: in torch
    resources.cpus_per_slot, elsewhere as the library chooses."""
    device: Literal["cpu"] | None = None
    """cpu: ranks see no accelerator; null: they train on one where there is any."""


@dataclass(frozen=True)
class PowerSGD:
    """``optimizations.powersgd``. ``start_step`` counts steps of the optimizer."""

    rank: Annotated[int, Key(ge=1)] = 1
    """Rank of the matrices that stand for each gradient."""
    start_step: Annotated[int, Key(ge=2)] = 1000
    """Steps of the optimizer before which gradients are sent as they are."""


@dataclass(frozen=True)
class Optimizations:
    aggregation_frequency: Annotated[int, Key(ge=1)] = 1
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


@dataclass(frozen=True)
class Budget:
    """``budget`` of the whole experiment; None: no bound."""

    slot_hours: Annotated[float | None, Key(gt=0)] = None
    """Slots times hours that the experiment may hold, then it pauses; null: no bound."""
    wall_s: Annotated[Seconds | None, Key(ge=1)] = None
    """Time from its first allocation after which it pauses, in seconds or as '12:00:00', '2h'."""


@dataclass(frozen=True)
class Environment:
    """``environment``. ``python`` is the interpreter on the nodes; None: the site's."""

    environment_variables: Variables = field(default_factory=dict)
    """Variables of the training processes: a map, or a list of 'NAME=value'."""
    cpu_variables: Variables = field(default_factory=dict)
    """More of them, where a trial has no accelerator; Determined's environment_variables.cpu."""
    cuda_variables: Variables = field(default_factory=dict)
    """More of them, where it has; Determined's environment_variables.cuda."""
    image: str | dict[str, str] | None = None
    """The container image of the ranks: a file or folder, a reference (docker://NAME:TAG), or a map
    of them by cpu, cuda, rocm; null: they run on the host."""
    force_pull_image: bool = False
    """Fetch a reference again, though the site has it."""
    python: str | None = None
    """The Python interpreter on the nodes; the site's, or the submitting one, if absent. With an
    image that of the image; python3 if absent."""


@dataclass(frozen=True)
class Profiling:
    """``profiling``. ``end_after_batch``: None means the default of ``pytorch``."""

    measure: bool = True
    """Tell where each step's time goes and what each rank uses; costs next to nothing."""
    enabled: bool = False
    """Also record some batches with torch's profiler, into attempts/K/profile/."""
    begin_on_batch: Annotated[int, Key(ge=0)] = 0
    """The first batch to record, counted over the whole trial."""
    end_after_batch: Annotated[int | None, Key(ge=0)] = None
    """The last one; null: 20 are recorded."""
    sync_timings: bool = True
    """Wait for the accelerator at each phase of what is recorded, so that they do not overlap."""


@dataclass(frozen=True)
class Compat:
    """``compat``. ``determined``: whether hpcdet stands in for the package of that name."""

    determined: Literal["auto", "off"] = "auto"
    """auto: where there is no package `determined`, hpcdet stands in for it; off: it does not."""


GOVERNANCE_KEYS = ("run_key", "twin_key")
"""Of ``governance``, drawn where a config does not refer to one: 32 bytes as hex."""


@dataclass(frozen=True)
class Governance:
    """``governance``. The experiment's folder has the policy itself, and what it compiles to.

    Attributes:
        digest: of the compiled policy.
        commitment: to ``twin_key``, where the policy asks for twins or canaries; else "".
        signer: the public half of ``run_key``, 64 hex digits; "" of experiments of former versions.
    """

    policy: Annotated[str, Key(required=True, min_length=1)] = ""
    """The policy: a file, relative to the config's folder, or the name of a shipped one."""
    run_key: dict[str, str] | None = None
    """The key that signs the run's evidence: {env: NAME} or {file: PATH}; drawn if absent."""
    twin_key: dict[str, str] | None = None
    """The key that tosses the coins of twins and draws canaries: {env: NAME} or {file: PATH}; drawn
    if absent."""
    data: Literal["sample", "all"] = "sample"
    """How much of sources with manifests each attempt compares: a few files, or all."""
    digest: Annotated[str, Key(own=True)] = ""
    commitment: Annotated[str, Key(own=True)] = ""
    signer: Annotated[str, Key(own=True)] = ""


@dataclass(frozen=True)
class Resolved:
    """A whole experiment config.

    Attributes:
        entrypoint: ``module:Class``, a command for ``sh -c``, or an argv list.
        hyperparameters: the search space as written (``search.space`` reads it).
        min_validation_period: 0 of any unit means only at the end.
        min_checkpoint_period: likewise; resume checkpoints by time are ``checkpoint_every_s``.
        raw: the file as plain data, with keys that this version does not know.
    """

    schema: Annotated[int, Key(own=True)] = 1
    """A whole experiment config."""
    name: Annotated[str, Key(max_length=200)] = ""
    """What people call it; the start of the experiment's id. The file's name if absent."""
    description: str = ""
    """Free text."""
    labels: list[str] = field(default_factory=list)
    """Words to find it by; layers add to each other."""
    data: dict[str, Any] = field(default_factory=dict)
    """Anything, handed to the code as it is; data.secrets holds references only, data.stage names
    files and folders to copy to each node, data.paths those of which digests are recorded."""
    workspace: str | None = None
    """Free grouping, with project."""
    project: str | None = None
    """Free grouping, with workspace."""
    entrypoint: Annotated[str | list[str], Key(required=True, min_length=1)] = ""
    """module:Class of a PyTorchTrial, a command for sh -c, or a list of arguments."""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """The search space (docs/reference/config.md has the language)."""
    searcher: Searcher = field(default_factory=Searcher)
    max_restarts: Annotated[int, Key(ge=0)] = 5
    """Times a trial is tried again after an error in its code; other ends do not count."""
    log_policies: Annotated[list[LogPolicy] | None, Key(sparse=True)] = None
    """What follows from a line in the log of a trial."""
    reproducibility: Reproducibility = Reproducibility()
    min_validation_period: Length = _NO_PERIOD
    """Validate at least this often; 0: at the end only."""
    min_checkpoint_period: Length = _NO_PERIOD
    """Make a checkpoint to keep at least this often; 0: as checkpoint_policy says."""
    checkpoint_every_s: Annotated[float, Key(gt=0)] = 600
    """Make a checkpoint to resume from at least every so many seconds."""
    perform_initial_validation: bool = False
    """Validate before the first step."""
    scheduling_unit: Annotated[int, Key(ge=1)] = 100
    """Batches between two reports of training metrics."""
    records_per_epoch: Annotated[int, Key(ge=0)] = 0
    """Determined's; has no effect here, with a warning: the data loader has a length."""
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    """After which validations a checkpoint is made."""
    checkpoint_storage: CheckpointStorage = field(default_factory=CheckpointStorage)
    optimizations: Optimizations = field(default_factory=Optimizations)
    resources: Resources = field(default_factory=Resources)
    distributed: Distributed = field(default_factory=Distributed)
    worker: Worker = field(default_factory=Worker)
    budget: Budget = Budget()
    environment: Environment = field(default_factory=Environment)
    bind_mounts: Annotated[list[BindMount] | None, Key(sparse=True)] = None
    """With an image: folders of the host beside those of the experiment and the site, as maps of
    host_path, container_path, read_only."""
    notify: Notify = field(default_factory=Notify)
    on_env_change: Literal["warn", "refuse"] = "warn"
    """What an attempt does when packages, processor or threads are not those of its checkpoint."""
    on_unregistered: Literal["warn", "refuse"] = "warn"
    """What an attempt does when a trial has state that no checkpoint would hold."""
    slurm: Slurm = field(default_factory=Slurm)
    pbs: Pbs = field(default_factory=Pbs)
    profiling: Profiling = Profiling()
    compat: Compat = Compat()
    governance: Annotated[Governance | None, Key(sparse=True)] = None
    """The policy that says which data may change which layers; none if absent."""
    debug: bool = False
    """Determined's; has no effect here, with a warning."""
    site: str | None = None
    """The site to run at; detected if absent."""
    raw: Annotated[Mapping[str, Any], Key(own=True)] = field(
        default_factory=dict, compare=False, repr=False
    )

    def user_options(self, scheduler: str) -> UserOptions:
        """The user's options for a scheduler."""
        return user_options(self.slurm, self.pbs, scheduler)

    @property
    def staged(self) -> tuple[str, ...]:
        """Files and folders of ``data.stage``, which are copied to the disk of each node."""
        return tuple(self.data.get("stage") or ())

    @property
    def trials_at_once(self) -> int:
        """The most trials that are open at once, by the config alone."""
        searcher, need = self.searcher, self.resources
        most = min(searcher.max_trials, searcher.max_concurrent_trials or searcher.max_trials)
        if need.max_slots is not None:
            most = min(most, max(1, need.max_slots // need.slots_per_trial))
        return most

    @property
    def lanes(self) -> int:
        """The number of trials in one allocation at once: no more than may ever run.

        Raises:
            ConfigError: ``worker.lanes`` is ``auto``, and was not resolved for the site.
        """
        asked, searcher = self.worker.lanes, self.searcher
        if not isinstance(asked, int):
            hint = "write the number of trials that fit into a node"
            raise ConfigError(f"{asked!r} is no number", where="worker.lanes", hint=hint)
        asked *= self.worker.node_groups
        bounds = [asked, searcher.max_trials, searcher.max_concurrent_trials or asked]
        if self.resources.max_slots is not None:
            bounds.append(self.resources.max_slots // self.resources.slots_per_trial)
        return max(1, min(bounds))

    @property
    def lanes_per_node(self) -> int:
        """The number of trials side by side on each node. Raises as ``lanes``."""
        return math.ceil(self.lanes / self.worker.node_groups)

    @property
    def room(self) -> int:
        """The number of trials that an allocation has slots for. Raises as ``lanes``."""
        return self.lanes_per_node * self.worker.node_groups

    @property
    def allocation(self) -> Resources:
        """The resources of one allocation: those of as many trials as it has room for.

        Raises:
            ConfigError: as ``lanes``.
        """
        need = self.resources
        return dataclasses.replace(
            need,
            nodes=need.nodes * self.worker.node_groups,
            slots_per_node=need.slots_per_node * self.lanes_per_node,
            slots_per_trial=need.slots_per_trial * self.room,
        )


def load(path: Path) -> Resolved:
    """Return the resolved config in a file.

    Raises:
        ConfigError: the file is not there, or cannot be read.
        IntegrityError: it is no YAML mapping, or has a value that ``dump`` does not write.
    """
    try:
        return resolve(yaml_bounds.mapping(path))
    except OSError as error:
        what = f"cannot read the config: {error.strerror}"
        raise ConfigError(what, where=str(path), hint=_HINT) from error
    except (yaml.YAMLError, ValueError) as error:
        what = f"the config is damaged: {' '.join(str(error).split())}"  # of several lines
        raise IntegrityError(what, where=str(path), hint=_HINT) from error


def resolve(value: Mapping[str, Any]) -> Resolved:
    """Return the typed form of a resolved config given as plain data."""
    return dataclasses.replace(typed_fields.build(Resolved, value), raw=value)


def dump(value: Mapping[str, Any]) -> bytes:
    """Return the text of ``experiment.yaml`` for a resolved config given as plain data."""
    text = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=100)
    return text.encode()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hex digits, by which workers recognize their config."""
    return hashlib.sha256(files.read(path)).hexdigest()
