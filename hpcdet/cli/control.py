"""``cancel pause resume retry hold release tag``: what a user asks of an experiment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from hpcdet.cli import follow
from hpcdet.cli.bulk import each
from hpcdet.cli.crank import Crank, cranks
from hpcdet.cli.ids import ids_argument
from hpcdet.cli.observe import STATES
from hpcdet.cli.output import Output, output
from hpcdet.cli.progress import busy
from hpcdet.cli.settings import confirm, settings
from hpcdet.control import commands
from hpcdet.errors import HpcdetError, UsageError
from hpcdet.read import find, gather, states, views
from hpcdet.store import journal
from hpcdet.store.layout import ExperimentPaths

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _dry_run() -> Decorator:
    return click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")


def _wait() -> Decorator:
    return click.option("--wait", is_flag=True, help="Until it is done.")


@click.command("cancel", short_help="Save checkpoints, then end experiments or trials for good.")
@ids_argument()
@click.option(
    "--state",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only those in this state (repeat for more).",
)
@click.option("--reason", default="", metavar="TEXT", help="Why; events shows it.")
@_dry_run()
@_wait()
@output("cancel")
def cancel_command(
    out: Output, ids: Sequence[str], state: Sequence[str], reason: str, dry_run: bool, wait: bool
) -> None:
    """End experiments or trials (ID/3) for good; running ones save a checkpoint first.

    \b
    Examples: hpcdet cancel digits-7f3a --reason 'wrong data'
              hpcdet ls -o id | hpcdet cancel - --state PENDING -y
    """
    if state:
        ids = [id for id in ids if _is_in(id, state)]
        if not ids:
            settings().note(f"none of them is {' or '.join(state)}")
    if len(ids) > 1 and not dry_run:
        confirm(f"cancel {len(ids)} experiments or trials?")
    arguments = {"reason": reason} if reason else {}
    _ask(out, "cancel", ids, dry_run, follow.ENDED, wait, arguments)


def _is_in(id: str, wanted: Sequence[str]) -> bool:
    """Whether an experiment or trial is in one of the states.

    What cannot be found passes: its line in the answer says so.
    """
    try:
        found = find.reference(id, settings().root)
        status = views.status(found.paths)
    except (HpcdetError, OSError):
        return True
    state = {0: status["state"], **{t["trial"]: t["state"] for t in status["trials"]}}
    return state.get(found.trial) in (*wanted, None)


@click.command("pause", short_help="Save checkpoints, stop, and give the nodes back.")
@ids_argument()
@_dry_run()
@_wait()
@output("pause")
def pause_command(out: Output, ids: Sequence[str], dry_run: bool, wait: bool) -> None:
    """Stop experiments or trials (ID/3) at a checkpoint; ``resume`` goes on from there.

    \b
    Example: hpcdet pause digits-7f3a --wait
    """
    _ask(out, "pause", ids, dry_run, follow.ENDED | {"PAUSED"}, wait)


@click.command("resume", short_help="Go on with what was paused.")
@ids_argument()
@_dry_run()
@output("resume")
def resume_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Go on with paused experiments or trials (ID/3), from their latest checkpoints.

    \b
    Example: hpcdet resume digits-7f3a
    """
    _ask(out, "resume", ids, dry_run)


@click.command("retry", short_help="Try failed trials again from their checkpoints.")
@ids_argument()
@_dry_run()
@output("retry")
def retry_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Give trials that were given up another chance, with all their restarts.

    \b
    Example: hpcdet retry digits-7f3a/3
    """
    _ask(out, "retry", ids, dry_run)


@click.command("hold", short_help="Let what waits in the queue go on waiting.")
@ids_argument()
@_dry_run()
@output("hold")
def hold_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Keep the jobs of experiments in the queue, also later ones; what runs goes on.

    \b
    Example: hpcdet hold digits-7f3a
    """
    _ask(out, "hold", ids, dry_run)


