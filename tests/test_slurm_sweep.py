"""A real sweep on the private Slurm: six trials, three workers, two kinds of crashes."""

from __future__ import annotations

import pytest

from hpcdet.store import journal
from tests.slurm_runs import Lab, Run, config

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

CASES = ["a", "b", "c", "d", "once", "always"]


def _most_at_once(run: Run) -> int:
    spans = []
    for trial in run.paths.trials():
        for attempt in trial.attempts():
            lines = journal.read(attempt.journal)
            spans.append((lines[0]["t"], lines[-1]["t"]))
    return max(sum(begin <= start < end for begin, end in spans) for start, _ in spans)


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
    assert {job["Restarts"] for job in run.jobs()} == {"0"}
