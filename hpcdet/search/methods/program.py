"""A searcher that is a program of the user's: one line of JSON in, one line of JSON out.

Each line to it carries all it needs, its own state among it, so that it may be killed and
started again between any two lines, and a replay asks it the same questions::

    > {"search": {...}, "state": null, "event": {"kind": "start"}}
    < {"state": {"n": 1}, "actions": [{"kind": "create", "params": {"lr": 0.1}}]}

It may answer one line and end well, or go on reading. It runs in the folder of the code, in a
process group of its own; what it writes to stderr is shown where it fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hpcdet.errors import HpcdetError
from hpcdet.search.api import codec
from hpcdet.search.api.events import Action, Create, Event
from hpcdet.space.space import Space, trial_seed
from hpcdet.store.folder import trust
from hpcdet.store.trials.parents import Parent
from hpcdet.units import Length

MAX_LINE = 64 << 20
_HOST = "hpcdet.search.host"
_TRIALS = frozenset({"continue", "pause", "stop"})


class ProgramError(HpcdetError):
    """The program crashed, hung, or what it wrote is no answer."""


@dataclass(frozen=True)
class Search:
    """The description of the search that each line to the program carries.

    Attributes:
        options: ``searcher.options`` of the config, as they are.
        objectives: where there are several; ``metric`` is the first of them.
    """

    hyperparameters: Mapping[str, Any]
    seed: int
    metric: str
    smaller_is_better: bool
    max_length: Length | None
    max_trials: int
    max_concurrent_trials: int
    options: Mapping[str, Any] = field(default_factory=dict)
    objectives: Sequence[Mapping[str, Any]] = ()
    constraints: Sequence[Mapping[str, Any]] = ()

    def encode(self) -> dict[str, Any]:
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        length = self.max_length
        return {**fields, "max_length": None if length is None else length.encode()}


def command(program: str | Sequence[str]) -> list[str]:
    """Return the argv of ``searcher.program``: a ``module:Class``, a command line or an argv."""
    if not isinstance(program, str):
        return list(program)
    if re.fullmatch(r"[\w.]+:\w+", program):
        return [sys.executable, "-m", _HOST, program]
    return shlex.split(program)


class _Process:
    """The running program. Its pipes are closed and its group killed when it is collected."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        trust.refuse_to_run(folder)
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        try:
            self.process = subprocess.Popen(
                list(command),
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise ProgramError(f"{command[0]} cannot be started: {error.strerror}") from error
        self._end = weakref.finalize(self, _kill, self.process)
        self._rest = b""

    def ask(self, line: bytes, timeout_s: float) -> bytes:
        """The line that answers ``line``.

        Raises:
            ProgramError: it ended, or did not answer in time.
        """
        until = time.monotonic() + timeout_s
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        os.set_blocking(stdin.fileno(), False)
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            ready = select.select([stdout], [stdin] if line else [], [], max(left, 0))
            if left <= 0:
                raise ProgramError(f"no answer within {timeout_s:g} s{self.said()}")
            if ready[1]:
                try:
                    line = line[os.write(stdin.fileno(), line) :]
                except OSError:
                    line = b""  # it has closed its input: what it left on its output decides
            if ready[0]:
                read = os.read(stdout.fileno(), 1 << 16)
                if not read:
                    raise ProgramError(f"{self._ended()}{self.said()}")
                self._rest += read
                if len(self._rest) > MAX_LINE:
                    raise ProgramError(f"the answer is longer than {MAX_LINE >> 20} MiB")
        answer, _, self._rest = self._rest.partition(b"\n")
        if self._rest:
            raise ProgramError(f"more than one line of answer: {_start(self._rest)}")
        return answer

    def _ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(5)
            how = (
                f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            )
            return f"it ended {how} without an answer"
        return "it closed its output without an answer"

    def said(self) -> str:
        """The end of what it wrote to stderr, for a message; of a traceback without the code."""
        size = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, size - 2000))
        text = self.errors.read().decode(errors="replace").strip()
        lines = [line.strip() for line in text.splitlines() if not line.startswith("    ")]
        last = " | ".join(lines[-3:])
        return f"; it said: {last}" if last else ""

    def close(self) -> None:
        self._end()
        self.errors.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass
