"""``searcher``: the process that decides for an experiment."""

from __future__ import annotations

from typing import Any

import click

from hpcdet import units
from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.ids import called, id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import working
from hpcdet.cli.frame.settings import settings
from hpcdet.control import daemon
from hpcdet.control.turn.controller import Turn
from hpcdet.errors import ConfigError, HpcdetError, NotFound, UsageError
from hpcdet.read.experiment import gather, states
from hpcdet.read.lookup import find
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.folder.layout import ExperimentPaths

COLUMNS = (
    Column("ID", "id"),
    Column("HELD", "held"),
    Column("BY", "kind"),
    Column("HOST", "host"),
    Column("PID", "pid", right=True),
    Column("TERM", "term", right=True),
    Column("HEALTH", "health"),
)

TAKEN = (
    Column("TERM", "term", right=True),
    Column("N", "n", right=True),
    Column("TRIAL", "trial", right=True),
    Column("WHAT", "what", cut=False),
    Column("LENGTH", lambda row: text_format.length(row.get("length") or row.get("until"))),
    Column("SAYS", lambda row: row["why"] or row.get("metrics"), fold=True),
)
VERIFIED = (
    Column("ID", "id"),
    Column("EVENTS", "events", right=True),
    Column("DECISIONS", "decisions", right=True),
    Column("SNAPSHOTS", "snapshots", right=True),
    Column("VERIFIED", "verified"),
)


@click.group("searcher", short_help="Run the process that decides for an experiment.")
def searcher_command() -> None:
    """Run the process that decides: it passes events to the search method and submits jobs.

    Workers do the same while they live, so that it is rarely needed.

    \b
    Example: hpcdet searcher start digits-7f3a
    """


def _paths(id: str) -> ExperimentPaths:
    return find.experiment(id, settings().root)


@searcher_command.command("run")
@id_argument()
@click.option("--once", is_flag=True, help="Do what is due now and exit, for cron and scrontab.")
@click.option("--as-job", is_flag=True, help="Run as a chain of small batch jobs.")
def run(id: str, once: bool, as_job: bool) -> None:
    """Decide in the foreground, until the experiment is over. Ctrl-C frees the lease.

    With --as-job it is a chain of small jobs in the queue (searcher_job in the site file), each
    of which is followed by the next; prints the id of the first.

    \b
    Examples: hpcdet searcher run digits-7f3a
              hpcdet searcher run --as-job digits-7f3a
              hpcdet searcher run --once digits-7f3a
    """
    paths = _paths(id)
    if once and as_job:
        raise UsageError("--once and --as-job exclude each other", hint="choose one of them")
    if as_job:
        from hpcdet.control import searcher_job

        click.echo(searcher_job.start(paths))
        settings().note(f"the searcher of {paths.id} is in the queue")
    elif once:
        if not daemon.once(paths, _say):
            settings().note(f"another process decides for {paths.id} already")
    else:
        raise click.exceptions.Exit(daemon.main(paths))


def _say(turn: Turn) -> None:
    for action in turn.actions:
        click.echo(action)


@searcher_command.command("start")
@id_argument()
def start(id: str) -> None:
    """Decide in the background; the log is searcher.log in the experiment's folder.

    Refused where the site forbids processes that stay on login nodes.

    \b
    Example: hpcdet searcher start digits-7f3a
    """
    paths = _paths(id)
    if from_resolved(paths.site).capabilities.login_daemon == "forbidden":
        raise ConfigError(
            "no process may stay on a login node here",
            where="capabilities.login_daemon",
            hint=f"hpcdet searcher run --as-job {id}, or hpcdet searcher run --once {id}",
        )
    click.echo(daemon.start(paths))
    settings().note(f"the searcher of {paths.id} runs; its log is {paths.searcher_log}")
    said = daemon.status(paths)
    if said["held"] and said["kind"] != "daemon":
        settings().note(f"the searcher stands by: a {said['kind']} decides now")