@click.command("release", short_help="Let jobs start that were held.")
@ids_argument()
@_dry_run()
@output("release")
def release_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Let the jobs of experiments start that ``hold`` or ``submit --hold`` kept in the queue.

    \b
    Example: hpcdet release digits-7f3a
    """
    _ask(out, "release", ids, dry_run)


@click.command("tag", short_help="Add or remove labels.")
@ids_argument()
@click.option("--add", multiple=True, metavar="LABEL", help="Add a label (repeat for more).")
@click.option("--rm", multiple=True, metavar="LABEL", help="Remove a label (repeat for more).")
@_dry_run()
@output("tag")
def tag_command(
    out: Output, ids: Sequence[str], add: Sequence[str], rm: Sequence[str], dry_run: bool
) -> None:
    """Add labels to experiments or remove them, also after their end.

    \b
    Example: hpcdet tag digits-7f3a --add paper --rm draft
    """
    if not add and not rm:
        raise UsageError("no label given", hint="--add LABEL or --rm LABEL")

    def act(found: find.Reference) -> str:
        if not dry_run:
            commands.ask(found.paths, "tag", add=list(add), rm=list(rm))
        return " ".join([*(f"+{label}" for label in add), *(f"-{label}" for label in rm)])

    each(out, "tag", ids, act, dry_run)


def _ask(
    out: Output,
    verb: commands.Verb,
    ids: Sequence[str],
    dry_run: bool,
    goal: frozenset[str] = frozenset(),
    wait: bool = False,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Ask, then turn the crank so that it happens even where nobody else is alive.

    Args:
        goal: states of the experiments or trials to wait for.
        arguments: kept in the command, plain JSON.
    """
    asked: dict[ExperimentPaths, list[int]] = {}

    def act(found: find.Reference) -> str:
        if found.trial and verb in ("hold", "release"):
            hint = f"hpcdet {verb} {found.paths.id}"
            raise UsageError(
                f"cannot {verb} one trial: any job takes it", where=str(found), hint=hint
            )
        if dry_run:
            return f"would {verb}"
        number = commands.ask(found.paths, verb, found.trial, **arguments)
        asked.setdefault(found.paths, []).append(found.trial)
        if verb in ("resume", "retry"):
            _turn_until_somebody_works(found.paths)
        else:
            _turn_once(found.paths)
        return f"asked (command {number})"

    each(out, verb, ids, act, dry_run)
    if not wait or not asked:
        return

    def done(item: dict[str, Any]) -> bool:
        states = {0: item["state"], **{t["trial"]: t["state"] for t in item["trials"]}}
        wanted = next(numbers for paths, numbers in asked.items() if paths.id == item["id"])
        return all(states[number] in goal for number in wanted)

    waited = list(asked)
    with follow.following([paths.id for paths in waited]), cranks(waited, "wait") as all_of_them:
        follow.until(waited, done, turn=lambda: _turn_all(all_of_them))


def _turn_all(all_of_them: list[Crank]) -> None:
    for crank in all_of_them:
        crank.turn_if_due()


def _turn_once(paths: ExperimentPaths) -> None:
    """What was asked stands in a file already; trouble here only delays it."""
    try:
        with Crank(paths, "command") as crank:
            turn = crank.turn()
            if turn.blind:
                settings().warn(
                    f"{paths.id}: asked, but not all of it can be done here: {turn.blind}"
                )
    except (HpcdetError, OSError) as error:
        settings().warn(f"asked, but nothing is done yet: {error}")


def _turn_until_somebody_works(paths: ExperimentPaths) -> None:
    """Turn until a worker lives or a job waits: until then nobody else would turn the crank.

    A job that was just cancelled is believed to be gone only after a second look at the queue.
    """
    try:
        with Crank(paths, "command") as crank:
            crank.turn()
            if _somebody_works(paths):
                return
            poll_s = crank.holder.hands.site.limits.poll_min_s
            limit = time.monotonic() + 4 * poll_s + 30
            with busy("waiting until the former jobs have left the queue"):
                while not _somebody_works(paths) and time.monotonic() < limit:
                    follow.pause(0.2)
                    crank.turn_if_due()
    except (HpcdetError, OSError) as error:
        settings().warn(f"asked, but nothing is done yet: {error}")


def _somebody_works(paths: ExperimentPaths) -> bool:
    gathered = gather.gather(paths)
    if gathered.closed is not None or states.stuck(gathered):
        return True
    staying = any(
        worker.end is None
        and all(line["kind"] != "notice" for line in journal.read(worker.paths.journal))
        for worker in gathered.workers
    )
    begun = {worker.paths.submission for worker in gathered.workers}
    queued = (job for job in gathered.jobs if job.submitted and job.submitted.job)
    return staying or any(job.number not in begun for job in queued)