class ProgramState(codec.StateRecord):
    """How many trials a program has created, and its own state, whatever JSON that is."""

    created: int = 0
    program: Any = None


@dataclass
class Program:
    """The search method of a program.

    A ``create`` without ``trial``, ``params``, ``seed`` or ``until`` gets the next number, a
    random sample of the space, the seed that belongs to it, and ``max_length``.

    Attributes:
        folder: where it runs.
        timeout_s: for one answer.

    Raises (from ``on_event``):
        ProgramError: what went wrong; the program is started again for the next event.
    """

    command: Sequence[str]
    folder: Path
    search: Search
    timeout_s: float = 60.0
    name: str = field(default="custom", init=False)
    version: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self._space = Space(self.search.hyperparameters)
        self._process: _Process | None = None

    def initial(self) -> ProgramState:
        return ProgramState()

    def on_event(self, state: ProgramState, event: Event) -> tuple[ProgramState, list[Action]]:
        question = {
            "search": self.search.encode(),
            "state": state.program,
            "event": codec.encode_event(event),
        }
        try:
            answer = _parse(self._ask(json.dumps(question).encode() + b"\n"))
            created = state.created
            actions = []
            for said in answer["actions"]:
                action = self._action(said, created)
                created += isinstance(action, Create)
                actions.append(action)
        except ProgramError:
            self.close()
            raise
        return ProgramState(created, answer.get("state")), actions

    def _ask(self, line: bytes) -> bytes:
        if self._process is not None:
            try:
                return self._process.ask(line, self.timeout_s)
            except ProgramError:
                if self._process.process.poll() != 0:
                    raise
                self.close()  # one that answers once and is done
        self._process = _Process(self.command, self.folder)
        return self._process.ask(line, self.timeout_s)

    def _action(self, said: Any, created: int) -> Action:
        said = dict(said) if isinstance(said, dict) else {"kind": None}
        kind = said.get("kind")
        if kind == "create":
            number = said.setdefault("trial", created + 1)
            if number != created + 1:
                raise ProgramError(
                    f"the program creates trial {number}; the next number is {created + 1}"
                )
            if "params" not in said:
                said["params"] = self._space.sample(self.search.seed, number)
            said.setdefault("seed", trial_seed(self.search.seed, number))
            length = self.search.max_length
            said.setdefault("until", None if length is None else length.encode())
            if not isinstance(said["params"], dict):
                raise ProgramError(f"params of trial {number} are no object: {said['params']!r}")
            if isinstance(said["seed"], bool) or not isinstance(said["seed"], int):
                raise ProgramError(f"the seed of trial {number} is no integer: {said['seed']!r}")
            parent = said.get("parent", "")
            if parent and (not isinstance(parent, str) or Parent.parse(parent) is None):
                hint = "write '3', or '3@400 batches'"
                raise ProgramError(f"the parent of trial {number} is {parent!r}; {hint}")
        elif kind in _TRIALS:
            number = said.get("trial")
            known = isinstance(number, int) and not isinstance(number, bool)
            if not known or not 1 <= number <= created:
                raise ProgramError(
                    f"the program wants to {kind} trial {number!r}, which does not exist"
                )
        try:
            action = codec.decode_action(said)
        except (TypeError, ValueError) as error:
            raise ProgramError(f"{_start(said)} is no action: {error}") from error
        if action is None:
            raise ProgramError(f"{_start(said)} is no action; kinds: {', '.join(codec.ACTIONS)}")
        return action

    def close(self) -> None:
        """End the program; the next event starts it again."""
        if self._process is not None:
            self._process.close()
            self._process = None


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        raise ProgramError(f"the answer is not JSON: {_start(line)}") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("actions"), list):
        raise ProgramError(f'the answer has no list "actions": {_start(line)}')
    return answer


def _start(said: Any) -> str:
    """The beginning of something that a program wrote, for a message."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else json.dumps(said)
    return text[:120] + "..." * (len(text) > 120)
