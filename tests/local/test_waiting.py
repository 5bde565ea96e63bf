"""Experiments that wait on purpose: held, after another one, or on another machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.errors import Unavailable
from hpcdet.jobs.script.render import render
from hpcdet.read.experiment import gather, states
from hpcdet.read.lookup import find
from hpcdet.schedulers.common.base import Job, Submission, TaskState
from hpcdet.schedulers.local import local_state
from hpcdet.schedulers.local.local import LocalScheduler
from hpcdet.site_files.load_site import load
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, End, Intent, Submitted
from hpcdet.store.fs import files
from tests import experiments as x
from tests.commands import Cli
from tests.paper import Waves, World


def state(world: World) -> tuple[str, str]:
    found = states.experiment_state(gather.gather(world.paths))
    return found[0], found[1]


def test_held_jobs_are_submitted_so_and_follow_hold_and_release(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=3, width=2))
    commands.ask(world.paths, "hold")
    holder = world.holder()
    advance(world.paths, holder)
    assert world.scheduler.held == {"1": True}
    assert state(world) == ("PENDING", "held by its user")
    commands.ask(world.paths, "release")
    advance(world.paths, world.holder())  # a bystander obeys nothing
    assert world.scheduler.held == {"1": True}
    advance(world.paths, holder)
    assert world.scheduler.held == {"1": False}
    assert state(world) == ("PENDING", "")
    # what a person changes by hand stays: a successor knows what was done
    world.scheduler.held["1"] = True
    holder.close()
    advance(world.paths, world.holder())
    assert world.scheduler.held == {"1": True}


def after(world: World, *others: str, jobs: tuple[str, ...] = ()) -> None:
    folders = [f"../{other}" for other in others]
    commands.ask(world.paths, "after", experiments=folders, jobs=list(jobs))


def another(world: World, ended: str = "") -> ExperimentPaths:
    paths = ExperimentPaths(world.paths.root.parent / "former-0001")
    files.make_folder(paths.root)
    paths.config.touch()
    if ended:
        Closed(ended).write_once(paths.closed)  # type: ignore[arg-type]
    return paths


def test_nothing_is_submitted_before_the_former_experiment_is_closed(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    world.paths.config.touch()
    former = another(world)
    after(world, former.id)
    holder = world.holder()
    advance(world.paths, holder)
    assert not world.scheduler.jobs
    assert state(world) == ("PENDING", f"waits for the end of {former.id}")
    later = states.health(gather.gather(world.paths), now=4e9)
    assert (later["health"], later["why"]) == (
        "queued",
        f"begins when {former.id} has ended well",
    )
    Closed("COMPLETED").write_once(former.closed)
    advance(world.paths, holder)
    assert len(world.scheduler.jobs) == 1
    assert state(world) == ("PENDING", "")


def test_a_former_experiment_that_ends_badly_leaves_it_to_the_user(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    former = another(world, ended="ERROR")
    after(world, former.id)
    holder = world.holder()
    advance(world.paths, holder)
    assert not world.scheduler.jobs
    assert state(world)[0] == "PAUSED"
    assert "former-0001 ended as ERROR" in state(world)[1]
    commands.ask(world.paths, "resume")
    advance(world.paths, holder)
    assert len(world.scheduler.jobs) == 1


def test_jobs_to_wait_for_stand_in_the_script_until_a_worker_has_begun(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    after(world, jobs=("71", "72"))
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    intents = [Intent.read(world.paths.intent(n)) for n in world.paths.submissions()]
    assert [intent.after for intent in intents if intent] == [["71", "72"]]
    waiting = Intent(1, "n", "t", 1, 1, 0, held=True, after=["71", "72"])
    slurm = load("generic-slurm")
    text = render(resolved_config.resolve({"site": "x"}), slurm, waiting, world.paths, {})
    assert {"#SBATCH --hold", "#SBATCH --dependency=afterok:71:72"} <= set(text.splitlines())
    # never satisfied: the job leaves the queue, and its user is told
    world.scheduler.reasons["1"] = "DependencyNeverSatisfied"
    world.clock.now += 11
    holder.lease.beat()
    advance(world.paths, holder)
    assert not world.scheduler.live
    assert "job 71, 72 did not end well" in state(world)[1]
    commands.ask(world.paths, "resume")
    for _ in range(3):
        world.clock.now += 11
        holder.lease.beat()
        advance(world.paths, holder)
    [last] = [n for n in world.paths.submissions() if n > 1]
    again = Intent.read(world.paths.intent(last))
    assert again is not None and again.after == []
    assert [play.claim(w).number for w in play.start_all()] == [1, 1]


@pytest.fixture
def fakes(cli: Cli, tmp_path: Path) -> Iterator[tuple[Cli, Path, Path]]:
    """A command line, a config of fake ranks and its site; what runs is killed at the end."""
    model = tmp_path / "model"
    model.mkdir(mode=0o700)
    values = x.config(batches=30)
    (model / "config.yaml").write_bytes(resolved_config.dump(values))
    site = tmp_path / "fakes.yaml"
    plain = x.local_site(python=x.fake_python(tmp_path)).plain()
    keys = ("scheduler", "limits", "lease_ttl_s", "slots", "python")
    site.write_bytes(
        resolved_config.dump({"extends": "local", **{key: plain[key] for key in keys}})
    )
    with x.local_jobs(tmp_path / "local-state"):
        yield cli, model / "config.yaml", site


def test_a_held_experiment_starts_when_released_and_wakes_the_one_after_it(
    fakes: tuple[Cli, Path, Path],
) -> None:
    cli, file, site = fakes
    words = ("submit", file, "--site", site, "--no-test", "-o", "id")
    first = find.experiment(cli(*words, "--hold").out.strip(), cli.root)
    [job] = [Submitted.read(first.submitted(n)) for n in first.submissions()]
    assert job is not None
    scheduler = LocalScheduler()
    [task] = scheduler.query([Job(job.job, 1)])[job.job]
    assert (task.state, task.reason) == (TaskState.PENDING, "JobHeldUser")
    [item] = cli("status", first.id, "-o", "json").items
    assert (item["state"], item["why"], item["health"]) == ("PENDING", "held by its user", "queued")
    assert f"next: hpcdet release {first.id}" in cli("explain", first.id).out
    second = find.experiment(cli(*words, "--after", first.id).out.strip(), cli.root)
    assert list(second.submissions()) == []
    assert cli("hold", f"{first.id}/1", code=2).err.startswith(f"error: {first.id}/1: cannot hold")
    assert find.reference(f"{job.job}_0", cli.root).paths == first
    cli("release", first.id)
    # nobody waits for either: the worker that closes the first one submits the second
    x.run_to_end(first)
    assert x.run_to_end(second).state == "COMPLETED"
    begun = End.read(first.trial(1).attempt(1).end), Intent.read(second.intent(1))
    assert begun[0] is not None and begun[1] is not None and begun[0].at <= begun[1].at
    said = cli(*words, "--after", first.id, "-n").err
    assert "is COMPLETED: nothing to wait for" in said
    assert "no such experiment" in cli(*words, "--after", "812", code=3).err


def test_jobs_of_another_machine_are_left_alone_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path)
    there = LocalScheduler(slots=2, state=tmp_path / "there")
    monkeypatch.setattr(local_state.socket, "gethostname", lambda: "node_b")
    here = LocalScheduler(slots=2, state=tmp_path / "here")
    assert here.host == "node-b"
    script = tmp_path / "sit.sh"
    script.write_text("sleep 600 & wait $!")
    world.scheduler = there  # type: ignore[assignment]
    real = there.submit

    def submit(submission: Submission) -> str:
        return real(Submission(submission.name, submission.tag, script, 2, 2))

    there.submit = submit  # type: ignore[method-assign]
    try:
        holder = world.holder()
        advance(world.paths, holder)
        holder.close()
        [record] = [Submitted.read(world.paths.submitted(n)) for n in world.paths.submissions()]
        assert record is not None and here.elsewhere(record.job) == there.host
        world.scheduler = here  # type: ignore[assignment]
        holder = world.holder()
        for _ in range(4):
            world.clock.now += 11
            holder.lease.beat()
            turn = advance(world.paths, holder)
        assert (
            turn.blind == f"jobs of this experiment are on {there.host}, and can only be seen there"
        )
        assert list(world.paths.submissions()) == [1]
        with pytest.raises(Unavailable, match="another machine"):
            here.cancel(record.job)
        commands.ask(world.paths, "cancel")
        turn = advance(world.paths, holder)
        assert any("can only be canceled on" in action for action in turn.actions)
        tasks = there.query([Job(record.job, 2)])[record.job]
        assert not any(task.state.final for task in tasks)
        # begun there, and nobody here knows whether it was submitted
        world.paths.submitted(1).unlink()
        again = World.holder(world)
        holder.close()
        advance(world.paths, again)
        assert list(world.paths.submissions()) == [1]
        assert not (tmp_path / "here" / "jobs").exists()
    finally:
        x.end_local_jobs(tmp_path / "there")
