"""The interface of every scheduler backend, and its types. Text in, text out."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

REQUEUE = 85
"""Exit code by which a script asks to be started again where it runs."""

WaitKind = Literal["held", "launch", "in_vain", "never", "limit", "outage", "begin_time", "other"]


class TaskState(enum.Enum):
    """The scheduler's state of one array task, or of a job without an array."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"  # COMPLETING and the like: not final, a requeue may follow
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    OOM = "oom"
    GONE = "gone"  # the scheduler no longer knows it, and there is no accounting

    @property
    def final(self) -> bool:
        return self not in (TaskState.PENDING, TaskState.RUNNING, TaskState.ENDING)


@dataclass(frozen=True)
class Wait:
    """Why a task waits, in words of no particular scheduler.

    Attributes:
        kind: ``held``: by its owner. ``launch``: by the scheduler or an administrator, mostly
            because its launch failed; a new job may start elsewhere. ``in_vain``: for a job that
            did not end well. ``never``: it does not start as it is. ``limit``: until others of
            its owner have ended. ``outage``: until the partition or the node is back.
            ``begin_time``: until a time. ``other``: its turn has not come.
        repair: what a person can do about ``launch`` and ``never``.
        change: of the config, as ``--set`` takes it, where one key repairs it.
    """

    kind: WaitKind = "other"
    repair: str = ""
    change: str = ""


@dataclass(frozen=True)
class Task:
    """One array task as the scheduler sees it.

    Attributes:
        index: array index; -1 stands for "all tasks not yet split off" of a pending array.
        reason: the scheduler's own word for why (``Priority``, ``BeginTime``, …).
        wait: what that means, for a task that waits.
        restarts: times it was requeued.
        count: how many tasks this row stands for (pending arrays are one row).
    """

    job: str
    index: int
    state: TaskState
    reason: str = ""
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    exit_code: int | None = None
    count: int = 1
    wait: Wait = Wait()


@dataclass(frozen=True)
class Job:
    """A submission that the caller wants to know about.

    Attributes:
        job: the scheduler's id.
        tasks: width of the array.
        submitted_at: ISO time, tells it from an older job with the same id.
    """

    job: str
    tasks: int
    submitted_at: str = ""


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a scheduler, from the site file and from asking it."""

    requeue: bool = False
    accounting: bool = False
    arrays: bool = True
    max_array_tasks: int = 1001
    max_submit: int | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a submission did not happen.

    ``kind``: ``invalid`` (will never work: say it to the user), ``limit`` (back-pressure: try a
    smaller one later), ``width`` (the array is too wide: try a smaller one now), ``unavailable``
    (try again later).
    """

    kind: str
    message: str


class SubmissionRefused(Exception):
    """``submit`` did not make a job."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True)
class PartitionInfo:
    """A partition or queue as the scheduler shows it; no time limit is None.

    Attributes:
        default: jobs that name no partition go there.
        suspends: jobs are stopped and stay in memory while others run in their place.
        max_nodes: that one job may have; None: all of them.
        min_nodes, min_walltime_s: that one job has to ask for.
    """

    name: str
    max_walltime_s: int | None
    nodes: int
    up: bool
    default: bool = False
    suspends: bool = False
    max_nodes: int | None = None
    min_nodes: int = 1
    min_walltime_s: int | None = None

    @property
    def widest(self) -> float:
        """The most nodes that a job can ever have here, those that are down counted.

        Without any there is no limit: those of a cloud may be hidden until a job needs them.
        """
        return min(self.nodes or math.inf, self.max_nodes or math.inf)


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition with the same features; ``default``: jobs that name none go there."""

    partition: str
    features: frozenset[str]
    nodes: int
    default: bool = False


@dataclass(frozen=True)
class Submission:
    """A rendered script, ready to be given to the scheduler.

    Attributes:
        held: it waits in the queue until it is released.
        argv: for people and for the record: the command that submits it by hand.
    """

    name: str
    tag: str
    script: Path
    tasks: int
    throttle: int
    held: bool = False
    argv: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """One run of one task, as the scheduler's accounting has it; a requeue begins another one.

    Attributes:
        start, end: epoch seconds; ``end`` is None while it runs.
        elapsed_s: what is charged for: without the time in which it was suspended.
        gpus: that it held; 0 if accounting names none.
    """

    job: str
    index: int
    start: float
    end: float | None
    elapsed_s: float
    gpus: int = 0


