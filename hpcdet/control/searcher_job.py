"""The searcher as a small batch job of its own, for sites where nothing may stay on a login node.

Each job submits its successor when it begins, to start when it has ended in whatever way, so
that a search survives the death of a node. The lease ensures that never two decide. The resources
of the job are set in ``searcher_job`` of the site file.

``python -m hpcdet.control.searcher_job EXP --number N`` is what the job runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hpcdet.control import daemon
from hpcdet.control.turn import controller
from hpcdet.control.upkeep import store_copies
from hpcdet.errors import HpcdetError, StillPending, Unavailable, UsageError
from hpcdet.jobs.script import searcher_script as rendering
from hpcdet.read import catalog
from hpcdet.schedulers import opening
from hpcdet.schedulers.calls import lost_submissions, submission_rate
from hpcdet.schedulers.common.base import Job, Scheduler, SubmissionRefused, TaskState
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site import Site
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.config import resolved_config
from hpcdet.store.folder import log_streams
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, Intent, Submitted
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import JsonRecord

KIND = "job"
"""What the lease says of a holder that is such a job."""

AGAIN_S = 300.0
"""Seconds after which a successor that could not be submitted is tried again."""


@dataclass(frozen=True)
class ChainStopped(JsonRecord):
    """``searcher/stopped-N.json``: the user has ended the chain of jobs up to number N."""

    at: str = ""


@dataclass
class JobChain:
    """The chain of one experiment's searcher jobs, by their files and their scheduler."""

    paths: ExperimentPaths
    site: Site
    scheduler: Scheduler

    @classmethod
    def of(cls, paths: ExperimentPaths) -> JobChain:
        """Open the chain of an experiment. Raises ConfigError if its files cannot be read."""
        site = from_resolved(paths.site)
        return cls(paths, site, open_scheduler(site))

    @property
    def place(self) -> ExperimentPaths:
        """The folder of these jobs' intents, scripts and logs, laid out as an experiment's."""
        return rendering.place(self.paths)

    @property
    def newest(self) -> int:
        """The number of the last job; 0 before the first."""
        return max(self.place.submissions(), default=0)

    def submit(self, number: int, after: str = "") -> str:
        """Submit a job, once; return its id.

        Args:
            after: id of the job after whose end it starts.

        Raises:
            HpcdetError: the scheduler refuses it.
            Unavailable: it does not answer; call again.
        """
        there = Submitted.read(self.place.submitted(number))
        if there is not None and there.job:
            return there.job
        intent = Intent.read(self.place.intent(number))
        job: str | None = None
        if intent is None:
            name = f"{self.paths.id}-searcher-{number}"
            tag = f"hpcdet:{self.paths.id}:searcher-{number}-{secrets.token_hex(4)}"
            intent = Intent(number, name, tag, 1, 1, 0, watches=after, at=files.now())
            if not intent.write_once(self.place.intent(number)):
                return self.submit(number, after)
        else:
            script = self.place.script(number)
            job = lost_submissions.find(self.scheduler, intent.name, intent.tag, script)
        if job is None:
            experiment = resolved_config.load(self.paths.config)
            made = rendering.build(self.paths, intent, experiment, self.site)
            try:
                per_min = self.site.limits.submit_per_min
                job = submission_rate.submit(self.scheduler, made, per_min)
            except SubmissionRefused as refused:
                if refused.refusal.kind == "invalid":
                    raise HpcdetError(
                        f"the scheduler refuses the searcher's job: {refused}",
                        where=f"site {self.site.name}",
                        hint="set its resources with searcher_job in the site file",
                    ) from refused
                raise Unavailable(refused.refusal.message) from refused
        Submitted(job, self.scheduler.name, at=files.now()).write_once(self.place.submitted(number))
        return job

    def live(self) -> dict[int, tuple[str, bool]]:
        """Return the pending and running jobs: number to id, and True if it runs.

        Raises:
            Unavailable: the scheduler does not answer.
        """
        known = {}
        for number in self.place.submissions():
            submitted = Submitted.read(self.place.submitted(number))
            if submitted is not None and submitted.job:
                known[number] = Job(submitted.job, 1, submitted.at)
        if not known:
            return {}
        answers = self.scheduler.query(list(known.values()))
        found = {}
        for number, job in known.items():
            states = [row.state for row in answers.get(job.job, [])]
            if any(not state.final for state in states):
                found[number] = (job.job, TaskState.RUNNING in states)
        return found

    def cancel(self, numbers: set[int]) -> None:
        """Cancel jobs; best effort."""
        for number in numbers:
            submitted = Submitted.read(self.place.submitted(number))
            if submitted is not None and submitted.job:
                with contextlib.suppress(Unavailable):
                    self.scheduler.cancel(submitted.job)

    def is_stopped(self, number: int) -> bool:
        """True if the user has ended the chain that a job belongs to."""
        names = self.place.root.glob("stopped-*.json") if self.place.root.is_dir() else ()
        stops = (name.stem.removeprefix("stopped-") for name in names)
        return any(int(stop) >= number for stop in stops if stop.isdigit())

    def stop(self) -> None:
        """Record that the chain is to end."""
        ChainStopped(files.now()).write_once(self.place.root / f"stopped-{self.newest:04d}.json")


