"""Models of a site file: every key with its type, default and meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from hpcdet.site.governance import SiteGovernance
from hpcdet.site.partitions import Launcher, Partition, PartitionView
from hpcdet.site.value_types import Directives, Duration, Model, Text, Value

__all__ = ["Directives", "Launcher", "Model", "Partition", "PartitionView", "Site", "Text", "Value"]


def _until_asked(careful: Any) -> BeforeValidator:
    """Null in a site file: the value is ``careful`` until the cluster has been asked."""
    return BeforeValidator(lambda value: careful if value is None else value)


class Contact(Model):
    """Person or page for questions about this site file."""

    name: str = ""
    url: str = ""


class Detection(Model):
    """One way to recognise a site: exactly one of the ways, and a pattern its value must match.

    Backends offer further ways: a key of their own, and what it looks up.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, str]

    env: str | None = Field(default=None, description="name of an environment variable")
    hostname: str | None = Field(
        default=None, description="regular expression for the host's full name"
    )
    command: str | None = Field(default=None, description="name of a command on PATH")
    match: str | None = Field(default=None, description="regular expression for the value")

    @property
    def of_cluster(self) -> tuple[str, str] | None:
        """The key of a backend and what it looks up; None if another way is used."""
        return next(iter((self.model_extra or {}).items()), None)

    @model_validator(mode="after")
    def _one_way(self) -> Detection:
        ways = [self.env, self.hostname, self.command, *(self.model_extra or {}).values()]
        if sum(way is not None for way in ways) != 1:
            raise ValueError("use one of env, hostname, command, or a key of the scheduler's")
        return self


class SiteCapabilities(Model):
    """Capabilities of the scheduler that a user has at this site."""

    accounting: bool | None = Field(
        default=None, description="accounting can be asked; null: ask the scheduler"
    )
    requeue: Annotated[Literal["user", "none"], _until_asked("none")] = Field(
        default="none",
        description="user: a job may requeue itself; none: a new job is submitted instead; "
        "null: ask the scheduler",
    )
    submit_from_compute: Annotated[bool, _until_asked(True)] = Field(
        default=True, description="jobs can be submitted inside a job; null: ask the scheduler"
    )
    login_daemon: Literal["allowed", "forbidden"] | None = Field(
        default=None,
        description="whether a long-lived searcher may run on a login node; allowed: it is counted "
        "upon where workers cannot submit; null: it may, and is not",
    )
    rerun: Annotated[Literal["none", "server"], _until_asked("none")] = Field(
        default="none",
        description="server: after a preemption or the loss of a host the server restarts the job "
        "under its id; none, null: a new one is submitted",
    )
    arrays: bool | None = Field(
        default=None, description="workers of one submission are one array; null: ask the scheduler"
    )
    history: bool | None = Field(
        default=None, description="the scheduler tells of ended jobs; null: ask the scheduler"
    )
    query_from_compute: bool | None = Field(
        default=None,
        description="the scheduler answers inside a job; false: jobs ask nothing; null: they try",
    )
    preempt_as_cancelled: bool = Field(
        default=False,
        description="a preempted job is reported as cancelled, and is not the user's doing",
    )

    @property
    def comes_back(self) -> bool:
        """True if a task may start again under its id, by its own wish or by the server's."""
        return self.requeue == "user" or self.rerun == "server"

    @property
    def nobody_submits(self) -> bool:
        """True if no process of an experiment may submit jobs without its user.

        A searcher on a login node could, and is counted upon where the site file says so; but not
        for a task that dies and does not come back by itself.
        """
        counts = self.login_daemon == "allowed" and self.comes_back
        return not self.submit_from_compute and not counts


class SiteLimits(Model):
    """Bounds that the scheduler or its operators set."""

    max_array: Annotated[int, _until_asked(1001)] = Field(
        default=1001, ge=1, description="widest job array; null: ask the scheduler"
    )
    max_submit: int | None = Field(
        default=None,
        ge=1,
        description="jobs of one user in the queue; null: ask the scheduler, which may have none",
    )
    max_running: int | None = Field(
        default=None, ge=1, description="jobs of one user that may run at once; null: no limit"
    )
    max_running_project: int | None = Field(
        default=None,
        ge=1,
        description="jobs of one project that may run at once, all its users'; null: no limit",
    )
    submit_per_min: float | None = Field(
        default=None, gt=0, description="submissions of one user in a minute; null: no limit"
    )
    name_max: int | None = Field(
        default=None, ge=1, description="characters that a job's name may have"
    )
    poll_min_s: float = Field(
        default=60, ge=0, description="least time between two queries of a user"
    )
    poll_max_s: float | None = Field(
        default=None,
        gt=0,
        description="most time between them while nothing changes; null: ten times the least, "
        "at most 600",
    )
    kill_wait_s: Annotated[float, _until_asked(30.0)] = Field(
        default=30,
        ge=0,
        description="seconds from TERM to KILL; null: ask the scheduler",
    )
    waits_warn_s: float = Field(
        default=3600,
        gt=0,
        description="a job that waits longer for a node or partition that is down is warned of",
    )
    signal_lead_s: int = Field(
        default=120, ge=0, le=65535, description="warning before the time limit"
    )


