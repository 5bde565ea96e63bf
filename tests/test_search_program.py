"""Searchers that are programs: what they are asked, what they may answer, how they fail."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdet.search.api import Create, Report, SegmentEnd, Shutdown, Start, Stop
from hpcdet.search.program import Program, ProgramError, Search, python_class
from hpcdet.units import Length
from tests.experiments import until

EXAMPLE = Path(__file__).parent.parent / "examples" / "custom_search"
SEARCH = Search(
    {"lr": {"type": "log", "minval": -3, "maxval": -1}},
    seed=7,
    metric="loss",
    smaller_is_better=True,
    max_length=Length("batches", 9),
    max_trials=3,
    max_concurrent_trials=2,
    options={"factor": 3.0},
)


def program(folder: Path, text: str, timeout_s: float = 60.0) -> Program:
    """One of a line of shell: ``read`` a question, answer."""
    path = folder / "search.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Program(["./search.sh"], folder, SEARCH, timeout_s)


def play(method: Program, *, restart: bool) -> list[Any]:
    """A small search; with ``restart`` another process answers each question."""
    state = method.initial()
    seen = []
    events = [
        Start(),
        Report(1, Length("batches", 3), {"loss": 0.5}),
        Report(1, Length("batches", 6), {"loss": math.nan}),
        SegmentEnd(1, "target"),
        Report(3, Length("batches", 3), {"loss": 0.9}),
        SegmentEnd(2, "stopped"),
        SegmentEnd(3, "target"),
    ]
    for event in events:
        state, actions = method.on_event(json.loads(json.dumps(state)), event)
        seen.append(actions)
        if restart:
            method.close()
    method.close()
    return seen


@pytest.mark.parametrize(
    "command", [["perl", "search.pl"], python_class("search:HillClimb")], ids=["perl", "python"]
)
def test_an_example_answers_the_same_whenever_it_is_started_again(command: list[str]) -> None:
    method = Program(command, EXAMPLE, SEARCH)
    answers = play(method, restart=False)
    assert answers == play(method, restart=True)
    creates = [a for actions in answers for a in actions if isinstance(a, Create)]
    assert [create.trial for create in creates] == [1, 2, 3][: len(creates)]
    assert len({create.params["lr"] for create in creates}) == len(creates) > 1
    assert any(isinstance(action, Stop) for actions in answers for action in actions)
    assert any(isinstance(action, Shutdown) for actions in answers for action in actions)


def test_a_create_needs_no_more_than_its_kind(tmp_path: Path) -> None:
    answer = '{"actions": [{"kind": "create"}, {"kind": "create", "params": {"lr": 5}}]}'
    method = program(tmp_path, f"read question; echo '{answer}'")
    _, (one, two) = method.on_event(method.initial(), Start())
    assert isinstance(one, Create) and isinstance(two, Create)
    assert (one.trial, two.trial, one.until) == (1, 2, Length("batches", 9))
    assert 1e-3 <= one.params["lr"] <= 1e-1 and two.params == {"lr": 5}
    assert one.seed != two.seed
    method.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("read q; echo no", "not JSON: no"),
        ("read q; echo '[1]'", 'no list "actions"'),
        ("read q; echo '{\"actions\": [7]}'", "no action; kinds: create, continue"),
        ('read q; echo \'{"actions": [{"kind": "stop", "trial": 4}]}\'', "stop trial 4, which"),
        ('read q; echo \'{"actions": [{"kind": "create", "trial": 3}]}\'', "the next is 1"),
        ('read q; echo \'{"actions": [{"kind": "create", "params": 1}]}\'', "are no object"),
        ('read q; echo \'{"actions": [{"kind": "create", "seed": "a"}]}\'', "no integer"),
        (
            'read q; echo \'{"actions": [{"kind": "create", "until": {"hours": 1}}]}\'',
            "no action: unit is 'hours'",
        ),
        ("read q; echo '{\"actions\": []}\nmore'", "more than one line: more"),
        ("read q; echo help >&2; exit 3", "exit code 3 without an answer; it said: help"),
        ("read q; kill -9 $$", "by signal SIGKILL"),
        ("exit 0", "exit code 0 without an answer"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, why: str) -> None:
    method = program(tmp_path, text)
    with pytest.raises(ProgramError, match="") as caught:
        method.on_event(method.initial(), Start())
    assert why in str(caught.value)


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    method = program(tmp_path, "sleep 600 & echo $! > child; read q; sleep 600", timeout_s=1)
    with pytest.raises(ProgramError, match="no answer within 1 s"):
        method.on_event(method.initial(), Start())
    status = Path("/proc", (tmp_path / "child").read_text().strip(), "status")
    until(lambda: not status.exists() or "zombie" in status.read_text())


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    method = Program(["./nowhere"], tmp_path, SEARCH)
    with pytest.raises(ProgramError, match=r"\./nowhere cannot be started: No such file"):
        method.on_event(method.initial(), Start())


def test_what_a_class_prints_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(
        "class Chatty:\n"
        "    def __init__(self, search): print('hello')\n"
        "    def initial(self): return {}\n"
        "    def on_event(self, state, event): print('so'); return state, []\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    question = json.dumps({"search": {}, "state": None, "event": {"kind": "start"}}) + "\n"
    command = [sys.executable, *python_class("chatty:Chatty")[1:]]
    done = subprocess.run(command, input=question, env=env, text=True, capture_output=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"state": {}, "actions": []}]
    assert done.stderr.split() == ["hello", "so"]
