"""Copies to the experiment's object store, made by a process beside the turns.

A turn starts that process and looks whether it has ended; it never waits for it. What cannot be
copied, as where no network or no credential is, waits for a later round, by this holder of the
lease or the next one.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hpcdet.control.leader import daemon_registry
from hpcdet.control.leader.leader import Holder
from hpcdet.errors import HpcdetError
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed
from hpcdet.store.fs import files
from hpcdet.store.objects import copy_records
from hpcdet.store.objects.copy_records import CopyRecords, CopyState

EVERY_S = 60.0
"""Seconds between two rounds; after a failure twice as many each time, up to ``SELDOM_S``."""
SELDOM_S = 3600.0
LOOK_S = 600.0
"""A round is made so often though nothing was decided: checkpoints may have come by time."""
SHARE = 20
"""A round begins no sooner than so many times the length of the last one after that."""
STALLED_S = 900.0
"""A process that says nothing for so long is ended."""
END_S = 600.0
"""The most seconds that the last copies may take once the experiment is over."""
_KEY = ("store copies",)


@dataclass
class CopyProcess:
    """A process that makes one round."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]
    errors: IO[bytes]
    began: float
    heard: tuple[int, float]

    @classmethod
    def start(cls, paths: ExperimentPaths, python: str, *options: str | Path) -> CopyProcess:
        """Start it, with options of ``python -m hpcdet.checkpoint store``. Raises OSError."""
        command = [python, "-Pm", "hpcdet.checkpoint", "store", paths.root, "--beside", *options]
        said, errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - see ``end``
        now = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=errors)
        return cls(process, said, errors, now, (0, now))

    def over(self) -> bool:
        """True once it has ended; it is ended here where it has stalled."""
        now, size = time.monotonic(), self.said.seek(0, 2)
        if size != self.heard[0]:
            self.heard = (size, now)
        elif now - self.heard[1] > STALLED_S:
            self.process.kill()
        return self.process.poll() is not None

    def result(self) -> dict[str, Any]:
        """Return ``copied dropped waiting why`` of a process that has ended."""
        last: dict[str, Any] = {}
        self.said.seek(0)
        for line in self.said:
            with contextlib.suppress(ValueError):
                last = json.loads(line)
        if "failed" in last:
            said = last["failed"]
            what = f"{said['where']}: {said['what']}" if said["where"] else said["what"]
            return {"waiting": ["all"], "why": "; ".join(filter(None, (what, said["hint"])))}
        if "waiting" in last:
            return last
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"it ended with {self.process.returncode}"
        return {"waiting": ["all"], "why": f"the process that copies failed: {why}"[:400]}

    def end(self) -> None:
        """End it, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.said, self.errors):
            if file is not None:
                file.close()


@dataclass
class Copying:
    """The copying of a holder in one term.

    Attributes:
        next: no round begins before, by the clock.
        seen: what had been decided when the last one began.
        tries: failed rounds in a row.
        state: as recorded.
    """

    next: float = 0.0
    seen: object = None
    looked: float = field(default_factory=time.monotonic)
    tries: int = 0
    running: CopyProcess | None = None
    state: CopyState = field(default_factory=CopyState)


def tend(holder: Holder) -> None:
    """Record what a process has done that has ended; start the next one if one is due."""
    if not holder.resolved.checkpoint_storage.remote or holder.paths.rehearsal:
        return
    copying = holder.written.get(_KEY)
    if copying is None:
        state = copy_records.state(holder.paths)
        copying = holder.written[_KEY] = Copying(state=state)
    now = time.monotonic()
    if copying.running is not None:
        if not copying.running.over():
            return
        process, copying.running = copying.running, None
        holder.beside.pop_all()
        result = process.result()
        process.end()
        copying.state = _record(holder, copying.state, result)
        copying.tries = copying.tries + 1 if result["why"] else 0
        pause = min(EVERY_S * 2**copying.tries, SELDOM_S)
        copying.next = now + max(pause, SHARE * (now - process.began))
        return
    point = holder.log.chain.point
    due = point != copying.seen or copying.tries or now - copying.looked >= LOOK_S
    if not due or now < copying.next:
        return
    copying.seen, copying.looked = point, now
    python = holder.hands.site.python or sys.executable
    try:
        copying.running = CopyProcess.start(holder.paths, python, "--term", str(holder.lease.term))
    except OSError as error:
        copying.state = _record(holder, copying.state, {"waiting": ["all"], "why": str(error)})
        copying.tries += 1
        copying.next = now + SELDOM_S
    else:
        holder.beside.callback(copying.running.end)


def should_lend(holder: Holder) -> bool:
    """True if this holder cannot copy, and a daemon elsewhere may be able to."""
    copying = holder.written.get(_KEY)
    if copying is None or copying.tries < 2 or holder.kind == "daemon":
        return False
    there = daemon_registry.elsewhere(holder.paths) or daemon_registry.here(holder.paths)
    return bool(there)


def settle(
    paths: ExperimentPaths, stop: Callable[[], bool] = lambda: False, limit_s: float = END_S
) -> str:
    """Make the last copies of an experiment that is over, and that of its report.

    Best effort, and for ``limit_s`` at most; what remains is copied by ``hpcdet ckpt archive ID``.

    Args:
        stop: asked all the time; once it is True, the process is ended.

    Returns:
        Why something waits; "" if nothing does.
    """
    if Closed.read(paths.closed) is None or paths.rehearsal:
        return ""
    try:
        if not resolved_config.load(paths.config).checkpoint_storage.remote:
            return ""
        python = from_resolved(paths.site).python or sys.executable
        result = _round(paths, python, stop, limit_s)
    except (HpcdetError, OSError) as error:
        result = {"waiting": ["all"], "why": str(error)}
    with contextlib.suppress(OSError):
        _write(paths, result)
    return str(result["why"])


def by_hand(paths: ExperimentPaths, python: str) -> dict[str, Any]:
    """Copy what waits, and the report, at a user's wish; return ``copied dropped waiting why``.

    Nothing is removed while the experiment is open: a holder of the lease may be at it.

    Raises:
        HpcdetError: the report cannot be made.
        OSError: the process cannot be started, or the records cannot be written.
    """
    options = [] if Closed.read(paths.closed) is not None else ["--only-add"]
    result = _round(paths, python, options=options)
    _write(paths, result)
    return result


def _round(
    paths: ExperimentPaths,
    python: str,
    stop: Callable[[], bool] = lambda: False,
    limit_s: float = math.inf,
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Make a round with the report, and wait for it."""
    from hpcdet.read import report

    until = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory(prefix="hpcdet-report-") as folder:
        page = report.write(paths, Path(folder, "report.html"))
        process = CopyProcess.start(paths, python, "--report", page, *options)
        try:
            while not process.over():
                if stop() or time.monotonic() > until:
                    why = "no time was left for the last copies: hpcdet ckpt archive makes them"
                    return {"waiting": ["all"], "why": why}
                time.sleep(0.1)
            return process.result()
        finally:
            process.end()


def _record(holder: Holder, before: CopyState, result: dict[str, Any]) -> CopyState:
    """Record what a round has done, and tell its reason once."""
    copied, dropped = result.get("copied", []), result.get("dropped", [])
    if copied or dropped or result["why"] != before.why:
        known = {"copied": copied, "dropped": dropped, "waiting": result["waiting"]}
        holder.record("stored", **known, why=result["why"])
        if copied:
            holder.actions.append(f"copied to the object store: {', '.join(copied)}")
        if result["why"]:
            holder.actions.append(f"not copied to the object store: {result['why']}")
    holder.fence()
    return _write(holder.paths, result)


def _write(paths: ExperimentPaths, result: dict[str, Any]) -> CopyState:
    records, host = CopyRecords.of(paths), socket.gethostname()
    state = CopyState(result["why"], list(result["waiting"]), host, files.now())
    files.make_folder(records.root)
    files.replace(records.state, state.encode())
    return state
