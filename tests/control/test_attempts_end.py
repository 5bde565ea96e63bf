"""How attempts end: retries, restarts, lost workers, requeued tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.control.leader.retry_rules import BUDGETS, judge
from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.schedulers.common.base import TaskState
from hpcdet.store.decisions import chain, lease
from hpcdet.store.folder.records import (
    End,
    Trial,
    Verdict,
    WorkerEnd,
)
from hpcdet.store.fs import files, packed
from hpcdet.store.trials.standing import standing
from tests.control.worlds import begun, closed, control, end_of, events, later
from tests.paper import Waves, World


def test_failures_of_the_code_are_retried_then_given_up_and_others_go_on(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2), max_restarts=2)
    play, holder, (bad, good) = begun(world)
    play.finish(play.claim(good, 2))
    for attempt in (1, 2, 3):
        play.fail(
            play.claim(bad, 1), "ValueError: no", reason="oom" if attempt == 2 else "user_error"
        )
        assert standing(world.paths.trial(1)).state == "doubtful"
        advance(world.paths, holder)
    assert control(world, 1).action == "fail"
    assert "failed 3 times (max_restarts 2): ValueError: no" in control(world, 1).why
    assert closed(world) == ("COMPLETED", "1 of 2 trials succeeded")


def test_a_failure_without_restarts_is_one_time(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(1, 1), max_restarts=0)
    play, holder, [worker] = begun(world)
    play.fail(play.claim(worker), "ValueError: no")
    advance(world.paths, holder)
    assert control(world, 1).why == "failed 1 time (max_restarts 0): ValueError: no"


def test_preemptions_cost_no_restart_and_all_failed_is_an_error(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1), max_restarts=0)
    play, holder, [worker] = begun(world)
    for reason in ("preempted", "walltime", "node_fail", "lost", "preempted"):
        play.end(play.claim(worker), reason, progressed=True)
        advance(world.paths, holder)
    play.fail(play.claim(worker), "ZeroDivisionError: division by zero")
    assert advance(world.paths, holder).closed
    state, why = closed(world)
    assert state == "ERROR"
    assert "ZeroDivisionError" in why


def test_ranks_that_cannot_prove_who_they_are_are_tried_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred times; here three."""
    error = "Unproven: rank 0 could not make sure"
    end = End("unproven", error=error)
    assert judge([end] * 99, None, 0).again and not judge([end] * 100, None, 0).again
    monkeypatch.setitem(BUDGETS, "unproven", 3)
    world = World.make(tmp_path, Waves(count=1, width=1), max_restarts=0)
    play, holder, [worker] = begun(world)
    for progressed in (False, False, True, False, False):
        play.end(play.claim(worker), "unproven", error=error, progressed=progressed)
        assert not advance(world.paths, holder).closed
    play.end(play.claim(worker), "unproven", error=error)
    assert advance(world.paths, holder).closed
    assert closed(world) == ("ERROR", f"no progress: unproven 3 times in a row: {error}")


def test_what_cannot_get_better_is_not_tried_again(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=3, width=1))
    play, holder, [worker] = begun(world)
    play.fail(play.claim(worker), "InvalidHP: rate", verdict="norestart")
    advance(world.paths, holder)
    play.fail(play.claim(worker), "damaged", verdict="norestart", unrecoverable=True)
    advance(world.paths, holder)
    assert [e["reason"] for e in events(world) if "reason" in e] == ["invalid_hp", "failed"]
    play.finish(play.claim(worker))
    assert advance(world.paths, holder).closed


