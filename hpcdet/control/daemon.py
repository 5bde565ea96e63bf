"""The searcher daemon: a process that does nothing but turn the crank of one experiment.

It is never needed, since workers and waiting submitters turn the crank as well; where it is
allowed, decisions come sooner and need no running worker.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcdet.control.leader import daemon_registry
from hpcdet.control.leader.leader import Holder
from hpcdet.control.turn import controller
from hpcdet.control.upkeep import accounting, store_copies
from hpcdet.errors import HpcdetError, StillPending, UsageError
from hpcdet.read import catalog
from hpcdet.schedulers.common import processes
from hpcdet.store.decisions import lease, wakeup
from hpcdet.store.folder import home, log_streams
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed
from hpcdet.store.fs import beat_age, files

STOP_LIMIT_S = 120.0
VISITS = 4
"""Turns of ``once`` at most."""
FRESH_S = 300.0
"""A holder of the lease that lives has beaten since, unless a term lasts longer."""
_SLOWEST_S = 60.0


def run(
    paths: ExperimentPaths,
    kind: str = "daemon",
    on_turn: Callable[[controller.Turn], None] = lambda _: None,
    until: Callable[[], bool] = lambda: False,
    holder: Holder | None = None,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Turn the crank until the experiment is over; TERM and INT end it and free the lease.

    Args:
        on_turn: sees every turn, for progress and logs.
        until: called between turns; True ends the loop.
        holder: an existing one to use.
        ready: called once signals are handled.

    Returns:
        0 if the experiment is over, 130 after INT, 143 after TERM.
    """
    holder = holder or Holder.open(paths, kind)
    pause = interval(holder.hands.site.limits.poll_min_s, holder.hands.site.lease_ttl_s)
    with _signals() as heard:
        try:
            ready()
            while not heard:
                turn = _turn(paths, holder)
                if turn is not None:
                    on_turn(turn)
                    if turn.closed:
                        return 0
                if until():
                    return 0
                # many daemons of one user shall not ask in step
                _wait(paths, heard, pause * random.uniform(0.8, 1.2))
        finally:
            holder.close()
    return 128 + heard[0]


def once(paths: ExperimentPaths, say: Callable[[controller.Turn], None] = lambda _: None) -> bool:
    """Turn the crank as often as one visit needs, for cron and scrontab; False if others do.

    A live holder keeps the lease; that of a dead one has to expire first. A worker is taken to be
    lost only after two different answers of the scheduler.
    """
    holder = Holder.open(paths, "once")
    limits, ttl_s = holder.hands.site.limits, holder.hands.site.lease_ttl_s
    until = time.monotonic() + ttl_s + interval(limits.poll_min_s, ttl_s)
    before = lease.last(paths)
    left = VISITS
    try:
        while True:
            turn = controller.advance(paths, holder)
            say(turn)
            if turn.closed:
                _settle(paths)
                return True
            left -= turn.held
            if turn.held and (not left or not holder.watch.suspects):
                return True
            if not turn.held and (lease.last(paths) != before or time.monotonic() > until):
                return False
            wake = time.monotonic() + (max(0.2, limits.poll_min_s) if turn.held else 0.2)
            while (rest := wake - time.monotonic()) > 0:
                time.sleep(min(rest, ttl_s / 5))
                if turn.held:
                    holder.lease.beat()
    finally:
        holder.close()


def _settle(paths: ExperimentPaths) -> None:
    """Do what is left to do once the experiment is over."""
    accounting.settle(paths)
    store_copies.settle(paths)
    catalog.leave_row(paths)


def interval(poll_min_s: float, lease_ttl_s: float) -> float:
    """Return the seconds between turns, which are more frequent than queries of the scheduler."""
    return max(0.2, min(poll_min_s / 4, lease_ttl_s / 10, _SLOWEST_S))


def main(
    paths: ExperimentPaths, holder: Holder | None = None, ready: Callable[[], None] = lambda: None
) -> int:
    """Call ``run`` and print a line per action, which ``start`` directs to ``searcher.log``.

    Args:
        ready: called once others can see that it runs, and end it.
    """

    def say(turn: controller.Turn) -> None:
        for action in turn.actions:
            print(files.now(), action, flush=True)

    print(files.now(), f"searcher of {paths.id}, pid {os.getpid()}", flush=True)
    with daemon_registry.tell(paths):
        code = run(paths, on_turn=say, holder=holder, ready=ready)
    _settle(paths)
    print(files.now(), f"searcher ends with {code}", flush=True)
    return code


