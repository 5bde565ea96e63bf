"""``python -m hpcdet.worker.handover EXP --submission N --index I --restart R --code RC``.

The batch script runs it when its worker has exited with an error, or was killed, and its task is
not requeued: no other process may be left to notice. It records the worker's end, and turns the
crank until a replacement is submitted, or another process lives that will submit one.
"""

from __future__ import annotations

import dataclasses
import os
import sys

from hpcdet.schedulers import opening
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.decisions import lease, wakeup
from hpcdet.store.folder import log_streams
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, End, Final, WorkerClaim, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files
from hpcdet.worker import again
from hpcdet.worker.claims import claims
from hpcdet.worker.turns.script_turns import code_of, turns
from hpcdet.worker.turns.storage_retry import START_S, insist, within


def hand_over(paths: ExperimentPaths, worker: WorkerPaths, code: int) -> str:
    """Ensure that the experiment goes on without this task; return the outcome as a message.

    Raises:
        OSError, HpcdetError: the storage is unavailable, and stays so.
    """
    left_s = within(START_S)
    if insist(lambda: Closed.read(paths.closed), left_s) is not None:
        return "the experiment is over"
    site = insist(lambda: from_resolved(paths.site), left_s)
    inside = opening.of(site).inside
    granted = dataclasses.replace(inside.allocation(os.environ, None), restart=worker.incarnation)
    if not inside.stands(granted):
        return "the scheduler ends this task itself"
    claim = insist(lambda: WorkerClaim.read(worker.claim), left_s)
    if claim is not None and claim.job != granted.job:
        return f"the place is that of job {claim.job}"
    insist(lambda: bury(paths, worker, code), left_s)
    submits = site.capabilities.submit_from_compute
    before = insist(lambda: lease.last(paths), left_s)
    said = "no job could be submitted; the job behind this one, or its user, has to continue"
    for turn in turns(paths, "script"):
        for action in turn.actions:
            print(action, flush=True)
        if turn.closed:
            return "the experiment is over"
        if turn.held and turn.state in ("PAUSED", "STOPPING"):
            return f"the experiment is {turn.state}"
        if turn.held and not turn.blind and not (turn.lacking and submits):
            return said if turn.lacking else "others go on"
        if not turn.held and lease.attended(paths, before):
            return "another process decides"
    return said


def bury(paths: ExperimentPaths, worker: WorkerPaths, code: int) -> None:
    """Record that a worker has ended and that its task is not requeued; safe to repeat."""
    for attempt in again.noted(paths, worker):
        if End.read(attempt.end) is None:
            claims.close_lost(attempt, worker.name)
            wakeup.tell(paths, attempt.trial, "attempt")
    WorkerEnd("lost", closed_by="its batch script", at=files.now()).write_once(worker.end)
    Final(code, files.now()).write_once(worker.final)


def main(argv: list[str]) -> int:
    """Return 0 or the error's exit code; the batch script itself exits with its worker's code."""
    task = again.task("hpcdet.worker.handover", argv)
    return code_of(lambda: print(f"handed over: {hand_over(*task)}"))


if __name__ == "__main__":
    log_streams.lose_what_does_not_fit()
    sys.exit(main(sys.argv[1:]))