def start(paths: ExperimentPaths) -> str:
    """Submit the first job of a chain; return its id.

    Raises:
        UsageError: the experiment is over, a searcher is there already, or jobs cannot submit
            their successors at this site.
        HpcdetError: the scheduler refuses it.
    """
    if (closed := Closed.read(paths.closed)) is not None:
        raise UsageError(
            f"nothing is left to decide: the experiment is {closed.state}", where=paths.id
        )
    chain = JobChain.of(paths)
    if opening.of(chain.site).cluster and not chain.site.capabilities.submit_from_compute:
        raise UsageError(
            "jobs cannot submit their successors at this site",
            where=f"site {chain.site.name}: capabilities.submit_from_compute",
            hint="spare tasks (worker.spares) do without, or a visit by scrontab -e: "
            f"*/10 * * * * hpcdet searcher run --once {paths.id}",
        )
    if live := chain.live():
        [(job, _), *_] = live.values()
        raise UsageError(f"the searcher runs already, as job {job}", where=paths.id)
    return chain.submit(chain.newest + 1)


def stop(paths: ExperimentPaths) -> bool:
    """End the chain, and wait until its job has left; False if there is none.

    Raises:
        StillPending: it did not leave in time.
        Unavailable: the scheduler does not answer.
    """
    chain = JobChain.of(paths)
    live = chain.live()
    if not live:
        return False
    chain.stop()
    runs = {number for number, (_, running) in live.items() if running}
    chain.cancel(set(live) - runs)
    limit = time.monotonic() + daemon.STOP_LIMIT_S
    while runs and _holds(paths):
        if time.monotonic() > limit:
            chain.cancel(runs)
            raise StillPending("the searcher's job has been canceled", where=paths.id)
        time.sleep(0.05)
    return True


def _holds(paths: ExperimentPaths) -> bool:
    said = daemon.status(paths)
    return said["kind"] == KIND and bool(said["held"])


def run(paths: ExperimentPaths, number: int) -> int:
    """Run job ``number`` of the chain; return its exit code."""
    began = time.time()
    chain = JobChain.of(paths)
    backend = opening.of(chain.site)
    own = backend.names.job_of(backend.inside.allocation(os.environ, None).job)
    experiment = resolved_config.load(paths.config)
    walltime = rendering.walltime_s(experiment, chain.site) if backend.cluster else None
    until = None if walltime is None else began + walltime - _lead(chain.site, walltime)
    wish = _Successor(chain, number + 1, own) if until is not None and own else None

    def over() -> bool:
        if wish is not None:
            wish.see_to_it()
        return chain.is_stopped(number) or (until is not None and time.time() >= until)

    def say(turn: controller.Turn) -> None:
        for action in turn.actions:
            print(files.now(), action, flush=True)

    if chain.is_stopped(number):
        return 0
    print(files.now(), f"searcher of {paths.id}, job {own}, number {number}", flush=True)
    if wish is not None and Closed.read(paths.closed) is None:
        wish.see_to_it()
    code = daemon.run(paths, KIND, on_turn=say, until=over)
    if chain.is_stopped(number) or Closed.read(paths.closed) is not None:
        chain.cancel({number + 1})
        store_copies.settle(paths)
        catalog.leave_row(paths)
    print(files.now(), f"searcher's job ends with {code}", flush=True)
    return code


def _lead(site: Site, walltime_s: float) -> float:
    """Return how many seconds before its end the job leaves by itself."""
    return min(max(60.0, site.limits.signal_lead_s), walltime_s / 4)


@dataclass
class _Successor:
    """The next job, submitted when its predecessor begins or once the scheduler accepts it."""

    chain: JobChain
    number: int
    after: str
    _next: float = 0.0
    _done: bool = False

    def see_to_it(self) -> None:
        if self._done or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + AGAIN_S
        try:
            job = self.chain.submit(self.number, self.after)
        except HpcdetError as error:
            print(files.now(), f"no successor yet: {error}", file=sys.stderr, flush=True)
        else:
            self._done = True
            print(files.now(), f"its successor is job {job}", flush=True)


def main(argv: list[str]) -> int:
    """Run the searcher of one experiment in its own job; return the exit code."""
    parser = argparse.ArgumentParser(prog="hpcdet.control.searcher_job")
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--index", type=int, default=0)  # the template's; there is one task
    given = parser.parse_args(argv)
    try:
        return run(ExperimentPaths(given.experiment.absolute()), given.number)
    except HpcdetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    log_streams.lose_what_does_not_fit()
    sys.exit(main(sys.argv[1:]))
