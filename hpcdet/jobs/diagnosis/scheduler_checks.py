"""Checks of a site's scheduler: that it answers, its history, its limits, its partitions."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdet import units
from hpcdet.errors import HpcdetError, Unavailable
from hpcdet.jobs.checks import site_checks
from hpcdet.jobs.diagnosis.finding import SiteFinding, skipped
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import Accounts, Capabilities, Job, PartitionInfo, Scheduler
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site import Site

_SOME_JOB = Job("1", 1)
_NO_CLUSTER = "jobs run on this machine, in no queue"


def findings(site: Site) -> Iterator[SiteFinding]:
    """Ask the scheduler what it can, and look for the partitions of the site file."""
    try:
        scheduler = open_scheduler(site)
        can = scheduler.capabilities()
        there = {info.name: info for info in site_checks.partitions(site)}
    except HpcdetError as error:
        yield SiteFinding("error", f"scheduler: {error.what}", error.hint, "scheduler")
        for check in ("history", "limits"):
            yield skipped(check, "the scheduler does not answer")
        return
    words = [
        "with accounting" if can.accounting else "without accounting",
        "tasks may requeue themselves" if can.requeue else "ended tasks are submitted anew",
        f"arrays of up to {can.max_array_tasks}",
    ]
    what = f"scheduler {scheduler.name} answers: {', '.join(words)}"
    yield SiteFinding("ok", what, check="scheduler")
    if opening.of(site).cluster:
        yield _history(scheduler, can)
        yield SiteFinding("ok", f"limits: {', '.join(_limits(site, can))}", check="limits")
    else:
        yield skipped("history", _NO_CLUSTER)
        yield skipped("limits", _NO_CLUSTER)
    named = (site.view(name).directives.get("partition") for name in (None, *site.partitions))
    names = {one for name in named if name is not None for one in str(name).split(",")}
    for name in sorted(names if there else ()):
        yield _partition(name, there)


def _history(scheduler: Scheduler, can: Capabilities) -> SiteFinding:
    """See whether the scheduler tells of jobs that have left its queue."""
    if not can.accounting:
        return SiteFinding(
            "warning",
            "history: none: a job that leaves the queue without a word of its worker counts as "
            "lost, and its trial goes on in another job",
            "accounting, or a history of ended jobs, in the scheduler's configuration",
            "history",
        )
    if not isinstance(scheduler, Accounts):
        return SiteFinding("ok", "history: the scheduler keeps it", check="history")
    try:
        scheduler.usage([_SOME_JOB])
    except Unavailable as error:
        hint = error.hint or "capabilities.accounting: false where it is never to be had"
        return SiteFinding("warning", f"history: no answer: {error.what}", hint, "history")
    return SiteFinding("ok", "history: accounting answers", check="history")


def _limits(site: Site, can: Capabilities) -> Iterator[str]:
    yield f"{can.max_array_tasks} tasks of an array" if can.arrays else "no arrays"
    if can.max_submit is None:
        yield "no limit of jobs in the queue is known"
    else:
        yield f"{units.counted(can.max_submit, 'job')} in the queue"
    if site.limits.max_running is not None:
        yield f"{units.counted(site.limits.max_running, 'job')} at once"
    if site.limits.submit_per_min is not None:
        yield f"{site.limits.submit_per_min:g} submissions per minute"
    yield f"a query every {site.limits.poll_min_s:g} s"


def _partition(name: str, there: dict[str, PartitionInfo]) -> SiteFinding:
    info = there.get(name)
    if info is None:
        hint = f"partitions here: {', '.join(sorted(there))}"
        return SiteFinding("error", f"partition {name} does not exist", hint, "partition")
    if info.suspends:
        what = f"partition {name} {site_checks.SUSPENDS}"
        return SiteFinding("error", what, site_checks.CHOOSE_ANOTHER, "partition")
    if not info.up:
        hint = "jobs wait until it is up; --partition NAME takes another"
        return SiteFinding("warning", f"partition {name} is down", hint, "partition")
    return SiteFinding("ok", f"partition {name} is there", check="partition")