@searcher_command.command("stop")
@id_argument()
def stop(id: str) -> None:
    """End the searcher in the background, or its jobs. Trials go on, and workers decide.

    \b
    Example: hpcdet searcher stop digits-7f3a
    """
    paths = _paths(id)
    from hpcdet.control import searcher_job

    if not (daemon.stop(paths) or searcher_job.stop(paths)):
        others = [one["host"] for one in daemon.status(paths)["perhaps"]]
        hint = f"a searcher may stand by on {', '.join(others)}: stop it there" if others else ""
        raise NotFound("no searcher runs here", where=paths.id, hint=hint)
    settings().note(f"the searcher of {paths.id} has ended")


@searcher_command.command("status")
@id_argument()
@output("searcher.status")
def status(out: Output, id: str) -> None:
    """Show the process that decides now, and a background searcher that stands by meanwhile.

    \b
    Example: hpcdet searcher status digits-7f3a
    """
    paths = _paths(id)
    health: dict[str, Any] = states.health(gather.gather(paths))
    said = daemon.status(paths)
    out.emit([{"id": paths.id, **said, **health}], COLUMNS)
    waiting = [f"pid {said['waits']} here"] if said["waits"] else []
    waiting += [f"perhaps pid {one['pid']} on {one['host']}" for one in said["perhaps"]]
    if waiting:
        settings().note(f"stands by: {', '.join(waiting)}")


@searcher_command.command("replay")
@id_argument()
@click.option("--verify", is_flag=True, help="Repeat all decisions; exit 1 if one differs.")
@output("searcher.replay")
def replay(out: Output, id: str, verify: bool) -> None:
    """Show the events that the search method received and its decisions, in order.

    With --verify the search method receives all events again, and its decisions are compared
    with the recorded ones, as is each snapshot of its state. Nothing is changed.

    \b
    Examples: hpcdet searcher replay digits-7f3a
              hpcdet searcher replay --verify digits-7f3a
    """
    from hpcdet.store.decisions import chain

    paths = _paths(id)
    if verify:
        out.emit([_verified(paths, chain.whole(paths))], VERIFIED)
        return
    if missing := chain.gap(paths):
        settings().warn(missing)
    lines = chain.read(paths)
    rows = []
    for line in lines:
        if line["kind"] in ("event", "action"):
            said = dict(line[line["kind"]])
            what, why = said.pop("kind"), said.pop("why", said.pop("reason", ""))
            place = {"term": line["term"], "n": line["n"], "time": line.get("t", "")}
            rows.append({**place, "trial": said.get("trial"), "what": what, "why": why, **said})
    out.emit(rows, TAKEN, key="n")


def _verified(paths: ExperimentPaths, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Replay all decisions and compare. Raises HpcdetError with the first difference."""
    from hpcdet.control.leader.decided_state import program
    from hpcdet.control.requests.replay import Replay
    from hpcdet.search.searcher_factory import searcher
    from hpcdet.store.config import resolved_config
    from hpcdet.store.decisions import snapshots
    from hpcdet.store.folder import trust
    from hpcdet.store.folder.held_folder import hold
    from hpcdet.store.trials import history

    resolved, code = resolved_config.load(paths.config), paths.code
    if resolved.searcher.program is not None:
        held = hold(paths.root)  # what is checked is what runs
        resolved, code = resolved_config.load(held.paths.config), held.paths.code
        trust.refuse_to_run(code)
    method = searcher(resolved, code, history=history.of(paths))
    known = {one.point: one.state for one in snapshots.read(paths, program(method))}
    again = Replay(method, known)
    with working(f"deciding {units.counted(len(lines), 'record')} of {paths.id} again") as done:
        for count, _ in enumerate(again.run(lines), 1):
            if count % 1000 == 0:
                done(count / len(lines))
    where = f"{paths.id}, term {again.term}, record {again.n}"
    if again.difference is not None:
        raise HpcdetError(
            str(again.difference),
            where=where,
            hint="the searcher's code has changed, or is not a pure function of its events",
        )
    if again.failed:
        raise HpcdetError(again.failed, where=where, hint=f"hpcdet events {called(paths)}")
    for term, n in (point for point, equal in again.points.items() if not equal):
        raise HpcdetError(
            "the snapshot is not the state after these records",
            where=str(paths.snapshot(term, n)),
            hint="remove the snapshot; it is only a shortcut",
        )
    return {
        "id": paths.id,
        "events": again.events,
        "decisions": again.decisions,
        "snapshots": len(again.points),
        "verified": True,
    }
