"""A job of one task that runs a command in the place of a worker, once.

It is made by the site's own template, so that the command meets what a worker would meet. All it
needs lies in a folder laid out as an experiment's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcdet.jobs.script import interpreters, render, submission
from hpcdet.schedulers.common.base import Submission
from hpcdet.site import Site
from hpcdet.site_files import load_site
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Environment, Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from hpcdet.store.fs import files

if TYPE_CHECKING:
    from hpcdet.policy.compiled import CompiledPolicy

_VARIABLES = "environment.yaml"


def build(
    paths: ExperimentPaths,
    intent: Intent,
    experiment: Resolved,
    site: Site,
    module: Sequence[str],
    policy: CompiledPolicy | None = None,
) -> Submission:
    """Write the job's script, its site, its variables, and the folder of its output.

    Args:
        intent: the job's name and tag.
        experiment: whose resources, environment and options the job gets.
        module: a module that the site's Python runs, and its arguments.
        policy: whose nodes the job asks for, if the experiment is governed.

    Raises:
        ConfigError: as ``render.render``.
    """
    capabilities = site.capabilities.model_copy(update={"requeue": "none"})
    once = site.changed({"capabilities": capabilities}, {})
    python = interpreters.of_jobs(experiment, site)
    command = render.OtherCommand([python, "-Pm", *module])
    text = render.render(experiment, once, intent, paths, command=command, policy=policy)
    files.write_once(paths.site, load_site.dump(once))
    wanted = {"environment": dataclasses.asdict(experiment.environment)}
    files.write_once(paths.root / _VARIABLES, resolved_config.dump(wanted))
    script = paths.script(intent.number)
    files.replace(script, text.encode(), submission.SCRIPT_MODE)
    # a job whose output folder is missing fails at its start and leaves no word
    files.make_folder(paths.job_log(intent.number))
    argv = submission.argv(once, script)
    return Submission(intent.name, intent.tag, script, 1, 1, argv=argv)


def arguments(argv: list[str]) -> list[str]:
    """Return the arguments of the module without the task's index, which the template adds."""
    return argv[:-2] if argv[-2:-1] == ["--index"] else argv


def environment(paths: ExperimentPaths) -> Environment:
    """Return the ``environment`` with which a job was built."""
    return resolved_config.load(paths.root / _VARIABLES).environment