class Paths(Model):
    """Where files belong. ``$VARIABLES`` and ``~`` are expanded."""

    root: str | None = Field(
        default=None, description="folder of experiments; default: under project, else scratch"
    )
    scratch: str | None = Field(default=None, description="large, fast, purged file system")
    project: str | None = Field(
        default=None,
        description="file system that is not purged: experiments live there, and only logs and "
        "checkpoints to go on from on scratch",
    )
    registry: str | None = Field(
        default=None,
        description="registry of models; default: `registry` in the folder of experiments",
    )
    local: str | None = Field(default=None, description="disk of the node")
    images: str | None = Field(default=None, description="container images that were fetched once")
    purge_days: int | None = Field(default=None, ge=1, description="age at which scratch is purged")


class Container(Model):
    """Container runtime in which an experiment's ``environment.image`` runs here."""

    kind: Literal["apptainer", "charliecloud", "podman-hpc", "pyxis", "option"]
    binds: list[str] = Field(
        default_factory=list, description="folders of the host beside those of the experiment"
    )
    args: list[Text] = Field(default_factory=list, description="arguments added to the runtime")
    option: str | None = Field(
        default=None, description="kind option: the scheduler's option that takes the image"
    )
    stage: bool = Field(
        default=False,
        description="image files of apptainer and charliecloud are copied to `paths.local`",
    )
    accelerator: Literal["cpu", "cuda", "rocm"] | None = Field(
        default=None,
        description="which image of `environment.image` is taken, and whose devices a container "
        "sees; null: of what the worker's node has",
    )

    @model_validator(mode="after")
    def _option(self) -> Container:
        if (self.kind == "option") != (self.option is not None):
            raise ValueError(
                "kind option needs `option: NAME`, as environment; no other kind has it"
            )
        if self.stage and self.kind not in ("apptainer", "charliecloud"):
            raise ValueError(f"stage: images of {self.kind} are no files that are copied here")
        return self


class SearcherJob(Model):
    """Resources of each job in the chain of ``hpcdet searcher run --as-job``."""

    partition: str | None = Field(
        default=None, description="null: that of the experiment; one for small, long jobs is best"
    )
    walltime_s: Annotated[Duration, Field(ge=60)] = Field(
        default=86400, description="one job; the next one follows it"
    )
    cpus: int = Field(default=1, ge=1)
    memory_mib: int | None = Field(default=1024, ge=1, description="null: do not ask for memory")
    directives: Directives = Field(
        default_factory=dict, description="options over those of the site: qos, account"
    )


