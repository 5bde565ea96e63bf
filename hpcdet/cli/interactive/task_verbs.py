"""``ls``, ``logs``, ``stop`` and ``url``, which each kind of task has."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from hpcdet import units
from hpcdet.cli.frame.bulk import COLUMNS as DONE
from hpcdet.cli.frame.bulk import ActionView
from hpcdet.cli.frame.det_verbs import instead_of
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import HpcdetError, PartialSuccess, StillPending, UsageError, refused
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.folder import home
from hpcdet.store.fs import files
from hpcdet.tasks import task_views, tunnels
from hpcdet.tasks.folder.task_folder import (
    TaskOrder,
    TaskPaths,
    TaskServing,
    TaskStarted,
    task,
    tasks,
)
from hpcdet.tasks.servers import private_socket
from hpcdet.tasks.task_views import InteractiveTaskView

COLUMNS = (
    Column("ID", "id"),
    Column("STATE", "state", cut=False),
    Column("REASON", "reason"),
    Column("JOB", "job"),
    Column("NODE", "node"),
    Column("LEFT", lambda item: units.duration(item.left_s), cut=False),
    Column("SOCKET", "socket", wide=True),
    Column("CREATED", "created_at", wide=True),
)
COMMANDS = (*COLUMNS, Column("COMMAND", lambda item: " ".join(item.command), fold=True))
PAGES = {"notebook": "lab", "tensorboard": ""}
"""The page of a server that a browser opens."""
LIVE = ("PENDING", "RUNNING", "STOPPING")
_LOOK_S = 0.3


@dataclass(frozen=True)
class TaskUrlView:
    """The way to a server from your own machine."""

    id: str
    """The task."""
    tunnel: str
    """The line of ssh."""
    url: str
    """The address for a browser while ssh runs; it asks for the token in `token_file`."""
    token_file: str
    """The file with the token."""
    left_s: float | None
    """Seconds that are left of the walltime; null: it has no end."""


class TaskGroup(click.Group):
    """The verbs of a kind of task; those of ``det`` are answered with them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            there = f"there are: {', '.join(self.commands)}"
            hint = instead_of([str(ctx.info_name), *args]) or there
            raise click.UsageError(f"No such verb: {args[0]!r}. Here: {hint}", ctx)
        return super().resolve_command(ctx, args)


def complete(kind: str) -> Callable[..., list[str]]:
    """Return the completion of ids of a kind; "" for all kinds."""

    def found(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
        try:
            known = tasks(home.root(), kind)
        except (HpcdetError, OSError):
            return []
        return [one.id for one in known if one.id.startswith(incomplete)]

    return found


def add_verbs(group: click.Group, kind: str) -> None:
    """Give the group of a kind its ``ls``, ``logs``, ``stop`` and, if it serves, ``url``."""
    group.add_command(_ls(kind))
    group.add_command(_logs(kind))
    group.add_command(_stop(kind))
    if kind in tunnels.PORTS:
        group.add_command(_url(kind))


def _ls(kind: str) -> click.Command:
    @click.command("ls", help=_help(f"List each {kind}, oldest first.", f"hpcdet {kind} ls"))
    @output(f"{kind}.ls", InteractiveTaskView)
    def ls(out: Output) -> None:
        items, warnings = task_views.views(tasks(settings().root, kind))
        columns = COMMANDS if kind == "run" else COLUMNS
        out.emit(items, columns, warnings=warnings, empty=f"no {kind} in {settings().root}")

    return ls


def _logs(kind: str) -> click.Command:
    text = "Print what it has printed. Kept for 30 days after its end."

    @click.command("logs", help=_help(text, f"hpcdet {kind} logs {kind}-7f3a --tail 20"))
    @click.argument("id", metavar="ID", shell_complete=complete(kind))
    @click.option("-f", "--follow", is_flag=True, help="Go on until it has ended.")
    @click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
    def logs(id: str, follow: bool, tail: int | None) -> None:
        found = task(id, settings().root, kind)
        for path in job_logs(found):
            _copy(path, 0, tail)
        end = _copy(found.output, 0, tail)
        if follow:
            print_output(found, end)

    return logs


def _stop(kind: str) -> click.Command:
    @click.command("stop", help=_help("End it, and its job.", f"hpcdet {kind} stop {kind}-7f3a"))
    @click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete(kind))
    @click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
    @output(f"{kind}.stop", ActionView)
    def stop(out: Output, ids: Sequence[str], dry_run: bool) -> None:
        out.expect()
        items: list[ActionView] = []
        failed: list[HpcdetError] = []
        for text in ids:
            try:
                found = task(text, settings().root, kind)
                what = _stopped(found, dry_run)
                items.append(ActionView(found.id, "stop", True, what, "", dry_run))
            except (HpcdetError, OSError) as caught:
                error = caught if isinstance(caught, HpcdetError) else refused(caught, text)
                failed.append(error)
                items.append(ActionView(text, "stop", False, error.what, str(error), dry_run))
        if len(failed) == len(ids):
            raise failed[0]
        out.emit(items, DONE)
        if failed:
            what = f"stop failed for {len(failed)} of {len(ids)}"
            raise PartialSuccess(what, hint=str(failed[0]))

    return stop