def test_a_worker_that_vanishes_is_believed_lost_only_after_two_answers(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    attempt = play.claim(worker)
    play.report(attempt, 10)
    later(world, holder, 1)
    play.vanish(worker, TaskState.NODE_FAIL)
    later(world, holder, 1)
    advance(world.paths, holder)  # the same answer, read again, proves nothing
    assert not attempt.end.exists()
    files.replace(worker.beat, b'{"at": "it lives after all"}')
    later(world, holder, 1)
    assert not attempt.end.exists()
    later(world, holder, 1)
    assert end_of(attempt) == "node_fail"
    end = WorkerEnd.read(worker.end)
    assert end is not None
    assert end.why == "lost"
    assert [job.submission.tasks for job in world.scheduler.jobs.values()] == [1, 1]
    play.finish(play.claim(play.start_all()[0]))
    assert advance(world.paths, holder).closed


def test_a_lost_node_of_a_preemptible_partition_was_taken_back(tmp_path: Path) -> None:
    spot = {"default_partition": "spot", "partitions": {"spot": {"preemptible": True}}}
    world = World.make(tmp_path, Waves(count=1, width=1), site=spot)
    play, holder, [worker] = begun(world)
    attempt = play.claim(worker)
    play.vanish(worker, TaskState.NODE_FAIL)
    later(world, holder, 3)
    assert end_of(attempt) == "preempted"


def test_an_old_answer_seen_again_proves_nothing(tmp_path: Path) -> None:
    """The answer is shared by all processes of a user, and may be from before a worker began."""
    world = World.make(
        tmp_path, Waves(count=1, width=1), site={"capabilities": {"requeue": "user"}}
    )
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    later(world, holder, 1)
    world.scheduler.stale = True  # it goes on to say that the task waits
    attempt = play.claim(play.start_all()[0])
    later(world, holder, 5)
    world.scheduler.stale = False
    later(world, holder, 1)
    assert not attempt.end.exists()
    assert len(world.scheduler.jobs) == 1


def test_an_attempt_whose_worker_said_goodbye_is_closed(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    attempt = play.claim(worker)
    Verdict("resume", "walltime", 40).write_once(attempt.verdict)
    play.leave(worker, "time")
    later(world, holder, 2)
    assert end_of(attempt) == "walltime"  # what it said itself counts
    assert standing(world.paths.trial(1)).state == "runnable"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (TaskState.PREEMPTED, "preempted"),
        (TaskState.TIMEOUT, "walltime"),
        (TaskState.OOM, "oom"),
        (TaskState.CANCELED, "canceled"),
        (TaskState.GONE, "lost"),
        (TaskState.FAILED, "lost"),
    ],
)
def test_why_it_ended_is_the_schedulers_truth(tmp_path: Path, said: TaskState, reason: str) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    attempt = play.claim(worker)
    play.vanish(worker, said)
    later(world, holder, 2)
    assert end_of(attempt) == reason
    assert not holder.watch.suspects, "another look would tell no more"


def test_a_requeued_task_frees_its_trial_for_any_worker(tmp_path: Path) -> None:
    world = World.make(
        tmp_path, Waves(count=2, width=2), site={"capabilities": {"requeue": "user"}}
    )
    play, holder, (first, second) = begun(world)
    killed = play.claim(first, 1)
    play.claim(second, 2)
    play.vanish(first, TaskState.PENDING)
    world.scheduler.jobs["1"].restarts[0] += 1
    later(world, holder, 1)
    assert holder.watch.suspects and not holder.watch.suspected, "its task comes back by itself"
    later(world, holder, 1)
    assert end_of(killed) == "preempted"
    assert standing(world.paths.trial(1)).state == "runnable"
    assert len(world.scheduler.jobs) == 1  # the task waits in the queue still
    holder.close()
    newest = lease.last(world.paths)
    assert newest is not None and newest[1] is not None and newest[1].waiting == 1
    holder = world.holder()
    advance(world.paths, holder)
    again = play.start("1", 0)
    assert again.incarnation == 1
    play.claim(again, 1)


def test_the_scheduler_is_asked_once_per_interval_and_never_for_nothing(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder = world.play(), world.holder()
    for _ in range(10):
        advance(world.paths, holder)
    assert world.scheduler.queries == 1
    [worker] = play.start_all()
    play.finish(play.claim(worker), 1)
    advance(world.paths, holder)
    assert world.scheduler.queries == 1

    quiet = World.make(tmp_path / "quiet", Waves(count=1, width=1))
    play, holder = quiet.play(), quiet.holder()
    advance(quiet.paths, holder)
    commands.ask(quiet.paths, "pause")
    [worker] = play.start_all()
    later(quiet, holder, 1)
    play.leave(worker)
    before = quiet.scheduler.queries
    later(quiet, holder, 5)
    assert quiet.scheduler.queries == before  # its worker said that it left


def test_one_wrong_record_keeps_nothing_from_the_other_trials(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=3, width=3), searcher={"max_concurrent_trials": 3})
    Trial(1, {"rate": 9}, 1).write_once(world.paths.trial(1).record)
    assert advance(world.paths, world.holder()).state == "PAUSED"
    assert [control(world, number).action for number in (1, 2, 3)] == ["run"] * 3
    assert all(world.paths.trial(number).record.exists() for number in (2, 3))


def test_what_cannot_be_read_of_the_decisions_takes_no_term_again_and_again(
    tmp_path: Path,
) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    for _ in range(2):
        holder = world.holder()
        advance(world.paths, holder)
        holder.close()
    journal_of_one = world.paths.decisions(1)
    whole = journal_of_one.read_bytes()
    journal_of_one.write_bytes(whole.splitlines(keepends=True)[0])
    holder = world.holder()
    turns = [advance(world.paths, holder) for _ in range(4)]
    assert not any(turn.held for turn in turns)
    assert all("put the file back" in " ".join(turn.actions) for turn in turns)
    assert max(packed.numbers(world.paths.terms, ".json")) == 3
    assert "000001.jsonl" in chain.gap(world.paths)
    journal_of_one.write_bytes(whole)
    assert advance(world.paths, holder).held
    assert chain.gap(world.paths) == ""
