"""``serve``: the live view of all experiments of a root."""

from __future__ import annotations

import getpass
import json
import os
import socket

import click

from hpcdet import units
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import Seconds

_IDLE_S = 7200.0


@click.command("serve", short_help="A live view in the browser, through ssh.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="A port of 127.0.0.1 (0: a free one), which all users of this host reach.",
)
@click.option(
    "--idle", type=Seconds(1), default=_IDLE_S, metavar="TIME", help="End unasked for so long [2h]."
)
@click.option("--print-ssh", is_flag=True, help="Print only the line of ssh.")
@click.option(
    "-o",
    "--output",
    "format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print where it listens; json: one line.",
)
def serve_command(port: int | None, idle: float, print_ssh: bool, format: str) -> None:
    """Show experiments in the browser: lists, reports that follow, and a JSON API.

    The server reads and changes nothing. It listens on a socket that only you can open, demands
    a token, and ends when nobody has asked for two hours, or with Ctrl-C.

    \b
    Examples: hpcdet serve
              hpcdet serve --idle 8h -o json
    """
    from hpcdet.serve import listening, serving

    root = settings().root
    token = serving.new_token()
    app = serving.application(root, settings().registry, token)
    with listening.listening(port) as where:
        told = {
            "socket": str(where.path) if where.path is not None else None,
            "port": where.port or None,
            "token": token,
            "url": where.url(token),
            "ssh": where.ssh(getpass.getuser(), _host()),
            "pid": os.getpid(),
            "idle_s": idle,
        }
        if where.port:
            settings().warn("all users of this host can connect; only the token keeps them out")
        if format == "json":
            click.echo(json.dumps(told))
        elif print_ssh:
            click.echo(told["ssh"])
        else:
            click.echo("On your own machine:")
            click.echo(f"  {told['ssh']}")
            click.echo(f"Then open:\n  {told['url']}")
            settings().note(f"serving {root}; Ctrl-C or {units.duration(idle)} of silence end it")
        serving.serve(app, where, idle)


def _host() -> str:
    """Return the full name of this host, by which others reach it, if it has one."""
    short, full = socket.gethostname(), socket.getfqdn()
    return full if full.partition(".")[0] == short.partition(".")[0] else short
