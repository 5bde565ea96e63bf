"""A real sweep on the private Slurm: six trials, three workers, two kinds of crashes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import Any

import pytest
import yaml

from hpcdet.store.decisions import chain
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import journal
from hpcdet.store.trials.parents import Parent
from hpcdet.units import Length
from tests import TOP, calm, experiments
from tests.experiments import until
from tests.slurm_runs import Lab, Run, config, hpcdet, undisturbed

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

PERL = TOP / "examples" / "custom_search" / "search.pl"
CASES = ["a", "b", "c", "d", "once", "always"]


def _most_at_once(run: Run) -> int:
    spans = []
    for trial in run.paths.trials():
        for attempt in trial.attempts():
            lines = journal.read(attempt.journal)
            spans.append((lines[0]["t"], lines[-1]["t"]))
    running = [sum(begin <= start < end for begin, end in spans) for start, _ in spans]
    return max(running)


def test_two_lanes_of_one_task_run_side_by_side_and_come_back_together(lab: Lab) -> None:
    """Rule 5: steps that said nothing of processors and memory would wait for each other.

    The searcher is a program in another language, which the nodes run.
    """
    shutil.copy(PERL, lab.model)
    values = experiments.config(
        200,
        trials=4,
        ranks=2,
        searcher={"name": "custom", "program": "perl search.pl", "max_concurrent_trials": 2},
        resources={"walltime_s": 3600},
        worker={"lanes": 2},
    )
    site = {"python": lab.fake, "directives": {"mem": "2000M"}}
    run = lab.submit(values, pace=0.2, site=site)
    for trial in (1, 2):
        run.until_attempts(1, trial)
    names = lab.cluster.check("squeue", "--steps", "--noheader", "--format=%j").split()
    assert {"1-1", "2-1"} <= set(names), names
    task = run.task(1)
    assert run.task(2) == task and run.reasons(1) == run.reasons(2) == [""]
    lab.cluster.check("scontrol", "requeue", task)
    for trial in (1, 2):
        run.until_ended(1, trial)
        run.until_attempts(2, trial)
    run.faster()
    run.wait()
    assert [run.reasons(trial) for trial in (1, 2)] == [["preempted", "completed"]] * 2, run.story()
    assert [run.reasons(trial) for trial in (3, 4)] == [["completed"]] * 2
    assert [run.digest(trial) for trial in range(1, 5)] == [
        undisturbed(200, trial) for trial in range(1, 5)
    ]
    # one place in the queue served them all
    assert [(job["Restarts"], job["NumTasks"]) for job in run.tasks()] == [("1", "4")]
    made = [action["trial"] for action in _decided(run, "create")]
    assert made == [1, 2, 3, 4] and len(_decided(run, "shutdown")) == 1
    assert hpcdet("searcher", "replay", "--verify", run.paths.id).returncode == 0


def test_six_trials_on_three_workers_crashes_included(lab: Lab) -> None:
    values = config(
        hyperparameters={"case": {"type": "categorical", "vals": CASES}},
        searcher={"name": "grid", "max_trials": 6, "max_concurrent_trials": 3},
        resources={"slots_per_trial": 1, "nodes": 1, "slots_per_node": 1},
        max_restarts=1,
    )
    run = lab.submit(values)
    run.wait(timeout=400)
    by_case = {}
    for number in range(1, 7):
        params = (run.paths.trial(number).record).read_text()
        (case,) = [case for case in CASES if f'"case":"{case}"' in params.replace(" ", "")]
        by_case[case] = number
    ends = {case: run.reasons(number) for case, number in by_case.items()}
    assert ends == {
        **{case: ["completed"] for case in "abcd"},
        "once": ["user_error", "completed"],
        "always": ["user_error", "user_error"],
    }, run.story()
    # retried from its checkpoint, not from nothing
    second = run.paths.trial(by_case["once"]).attempt(2)
    start = journal.read(second.journal)[0]
    assert (start["kind"], start["batches"]) == ("start", 10)
    assert start["checkpoint"]
    assert _most_at_once(run) <= 3
    # queue time was paid once per worker: nobody submitted anything for the other trials
    assert len(run.submissions()) == 1
    assert len(list(run.paths.workers())) == 3
    assert {job["Restarts"] for job in run.tasks()} == {"0"}


def _decided(run: Run, kind: str) -> list[dict[str, Any]]:
    lines = chain.read(run.paths)
    return [dict(ln["action"]) for ln in lines if ln.get("action", {}).get("kind") == kind]


def _running(run: Run) -> list[int]:
    begun = [trial.number for trial in run.paths.trials() if trial.attempts()]
    claimed = [n for n in begun if run.paths.trial(n).attempts()[-1].claim.exists()]
    return [number for number in claimed if not run.reasons(number)[-1]]


def _going_on(run: Run) -> list[int]:
    """Those that run and were not told to pause, which may just be leaving."""
    paused = {action["trial"] for action in _decided(run, "pause")}
    return [number for number in _running(run) if number not in paused]


def test_an_adaptive_search_survives_its_daemon_a_worker_and_a_preemption(lab: Lab) -> None:
    values = experiments.config(
        36,
        trials=27,
        data={"every": 4, "losses": "scrambled"},
        searcher={
            "name": "adaptive_asha",
            "max_concurrent_trials": 4,
            "divisor": 3,
            "max_rungs": 3,
        },
        resources={"walltime_s": 3600},
    )
    run = lab.submit(values, pace=0.3, site={"python": lab.fake})
    daemon = run.crank()
    until(lambda: _decided(run, "pause"), run.story, 240)
    os.kill(daemon, signal.SIGKILL)
    os.waitpid(daemon, 0)
    until(lambda: _going_on(run), run.story)
    taken = run.task(_going_on(run)[-1])
    lab.cluster.check("scontrol", "requeue", taken)
    until(lambda: any(run.task(n) != taken for n in _running(run)), run.story)
    victim = next(n for n in _running(run) if run.task(n) != taken)
    os.kill(run.worker_pid(victim), signal.SIGKILL)
    until(lambda: len(run.paths.trials()) > 8, run.story, 240)
    run.faster()
    run.wait()

    numbers = [trial.number for trial in run.paths.trials()]
    assert numbers == list(range(1, 28)) == [a["trial"] for a in _decided(run, "create")]
    ends = {n: run.reasons(n) for n in numbers}
    assert all(reasons and all(reasons) for reasons in ends.values()), run.story()
    assert any("preempted" in reasons for reasons in ends.values()), ends
    told = [ln["event"] for ln in chain.read(run.paths) if ln["kind"] == "event"]
    assert sorted(e["trial"] for e in told if e["kind"] == "segment_end") == numbers
    for number in numbers:
        own = [e["length"]["batches"] for e in told if e.get("trial") == number and "length" in e]
        assert own == sorted(set(own)), (number, own)
    through = [n for n in numbers if ends[n][-1] == "completed"]
    assert through and [run.digest(n) for n in through] == [undisturbed(36, n) for n in through]
    said = hpcdet("searcher", "replay", "--verify", run.paths.id, "-o", "json")
    [verified] = json.loads(said.stdout)["items"]
    assert verified["verified"] and verified["decisions"] >= 27
    # what the searcher heard and decided, reasons included, is what it would have undisturbed
    assert calm.recorded(run.paths) == calm.undisturbed(run.paths)


def test_a_population_of_four_on_two_workers_copies_its_best(lab: Lab) -> None:
    values = config(
        hyperparameters={"learning_rate": {"type": "loguniform", "low": 1e-6, "high": 0.1}},
        searcher={
            "name": "pbt",
            "population_size": 4,
            "max_trials": 4,
            "max_concurrent_trials": 2,
            "max_length": {"batches": 20},
            "perturbation_interval": {"batches": 10},
            "quantile": 0.5,
        },
        resources={"slots_per_trial": 1, "nodes": 1, "slots_per_node": 1},
    )
    run = lab.submit(values)
    run.wait()
    trials = run.paths.trials()
    assert len(trials) > 4, run.story()
    told = [ln["event"] for ln in chain.read(run.paths) if ln["kind"] == "event"]
    ended = [e["trial"] for e in told if e["kind"] == "segment_end" and e["reason"] == "target"]
    assert {trial.number for trial in trials} == set(ended), run.story()
    assert len([e for e in told if e.get("length") == {"batches": 20}]) == 4
    records = {trial.number: Trial.read(trial.record) for trial in trials}
    heirs = {number: record for number, record in records.items() if record and record.parent}
    assert len(heirs) == len(trials) - 4
    for number, record in heirs.items():
        trial, parent = run.paths.trial(number), Parent.parse(record.parent)
        assert parent is not None and parent.length == Length("batches", 10)
        [saved] = [
            line
            for attempt in run.paths.trial(parent.trial).attempts()
            for line in journal.read(attempt.journal)
            if line["kind"] == "checkpoint" and line["name"] == record.origin["checkpoint"]
        ]
        assert (saved["step"], saved["digest"]) == (10, record.origin["digest"])
        [start] = [ln for ln in journal.read(trial.attempt(1).journal) if ln["kind"] == "start"]
        assert (start["batches"], start["checkpoint"]) == (10, "00000010.g0")
    assert hpcdet("searcher", "replay", run.paths.id, "--verify").returncode == 0
    # trained again alone, its heir ends with the same bits
    heir = min(heirs)
    said = hpcdet("schedule", f"{run.paths.id}/{heir}", "--config")
    again = lab.submit({**values, **yaml.safe_load(said.stdout)})
    again.wait()
    assert again.digest(2) == run.digest(heir), again.story()
    assert "it began from" in hpcdet("explain", f"{again.paths.id}/2").stdout


def test_pb2_goes_on_from_another_experiments_checkpoint(lab: Lab) -> None:
    """The first member reports last, is given up, and an heir of the other takes its place."""
    old = lab.submit_fakes(experiments.config(20))
    old.wait()
    asked = {
        "name": "pb2",
        "population_size": 2,
        "perturbation_interval": {"batches": 10},
        "quantile": 0.5,
        "begin_from": f"{old.paths.id}/1@10 batches",
    }
    first, go = lab.folder / "first", lab.folder / "go"
    hold = [
        {"at": 10, "until": str(first), "trials": [1]},
        {"at": 55, "until": str(go), "trials": [2]},
    ]
    data = {"hold": hold, "stint": {"1": 15}}
    run = lab.submit_fakes(experiments.config(60, trials=2, searcher=asked, data=data))
    until(lambda: experiments.told(run.paths) == {2}, run.story)
    first.touch()
    until(lambda: experiments.ends(run.paths, 1) == ["stopped"], run.story)
    go.touch()
    run.wait()
    records = [Trial.read(run.paths.trial(number).record) for number in (1, 2, 3)]
    own, other, heir = [Parent.parse(record.parent) for record in records if record is not None]
    assert own == other == Parent(1, None, "origin") and heir is not None and heir.trial == 2
    assert experiments.final_digest(run.paths, 2) == undisturbed(60)
    assert experiments.final_digest(run.paths, 3) == undisturbed(60)
    assert hpcdet("searcher", "replay", run.paths.id, "--verify").returncode == 0
