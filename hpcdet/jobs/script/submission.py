"""An intent made ready: its script in the experiment's folder and the command for it."""

from __future__ import annotations

from pathlib import Path

from hpcdet.jobs.script.render import render
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import Submission
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from hpcdet.store.fs import files

SCRIPT_MODE = 0o700


def argv(site: Site, script: Path) -> list[str]:
    """The command that submits a script by hand."""
    return opening.of(site).script.by_hand(script)


def build(paths: ExperimentPaths, intent: Intent, experiment: Resolved, site: Site) -> Submission:
    """Render the script of an intent, write it, and make the folder of its output.

    Doing it again gives the same files. Raises ConfigError as ``render.render``.
    """
    text = render(experiment, site, intent, paths)
    script = paths.sentinel_script(intent.number) if intent.watches else paths.script(intent.number)
    files.replace(script, text.encode(), SCRIPT_MODE)
    # a job whose output folder is missing fails at its start and leaves no word
    files.make_folder(paths.job_log(intent.number))
    return Submission(
        name=intent.name,
        tag=intent.tag,
        script=script,
        tasks=intent.tasks,
        throttle=intent.throttle,
        held=intent.held,
        argv=argv(site, script),
    )
