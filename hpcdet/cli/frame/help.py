"""``help``: of a verb, as ``--help`` shows it, or on a topic."""

from __future__ import annotations

import inspect

import click

from hpcdet import errors
from hpcdet.errors import NotFound

IDS = """\
What stands for an experiment:
  digits-7f3a       its id, the name of its folder
  dig               any beginning of the id that fits no other
  digits-7f3a/3     its trial 3
  digits-7f3a/3.2   attempt 2 of that trial
  @last             the newest experiment; @last/3 is a trial of it
  digits-7f3a/@best its best trial so far; @best: that of the newest experiment
  123_4, 123        a scheduler's job id, as it prints it
  ./path/in/it      its folder, or any file inside (a log file, a checkpoint)
  -                 where several may stand: the ids on standard input
Experiments are looked for in -C DIR, else $HPCDET_ROOT, else
./hpcdet-experiments if it is there, else where the site keeps them."""


def _exit_codes() -> str:
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.HpcdetError) and errors.HpcdetError in kind.__bases__
    ]
    rows = [(0, "it worked; an empty list is success"), (1, "something unexpected failed")]
    rows += [(kind.exit_code, (kind.__doc__ or "").splitlines()[0]) for kind in kinds]
    rows += [(130, "Ctrl-C"), (143, "SIGTERM")]
    return "\n".join(f"{code:>4}  {text.rstrip('.')}" for code, text in sorted(rows))


@click.command("help", short_help="Help on a verb or a topic: exit-codes, ids.")
@click.argument("topic", required=False)
@click.pass_context
def help_command(ctx: click.Context, topic: str | None) -> None:
    """Help on a verb, or on a topic: exit-codes, ids.

    \b
    Example: hpcdet help exit-codes
    """
    parent = ctx.find_root()
    group = parent.command
    assert isinstance(group, click.Group)
    if topic is None:
        click.echo(group.get_help(parent))
    elif topic == "exit-codes":
        click.echo(_exit_codes())
    elif topic == "ids":
        click.echo(IDS)
    else:
        command = group.get_command(parent, topic)
        if command is None:
            raise NotFound(f"no help on {topic!r}", hint="topics are verbs, exit-codes and ids")
        click.echo(command.get_help(click.Context(command, info_name=topic, parent=parent)))
