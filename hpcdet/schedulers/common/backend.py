"""The interface of a backend: one scheduler, by five faces.

A backend is the object that an entry point of the group ``hpcdet.schedulers`` names. Each face is
an object or a module with these names; backends import a face where it is first asked for, as most
commands need one or two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpcdet.schedulers.common.allocation import Allocation, ShownNode
from hpcdet.schedulers.common.base import Scheduler
from hpcdet.schedulers.common.job_script import Translation
from hpcdet.schedulers.common.request import NodeRequest, ScriptRequest, UserOptions
from hpcdet.store.folder.records import Reason

if TYPE_CHECKING:
    from hpcdet.site import Site
    from hpcdet.site.models import Directives


class ScriptFace(Protocol):
    """Scripts: a neutral request as directives of this scheduler.

    Attributes:
        worker: the template of a worker's script.
        sentinel: that of the small job behind an array; "": there is none.
        directive: how a line begins that users write for the scheduler; "": there are none.
        lists: a job may name several partitions, and runs in one of them.
    """

    @property
    def worker(self) -> str: ...

    @property
    def sentinel(self) -> str: ...

    @property
    def directive(self) -> str: ...

    @property
    def lists(self) -> bool: ...

    def options(self, request: ScriptRequest) -> Any:
        """Return what templates print as directives.

        Raises:
            ConfigError: an option of the user is not understood, or is set by hpcdet itself.
            PolicyRefused: one would undo what a policy requires (P17).
        """

    def check(self, user: UserOptions) -> None:
        """Refuse options of the user as ``options`` does."""

    def place(self, pool: str | None, user: UserOptions) -> str | None:
        """Return the partition or queue that the user has chosen; None: the site's."""

    def project(self, directives: Directives, user: UserOptions) -> str:
        """Return the project or account that jobs are charged to; "" if none is named."""

    def refuse_undoing(self, pool: str | None, user: UserOptions, required: NodeRequest) -> None:
        """Refuse options of the user that undo what a policy requires. Raises PolicyRefused."""

    def check_capability(self, given: Mapping[str, Any]) -> None:
        """Check a capability in a site file. Raises ValueError with a message for people."""

    def node_request(
        self, names: Sequence[str], known: Mapping[str, Mapping[str, Any]], site: str
    ) -> NodeRequest:
        """Return what jobs ask for to run where these capabilities are enforced.

        Args:
            known: name of a capability to what the site file says of it for this scheduler.

        Raises:
            PolicyRefused: P17: the site does not say, or no job can have them together.
        """

    def small(self, directives: Directives) -> Directives:
        """Return a site's directives without what is asked for a worker's sake."""

    def refuse(self, text: str, template: str) -> None:
        """Refuse a rendered script that hpcdet cannot run. Raises ConfigError."""

    def by_hand(self, script: Path) -> list[str]:
        """Return the command that submits a script by hand."""

    def translate(self, script: str, name: str) -> Translation:
        """Read a job script of a user into a config. Raises ConfigError."""


class InsideFace(Protocol):
    """Jobs: what a worker finds and may ask inside its allocation.

    Attributes:
        early_s: how long before its end the scheduler may end an allocation.
        says: patterns of what it says on a launcher's standard error when it ends a step itself,
            and what each means.
    """

    @property
    def early_s(self) -> float: ...

    @property
    def says(self) -> tuple[tuple[str, Reason], ...]: ...

    def allocation(self, environ: Mapping[str, str], walltime_s: float | None) -> Allocation:
        """Return the allocation of this process.

        Args:
            walltime_s: counted from now where the scheduler does not say when it ends.
        """

    def stands(self, allocation: Allocation) -> bool:
        """True unless the scheduler reports that this allocation has ended.

        Asked before a failed launch is judged: after the end, every launch fails. A scheduler that
        does not answer is no evidence against the allocation.
        """

    def returns(self, allocation: Allocation) -> bool:
        """True if the scheduler reports that it ends this allocation to start its task again.

        Asked after a notice, whose cause the scheduler alone knows.
        """

    def node_name(self, environ: Mapping[str, str]) -> str:
        """Return the scheduler's name of this node."""

    def shown_node(self, name: str) -> ShownNode | None:
        """Return a node as the scheduler shows it; None where it shows none."""

    def granted_gpus(self, environ: Mapping[str, str]) -> int:
        """Return how many accelerators of this node the allocation has; 0: it does not say."""

    def daemons(self, python: str, allocation: Allocation) -> RemoteDaemons:
        """Return how a launcher starts its own daemons on the other nodes."""


