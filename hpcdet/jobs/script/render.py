"""The batch script: a template, and the values it is filled with."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcdet import shipped
from hpcdet.errors import ConfigError
from hpcdet.jobs.script import environment, options, requirements, succession
from hpcdet.jobs.script.requirements import NodeRequest
from hpcdet.site import PartitionView, Site
from hpcdet.site.load_site import folders as template_folders
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder import trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from hpcdet.store.fs import files

if TYPE_CHECKING:
    from hpcdet.policy.compiled import CompiledPolicy

_HETJOB = re.compile(r"^#SBATCH\s+(?:het|pack)job\b", re.MULTILINE)
SENTINEL = "slurm/sentinel.sbatch.j2"
TEMPLATES = {"slurm": "slurm/worker.sbatch.j2", "local": "local/worker.sh.j2"}


def search_path(site: Site) -> list[Path]:
    """Folders of templates there are, nearest first: the site's, then as for site files."""
    own = [Path(os.path.expandvars(site.templates)).expanduser()] if site.templates else []
    every = [*own, *(folder.path for folder in template_folders("templates"))]
    return [folder.absolute() for folder in every if folder.is_dir()]


def engine(path: list[Path]) -> ImmutableSandboxedEnvironment:
    """Jinja2 as all our templates are read: sandboxed, no undefined names, the ``sh`` filter."""
    jinja = ImmutableSandboxedEnvironment(
        loader=_Loader(path),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    jinja.filters["sh"] = quote
    return jinja


class _Loader(FileSystemLoader):
    """A template loader that refuses files which another user could have written.

    ``shipped/NAME`` is always hpcdet's own, for a template that extends the one it replaces.
    """

    def __init__(self, path: list[Path]) -> None:
        own = shipped.folder("templates")
        super().__init__([*path, own])
        self.shipped = FileSystemLoader(own)

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        prefix, _, name = template.partition("/")
        if prefix == "shipped":
            return self.shipped.get_source(environment, name)
        source = super().get_source(environment, template)
        if not Path(source[1]).is_relative_to(shipped.folder("templates")):
            trust.refuse_writable_by_others(Path(source[1]), "template")
        return source


def quote(value: Any) -> str:
    """One word of a shell, whatever it holds; of a list, its words."""
    if isinstance(value, list | tuple):
        return shlex.join(str(item) for item in value)
    return shlex.quote(str(value))


def render(
    experiment: Resolved,
    site: Site,
    intent: Intent,
    paths: ExperimentPaths,
    environ: Mapping[str, str] | None = None,
    *,
    command: Sequence[str] = (),
    of: ExperimentPaths | None = None,
    policy: CompiledPolicy | None = None,
) -> str:
    """The text of the batch script of one submission.

    Args:
        environ: variables of the submitting shell that the job gets. Default, as for the
            folders of templates: those of when the experiment was made, or, if it is only
            looked at, of now.
        command: what runs in the place of a worker.
        of: the experiment whose record says so, where ``paths`` is not its folder.
        policy: that of a governed experiment, where ``paths`` does not have it yet.

    Raises:
        ConfigError: no template, a template that is wrong (with its line), a name in it that
            nothing defines, or options that cannot be.
    """
    if site.scheduler not in TEMPLATES:
        raise ConfigError(f"there is no {site.scheduler} backend yet", where=f"site {site.name}")
    name = SENTINEL if intent.watches else TEMPLATES[site.scheduler]
    record = _recorded(of or paths)
    folders = search_path(site) if record is None else [Path(path) for path in record["templates"]]
    jinja = engine(folders)
    if environ is None:
        environ = environment.carried() if record is None else record["environment"]
    view = site.view(experiment.resources.resource_pool)
    required = (
        requirements.of_experiment(experiment, paths, site)
        if policy is None
        else requirements.of_policy(policy, site)
    )
    try:
        values = variables(jinja, experiment, site, view, intent, paths, environ, required=required)
        if command:  # it is no worker, in whose place others would go on
            values |= {"worker": list(command), "handover": None}
        text = jinja.get_template(name).render(values)
    except TemplateNotFound as error:
        where = ":".join(str(folder) for folder in folders)
        raise ConfigError(f"no template {error.name}", where=where) from error
    except TemplateError as error:
        raise ConfigError(f"the template fails: {error}", where=_place(error, name)) from error
    if _HETJOB.search(text):
        raise ConfigError(
            "heterogeneous jobs (hetjobs) are not supported", where=f"template {name}"
        )
    return text


def _place(error: TemplateError, name: str) -> str:
    """``FILE:LINE`` in the template, from the error or from its traceback."""
    file, line = getattr(error, "filename", None) or name, getattr(error, "lineno", None)
    if line is None:
        for frame, number in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.endswith(".j2"):
                file, line = frame.f_code.co_filename, number
    return f"{file}:{line}" if line else str(file)


def variables(
    jinja: ImmutableSandboxedEnvironment,
    experiment: Resolved,
    site: Site,
    view: PartitionView,
    intent: Intent,
    paths: ExperimentPaths,
    environ: Mapping[str, str],
    *,
    required: NodeRequest | None = None,
) -> dict[str, Any]:
    """Return the values for a worker's template; ``templates/README.md`` lists them."""
    need, side_by_side = experiment.resources, experiment.lanes
    size = {
        "nodes": need.nodes,
        "lanes": side_by_side,
        "slots_per_node": need.slots_per_node * side_by_side,
        "slots": need.slots_per_trial * side_by_side,
        "cpus_per_slot": need.cpus_per_slot,
        "gpu_type": experiment.slurm.gpu_type,
    }
    python = experiment.environment.python or site.python or sys.executable
    # before the experiment exists (`submit --dry-run`) there is nothing to wait for
    digest = resolved_config.digest(paths.config) if paths.config.exists() else ""
    place = [str(paths.root), "--submission", str(intent.number)]
    collect = options.collect
    if intent.watches:
        collect = functools.partial(options.of_sentinel, dependency=succession.dependency(site))
    return {
        **size,
        "experiment": {"id": paths.id, "root": str(paths.root), "closed": str(paths.closed)},
        "job": {
            "number": intent.number,
            "name": intent.name,
            "tag": intent.tag,
            "tasks": intent.tasks,
            "throttle": intent.throttle,
            "logs": str(paths.job_log(intent.number)),
        },
        "options": collect(
            experiment,
            view,
            intent,
            paths,
            signal_lead_s=site.limits.signal_lead_s,
            expand=lambda text: jinja.from_string(text).render(size),
            required=required,
        ),
        "site": site.name,
        "requeue": site.capabilities.requeue == "user" and not intent.watches,
        "kill_wait_s": site.limits.kill_wait_s,
        "signal_lead_s": site.limits.signal_lead_s,
        "walltime_s": need.walltime_s,
        "setup": list(view.setup),
        "env": {
            **environ,
            **view.env,
            **experiment.environment.environment_variables,
        },
        "python": python,
        "worker": [python, "-Pm", "hpcdet.worker", *place, "--digest", digest],
        "sentinel": [python, "-Pm", "hpcdet.worker.sentinel", *place],
        "again": [python, "-Pm", "hpcdet.worker.again", *place],
        "handover": [python, "-Pm", "hpcdet.worker.handover", *place],
    }


def _recorded(paths: ExperimentPaths) -> dict[str, Any] | None:
    """Return the findings of the experiment's creation; None for one that is only previewed.

    A script that a worker renders is so the same as one rendered where it was submitted.
    """
    record = files.read_json(paths.provenance)
    if not isinstance(record, dict) or not record.keys() >= {"environment", "templates"}:
        return None
    return record
