"""``notebook``: JupyterLab in a job."""

from __future__ import annotations

from typing import Any

import click

from hpcdet.cli.frame.output import Output
from hpcdet.cli.interactive import task_verbs
from hpcdet.cli.interactive.start_verbs import IDLE_S, StartFlags, show, start_options, submitted


@click.group("notebook", cls=task_verbs.TaskGroup, short_help="JupyterLab in a job, through ssh.")
def notebook_command() -> None:
    """JupyterLab in a job of the site, reached by one line of ssh.

    It listens on a socket that only you can open, and demands a token.

    \b
    Example: hpcdet notebook start --slots 1 --time 2h --wait
    """


@notebook_command.command("start")
@start_options("notebook", IDLE_S)
def start(out: Output, **flags: Any) -> None:
    """Start JupyterLab in the present folder, on a node.

    Kernels that nobody uses are ended, and the job once none is left. Exit 4 if the
    site's Python has no JupyterLab.

    \b
    Example: hpcdet notebook start --partition gpu --time 2h --wait
    """
    asked = StartFlags(**flags)
    show(out, submitted(out, "notebook", asked), asked)


task_verbs.add_verbs(notebook_command, "notebook")