class Scheduler(Protocol):
    """The queue of one site.

    Attributes:
        answered_at: when the scheduler was asked for the last answer of ``query``, epoch seconds;
            the same for two calls that shared one answer. A bad thing is believed only when two
            different answers say it.
    """

    name: str
    answered_at: float

    def submit(self, submission: Submission) -> str:
        """Give the script to the scheduler; returns the job's id. Raises SubmissionRefused."""

    def find(self, name: str, tag: str) -> str | None:
        """Id of the job of that name and tag, live or ended lately; None if there is none.

        Raises:
            Unavailable: the scheduler did not answer; nothing is known.
        """

    def query(self, jobs: Sequence[Job]) -> dict[str, list[Task]]:
        """All tasks of these jobs, by job id, from one batched call shared by every process.

        The answer may be as old as the site's polling interval. Raises Unavailable.
        """

    def cancel(self, job: str, index: int | None = None) -> None:
        """End a job or one task. Ended ones are left alone. Raises Unavailable."""

    def throttle(self, job: str, running: int) -> None:
        """Change how many tasks may run at once, where the scheduler can."""

    def hold(self, job: str, on: bool) -> None:
        """Let tasks that wait go on waiting, or no longer. Running ones go on.

        Raises:
            Unavailable: the scheduler did not answer.
        """

    def check(self, submission: Submission) -> str:
        """Return the scheduler's answer to a trial submission, or ""."""

    def capabilities(self) -> Capabilities:
        """Return the capabilities; asked once per process."""


@runtime_checkable
class Hastens(Protocol):
    """A backend that lets a requeued task wait by default, and its owner call it earlier."""

    def hasten(self, job: str, index: int) -> None:
        """Let a requeued task start as soon as there is room. Raises Unavailable."""


@runtime_checkable
class Remembers(Protocol):
    """A backend that knows where a task that waits again has been."""

    def launched_on(self, job: str, index: int) -> tuple[str, ...]:
        """The nodes of its last run; none where the scheduler keeps no record of it.

        Raises Unavailable.
        """


@runtime_checkable
class Foresees(Protocol):
    """A backend that knows whether a job would start at once if it was submitted."""

    def starts_now(self, script: Path, nodes: int, exclude: Sequence[str]) -> bool:
        """True if one task of a worker's script would, without the end of any other job.

        Args:
            nodes: that it would have, whatever the script says.
            exclude: nodes that are not to be among them.

        Raises:
            Unavailable: the scheduler did not answer.
        """


@runtime_checkable
class SendsElsewhere(Protocol):
    """A backend whose jobs may go to another server than the one that is asked."""

    def find_sent(self, name: str, tag: str, script: Path) -> str | None:
        """``Scheduler.find`` at the server that the job's script names."""


@runtime_checkable
class Prunes(Protocol):
    """A backend that can end all tasks of a job that wait by one call."""

    def prune(self, job: str) -> None:
        """End the tasks of a job that have not started. Raises Unavailable."""


@runtime_checkable
class Accounts(Protocol):
    """A backend with accounting of what jobs have used."""

    def usage(self, jobs: Sequence[Job]) -> dict[str, list[Usage]]:
        """Every run of the tasks of these jobs that has begun, by job id, requeued ones too.

        Jobs of which nothing is known yet are left out, and all where there is no accounting.
        The answer is shared and may be as old as that of ``query``. Raises Unavailable.
        """


@dataclass(frozen=True)
class Occupancy:
    """The jobs in the queue, whatever has submitted them.

    Attributes:
        at: when the scheduler was asked, epoch seconds.
        running: tasks that run, by job.
        waiting: jobs of which tasks wait, where that was asked.
    """

    at: float
    running: Mapping[str, int]
    waiting: frozenset[str] = frozenset()


@runtime_checkable
class CountsJobs(Protocol):
    """A backend that counts all jobs of a user, and those that run of a project."""

    def occupancy(self, project: str | None = None) -> Occupancy:
        """Jobs of this user, or with a project those that run of all its users.

        The answer is shared and may be as old as that of ``query``. Raises Unavailable.
        """


@runtime_checkable
class CountsInPartitions(Protocol):
    """A backend that counts the jobs of a user that run in one partition or queue."""

    def running_in(self, partition: str) -> Mapping[str, int]:
        """Tasks of this user that run there, by job; shared and as old as that of ``query``.

        Raises Unavailable.
        """


@runtime_checkable
class PerHost(Protocol):
    """A backend that knows only the jobs of the machine it runs on."""

    @property
    def host(self) -> str:
        """The name of this machine, as its jobs carry it."""

    def elsewhere(self, job: str) -> str:
        """The machine that alone knows of a job; "" for one of this machine."""


@runtime_checkable
class HasFeatures(Protocol):
    """A backend whose nodes have features that jobs can ask for."""

    def node_groups(self) -> list[NodeGroup]:
        """All nodes, those that are down counted, by partition and features. Raises Unavailable."""


@runtime_checkable
class Queues(Protocol):
    """A backend whose jobs wait in partitions or queues with limits."""

    def partitions(self) -> list[PartitionInfo]:
        """All of them. Raises Unavailable."""


@runtime_checkable
class Joins(Protocol):
    """A backend that starts further processes inside a job that runs."""

    def join(
        self, job: str, host: str, command: Sequence[str], *, terminal: bool = False
    ) -> list[str]:
        """Return the words that run a command inside a job, on its first node.

        Args:
            job: id of the job or of the array task.
            host: the node's own name.
            terminal: the command gets the caller's terminal; else its standard input and output.

        Raises:
            Unavailable: the scheduler does not answer, or the job is another machine's.
        """
