"""The options of every ``start``, the submission, and the waiting for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hpcdet.cli.frame.output import Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.sizes import Size
from hpcdet.cli.frame.times import Seconds
from hpcdet.cli.interactive import task_verbs
from hpcdet.errors import ConfigError, Unavailable, Unsuccessful
from hpcdet.jobs.checks import site_checks
from hpcdet.jobs.script.environment import fold_defaults
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import Queues
from hpcdet.site import Site
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.tasks import task_views, tunnels
from hpcdet.tasks.folder.task_folder import TaskKind, TaskOrder, TaskPaths
from hpcdet.tasks.start_task import start
from hpcdet.tasks.task_views import InteractiveTaskView

WALLTIME_S = 4 * 3600
"""Where nobody says how long, or the partition's limit if that is less."""
IDLE_S = 3600
_FLAGS = {
    "resources.resource_pool": "--partition",
    "resources.walltime_s": "--time",
    "resources.slots_per_node": "--slots",
    "resources.cpus_per_slot": "--cpus",
}
"""Flags for what the config of an experiment calls otherwise."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class StartFlags:
    """Flags of ``start``; their ``--help`` has the meanings."""

    site_name: str | None
    partition: str | None
    slots: int
    cpus: int
    memory: int | None
    walltime: float | None
    idle: float | None
    wait: bool


def start_options(kind: TaskKind, idle: float | None) -> Decorator:
    """Add the options of ``start`` to a command, which gets ``Output`` and ``StartFlags`` values.

    Args:
        idle: seconds after which a task of this kind ends by itself, where nobody says it.
    """
    word = "never" if idle is None else f"{idle / 3600:g}h"
    options = (
        click.option(
            "--site", "site_name", metavar="NAME", help="Site [$HPCDET_SITE or detected]."
        ),
        click.option("--partition", metavar="NAME", help="Where [the site's default]."),
        click.option(
            "--slots", type=click.IntRange(1), default=1, help="Accelerators or cores [1]."
        ),
        click.option("--cpus", type=click.IntRange(1), default=1, help="Cores for each slot [1]."),
        click.option("--memory", type=Size(), metavar="SIZE", help="For each slot, as 8G."),
        click.option(
            "--time", "walltime", type=Seconds(least=1), metavar="TIME", help="Walltime [4h]."
        ),
        click.option(
            "--idle",
            type=Seconds(),
            default=idle,
            metavar="TIME",
            help=f"End it when unused for so long [{word}]; 0: never.",
        ),
        click.option("--wait", is_flag=True, help=_waits(kind)),
        output(f"{kind}.start", InteractiveTaskView),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _waits(kind: TaskKind) -> str:
    if kind in tunnels.PORTS:
        return "Wait until the server answers."
    return "Wait for its end; exit with its code." if kind == "run" else "Wait until it runs."


def submitted(
    out: Output,
    kind: TaskKind,
    flags: StartFlags,
    *,
    command: Sequence[str] = (),
    sources: Sequence[str] = (),
) -> TaskPaths:
    """Check the request at its site and submit the task.

    Raises:
        ConfigError: the site cannot run it.
        Unavailable: the scheduler does not answer.
    """
    out.expect()
    chosen = fold_defaults(settings().site(flags.site_name))
    if flags.site_name is None and settings().profile is None:
        settings().note(f"site {chosen.name}: {chosen.reason}")
    site, assumed = opening.of(chosen).facts.resolved(chosen, flags.partition)
    if assumed:
        settings().note(f"site {site.name}: {assumed}")
    walltime = int(flags.walltime) if flags.walltime else _walltime(site, flags.partition)
    need = Resources(
        slots_per_trial=flags.slots,
        slots_per_node=flags.slots,
        cpus_per_slot=flags.cpus,
        memory_per_slot=flags.memory,
        walltime_s=walltime,
        resource_pool=flags.partition,
    )
    experiment = Resolved(resources=need)
    root = settings().root_at(site)
    for warning in _checked(experiment, site):
        settings().warn(warning)
    order = TaskOrder(
        kind,
        command=list(command),
        folder=str(Path.cwd()),
        sources=list(sources),
        walltime_s=walltime,
        idle_s=flags.idle or None,
    )
    return start(order, site, experiment, root)


def _walltime(site: Site, partition: str | None) -> int:
    """Return the default walltime, at most what the partition allows."""
    view = site.view(partition)
    limits = [WALLTIME_S, view.max_walltime_s, view.longest_s(1)]
    scheduler = opening.open_scheduler(site)
    if isinstance(scheduler, Queues):
        name = view.directives.get("partition")
        with contextlib.suppress(Unavailable):  # which is said when the job is checked
            chosen = (
                queue
                for queue in scheduler.partitions()
                if (queue.default if name is None else queue.name == name)
            )
            limits.extend(queue.max_walltime_s for queue in chosen)
    return int(min(limit for limit in limits if limit is not None))


def _checked(experiment: Resolved, site: Site) -> list[str]:
    """Return the warnings of a job; its errors name the flag and not the key of a config.

    Raises:
        ConfigError, Unavailable: as ``site_checks.refuse_impossible``.
    """
    try:
        return site_checks.refuse_impossible(experiment, site)
    except ConfigError as error:
        flag = _FLAGS.get(error.where)
        if flag is None:
            raise
        # what follows speaks of trials, which go on in another allocation
        raise ConfigError(error.what, where=flag, hint=error.hint.partition(";")[0]) from error


def show(out: Output, found: TaskPaths, flags: StartFlags) -> None:
    """Print a task that was started; with ``--wait`` once it serves or runs.

    Raises:
        Unsuccessful: it ended before.
    """
    if flags.wait:
        with watching(found):
            task_verbs.until(found, _ready, lambda: None)
    item = task_views.view(found)
    out.emit([item], task_verbs.COLUMNS)
    if flags.wait and item.state not in task_verbs.LIVE:
        hint = f"hpcdet {item.kind} logs {found.id}"
        raise Unsuccessful(f"it ended: {item.reason}", where=found.id, hint=hint)
    if not out.for_people:
        return
    follow = "url" if item.kind in tunnels.PORTS else "open" if item.kind == "shell" else "logs"
    settings().note(f"next: hpcdet {item.kind} {follow} {found.id}")


def _ready(found: TaskPaths) -> bool:
    served = found.kind in tunnels.PORTS
    return found.serving.exists() if served else found.started.exists()


@contextlib.contextmanager
def watching(found: TaskPaths) -> Iterator[None]:
    """End only the watching on Ctrl-C, with a message; the job goes on."""
    try:
        yield
    except KeyboardInterrupt:
        name = f"hpcdet {found.kind} stop {found.id}"
        click.echo(f"\nno longer watching; the job goes on ({name} would end it)", err=True)
        raise click.exceptions.Exit(130) from None


def judged(found: TaskPaths) -> int:
    """Return the exit code of a command that was waited for.

    Raises:
        Unsuccessful: it did not come to its end.
    """
    item = task_views.view(found)
    if item.exit_code is not None and item.reason in ("completed", "failed"):
        return item.exit_code
    hint = f"hpcdet run logs {found.id}"
    raise Unsuccessful(f"it ended: {item.reason or item.state}", where=found.id, hint=hint)
