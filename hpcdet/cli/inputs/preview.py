"""Output of ``submit --dry-run``: config with origins, code, script, argv, verdict."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hpcdet import units
from hpcdet.cli.frame.output import Column, Output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.inputs.load_request import SubmitRequest
from hpcdet.cli.inputs.waiting import Waiting
from hpcdet.control.fleet import capacity
from hpcdet.errors import HpcdetError
from hpcdet.jobs.create import provenance
from hpcdet.jobs.script import lanes, submission
from hpcdet.jobs.script.render import render
from hpcdet.read.views.items import text as shown
from hpcdet.schedulers.common.base import Submission, SubmissionRefused
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site_files import load_site
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.names import slug
from hpcdet.store.folder.records import Intent


def show(
    out: Output, wanted: SubmitRequest, warnings: list[str], waiting: Waiting, *, ask: bool = True
) -> None:
    """Print what would be submitted; nothing is created.

    Args:
        ask: the scheduler, what it says to the script.

    Raises:
        ConfigError: the template or the code is refused, as a submission would be.
    """
    item = _item(wanted, waiting, ask)
    if not out.for_people or out.fields:
        out.emit([item], (Column("ID", "id"),), warnings=warnings)
        return
    for warning in warnings:
        settings().warn(warning)
    click.echo("# config")
    for row in item.config:
        click.echo(f"{row.key}: {shown(row.value)}    # {row.origin}")
    count, total = len(item.code), units.size(item.code_bytes)
    click.echo(f"\n# code: {units.counted(count, 'file')}, {total}, from {wanted.model_dir}")
    click.echo(f"\n# script\n{item.script}")
    click.echo(f"# command\n{shlex.join(item.argv)}")
    if item.verdict:
        click.echo(f"\n# the scheduler says\n{item.verdict}")


def script(wanted: SubmitRequest) -> str:
    """Return the script of the first submission. Raises ConfigError as ``jobs.script.render``."""
    paths, intent = _first_submission(wanted, Waiting())
    return render(wanted.resolved, wanted.site, intent, paths, policy=wanted.policy)


def _first_submission(wanted: SubmitRequest, waiting: Waiting) -> tuple[ExperimentPaths, Intent]:
    searcher = wanted.resolved.searcher
    name = f"{slug(wanted.resolved.name)}-0000"
    trials = max(1, min(searcher.max_trials, searcher.max_concurrent_trials or searcher.max_trials))
    workers = lanes.tasks(trials, wanted.resolved.lanes)
    most = wanted.site.limits.max_array
    tasks = min(most, workers + capacity.spares(wanted.resolved, wanted.site, workers))
    intent = Intent(
        number=1,
        name=f"{name}-1",
        tag=f"hpcdet:{name}:1-dry",
        tasks=tasks,
        throttle=min(workers, tasks),
        term=0,
        spares=max(0, tasks - workers),
        held=waiting.held,
        after=list(waiting.jobs),
    )
    return ExperimentPaths(wanted.root / name), intent


@dataclass(frozen=True)
class KeyView:
    """A key of the config."""

    key: str
    """The key, as ``searcher.name``."""
    value: Any
    """Its value."""
    origin: str
    """Where the value comes from."""


@dataclass(frozen=True)
class PreviewView:
    """The submission, without making it (``-n``)."""

    id: str
    """What the id would be like."""
    dry_run: bool
    """True."""
    site: str
    """The site."""
    site_reason: str
    """Why it is this site."""
    config: list[KeyView]
    """The resolved config."""
    code: list[str]
    """Files of the code."""
    code_bytes: int
    """Their size."""
    trials: int
    """Number of trials that the search may make."""
    tasks: int
    """Number of tasks of the first job."""
    held: bool
    """True if it would wait for ``hpcdet release``."""
    after: list[str]
    """Experiments and jobs that it would wait for."""
    script: str
    """The text of the job script."""
    argv: list[str]
    """The words of the command that submits it."""
    verdict: str
    """What the scheduler says to it; "" if it is not asked."""


def _item(wanted: SubmitRequest, waiting: Waiting, ask: bool) -> PreviewView:
    site = wanted.site
    paths, intent = _first_submission(wanted, waiting)
    text = render(wanted.resolved, site, intent, paths, policy=wanted.policy)
    entries = wanted.scan()
    return PreviewView(
        paths.id,
        True,
        site.name,
        site.reason,
        config=origins(wanted),
        code=[entry.path for entry in entries],
        code_bytes=sum(entry.bytes for entry in entries),
        trials=wanted.resolved.searcher.max_trials,
        tasks=intent.tasks,
        held=intent.held,
        after=[*(other.id for other in waiting.experiments), *intent.after],
        script=text,
        argv=submission.argv(site, paths.script(1)),
        verdict=_verdict(wanted, intent, text) if ask else "",
    )


def origins(wanted: SubmitRequest) -> list[KeyView]:
    """Return every leaf of the resolved config."""
    return [
        KeyView(key, value, provenance.origin_of(key, wanted.loaded.origins))
        for key, value in load_site.walk(wanted.loaded.resolved())
    ]


def _verdict(wanted: SubmitRequest, intent: Intent, content: str) -> str:
    """Return the scheduler's answer to a trial submission of the script."""
    with tempfile.TemporaryDirectory(prefix="hpcdet-dry-") as folder:
        path = Path(folder) / "script.sh"
        path.write_text(content)
        path.chmod(0o700)
        argv = submission.argv(wanted.site, path)
        number = (intent.tasks, intent.throttle)
        tried = Submission(intent.name, intent.tag, path, *number, argv=argv)
        try:
            return open_scheduler(wanted.site).check(tried)
        except (HpcdetError, SubmissionRefused) as error:
            return str(error)
