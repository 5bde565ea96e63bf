"""The scheduler's charges for allocations that are over, read from its accounting.

A worker's own records are an estimate: they begin when its Python runs, stop at a SIGKILL, and
are missing where it never started. So once an allocation is over, accounting is asked, and its
charge replaces the estimate in the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import TaskPlace
from hpcdet.errors import HpcdetError, Unavailable
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.backend import NamesFace
from hpcdet.schedulers.common.base import Accounts, Job, Usage
from hpcdet.store.config import resolved_config
from hpcdet.store.cost import spending
from hpcdet.store.cost.budget import Charge
from hpcdet.store.cost.spending import Spending
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, Submitted, WorkerClaim, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths

NEAR_S = 60.0
"""Clocks of a node and of the accounting differ by less."""

PATIENCE_S = 86400.0
"""An allocation of which accounting knows nothing so long after its end is not asked for again."""


LATE_S = 300.0
"""A worker that lived is seen so long after its run at the latest: listings come from caches.
A charge is written once, and one without its worker would count beside that worker's records."""


@dataclass(frozen=True)
class _Due:
    """A submission whose charges are not all known.

    Attributes:
        workers: that have claimed a place of it and are not charged for, with their claims.
        over: none of its tasks lives.
    """

    number: int
    job: Job
    workers: Sequence[tuple[WorkerPaths, WorkerClaim]]
    over: bool


def charge(holder: Holder, places: Sequence[TaskPlace]) -> None:
    """Ask for the charges of ended allocations, as often as the scheduler may be asked.

    Raises:
        Fenced: the term ended meanwhile.
    """
    scheduler, now = holder.hands.scheduler, holder.hands.clock()
    if not isinstance(scheduler, Accounts) or now < holder.pace.charges_at:
        return
    holder.pace.charges_at = now + holder.hands.site.limits.poll_min_s
    if not scheduler.capabilities().accounting:
        return
    live = {place.submission for place in places if place.phase != "over"}
    try:
        names = opening.of(holder.hands.site).names
        left = holder.watch.files.has_left
        found = list(_due(holder.paths, holder.spending, live, left, names))
        fresh = _ask(holder.spending, scheduler, found, names) if found else ([], [])
        if any(fresh):
            holder.fence()
            holder.spending.book.write(*fresh)
    except Unavailable as error:
        if holder.written.get(("accounting",)) != error.what:  # once, where a node cannot ask
            holder.written["accounting",] = error.what
            holder.actions.append(f"accounting asked again later: {error.what}")


def settle(paths: ExperimentPaths) -> None:
    """Ask for the charges of a closed experiment's last workers, which no turn has read.

    Best effort, for processes that outlive the workers: a daemon, a visit, a sentinel. Nothing is
    asked of an experiment that is open.
    """
    if Closed.read(paths.closed) is None:
        return
    from hpcdet.site_files.load_site import from_resolved

    try:
        backend = opening.of(site := from_resolved(paths.site))
        scheduler, names = backend.control(site), backend.names
        if not isinstance(scheduler, Accounts):
            return
        reader = Spending(paths, resolved_config.load(paths.config))
        found = list(_due(paths, reader, set(), _has_ended, names))
        fresh = _ask(reader, scheduler, found, names) if found else ([], [])
        if any(fresh):
            reader.book.write(*fresh)
    except (HpcdetError, OSError):
        return


def _has_ended(worker: WorkerPaths) -> bool:
    return WorkerEnd.read(worker.end) is not None


def _due(
    paths: ExperimentPaths,
    reader: Spending,
    live: set[int],
    left: Callable[[WorkerPaths], bool],
    names: NamesFace,
) -> Iterator[_Due]:
    charged = {one.worker for one in reader.book.read()}
    there: dict[int, list[WorkerPaths]] = {}
    for worker in paths.workers():
        if worker.submission not in reader.book.settled and worker.name not in charged:
            there.setdefault(worker.submission, []).append(worker)
    for number in paths.submissions():
        if number in reader.book.settled:
            continue
        workers, over = there.get(number, []), number not in live
        if not over and not any(left(one) for one in workers):
            continue
        claims = [(one, claim) for one in workers if (claim := WorkerClaim.read(one.claim))]
        submitted = Submitted.read(paths.submitted(number))
        job = submitted.job if submitted is not None else ""
        if not job and claims:  # given to the scheduler by hand
            job = names.job_of(claims[0][1].job)
        if job:
            at = submitted.at if submitted is not None else ""
            yield _Due(number, Job(job, 1, at), claims, over)


def _ask(
    reader: Spending, scheduler: Accounts, found: Sequence[_Due], names: NamesFace
) -> tuple[list[Charge], list[int]]:
    """Return the new charges and the submissions that they settle."""
    said = scheduler.usage([one.job for one in found])
    known = {(one.job, one.start) for one in reader.book.read()}
    charges: list[Charge] = []
    settled: list[int] = []
    for one in found:
        runs = said.get(one.job.job)
        if runs is None:
            continue
        runs = [r for r in runs if (names.task_id(r.job, r.index), r.start) not in known]
        by_run = _matched(one, runs)
        told = [run for run in runs if run.end is not None]
        told = [run for run in told if run in by_run or _is_past(run)]
        charges += [_charge(reader, one, run, by_run.get(run), names) for run in told]
        matched = {worker.name for worker in by_run.values()}
        missing = [claim for worker, claim in one.workers if worker.name not in matched]
        is_late = all(time.time() - spending.epoch(each.at) > PATIENCE_S for each in missing)
        if one.over and len(told) == len(runs) and is_late:
            settled.append(one.number)
    return charges, settled


def _matched(one: _Due, runs: Sequence[Usage]) -> dict[Usage, WorkerPaths]:
    """Match runs with workers: each run's is the one that began within it, nearest to its start."""
    found: dict[Usage, WorkerPaths] = {}
    for worker, claim in sorted(one.workers, key=lambda each: each[0].incarnation):
        at = spending.epoch(claim.at)
        fitting = [
            run
            for run in runs
            if run.index == worker.index and run not in found and _within(at, run)
        ]
        if fitting:
            found[min(fitting, key=lambda run: abs(at - run.start))] = worker
    return found


def _within(at: float, run: Usage) -> bool:
    return run.start - NEAR_S <= at and (run.end is None or at <= run.end + NEAR_S)


def _is_past(run: Usage) -> bool:
    return run.end is not None and time.time() - run.end > LATE_S


def _charge(
    reader: Spending, one: _Due, run: Usage, worker: WorkerPaths | None, names: NamesFace
) -> Charge:
    """Return a run's charge; slots are the GPUs that accounting names, else those requested."""
    nodes = next((claim.nodes for each, claim in one.workers if each == worker), [])
    name = worker.name if worker is not None else ""
    slots = run.gpus or reader.slots.of(name or f"{one.number}-", nodes) * reader.resolved.room
    assert run.end is not None
    task = names.task_id(run.job, run.index)
    return Charge(name, task, slots, run.start, run.end, slots * run.elapsed_s)
