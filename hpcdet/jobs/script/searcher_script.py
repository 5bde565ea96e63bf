"""The searcher's own job: the site's template for workers, with its command and a small size."""

from __future__ import annotations

import dataclasses

from hpcdet.jobs.script import interpreters, render, submission
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import Submission
from hpcdet.schedulers.common.request import UserOptions
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from hpcdet.store.fs import files


def place(paths: ExperimentPaths) -> ExperimentPaths:
    """``EXP/searcher``: intents, scripts and logs of these jobs, as those of an experiment."""
    return ExperimentPaths(paths.root / "searcher")


def walltime_s(experiment: Resolved, site: Site) -> int:
    """Return the walltime of one of these jobs in seconds: the nearest that its queue takes."""
    view = site.view(_pool(experiment, site))
    return view.nearest_s(site.searcher_job.walltime_s, view.bounds.min_nodes or 1)


def _pool(experiment: Resolved, site: Site) -> str | None:
    return site.searcher_job.partition or experiment.resources.resource_pool


def text(paths: ExperimentPaths, intent: Intent, experiment: Resolved, site: Site) -> str:
    """Return the script of one job.

    Args:
        intent: ``watches`` is the job after whose end it starts.

    Raises:
        ConfigError: as ``render.render``.
    """
    python = interpreters.of_jobs(experiment, site)
    command = [python, "-Pm", "hpcdet.control.searcher_job", str(paths.root)]
    return render.render(
        _small(experiment, site),
        _site(site),
        dataclasses.replace(intent, watches=""),
        place(paths),
        command=render.OtherCommand(
            [*command, "--number", str(intent.number)], UserOptions(), intent.watches
        ),
        of=paths,
    )


def build(paths: ExperimentPaths, intent: Intent, experiment: Resolved, site: Site) -> Submission:
    """Render and write the script of one job; doing it again gives the same. Raises as ``text``."""
    where = place(paths)
    script = where.script(intent.number)
    files.replace(script, text(paths, intent, experiment, site).encode(), submission.SCRIPT_MODE)
    files.make_folder(where.job_log(intent.number))
    argv = submission.argv(site, script)
    return Submission(intent.name, intent.tag, script, 1, 1, argv=argv)


def _small(experiment: Resolved, site: Site) -> Resolved:
    """The experiment's config with the resources of the searcher's job."""
    job, pool = site.searcher_job, _pool(experiment, site)
    nodes = site.view(pool).bounds.min_nodes or 1
    resources = dataclasses.replace(
        experiment.resources,
        slots_per_trial=nodes,
        nodes=nodes,
        slots_per_node=1,
        cpus_per_slot=job.cpus,
        memory_per_slot=None if job.memory_mib is None else job.memory_mib * 2**20,
        walltime_s=walltime_s(experiment, site) if opening.of(site).cluster else None,
        resource_pool=pool,
        max_slots=None,
        exclude_nodes=[],
    )
    return dataclasses.replace(
        experiment,
        resources=resources,
        worker=dataclasses.replace(experiment.worker, lanes=1, node_groups=1),
        governance=None,  # it touches neither models nor data, and goes where searchers go
    )


def _site(site: Site) -> Site:
    """The site without what it asks for workers' sake; its task is never requeued."""
    small = opening.of(site).script.small
    partitions = {
        name: part.model_copy(update={"directives": small(part.directives)})
        for name, part in site.partitions.items()
    }
    changed = {
        "capabilities": site.capabilities.model_copy(update={"requeue": "none"}),
        "directives": {**small(site.directives), **site.searcher_job.directives},
        "partitions": partitions,
    }
    return site.changed(changed, {})
