"""Entrypoints that do not run in this process: in another Python, or as any command.

Nothing here imports torch: the process that waits for a command stays small.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdet.errors import ConfigError
from hpcdet.process import signals
from hpcdet.process.descendants import Descendants
from hpcdet.process.entrypoint import INTERPRETER, Entrypoint
from hpcdet.process.location import LOCK, SAYS, AttemptLocation
from hpcdet.process.ranks import PEER_LOST, Ranks
from hpcdet.store.folder.held_folder import identity
from hpcdet.store.folder.records import Verdict
from hpcdet.store.fs import files
from hpcdet.train.attempt import node_command

_LOOK_S = 0.2
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def run(found: Entrypoint, place: AttemptLocation) -> int:
    """Run it; returns the exit code, if this process goes on at all.

    Raises:
        ConfigError: there is no such command, or hpcdet cannot be imported where it is needed.
    """
    assert place.experiment is not None
    sys.stdout.flush()
    sys.stderr.flush()
    if found.kind == "interpreter":
        _become(found.argv[0], place)
    if found.launches:  # `python3 -m determined.launch.…` is this one's
        folders = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
        os.environ["PATH"] = os.pathsep.join(folders)
    ranks = Ranks.from_environment()
    if not found.launches or ranks.local_world == 1:
        return _supervise(found.argv, place)
    if ranks.local:
        return node_command.follow(place.attempt, ranks, functools.partial(_as_told, ranks))
    status = 1
    try:
        status = _supervise(found.argv, place, shell=True)
    finally:
        node_command.end(place.attempt, ranks, status)
    return status


def _become(python: str, place: AttemptLocation) -> None:
    """This very rank, in another interpreter."""
    try:
        tried = subprocess.run(
            [python, "-P", "-c", "import hpcdet.attempt"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ConfigError(f"{python}: {error.strerror}", where="entrypoint") from error
    if tried.returncode != 0:
        said = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
        raise ConfigError(
            f"{python} cannot import hpcdet: {said[-1]}",
            where="entrypoint",
            hint="install hpcdet with that Python's pip, or write `python3` for the one that "
            "hpcdet runs in",
        )
    assert place.experiment is not None
    os.environ[INTERPRETER] = python
    folder, same = place.experiment.root, list[str]()
    if place.held is not None:  # it opens the folder anew, which must be the same one
        folder = place.held.named
        if place.attempt.claim.exists():
            same = ["--identity", identity(place.experiment, place.attempt)]
    rank = (str(folder), str(place.trial.number), str(place.attempt.number), *same)
    signals.hold()
    os.execvp(python, (python, "-Pm", "hpcdet.attempt", *rank))


def _supervise(argv: Sequence[str], place: AttemptLocation, shell: bool = False) -> int:
    """Wait for a command and say how it ended, if it has not done so itself.

    One that ends well is done: if it had been told to leave by ``core``, it would have said so.

    Args:
        shell: other ranks of this node do what it launches.
    """
    assert place.experiment is not None
    answer, said = _run(argv, place.experiment.code, os.environ, (1, 2), shell)
    status = answer.status
    if status < 0:
        _die_of(signal.Signals(-status))
    if status == 0 and Ranks.from_environment().chief:
        done = said or Verdict("done", "completed", at=files.now())
        done.write_once(place.attempt.verdict)
    if 0 < status < 128 and status != PEER_LOST:  # above, a shell says that a signal killed it
        why = answer.error or f"exit code {status}: {shlex.join(argv)}"
        Verdict("fail", "error", error=why, at=files.now()).write_once(place.attempt.verdict)
    return status


def _as_told(
    ranks: Ranks, one: node_command.Launched, env: Mapping[str, str], output: Sequence[int]
) -> node_command.NodeResult:
    """Run what another rank's shell launches."""
    answer, _ = _run(one.argv, Path(one.cwd), {**env, **ranks.variables()}, output)
    return answer


def _run(
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    output: Sequence[int],
    shell: bool = False,
) -> tuple[node_command.NodeResult, Verdict | None]:
    """Run a command; return how it ended and the verdict of its ``core.init``.

    Its ``core.init`` hears of notices, those that came before as well.

    Raises:
        ConfigError: there is no such command.
    """
    with (
        tempfile.TemporaryDirectory(prefix="hpcdet-") as private,
        (Path(private) / LOCK).open("xb") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends; children do not inherit it
        says = Path(private) / "verdict.json"
        added = {
            SAYS: str(says),
            **(node_command.begin(Path(private)) if shell else {}),
        }
        parent = os.getpid()
        try:
            child = subprocess.Popen(
                argv,
                cwd=folder,
                env={**env, **added},
                stdout=output[0],
                stderr=output[1],
                preexec_fn=lambda: _begin(parent),
            )
        except OSError as error:
            raise ConfigError(f"{argv[0]}: {error.strerror}", where="entrypoint") from error
        status = _wait(child)
        said = Verdict.read(says)
    return node_command.NodeResult(status, said.error if said is not None else ""), said


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Until it has ended; notices are handed on to whatever it has started, or starts later."""
    below = Descendants(child.pid)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_LOOK_S)
        if signals.heard():  # perhaps it came to this process only
            below.tell(signal.Signals[signals.heard()])


def _begin(parent: int) -> None:
    """In the child: a notice ends nothing that knows none, and it dies with its rank."""
    for number in signals.NOTICES:
        signal.signal(number, signal.SIG_IGN)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _die_of(number: signal.Signals) -> None:
    if number is not signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