def start(paths: ExperimentPaths) -> int:
    """Start a daemon that outlives this process; returns its pid once it runs.

    Raises:
        UsageError: the experiment is over, or a daemon of it runs already; or it is a copy.
        StillPending: it did not come up; ``searcher.log`` says why.
    """
    if (closed := Closed.read(paths.closed)) is not None:
        raise UsageError(
            f"nothing is left to decide: the experiment is {closed.state}", where=paths.id
        )
    home.refuse_copy(paths)
    said = status(paths)
    if said["kind"] == "daemon" and said["held"]:
        raise _runs_already(paths, said["host"], said["pid"])
    if said["waits"]:
        aside = "; it stands by while another decides"
        raise _runs_already(paths, socket.gethostname(), said["waits"], aside)
    ready, tell = os.pipe()
    with files.append_log(paths.searcher_log) as log:
        process = subprocess.Popen(
            [sys.executable, "-Pm", "hpcdet.control.daemon", str(paths.root), str(tell)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[tell],
        )
    os.close(tell)
    with os.fdopen(ready, "rb") as pipe:
        if pipe.read(1) != b"+":
            code = process.wait()
            raise StillPending(
                f"the searcher ended at once with {code}", where=str(paths.searcher_log)
            )
    return process.pid


def stop(paths: ExperimentPaths) -> bool:
    """End the daemon of this experiment on this host and wait for it; False if there is none.

    Raises:
        UsageError: one runs on another host; if one stood by on this host, it has been ended.
            Or this is a copy of another experiment, whose searcher is not its own.
        StillPending: it did not end in time.
    """
    home.refuse_copy(paths)
    there = daemon_registry.here(paths)
    if there is not None:
        _end(paths, there.pid, lambda: there.lives)
    said = status(paths)
    if said["kind"] != "daemon" or not said["held"]:
        return there is not None
    if said["host"] != socket.gethostname():
        raise UsageError(
            "the searcher runs on another host",
            where=said["host"],
            hint=f"there: kill {said['pid']}",
        )
    _end(paths, said["pid"], lambda: _holds(status(paths), said["term"]))
    return True


def status(paths: ExperimentPaths) -> dict[str, Any]:
    """Return the lease's holder, ``term, kind, host, pid, held, age_s``, and who ``waits`` for it.

    ``held`` is false once the term was released, or has not been heard of for ``FRESH_S``, or as
    long as the lease lasts if that is more; on its own host a dead process is seen at once.
    ``waits`` is the process of a daemon on this host while others decide, else 0; ``perhaps`` are
    daemons that began to wait on other hosts, each with ``host``, ``pid`` and ``at``: whether they
    still live cannot be seen from here.
    """
    there, newest = daemon_registry.here(paths), lease.last(paths)
    waits = there.pid if there is not None else 0
    others = [
        {"host": host, "pid": one.pid, "at": one.at}
        for host, one in daemon_registry.elsewhere(paths).items()
    ]
    if newest is None:
        nobody = {"term": 0, "kind": "", "host": "", "pid": 0, "held": False, "age_s": None}
        return {**nobody, "waits": waits, "perhaps": others}
    term, beat = newest
    age = beat_age.age_s(lease.beat_path(paths, term.number))
    age_s = None if age is None else round(age, 1)
    at_home = term.host == socket.gethostname()
    held = beat is None or not beat.released
    if held and not (at_home and term.pid == waits):
        # its number may be another process's by now, which must not be struck for it
        held = (age_s or 0.0) <= FRESH_S or (age_s or 0.0) <= _lease_ttl_s(paths)
        held = held and not (at_home and processes.started(term.pid) is None)
    return {
        "term": term.number,
        "kind": term.kind,
        "host": term.host,
        "pid": term.pid,
        "held": held,
        "age_s": age_s,
        "waits": 0 if held and at_home and term.pid == waits else waits,
        "perhaps": [
            one for one in others if not held or (one["host"], one["pid"]) != (term.host, term.pid)
        ],
    }


def _lease_ttl_s(paths: ExperimentPaths) -> float:
    """Seconds that a term lasts without a beat; 0 where the site cannot be read."""
    from hpcdet.site_files.load_site import from_resolved

    with contextlib.suppress(HpcdetError, OSError):
        return from_resolved(paths.site).lease_ttl_s
    return 0.0


def _holds(said: dict[str, Any], term: int) -> bool:
    return bool(said["held"]) and said["term"] == term


def _end(paths: ExperimentPaths, pid: int, lives: Callable[[], bool]) -> None:
    """End a process of this host and wait for it. Raises StillPending."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    limit = time.monotonic() + STOP_LIMIT_S
    while lives():
        if time.monotonic() > limit:
            raise StillPending(f"the searcher does not end, pid {pid}", where=paths.id)
        time.sleep(0.05)


def _runs_already(paths: ExperimentPaths, host: str, pid: int, aside: str = "") -> UsageError:
    return UsageError(f"a searcher runs already on {host}, pid {pid}{aside}", where=paths.id)


def _turn(paths: ExperimentPaths, holder: Holder) -> controller.Turn | None:
    """Make a turn; on an error of the file system print it and return None, to try again later."""
    try:
        return controller.advance(paths, holder, everything=False)
    except OSError as error:
        print(files.now(), f"turn failed: {error}", file=sys.stderr, flush=True)
        return None


def _wait(paths: ExperimentPaths, heard: list[int], seconds: float) -> None:
    """Wait for a signal, a nudge to turn now, or the time limit."""
    limit = time.monotonic() + seconds
    look_at = time.monotonic() + wakeup.EVERY_S
    while not heard and (left := limit - time.monotonic()) > 0:
        if time.monotonic() >= look_at:
            if wakeup.take(paths):
                return
            look_at = time.monotonic() + wakeup.EVERY_S
        time.sleep(min(left, 0.2))


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the numbers of TERM and INT as they arrive, if this is the main thread."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def hear(number: int, _: object) -> None:
        heard.append(number)

    former = {n: signal.signal(n, hear) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield heard
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _detached(argv: list[str]) -> int:
    """Run ``python -m hpcdet.control.daemon EXP FD``: write ``+`` to FD once the daemon is up."""
    paths, fd = ExperimentPaths(Path(argv[0])), int(argv[1])
    holder = Holder.open(paths, "daemon")  # raises what would make the daemon useless

    def ready() -> None:
        os.write(fd, b"+")
        os.close(fd)

    return main(paths, holder, ready)


if __name__ == "__main__":
    log_streams.lose_what_does_not_fit()
    sys.exit(_detached(sys.argv[1:]))
