"""The searcher as a chain of small jobs, and the visits of one that cron makes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcdet.control import daemon, searcher_job
from hpcdet.control.leader.leader import Holder
from hpcdet.control.searcher_job import JobChain
from hpcdet.control.turn.controller import advance
from hpcdet.errors import HpcdetError, StillPending, UsageError
from hpcdet.schedulers.common.base import Refusal, TaskState
from hpcdet.site.models import Site
from hpcdet.store.decisions import lease
from tests.builders import Builder
from tests.paper import PaperScheduler, Waves, World


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobChain:
    """Of an experiment on a site of Slurm, with a scheduler on paper."""
    told = {
        "name": "cluster",
        "scheduler": "slurm",
        "python": "/opt/python",
        "default_partition": "gpu",
        "directives": {"gres": "gpu:4", "account": "abc", "qos": "short"},
        "partitions": {
            "gpu": {"directives": {"exclusive": True}},
            "small": {"max_walltime_s": 3600},
        },
        "searcher_job": {"partition": "small", "memory_mib": 512, "directives": {"qos": "long"}},
    }
    found = JobChain(
        Builder(tmp_path / "digits-7f3a").paths, Site.model_validate(told), PaperScheduler()
    )
    monkeypatch.setattr(JobChain, "of", lambda _: found)
    return found


def paper(chain: JobChain) -> PaperScheduler:
    assert isinstance(chain.scheduler, PaperScheduler)
    return chain.scheduler


def test_a_job_is_small_follows_the_one_before_and_is_submitted_once(chain: JobChain) -> None:
    assert [chain.submit(1), chain.submit(2, after="1")] == ["1", "2"]
    text = chain.place.script(2).read_text()
    options = {line.partition(" --")[2] for line in text.splitlines() if line.startswith("#SBATCH")}
    assert options >= {
        *("dependency=afterany:1", "time=0-01:00:00", "mem=512M", "qos=long", "account=abc"),
        *("partition=small", "nodes=1", "cpus-per-task=1", "no-requeue"),
    }
    assert not any(option.startswith(("gres", "exclusive")) for option in options), options
    command = "/opt/python -Pm hpcdet.control.searcher_job"
    assert f"{command} {chain.paths.root} --number 2" in text
    # whoever died before it could note the id finds the job by its tag
    chain.place.submitted(2).unlink()
    assert chain.submit(2, after="1") == "2"
    assert len(paper(chain).jobs) == 2


def test_each_job_has_its_successor_in_the_queue_until_it_is_stopped(
    chain: JobChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = paper(chain).jobs
    assert searcher_job.start(chain.paths) == "1"
    with pytest.raises(UsageError, match="already, as job 1"):
        searcher_job.start(chain.paths)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    said: list[bool] = []
    at_once: list[int] = []

    def turns(*_: object, until: object, **__: object) -> int:
        assert callable(until)
        at_once.append(len(jobs))
        paper(chain).refuse = lambda _: Refusal("limit", "too many jobs")
        said.append(until())  # and it is tried again later
        paper(chain).refuse = lambda _: None
        monkeypatch.setattr(searcher_job, "AGAIN_S", 0.0)
        said.append(until())
        if len(jobs) == 3:
            chain.stop()
            said.append(until())
        return 0

    monkeypatch.setattr(daemon, "run", turns)
    monkeypatch.setattr(searcher_job, "AGAIN_S", 0.0)
    jobs["1"].states[0] = TaskState.RUNNING
    assert searcher_job.run(chain.paths, 1) == 0
    assert (said, len(jobs)) == ([False, False], 2), "the time is over, and the next one waits"
    jobs["1"].states[0], jobs["2"].states[0] = TaskState.COMPLETED, TaskState.RUNNING
    monkeypatch.setenv("SLURM_JOB_ID", "2")
    assert searcher_job.run(chain.paths, 2) == 0
    assert said[2:] == [False, False, True]
    assert at_once == [2, 3], "a node that dies in the first turn takes no search with it"
    assert jobs["3"].states == [TaskState.CANCELED], "the one that waits goes with it"
    assert searcher_job.run(chain.paths, 3) == 0 and len(said) == 5
    jobs["2"].states[0] = TaskState.COMPLETED
    assert searcher_job.start(chain.paths) == "4"


def test_a_chain_is_stopped_while_it_runs_or_waits(
    chain: JobChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not searcher_job.stop(chain.paths)
    jobs = paper(chain).jobs
    searcher_job.start(chain.paths)
    assert searcher_job.stop(chain.paths)
    assert jobs["1"].states == [TaskState.CANCELED]
    searcher_job.start(chain.paths)
    jobs["2"].states[0] = TaskState.RUNNING
    holder = lease.Lease(chain.paths, searcher_job.KIND, 100)
    assert holder.try_acquire()
    monkeypatch.setattr(daemon, "STOP_LIMIT_S", 0.0)
    with pytest.raises(StillPending):
        searcher_job.stop(chain.paths)
    assert jobs["2"].states == [TaskState.CANCELED], "one that does not listen is canceled"


def test_what_the_site_does_not_allow_is_said(chain: JobChain) -> None:
    paper(chain).refuse = lambda _: Refusal("invalid", "invalid qos")
    with pytest.raises(HpcdetError, match="invalid qos"):
        searcher_job.start(chain.paths)
    alone = chain.site.capabilities.model_copy(update={"submit_from_compute": False})
    chain.site = chain.site.changed({"capabilities": alone}, {})
    with pytest.raises(UsageError, match="cannot submit their successors") as caught:
        searcher_job.start(chain.paths)
    visit = f"*/10 * * * * hpcdet searcher run --once {chain.paths.id}"
    assert caught.value.hint and visit in caught.value.hint


def test_one_visit_does_all_that_is_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"limits": {"poll_min_s": 0.05}}
    world = World.make(tmp_path, Waves(count=1, width=1), site=limits)
    world.clock = time.monotonic  # type: ignore[assignment]
    monkeypatch.setattr(Holder, "open", lambda *_: world.holder("once"))
    assert daemon.once(world.paths)
    play = world.play()
    [worker] = play.start_all()
    attempt = play.claim(worker)
    play.vanish(worker, TaskState.NODE_FAIL)
    # nobody remembers between two visits: the two looks that it takes are made in one
    assert daemon.once(world.paths)
    assert attempt.end.exists() and len(world.scheduler.live) == 1
    other = world.holder("daemon")
    assert advance(world.paths, other).held

    def beat(_: float) -> None:
        other.lease._write_beat()

    monkeypatch.setattr(daemon.time, "sleep", beat)
    assert not daemon.once(world.paths), "somebody decides already"