def _stopped(found: TaskPaths, dry_run: bool) -> str:
    if found.ended.exists():
        return "has ended already"
    if dry_run:
        return "would be ended"
    task_views.request_stop(found)
    return "ends"


def _url(kind: str) -> click.Command:
    text = (
        "Print the line of ssh for your own machine, the address for a browser there, and the "
        "time left.\n\nThe address has the token in it. With -o json it has not."
    )

    @click.command("url", help=_help(text, f"hpcdet {kind} url {kind}-7f3a"))
    @click.argument("id", metavar="ID", shell_complete=complete(kind))
    @click.option(
        "--port",
        type=click.IntRange(1, 65535),
        default=tunnels.PORTS[kind],
        show_default=True,
        help="The port on your own machine.",
    )
    @output(f"{kind}.url", TaskUrlView)
    def url(out: Output, id: str, port: int) -> None:
        found = task(id, settings().root, kind)
        show_url(out, found, port)

    return url


def show_url(out: Output, found: TaskPaths, port: int) -> None:
    """Print the way to a server.

    Raises:
        StillPending: it does not answer yet.
        UsageError: it has ended.
    """
    item = task_views.view(found)
    order, serving = TaskOrder.read(found.order), TaskServing.read(found.serving)
    started = TaskStarted.read(found.started)
    if item.state not in LIVE:
        raise UsageError(f"it has ended: {item.reason}", where=found.id)
    if not item.socket or order is None or serving is None or started is None:
        hint = f"ask again later; hpcdet {item.kind} logs {found.id}"
        raise StillPending(f"no server answers yet: {item.reason or item.state}", hint=hint)
    way = from_resolved(found.job.site).tunnel
    tunnel = tunnels.ssh_line(found, order, started, serving, way, port)
    address = f"http://localhost:{port}/{PAGES[item.kind]}"
    if not out.for_people or out.fields:
        view = TaskUrlView(found.id, tunnel, address, item.token_file, item.left_s)
        out.emit([view], (Column("TUNNEL", "tunnel"), Column("URL", "url")))
        return
    token = urlencode({"token": private_socket.read_token(found.token)})
    click.echo(tunnel)
    click.echo(f"{address}?{token}")
    click.echo(f"time left: {units.duration(item.left_s) or 'no end'}")


# -- waiting and printing ------------------------------------------------------------------


def until(
    found: TaskPaths, done: Callable[[TaskPaths], bool], meanwhile: Callable[[], Any]
) -> None:
    """Wait until a condition on a task's files holds, or it has ended, or its job is gone.

    Args:
        meanwhile: called at each look.
    """
    asked_at, gone = time.monotonic(), 0
    pause = 2 * _LOOK_S
    while True:
        over = done(found) or found.ended.exists()
        meanwhile()
        if over or gone > 1:  # once more after the first word of it: its last is on its way
            return
        time.sleep(_LOOK_S)
        if time.monotonic() - asked_at > pause:
            gone += task_views.view(found).state not in LIVE
            asked_at, pause = time.monotonic(), min(60.0, 1.5 * pause)


def print_output(found: TaskPaths, begin: int = 0) -> None:
    """Print what a task prints, from an offset in bytes on, until it has ended."""
    at = begin

    def more() -> None:
        nonlocal at
        at = _copy(found.output, at)

    until(found, lambda _: False, more)
    more()


def job_logs(found: TaskPaths) -> list[Path]:
    """Return the files of what the job's script printed: mostly why a task did not start."""
    folder = found.job.job_log(1)
    return sorted(folder.glob("*.log")) if folder.is_dir() else []


def _copy(path: Path, begin: int, tail: int | None = None) -> int:
    """Print a file from an offset in bytes on; return where it ended.

    Args:
        tail: only so many lines, the last ones.
    """
    sys.stdout.flush()
    try:
        with os.fdopen(files.open_to_read(path), "rb") as file:
            file.seek(begin)
            if tail is None:
                shutil.copyfileobj(file, sys.stdout.buffer)
            else:
                sys.stdout.buffer.writelines(deque(file, maxlen=tail))
            begin = file.tell()
    except FileNotFoundError:
        return begin
    sys.stdout.buffer.flush()
    return begin


def _help(text: str, example: str) -> str:
    return f"{text}\n\n\b\nExample: {example}"
