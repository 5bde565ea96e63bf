"""The batch script: a template, and the values it is filled with."""

from __future__ import annotations

import dataclasses
import shlex
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from jinja2 import (
    BytecodeCache,
    Environment,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
)
from jinja2.bccache import Bucket
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcdet import shipped
from hpcdet.errors import ConfigError
from hpcdet.jobs.script import environment, interpreters, requirements, succession
from hpcdet.schedulers import opening
from hpcdet.schedulers.common import questions
from hpcdet.schedulers.common.request import NodeRequest, ScriptRequest, UserOptions
from hpcdet.site import PartitionView, Site
from hpcdet.site.models import Directives
from hpcdet.site.shell_variables import expanded
from hpcdet.site_files.load_site import folders as template_folders
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder import trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from hpcdet.store.fs import files

if TYPE_CHECKING:
    from hpcdet.policy.compiled import CompiledPolicy


def search_path(site: Site) -> list[Path]:
    """Folders of templates there are, nearest first: the site's, then as for site files."""
    own = [Path(expanded(site.templates))] if site.templates else []
    every = [*own, *(folder.path for folder in template_folders("templates"))]
    return [folder.absolute() for folder in every if folder.is_dir()]


def engine(path: list[Path]) -> ImmutableSandboxedEnvironment:
    """Jinja2 as all our templates are read: sandboxed, no undefined names, the ``sh`` filter."""
    jinja = ImmutableSandboxedEnvironment(
        loader=_Loader(path),
        bytecode_cache=_COMPILED,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    jinja.filters["sh"] = quote
    return jinja


class _Compiled(BytecodeCache):
    """The templates that this process has compiled, by file and text."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _Compiled()


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


@dataclass(frozen=True)
class OtherCommand:
    """A command that runs in the place of a worker.

    Attributes:
        user: options in the place of the experiment's; None: those.
        behind: a job that must have ended.
    """

    argv: Sequence[str]
    user: UserOptions | None = None
    behind: str = ""


def render(
    experiment: Resolved,
    site: Site,
    intent: Intent,
    paths: ExperimentPaths,
    environ: Mapping[str, str] | None = None,
    *,
    command: OtherCommand | None = None,
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
    script = opening.of(site).script
    name = script.sentinel if intent.watches else script.worker
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
        user, behind = experiment.user_options(site.scheduler), ":".join(intent.behind)
        if command is not None:
            user, behind = command.user or user, command.behind
        asked = request(
            jinja, experiment, site, view, intent, paths, user, behind=behind, required=required
        )
        values = variables(experiment, site, intent, paths, environ, asked)
        values["options"] = script.options(asked)
        if command is not None:  # it is no worker, in whose place others would go on
            values |= {"worker": list(command.argv), "handover": None}
        text = jinja.get_template(name).render(values)
    except TemplateNotFound as error:
        where = ":".join(str(folder) for folder in folders)
        raise ConfigError(f"no template {error.name}", where=where) from error
    except TemplateError as error:
        raise ConfigError(f"the template fails: {error}", where=_place(error, name)) from error
    script.refuse(text, name)
    return text


def _place(error: TemplateError, name: str) -> str:
    """``FILE:LINE`` in the template, from the error or from its traceback."""
    file, line = getattr(error, "filename", None) or name, getattr(error, "lineno", None)
    if line is None:
        for frame, number in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.endswith(".j2"):
                file, line = frame.f_code.co_filename, number
    return f"{file}:{line}" if line else str(file)


def request(
    jinja: ImmutableSandboxedEnvironment,
    experiment: Resolved,
    site: Site,
    view: PartitionView,
    intent: Intent,
    paths: ExperimentPaths,
    user: UserOptions,
    *,
    behind: str = "",
    required: NodeRequest | None = None,
) -> ScriptRequest:
    """Return what a submission asks the scheduler for."""
    need, job = experiment.resources, experiment.allocation
    size = _size(experiment, user)

    def rendered(values: Directives) -> Directives:
        return {
            name: jinja.from_string(value).render(size)
            if isinstance(value, str) and "{" in value
            else value
            for name, value in values.items()
        }

    memory = need.memory_per_slot
    return ScriptRequest(
        name=intent.name,
        tag=intent.tag,
        tasks=intent.tasks,
        throttle=intent.throttle,
        nodes=job.nodes,
        least_nodes=job.least_nodes,
        ranks_per_node=job.slots_per_node,
        cpus_per_rank=need.cpus_per_slot,
        memory_per_node=None if memory is None else memory * job.slots_per_node,
        walltime_s=need.walltime_s,
        folder=paths.root,
        output=paths.job_log(intent.number),
        view=dataclasses.replace(
            view, directives=rendered(view.directives), chunk=rendered(view.chunk)
        ),
        exclude=tuple(intent.exclude),
        held=intent.held,
        after=tuple(intent.after),
        behind=behind,
        watches=intent.watches,
        after_end=succession.after_end(site) if intent.watches else "",
        signal_lead_s=site.limits.signal_lead_s,
        priority=need.priority,
        rerun=site.capabilities.rerun == "server",
        pool=need.resource_pool,
        user=user,
        required=required,
    )


def _size(experiment: Resolved, user: UserOptions) -> dict[str, Any]:
    job = experiment.allocation
    return {
        "nodes": job.nodes,
        "lanes": experiment.lanes,
        "slots_per_node": job.slots_per_node,
        "slots": job.slots_per_trial,
        "cpus_per_slot": job.cpus_per_slot,
        "gpu_type": user.gpu_type,
    }


def variables(
    experiment: Resolved,
    site: Site,
    intent: Intent,
    paths: ExperimentPaths,
    environ: Mapping[str, str],
    asked: ScriptRequest,
) -> dict[str, Any]:
    """Return the values for a worker's template; ``templates/README.md`` lists them."""
    python = interpreters.of_jobs(experiment, site)
    # before the experiment exists (`submit --dry-run`) there is nothing to wait for
    digest = resolved_config.digest(paths.config) if paths.config.exists() else ""
    place = [str(paths.root), "--submission", str(intent.number)]
    silent = site.capabilities.query_from_compute is False
    return {
        **_size(experiment, asked.user),
        "experiment": {"id": paths.id, "root": str(paths.root), "closed": str(paths.closed)},
        "job": {
            "number": intent.number,
            "name": intent.name,
            "tag": intent.tag,
            "tasks": intent.tasks,
            "throttle": intent.throttle,
            "logs": str(paths.job_log(intent.number)),
        },
        "site": site.name,
        "rerun": asked.rerun and not intent.watches,
        "requeue": site.capabilities.requeue == "user" and not intent.watches,
        "kill_wait_s": site.limits.kill_wait_s,
        "signal_lead_s": site.limits.signal_lead_s,
        "walltime_s": experiment.resources.walltime_s,
        "setup": list(asked.view.setup),
        "env": {
            **environ,
            **({questions.VARIABLE: "1"} if silent else {}),
            **asked.view.env,
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
