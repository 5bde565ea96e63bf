"""``submit`` and its output."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from hpcdet import units
from hpcdet.cli.frame.ids import called
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import ARGV, Settings, settings
from hpcdet.cli.inputs import preview
from hpcdet.cli.inputs.load_request import SubmitRequest, config_argument, request, setting_options
from hpcdet.cli.inputs.waiting import Waiting
from hpcdet.cli.observe import follow
from hpcdet.cli.request.take_turn import CommandCrank
from hpcdet.cli.run.preflight import rehearse
from hpcdet.control.turn.controller import Turn
from hpcdet.errors import ConfigError, HpcdetError, UsageError
from hpcdet.jobs.checks import decisions, site_checks, throughput
from hpcdet.jobs.create import create, provenance
from hpcdet.jobs.script import submission
from hpcdet.read.views import views
from hpcdet.read.views.views import StatusView
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.cost.budget import Budget
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import ExperimentState

COLUMNS = (
    Column("ID", "id", cut=False),
    Column("STATE", "state", cut=False),
    Column("SITE", "site"),
    Column("JOBS", "jobs", cut=False),
    Column("PATH", "path", cut=False),
)


@dataclass(frozen=True)
class SubmitView:
    """A new experiment."""

    id: str
    """Its id."""
    state: ExperimentState
    """Its state."""
    why: str
    """The reason of its state; "" if none is recorded."""
    site: str
    """The site."""
    site_reason: str
    """Why it is this site."""
    trials: int
    """Number of trials made."""
    jobs: list[str]
    """The scheduler's ids of its jobs."""
    scripts: list[str]
    """Job scripts."""
    argv: list[list[str]]
    """The words of the commands that submit them."""
    errors: list[str]
    """Why the scheduler refused jobs."""
    path: str
    """Its folder."""
    budget: Budget
    """Its budget."""


@dataclass(frozen=True, kw_only=True)
class SubmitFlags:
    """Flags of ``submit`` beside those of every request; their ``--help`` has the meanings."""

    name: str | None
    tag: Sequence[str]
    note: str
    max_parallel: int | None
    hold: bool
    after: Sequence[str]
    include: Sequence[Path]
    allow_dirty: bool | None
    dry_run: bool
    offline: bool
    prepare: bool
    test: bool
    wait: bool
    parsable: bool

    def sets(self) -> list[str]:
        """Return those that stand for values of the config, as ``--set`` would have them."""
        found = [f"name={self.name!r}"] if self.name else []
        found += [f"labels=[{label!r}]" for label in self.tag]
        if self.max_parallel is not None:
            found.append(f"searcher.max_concurrent_trials={self.max_parallel}")
        return found


