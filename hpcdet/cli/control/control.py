"""``cancel pause hold release tag note``: commands of a user to an experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from hpcdet.cli.frame.bulk import ActionView, each
from hpcdet.cli.frame.ids import id_argument, ids_argument
from hpcdet.cli.frame.output import Output, output
from hpcdet.cli.frame.settings import confirm, settings
from hpcdet.cli.observe import follow
from hpcdet.cli.observe.list_verb import STATES
from hpcdet.cli.request.send_commands import Look, Wish, ask_each, state_of, wrong_state
from hpcdet.control.requests import commands
from hpcdet.errors import HpcdetError, UsageError
from hpcdet.read.experiment import gather, states
from hpcdet.read.lookup import find
from hpcdet.read.views import views
from hpcdet.registry import registry_changes

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _dry_run() -> Decorator:
    return click.option("-n", "--dry-run", is_flag=True, help="Only print what would be done.")


def _wait() -> Decorator:
    return click.option("--wait", is_flag=True, help="Wait until it is done.")


@click.command("cancel", short_help="Save checkpoints, then end experiments or trials for good.")
@ids_argument()
@click.option(
    "--state",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only those in this state (repeat for more).",
)
@click.option("--now", is_flag=True, help="Save nothing: stop running trials at once.")
@click.option("--reason", default="", metavar="TEXT", help="Why; events shows it.")
@_dry_run()
@_wait()
@output("cancel", ActionView)
def cancel_command(
    out: Output,
    ids: Sequence[str],
    state: Sequence[str],
    now: bool,
    reason: str,
    dry_run: bool,
    wait: bool,
) -> None:
    """End experiments or trials (ID/3) for good; running ones save a checkpoint first.

    \b
    Examples: hpcdet cancel digits-7f3a --reason 'wrong data'
              hpcdet cancel digits-7f3a/3 --now
              hpcdet ls -o id | hpcdet cancel - --state PENDING -y
    """
    if state:
        ids = [id for id in ids if _is_in(id, state)]
        if not ids:
            settings().note(f"none of them is {' or '.join(state)}")
    if len(ids) > 1 and not dry_run:
        confirm(f"cancel {len(ids)} experiments or trials?")
    arguments: dict[str, Any] = {"reason": reason} if reason else {}
    if now:
        arguments["now"] = True

    def look(found: find.Reference, gathered: gather.Gathered) -> Wish:
        at = state_of(found, gathered)
        if at in follow.ENDED:
            raise wrong_state("cancel", found, f"{at} already")
        return Wish(arguments, "without saving" if now else "")

    ask_each(out, "cancel", ids, dry_run, look, follow.ENDED, wait)


def _is_in(id: str, wanted: Sequence[str]) -> bool:
    """True if an experiment or trial is in one of the states.

    An id that cannot be found counts as True: its line in the output has the error.
    """
    try:
        found = find.reference(id, settings().root)
        status = views.status(found.paths)
    except (HpcdetError, OSError):
        return True
    return status.states().get(found.trial) in (*wanted, None)


@click.command("pause", short_help="Save checkpoints, stop, and give the nodes back.")
@ids_argument()
@_dry_run()
@_wait()
@output("pause", ActionView)
def pause_command(out: Output, ids: Sequence[str], dry_run: bool, wait: bool) -> None:
    """Stop experiments or trials (ID/3) at a checkpoint; resume goes on from there.

    \b
    Example: hpcdet pause digits-7f3a --wait
    """

    def look(found: find.Reference, gathered: gather.Gathered) -> Wish:
        at = state_of(found, gathered)
        if at in follow.ENDED:
            raise wrong_state("pause", found, f"{at} already")
        stuck = not found.trial and states.stuck(gathered)
        return Wish(done="PAUSED already" if at == "PAUSED" and not stuck else "")

    ask_each(out, "pause", ids, dry_run, look, follow.ENDED | {"PAUSED"}, wait)


@click.command("hold", short_help="Keep waiting jobs from starting.")
@ids_argument()
@_dry_run()
@output("hold", ActionView)
def hold_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Keep the jobs of experiments in the queue, also later ones; what runs goes on.

    \b
    Example: hpcdet hold digits-7f3a
    """
    ask_each(out, "hold", ids, dry_run, _whole("hold"))


@click.command("release", short_help="Let jobs start that were held.")
@ids_argument()
@_dry_run()
@output("release", ActionView)
def release_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Let the jobs of experiments start that hold or submit --hold kept in the queue.

    \b
    Example: hpcdet release digits-7f3a
    """
    ask_each(out, "release", ids, dry_run, _whole("release"))


def _whole(verb: str) -> Look:
    """Return a look for a verb without arguments, which accepts whole experiments only."""

    def look(found: find.Reference, _: gather.Gathered) -> Wish:
        if found.trial:
            what = f"cannot {verb} one trial: any job takes it"
            hint = f"hpcdet {verb} {found.paths.id}"
            raise UsageError(what, where=str(found), hint=hint)
        return Wish()

    return look


@click.command("tag", short_help="Add or remove labels.")
@ids_argument()
@click.option("--add", multiple=True, metavar="LABEL", help="Add a label (repeat for more).")
@click.option("--rm", multiple=True, metavar="LABEL", help="Remove a label (repeat for more).")
@_dry_run()
@output("tag", ActionView)
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


@click.command("note", short_help="Write a note on an experiment.")
@id_argument()
@click.argument("text")
@_dry_run()
@output("note", ActionView)
def note_command(out: Output, id: str, text: str, dry_run: bool) -> None:
    """Append a note to an experiment, with its author and time, also after its end.

    \b
    Example: hpcdet note digits-7f3a 'the baseline of the paper'
    """
    registry_changes.refuse_note(text, id)

    def act(found: find.Reference) -> str:
        if not dry_run:
            commands.ask(found.paths, "note", text=text)
        return text

    each(out, "note", [id], act, dry_run)