class RemoteDaemons(Protocol):
    """How a launcher starts its daemons on other nodes.

    Attributes:
        environment: variables of the launcher.
        arguments: its further options.
        own: how variables begin that each node has of its own, where the daemons do not get the
            launcher's: it has to send those to the ranks itself; () where they do.
    """

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def arguments(self) -> Sequence[str]: ...

    @property
    def own(self) -> tuple[str, ...]: ...


class NamesFace(Protocol):
    """Names: of variables and of jobs.

    Attributes:
        job: patterns of variables that a process inside a job has of that job, and of those that
            override a script's options.
        kept: of these the ones that say which cluster is meant.
        binding: patterns of those that say where a process may run.
        place: patterns of those that say which process of a step this one is.
        defaults: variables by which users give options to all of their jobs, with the options.
    """

    @property
    def job(self) -> tuple[str, ...]: ...

    @property
    def kept(self) -> tuple[str, ...]: ...

    @property
    def binding(self) -> tuple[str, ...]: ...

    @property
    def place(self) -> tuple[str, ...]: ...

    @property
    def defaults(self) -> Mapping[str, str]: ...

    def task_id(self, job: str, index: int) -> str:
        """Return the id of one task of a job, as the scheduler writes it."""

    def job_of(self, task: str) -> str:
        """Return the job of a task, by the task's id."""

    def reads(self, text: str) -> bool:
        """True if a person may write a job's or task's id so."""

    def means(self, text: str, job: str) -> bool:
        """True if a person who writes ``text`` means this job, or a task of it."""

    def waited_for(self, text: str) -> str | None:
        """Return the job or task that a new job can wait for; None: ``text`` names none."""

    def look(self, jobs: Sequence[str]) -> str:
        """Return a command that shows when jobs may start; "" if there is none."""


class FactsFace(Protocol):
    """Facts: the cluster's own description.

    Attributes:
        commands: without a cluster, too, they may be installed.
        keys: keys of ``detect`` in site files, each with what looks up its value, by the PATH of
            commands.
        asked: keys of site files that the cluster can be asked for.
        generic: the shipped site that fits any cluster of this kind.
        launcher: kind of launcher where the site file names none.
    """

    @property
    def commands(self) -> tuple[str, ...]: ...

    @property
    def keys(self) -> Mapping[str, Callable[[str, str], str | None]]: ...

    @property
    def asked(self) -> tuple[str, ...]: ...

    @property
    def generic(self) -> str: ...

    @property
    def launcher(self) -> str: ...

    def no_cluster(self, path: str) -> bool:
        """True if the commands are installed here, but belong to no cluster.

        Args:
            path: where commands are.
        """

    def slots_here(self, site: Site) -> int | None:
        """Return the ranks that run at once on this machine; None: it is not what runs jobs."""

    def resolved(
        self, site: Site, pool: str | None = None, *, ask: bool = True, fresh: bool = False
    ) -> tuple[Site, str]:
        """Return the site with what its file leaves open, and why some of that is assumed.

        Args:
            pool: the partition of the experiment; None: the default one.
            ask: False: neither the cluster nor what it has said before; careful values are assumed.
            fresh: ask again, whatever is known. Where it does not answer then, what it said before
                stands, and the second value says so.
        """


class Backend(Protocol):
    """One scheduler.

    Attributes:
        name: as in ``scheduler`` of a site file.
        cluster: jobs wait in a queue shared with others, under limits of time; False: they run on
            this machine.
    """

    @property
    def name(self) -> str: ...

    @property
    def cluster(self) -> bool: ...

    def control(self, site: Site) -> Scheduler:
        """Return the queue of a site; it is not asked anything yet."""

    @property
    def script(self) -> ScriptFace: ...

    @property
    def inside(self) -> InsideFace: ...

    @property
    def names(self) -> NamesFace: ...

    @property
    def facts(self) -> FactsFace: ...