@click.command("submit", short_help="Make an experiment and queue it.")
@config_argument()
@setting_options()
@click.option("--name", help="Replaces the config's name.")
@click.option("--tag", multiple=True, metavar="LABEL", help="A label (repeat for more).")
@click.option("--note", default="", metavar="TEXT", help="Description where the config has none.")
@click.option(
    "--max-parallel",
    type=click.IntRange(min=0),
    metavar="N",
    help="Trials open at once (searcher.max_concurrent_trials); 0: no limit.",
)
@click.option("--hold", is_flag=True, help="Queue it, but start nothing until hpcdet release.")
@click.option(
    "--after",
    multiple=True,
    metavar="ID",
    help="Begin once this experiment or job has succeeded (repeat for more).",
)
@click.option(
    "--include",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A file or folder that belongs to the code, too (repeat for more).",
)
@click.option(
    "--allow-dirty/--no-allow-dirty",
    default=None,
    help="Accept or refuse code that is in no commit [warn].",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show script and config, ask the scheduler.")
@click.option("--offline", is_flag=True, help="With -n: do not ask the scheduler.")
@click.option("--prepare", is_flag=True, help="Prepare the experiment without submitting it.")
@click.option("--test/--no-test", default=True, help="Try one batch first [yes].")
@click.option(
    "-f", "--follow", "--wait", "wait", is_flag=True, help="Wait until the experiment has ended."
)
@click.option("--parsable", is_flag=True, help="The same as -o id.")
@output("submit", SubmitView, preview.PreviewView)
def submit_command(
    out: Output,
    config_file: Path,
    model_dir: Path | None,
    sets: Sequence[str],
    site_name: str | None,
    **flags: Any,
) -> None:
    """Create and queue an experiment of CONFIG and the code in MODEL_DIR (the config's folder).

    With --wait, exit 6 if it ends badly. Ctrl-C ends the waiting, never the jobs.

    \b
    Examples: hpcdet submit random.yaml --set searcher.max_trials=8
              ID=$(hpcdet submit random.yaml -o id)
    """
    asked = SubmitFlags(**flags)
    if asked.offline and not asked.dry_run:
        raise UsageError("--offline goes with -n", hint="a submission needs the scheduler")
    if asked.parsable:
        out = replace(out, format="id")
    wanted = request(
        config_file, model_dir, [*sets, *asked.sets()], site_name, ask=not asked.offline
    )
    wanted, warnings = _prepared(wanted, asked, site_is_given=site_name is not None)
    waiting = Waiting.parse(asked.hold, asked.after, wanted)
    if asked.prepare and waiting.experiments:
        raise UsageError("--prepare queues nothing, so there is nothing to begin later")
    if asked.dry_run:
        preview.show(out, wanted, warnings, waiting, ask=not asked.offline)
        return
    out.expect()
    wanted = wanted.with_images()
    if asked.test:
        rehearse(wanted)
    paths = create.create(
        wanted.loaded,
        wanted.site,
        wanted.model_dir,
        wanted.root,
        include=wanted.include,
        past=wanted.history,
        begin=wanted.origin,
        data=wanted.data(),
        argv=click.get_current_context().meta[ARGV],
    )
    waiting.ask(paths)
    with CommandCrank(paths, "submit", hold=asked.prepare) as crank:
        turn = _first_turn(crank)
        if turn.blind:
            warnings.append(f"the scheduler does not answer; hpcdet asks again: {turn.blind}")
        elif turn.strands and not asked.prepare:
            warnings.append(_why_no_job(crank))
        if asked.prepare or not asked.wait or not out.for_people:
            warnings += _where_to_look(paths, wanted)
        if asked.prepare or not asked.wait:
            _show(out, paths, wanted, warnings, asked.prepare)
            return
        ended = _follow(out, paths, wanted, warnings, crank)
    if out.format != "id":
        left = [] if out.for_people else warnings
        out.emit([_item(paths, wanted)], COLUMNS, warnings=left)
    follow.judge(ended)


def _prepared(
    wanted: SubmitRequest, asked: SubmitFlags, site_is_given: bool
) -> tuple[SubmitRequest, list[str]]:
    """Return the request with what its flags add, and the warnings; print notes on the rest.

    Raises:
        ConfigError: the config can never run at this site, or its code is in no commit and has to.
        Unavailable: the scheduler does not answer, and is needed.
    """
    described, loaded = bool(wanted.resolved.description), wanted.loaded
    if asked.note and not described:
        loaded = loaded.with_value("description", asked.note, "--set description")
    wanted = replace(wanted, loaded=loaded, include=tuple(asked.include))
    submits = not (asked.dry_run or asked.prepare)
    if asked.offline:
        site_checks.refuse_by_file(wanted.resolved, wanted.site)
    warnings = list(loaded.warnings) if asked.offline else wanted.warnings(submits)
    warnings += _too_fast(wanted)
    if asked.note and described:
        warnings.append("the config has a description, which stays; the note is left out")
    if not site_is_given and settings().profile is None:
        settings().note(f"site {wanted.site.name}: {wanted.site.reason}")
    if budget := Budget(wanted.resolved.budget.slot_hours, wanted.resolved.budget.wall_s):
        settings().note(f"budget: {budget}; then it pauses")
    for place in wanted.data_paths:
        settings().note(f"data: {place.path}")
    if wanted.origin is not None:
        settings().note(f"trials begin from {wanted.origin.folder}")
    for source in wanted.history.sources if wanted.history else ():
        settings().note(f"warm start: {source}")
    if not asked.allow_dirty and (dirty := _uncommitted(wanted)):
        if asked.allow_dirty is False:
            raise ConfigError(dirty, where=str(wanted.model_dir), hint="commit it first")
        warnings.append(f"{dirty}; the experiment keeps them (--allow-dirty: do not say so)")
    return wanted, warnings


def _show(
    out: Output, paths: ExperimentPaths, wanted: SubmitRequest, warnings: list[str], prepared: bool
) -> None:
    """Print the new experiment. Raises ConfigError: the scheduler refused all of its jobs."""
    item = _item(paths, wanted)
    if prepared:
        settings().note("prepared, not submitted; submit it by hand with:")
        for argv in item.argv:
            settings().note("  " + shlex.join(argv))
    if out.for_people:
        settings().note(_seed(wanted))
    out.emit([item], COLUMNS, warnings=warnings)
    if item.errors and not item.jobs:
        hint = f"the experiment is kept; after the repair: hpcdet resume {called(paths)}"
        what = f"the scheduler refused: {item.errors[0]}"
        raise ConfigError(what, where=item.id, hint=hint)


def _seed(wanted: SubmitRequest) -> str:
    """Return the seed in words: where the config names none, it was drawn."""
    return f"seed {wanted.resolved.reproducibility.experiment_seed}"


def _follow(
    out: Output,
    paths: ExperimentPaths,
    wanted: SubmitRequest,
    warnings: list[str],
    crank: CommandCrank,
) -> list[StatusView]:
    """Print the course of the experiment until it has ended, and return how it ended."""
    if out.format == "id":
        out.emit([_item(paths, wanted)], COLUMNS, warnings=warnings)
    sys.stdout.flush()
    for warning in warnings if out.for_people else ():
        settings().warn(warning)
    settings().note(f"{paths.id} is in {paths.root}, {_seed(wanted)}")
    with follow.following([called(paths)]):
        return follow.until([paths], follow.ended, turn=crank.turn_if_due, longest_s=crank.every_s)


def _too_fast(wanted: SubmitRequest) -> list[str]:
    """Warn if rungs come faster than decisions, by the pace of a former experiment of the name."""
    resolved = wanted.resolved
    if (
        len(resolved.searcher.rungs) < 2
        or (known := throughput.former(wanted.root, resolved)) is None
    ):
        return []
    taken = decisions.former(wanted.root, resolved) or decisions.assumed(wanted.site)
    found = decisions.estimate(resolved, taken, known.unit_s, known.source)
    length = resolved.searcher.max_length
    said = decisions.warning(found, length.unit if length is not None else None)
    return [said] if said else []


def _uncommitted(wanted: SubmitRequest) -> str:
    """Return a warning on code files that are in no commit as they are; "" if there are none."""
    entries = wanted.scan()
    found = provenance.uncommitted(wanted.model_dir, {entry.path for entry in entries})
    if not found:
        return ""
    names = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
    there = units.counted(
        len(found),
        "file of the code is in no commit as it is",
        "files of the code are in no commit as they are",
    )
    return f"{there} ({names})"


def _first_turn(crank: CommandCrank) -> Turn:
    """Make the turn that submits; on failure the experiment stays, with a warning to the user."""
    try:
        return crank.turn()
    except (HpcdetError, OSError):
        name, command = crank.paths.id, called(crank.paths)
        settings().warn(f"{name} is made but not queued; after the repair: hpcdet resume {command}")
        raise
    except KeyboardInterrupt:
        name, command = crank.paths.id, called(crank.paths)
        settings().warn(f"{name} is made, but perhaps not queued: hpcdet resume or rm {command}")
        raise


def _why_no_job(crank: CommandCrank) -> str:
    """Return what an experiment waits for of which no job was submitted, for people."""
    waits = [str(wait["reason"]) for wait in crank.holder.lease.waits]
    return f"no job is submitted yet: {'; '.join(waits) or 'the next turn submits it'}"


def _item(paths: ExperimentPaths, wanted: SubmitRequest) -> SubmitView:
    status = views.status(paths)
    jobs = views.jobs(paths)
    site = from_resolved(paths.site)
    return SubmitView(
        paths.id,
        status.state,
        status.why,
        site.name,
        wanted.site.reason,
        trials=len(status.trials),
        jobs=[job.job for job in jobs if job.job],
        scripts=[job.script for job in jobs],
        argv=[submission.argv(site, Path(job.script)) for job in jobs],
        errors=[job.error for job in jobs if job.error],
        path=str(paths.root),
        budget=status.spent.budget,
    )


def _where_to_look(paths: ExperimentPaths, wanted: SubmitRequest) -> list[str]:
    """Return a hint if ``hpcdet status`` without options would look elsewhere; else nothing."""
    if settings().given_root is None and Settings().root != wanted.root:
        return [
            f"the experiment is in {paths.root.parent}; other verbs find it with HPCDET_ROOT or -C"
        ]
    return []
