"""Entrypoints that do not run in this process: in another Python, or as any command.

Nothing here imports torch: the process that waits for a command stays small.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hpcdet.errors import ConfigError
from hpcdet.store import files
from hpcdet.store.held import identity
from hpcdet.store.records import Verdict
from hpcdet.train import notice
from hpcdet.train.entrypoint import INTERPRETER, Entrypoint
from hpcdet.train.place import Place
from hpcdet.train.ranks import PEER_LOST, Ranks

SAYS = "HPCDET_SAYS"
"""The file in which a script that ends without leaving its ``core.init`` says how it would."""
_LOOK_S = 0.2
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def run(found: Entrypoint, place: Place) -> int:
    """Run it; returns the exit code, if this process goes on at all.

    Raises:
        ConfigError: there is no such command, or hpcdet cannot be imported where it is needed.
    """
    assert place.experiment is not None
    sys.stdout.flush()
    sys.stderr.flush()
    if found.kind == "interpreter":
        _become(found.argv[0], place)
    return _supervise(found.argv, place, place.experiment.code)


def _become(python: str, place: Place) -> None:
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
    notice.hold()
    os.execvp(python, (python, "-Pm", "hpcdet.attempt", *rank))


def _supervise(argv: Sequence[str], place: Place, code: Path) -> int:
    """Wait for a command and say how it ended, if it has not done so itself.

    Notices are held back until its ``core.init`` hears them. One that ends well is done: if it
    had been told to leave by ``core``, it would have said so.
    """
    with tempfile.TemporaryDirectory(prefix="hpcdet-") as folder:
        says = Path(folder) / "verdict.json"
        parent = os.getpid()
        try:
            child = subprocess.Popen(
                argv,
                cwd=code,
                env=os.environ | {SAYS: str(says)},
                preexec_fn=lambda: _begin(parent),
            )
        except OSError as error:
            raise ConfigError(f"{argv[0]}: {error.strerror}", where="entrypoint") from error
        status = _wait(child)
        said = Verdict.read(says)
    if status < 0:
        _die_of(signal.Signals(-status))
    if status == 0 and Ranks.from_environment().chief:
        done = said or Verdict("done", "completed", at=files.now())
        done.write_once(place.attempt.verdict)
    if 0 < status < 128 and status != PEER_LOST:  # above, a shell says that a signal killed it
        why = said.error if said and said.error else f"exit code {status}: {shlex.join(argv)}"
        Verdict("fail", "error", error=why, at=files.now()).write_once(place.attempt.verdict)
    return status


def _wait(child: subprocess.Popen[bytes]) -> int:
    told = False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_LOOK_S)
        if notice.heard() and not told:  # perhaps it came to this process only
            told = True
            child.send_signal(signal.Signals[notice.heard()])


def _begin(parent: int) -> None:
    """In the child: keep notices until they can be heard, and die with its rank."""
    signal.pthread_sigmask(signal.SIG_BLOCK, notice.NOTICES)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _die_of(number: signal.Signals) -> None:
    if number is not signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
