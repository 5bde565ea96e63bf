"""``tensorboard``: TensorBoard in a job, over experiments and folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hpcdet.cli.frame.ids import complete
from hpcdet.cli.frame.output import Output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.interactive import task_verbs
from hpcdet.cli.interactive.start_verbs import IDLE_S, StartFlags, show, start_options, submitted
from hpcdet.errors import NotFound
from hpcdet.read.lookup import find


@click.group(
    "tensorboard", cls=task_verbs.TaskGroup, short_help="TensorBoard in a job, through ssh."
)
def tensorboard_command() -> None:
    """TensorBoard in a job of the site, reached by one line of ssh.

    It shows the metrics and hyperparameters of experiments as they are recorded, what
    their code wrote for it, and other folders.

    \b
    Example: hpcdet tensorboard start digits-7f3a --wait
    """


@tensorboard_command.command("start")
@click.argument("sources", metavar="ID|FOLDER...", nargs=-1, required=True, shell_complete=complete)
@start_options("tensorboard", IDLE_S)
def start(out: Output, sources: Sequence[str], **flags: Any) -> None:
    """Start TensorBoard over experiments, trials and folders, on a node.

    It ends when nobody has looked for a while. Exit 4 if the site's Python has no
    TensorBoard.

    \b
    Examples: hpcdet tensorboard start digits-7f3a digits-0c12/3 --wait
              hpcdet tensorboard start ./runs
    """
    asked = StartFlags(**flags)
    places = [_place(text) for text in sources]
    show(out, submitted(out, "tensorboard", asked, sources=places), asked)


def _place(text: str) -> str:
    """Return the absolute path of a source. Raises NotFound if it is neither id nor folder."""
    try:
        found = find.reference(text, settings().root)
    except NotFound as error:
        folder = Path(text).expanduser().absolute()
        if folder.is_dir():
            return str(folder)
        hint = "name an experiment (hpcdet ls), or a folder with event files"
        raise NotFound("no such experiment or folder", where=text, hint=hint) from error
    paths = found.paths
    return str((paths.trial(found.trial) if found.trial else paths).root.absolute())


task_verbs.add_verbs(tensorboard_command, "tensorboard")
