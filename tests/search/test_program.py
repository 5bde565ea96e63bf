"""Searchers that are programs: what they are asked, what they may answer, how they fail."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcdet.config import api as config
from hpcdet.control.requests import commands
from hpcdet.read.views import views
from hpcdet.search.api.events import Create, Event, Report, SegmentEnd, Shutdown, Start, Stop
from hpcdet.search.methods.program import Program, ProgramError, Search, command
from hpcdet.store.folder.records import Trial
from hpcdet.units import Length
from tests import TOP
from tests import experiments as x
from tests.json_states import plain, tell

EXAMPLE = TOP / "examples" / "custom_search"
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
    state = plain(method.initial())
    seen = []
    events: list[Event] = [
        Start(),
        Report(1, Length("batches", 3), {"loss": 0.5}),
        Report(1, Length("batches", 6), {"loss": math.nan}),
        SegmentEnd(1, "target"),
        Report(3, Length("batches", 3), {"loss": 0.9}),
        SegmentEnd(2, "stopped"),
        SegmentEnd(3, "target"),
    ]
    for event in events:
        state, actions = tell(method, state, event, nan=True)
        seen.append(actions)
        if restart:
            method.close()
    method.close()
    return seen


@pytest.mark.parametrize("asked", ["perl search.pl", "search:HillClimb"])
def test_an_example_answers_the_same_whenever_it_is_started_again(asked: str) -> None:
    method = Program(command(asked), EXAMPLE, SEARCH)
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
        ('read q; echo \'{"actions": [{"kind": "create", "trial": 3}]}\'', "the next number is 1"),
        ('read q; echo \'{"actions": [{"kind": "create", "params": 1}]}\'', "are no object"),
        ('read q; echo \'{"actions": [{"kind": "create", "seed": "a"}]}\'', "no integer"),
        (
            'read q; echo \'{"actions": [{"kind": "create", "until": {"hours": 1}}]}\'',
            "no action: unit is 'hours'",
        ),
        ("read q; echo '{\"actions\": []}\nmore'", "more than one line of answer: more"),
        ("read q; echo help >&2; exit 3", "exit code 3 without an answer; it said: help"),
        ("read q; kill -9 $$", "by signal SIGKILL"),
        ("exit 0", "exit code 0 without an answer"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, why: str) -> None:
    method = program(tmp_path, text)
    with pytest.raises(ProgramError) as caught:
        method.on_event(method.initial(), Start())
    assert why in str(caught.value)


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    method = program(tmp_path, "sleep 600 & echo $! > child; read q; sleep 600", timeout_s=1)
    with pytest.raises(ProgramError, match="no answer within 1 s"):
        method.on_event(method.initial(), Start())
    status = Path("/proc", (tmp_path / "child").read_text().strip(), "status")
    x.until(lambda: not status.exists() or "zombie" in status.read_text())


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
    done = subprocess.run(
        command("chatty:Chatty"), input=question, env=env, text=True, capture_output=True
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"state": {}, "actions": []}]
    assert done.stderr.split() == ["hello", "so"]


@pytest.mark.xdist_group("local")
def test_an_example_searches(tmp_path: Path) -> None:
    loaded = config.load(EXAMPLE / "python.yaml")
    values = loaded.resolved()
    values["searcher"]["max_trials"] = 3
    with x.local_jobs(tmp_path / "state"):
        paths = x.submit(values, tmp_path / "root", x.local_site(), EXAMPLE)
        assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    records = [Trial.read(trial.record) for trial in paths.trials()]
    rates = [record.params["lr"] for record in records if record is not None]
    assert len(rates) == 3 and rates[1] != rates[0]


@pytest.mark.xdist_group("local")
def test_a_crash_pauses_the_search_until_it_is_repaired(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir(mode=0o700)
    program(
        model,
        'read q; case "$q" in *segment_end*) test -e mended || { echo oh >&2; exit 3; }\n'
        'echo \'{"actions": [{"kind": "shutdown"}]}\';;\n'
        '*start*) echo \'{"actions": [{"kind": "create"}]}\';; *) echo \'{"actions": []}\';; esac',
    )
    searcher = {"name": "custom", "program": "./search.sh", "max_trials": 1}
    site = x.local_site(python=x.fake_python(tmp_path))
    with x.local_jobs(tmp_path / "state"):
        paths = x.submit(x.config(30, searcher=searcher), tmp_path / "root", site, model)
        x.until(lambda: views.status(paths).state == "PAUSED", lambda: x.story(paths))
        assert "it ended with exit code 3 without an answer; it said: oh" in x.story(paths)
        (paths.code / "mended").touch()
        commands.ask(paths, "resume")
        assert x.crank_to_end(paths).state == "COMPLETED", x.story(paths)