class Site(Model):
    """A resolved site: a site file with all it extends and every default filled in."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    name: str
    extends: str | None = Field(default=None, description="site file that this one changes")
    contact: Contact = Contact()
    detect: list[Detection] = Field(default_factory=list, description="any of these: it is here")
    scheduler: str = Field(description="name of the backend")
    capabilities: SiteCapabilities = SiteCapabilities()
    limits: SiteLimits = SiteLimits()
    paths: Paths = Paths()
    default_partition: str | None = None
    partitions: dict[str, Partition] = Field(default_factory=dict)
    directives: Directives = Field(
        default_factory=dict, description="options of the scheduler for all jobs"
    )
    chunk: Directives = Field(
        default_factory=dict,
        description="resources added to each chunk of a job, where the scheduler has chunks",
    )
    place: str | None = Field(default=None, description="how chunks lie on nodes, as scatter:excl")
    skip: list[str] = Field(
        default_factory=list, description="options of ours that this scheduler refuses"
    )
    setup: list[str] = Field(default_factory=list, description="shell lines before the worker")
    env: dict[str, Text] = Field(
        default_factory=dict,
        description="environment of every job; $VARIABLES and ~ are those of who submits",
    )
    launcher: Launcher = Launcher()
    container: Container | None = Field(default=None, description="null: images are refused here")
    tunnel: Literal["node", "reverse", "relay"] = Field(
        default="node",
        description="how a laptop reaches what a node serves: ssh to it through the login node, "
        "ssh from the job to the login node, or the scheduler carries the bytes there",
    )
    python: str | None = Field(
        default=None, description="interpreter on the nodes; null: the present one"
    )
    sendmail: str = Field(
        default="/usr/sbin/sendmail",
        description="program that takes a mail on its standard input, as `sendmail -t -i` does",
    )
    templates: str | None = Field(
        default=None, description="folder of templates that is searched first"
    )
    quota_command: list[Text] | None = Field(
        default=None,
        description="prints the user's quota as `quota -w` or `lfs quota -q` do; $VARIABLES are "
        "expanded",
    )
    lease_ttl_s: float = Field(
        default=180, gt=0, description="a silent holder of the lease is dead then"
    )
    slots: int | None = Field(
        default=None,
        ge=1,
        description="local: ranks at once; null: one per accelerator, or else per core",
    )
    searcher_job: SearcherJob = SearcherJob()
    max_restarts_in_place: int = Field(
        default=3, ge=0, description="requeues in a row of a task that gets nowhere"
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="defaults for experiment configs at this site"
    )
    governance: SiteGovernance | None = Field(
        default=None, description="nodes that enforce policies; null: there are none"
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _open: frozenset[str] = PrivateAttr(default=frozenset())
    _source: str = PrivateAttr(default="")
    _reason: str = PrivateAttr(default="")
    _fallback: bool = PrivateAttr(default=False)

    @property
    def origins(self) -> dict[str, str]:
        """Where each value comes from: ``limits.max_array`` to ``/etc/…/x.yaml:7``.

        Values that are not in it are the built-in defaults.
        """
        return self._origins

    @property
    def open(self) -> frozenset[str]:
        """The keys that the cluster is asked for: no file sets them. Resolved sites have none."""
        return self._open

    @property
    def source(self) -> str:
        """The site file; empty if there is none."""
        return self._source

    @property
    def reason(self) -> str:
        """Why this site was chosen, for people."""
        return self._reason

    def view(self, partition: str | None = None) -> PartitionView:
        """The site in one partition, or any one of several (``a,b``); None is the default one.

        Raises:
            ConfigError: these have different options.
        """
        name = partition or self.default_partition or _named(self.directives)
        names = (name or "").split(",")
        part = Partition.any_of({one: self.partitions.get(one, Partition()) for one in names})
        directives = {**self.directives, **part.directives}
        if name is not None and "partition" not in part.directives:
            directives["partition"] = name
        return PartitionView(
            name=name,
            directives=directives,
            skip=frozenset(self.skip) | frozenset(part.skip),
            env={**self.env, **part.env},
            setup=(*self.setup, *part.setup),
            launcher=part.launcher or self.launcher,
            slots_per_node=part.slots_per_node,
            cpus_per_node=part.cpus_per_node,
            max_walltime_s=part.max_walltime_s,
            chunk={**self.chunk, **part.chunk},
            place=self.place,
            bounds=part,
        )

    def unchained(self, partition: str | None) -> Site:
        """The site for experiments in a partition where no job may submit its continuation.

        The site itself where one may (``partitions.NAME.chain``).
        """
        view = self.view(partition)
        if view.bounds.chain:
            return self
        kept = {"requeue": "none", "submit_from_compute": False}
        origin = self.origins.get(f"partitions.{view.name}.chain", "")
        return self.changed(
            {"capabilities": self.capabilities.model_copy(update=kept)},
            {f"capabilities.{key}": f"chain: {origin}" for key in kept},
        )

    @property
    def fallback(self) -> bool:
        """True if the site was chosen only because none recognised this host."""
        return self._fallback

    def changed(self, values: dict[str, Any], origins: dict[str, str]) -> Site:
        """A copy with other values, and where those come from."""
        copy = self.model_copy(update=values)
        copy._origins = {**self._origins, **origins}
        return copy

    def settled(self, values: dict[str, Any], origins: dict[str, str]) -> Site:
        """A copy in which nothing is left open (``open``)."""
        copy = self.changed(values, origins)
        copy._open = frozenset()
        return copy

    def plain(self) -> dict[str, Any]:
        """The site as plain data, in the order of its keys: what ``site.yaml`` holds.

        Without governance it is as it was before there was any.
        """
        hidden = {"governance"} if self.governance is None else None
        return self.model_dump(by_alias=True, exclude=hidden)


def _named(directives: Directives) -> str | None:
    name = directives.get("partition")
    return name if isinstance(name, str) else None
