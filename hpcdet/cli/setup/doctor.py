"""``doctor``: checks of this machine, its file system, its scheduler, a node, and between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from hpcdet import units
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import telling
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import Seconds
from hpcdet.errors import HpcdetError
from hpcdet.jobs import one_shot_job
from hpcdet.jobs.checks import site_checks
from hpcdet.jobs.diagnosis import (
    finding,
    machine_checks,
    node_checks,
    rank_steps,
    site_findings,
    storage_checks,
)
from hpcdet.jobs.diagnosis.finding import SiteFinding
from hpcdet.jobs.script.environment import fold_defaults
from hpcdet.schedulers import opening
from hpcdet.site import folders

WALLTIME_S = 600
"""Of the job on nodes. It takes seconds; torch from a cold shared file system takes minutes."""


OF_SITE = ("scheduler", "history", "limits", "quota", "inodes", "purge", "launcher")
"""Checks that are made here and need the site."""


def _said(one: SiteFinding) -> str:
    """Return what was found; unless it is good, with its meaning and its repair."""
    if one.level == "ok":
        return one.what
    meaning = f". It matters: {one.meaning}" if one.meaning and one.level != "skipped" else ""
    return f"{one.what}{meaning}" + (f". Repair: {one.hint}" if one.hint else "")


COLUMNS = (
    Column("", "level", cut=False),
    Column("WHERE", "where", cut=False),
    Column("CHECK", "check", cut=False),
    Column("FOUND", _said, fold=True),
)


@click.command("doctor", short_help="Check this machine, its scheduler and file system.")
@click.option("--site", "site_name", metavar="NAME", help="Site [$HPCDET_SITE, else detected].")
@click.option("--node", is_flag=True, help="Check two nodes as well, by a short job.")
@click.option("--partition", metavar="NAME", help="With --node: where [the site's default].")
@click.option(
    "--nodes",
    type=click.IntRange(1, 2),
    default=2,
    help="With --node: of how many, where a job can have them [2].",
)
@click.option(
    "--timeout",
    type=Seconds(least=1),
    default=600,
    metavar="TIME",
    help="With --node: how long to wait for the job [600].",
)
@click.option("--strict", is_flag=True, help="Warnings count as failures.")
@output("doctor", SiteFinding)
def doctor_command(
    out: Output,
    site_name: str | None,
    node: bool,
    partition: str | None,
    nodes: int,
    timeout: float,
    strict: bool,
) -> None:
    """Check interpreter, packages, file system and scheduler. Exit 1 if a check fails.

    With --node a short job looks at a node, and at what is between two: files, clocks, gloo or
    NCCL, MPI. Ctrl-C cancels it. What cannot be checked is "skipped" and says why.

    \b
    Examples: hpcdet doctor --site generic-slurm
              hpcdet doctor --node --partition gpu
    """
    found = [
        *machine_checks.python(),
        *machine_checks.guarded(
            "creation", lambda: storage_checks.findings(settings().wanted_root)
        ),
        *machine_checks.guarded("site", lambda: _site(site_name)),
    ]
    if node:
        found += machine_checks.guarded(
            "job", lambda: _by_job(site_name, partition, nodes, timeout)
        )
    found += [*finding.absent(found, "here", OF_SITE, "the site is not known")]
    why = "no job ran on a node" if node else "a job looks at it: hpcdet doctor --node"
    found += [*finding.absent(found, "node", node_checks.CHECKS, why)]
    found += [*finding.absent(found, "nodes", rank_steps.CHECKS, why)]
    found = finding.explained(found)
    out.emit(_in_short(found) if out.for_people and not out.fields else found, COLUMNS, key="what")
    bad = ("error", "warning") if strict else ("error",)
    wrong = [one for one in found if one.level in bad]
    if wrong:
        raise HpcdetError(units.counted(len(wrong), "finding"), hint=wrong[0].hint or wrong[0].what)


def _site(name: str | None) -> Iterator[SiteFinding]:
    found = settings().site(name)
    site, assumed = opening.of(found).facts.resolved(found)
    yield SiteFinding("ok", f"site {site.name}: {site.reason}")
    if assumed:
        yield SiteFinding(
            "warning", f"site {site.name}: {assumed}", "ask again: hpcdet site detect"
        )
    if site.fallback and (sign := site_checks.login_node()):
        hint = "name a site with a scheduler by --site or HPCDET_SITE"
        yield SiteFinding(
            "warning", f"this looks like a login node ({sign}) without a scheduler", hint
        )
    root = settings().root_at(site)
    apart = folders.scratch(site, root)
    if apart is not None:
        yield from storage_checks.findings(apart)
    for place in (root, apart):
        if place is not None:
            yield from storage_checks.of_user(site, place)
    yield from site_findings.findings(site)


def _by_job(
    name: str | None, partition: str | None, nodes: int, timeout: float
) -> Iterator[SiteFinding]:
    """Check what ranks need on nodes."""
    site = fold_defaults(settings().site(name))
    count = node_checks.nodes_of(site, partition, nodes)
    what = f"checking {count} nodes" if count > 1 else "checking a node"
    with one_shot_job.folder(settings().root_at(site)) as place, telling(what) as tell:
        yield from node_checks.findings(site, partition, place, timeout, WALLTIME_S, count, tell)


def _in_short(found: Sequence[SiteFinding]) -> list[SiteFinding]:
    """Return findings with those that are skipped for the same reason in one row."""
    alike: dict[SiteFinding, list[str]] = {}
    for one in found:
        reason = replace(one, check="", meaning="") if one.level == "skipped" else one
        alike.setdefault(reason, []).append(one.check)
    return [
        replace(one, check=checks[0])
        if len(checks) == 1
        else replace(one, check="several", what=f"{', '.join(checks)}: {one.what}")
        for one, checks in alike.items()
    ]
