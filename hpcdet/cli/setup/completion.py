"""``completion``: shell code that completes verbs, flags and ids."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print shell completion for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Shell code that completes verbs, flags and experiment ids.

    \b
    Example: eval "$(hpcdet completion bash)"
    """
    from hpcdet.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "hpcdet", "_HPCDET_COMPLETE").source())
